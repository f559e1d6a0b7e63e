"""The load client and its worker against servers that never end, drip, bomb and nest: small, in time, and explained."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hostile_server import CHAT, EVERY_PATH, hostile
from load_runs import measure, rows, run_fixture  # noqa: F401

from vlmconsole.measure.client.framing import Framing, Mode
from vlmconsole.runs.folder import RunFolder
from vlmconsole.system.machine import peak_rss_bytes

LIMIT_MB = 300
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
#: how a chunked body may end, by the RFC or by servers that there are
ENDINGS = {
    "plain": HEAD + CHUNK + b"0\r\n\r\n",
    "trailer": HEAD + CHUNK + b"0\r\nX-Trailer: 1\r\n\r\n",
    "many trailers": HEAD + CHUNK + b"0\r\n" + b"X-T: abc\r\n" * 40 + b"\r\n",
    "folded zeros": HEAD + CHUNK + b"000\r\n\r\n",
    "sixteen zeros": HEAD + CHUNK + b"0" * 16 + b"\r\n\r\n",
    "extension": HEAD + CHUNK + b"0;name=value\r\n\r\n",
    "quoted extension": HEAD + CHUNK.replace(b"\r\n", b';a="b"\r\n', 1) + b'0;q="x;y"\r\n\r\n',
    "space behind the size": HEAD + CHUNK.replace(b"\r\n", b" \r\n", 1) + b"0 \r\n\r\n",
    "upper case": HEAD + CHUNK.replace(b"%x" % len(EVENT), b"%X" % len(EVENT)) + b"0\r\n\r\n",
    "bare line feeds": HEAD + CHUNK[:-2] + b"\n0\n\n",
    "all bare": HEAD.replace(b"\r\n", b"\n") + b"%x\n%s\n" % (len(EVENT), EVENT) + b"0\n\n",
    "bare, with zeros and extension": HEAD + CHUNK[:-2] + b"\n00;x=1\n\n",
    "interim first": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + CHUNK + b"0\r\n\r\n",
}
#: what looks like an end and is none
NO_ENDINGS = {
    "in the data": HEAD + b"40\r\n" + b"data: x\n\n0\n\n",
    "a size of 0x10": HEAD + CHUNK + b"10\r\n",
    "half a trailer": HEAD + CHUNK + b"0\r\nX-Trailer: 1\r\n",
    "half the last line": HEAD + CHUNK + b"0\r\n\r",
}


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
def test_the_end_of_a_body_is_seen_however_it_is_written_and_cut(name: str, size: int) -> None:
    data, bodies = ENDINGS[name], bytearray()
    framing = Framing(bodies.extend)
    ended = [framing.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert ended[-1] and not any(ended[:-1])
    assert framing.status == 200 and framing.mode is Mode.CHUNKED
    assert bytes(bodies) == EVENT


@pytest.mark.parametrize("name", NO_ENDINGS)
@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_what_is_no_end_is_none(name: str, size: int) -> None:
    data, framing = NO_ENDINGS[name], Framing()
    assert not any(framing.feed(data[at : at + size]) for at in range(0, len(data), size))


def test_heads_and_interim_responses_have_a_limit() -> None:
    for data in (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, b"HTTP/1.1 100 C\r\n\r\n" * 5_000):
        framing = Framing()
        assert framing.feed(data)
        assert framing.mode is Mode.GARBAGE and framing.broken


@pytest.fixture(scope="module")
def endings() -> Iterator[str]:
    """A server on which /NAME answers with an ending of that name (spaces as _), and leaves the connection open."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def talk(sock: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            while piece := sock.recv(65536):
                data += piece
                head, blank, body = data.partition(b"\r\n\r\n")
                if not blank or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
                    continue
                data = b""
                sock.sendall(ENDINGS[head.split(b"/")[1].decode().replace("_", " ")])

    def accept() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                opened.append(sock)
                threading.Thread(target=talk, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    for sock in (listener, *opened):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


@pytest.mark.parametrize("name", ["trailer", "folded zeros", "all bare", "interim first"])
def test_bench_waits_for_no_end_that_has_come(endings: str, run: RunFolder, name: str) -> None:
    begun = time.monotonic()
    summary = measure(run, f"{endings}/{name.replace(' ', '_')}", 4, concurrency=2, stall_timeout_s=60)
    assert (summary.n, summary.failures) == (4, 0), summary.first_failures
    assert time.monotonic() - begun < 30
    assert any(row["served_before"] for row in rows(run))  # the connection is as good as before


# -- hostile servers -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with hostile() as url:
        yield url


class Peak(threading.Thread):
    """The largest peak memory of the workers of one lab home and of their children (load clients), in MiB."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.peak, self.over = str(home), 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            with suppress(psutil.Error):
                for process in psutil.process_iter(["cmdline"]):
                    words = process.info["cmdline"] or []
                    if "vlmconsole.jobs.worker" in words and any(self.home in word for word in words):
                        for one in (process, *process.children(recursive=True)):
                            self.peak = max(self.peak, peak_rss_bytes(one.pid) / 1024**2)


def bench(home: Path, url: str, *words: str) -> tuple[str, float, float]:
    """(what it said, seconds, peak MiB of the worker or its load client, whichever had more)."""
    env = {**os.environ, "VLMCONSOLE_HOME": str(home)}
    limits = ["--set", "total_timeout_s=4", "--set", "stall_timeout_s=3"]
    command = [sys.executable, "-P", "-m", "vlmconsole", "bench", "--base-url", url, "--model", "m", "--warm-up", "0"]
    begun, watched = time.monotonic(), Peak(home)
    watched.start()
    done = subprocess.run([*command, *limits, *words], capture_output=True, text=True, env=env, timeout=300)
    watched.over.set()
    watched.join()
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr, time.monotonic() - begun, watched.peak


def failures(home: Path) -> list[str]:
    found = []
    for path in home.rglob("requests.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            found.append(f"{row['failure']['kind']}: {row['failure']['detail']}" if row["failure"] else "")
    return found


@pytest.mark.parametrize("manner", ["chat-endless-body"])
def test_an_endless_answer_is_given_up(server: str, tmp_path: Path, manner: str) -> None:
    _, seconds, peak = bench(tmp_path, f"{server}/{manner}", "-n", "2", "-c", "2", "--output-tokens", "8")
    assert 0 < peak < LIMIT_MB and seconds < 60
    assert len(failures(tmp_path)) == 2 and all("too large" in failure for failure in failures(tmp_path))


ALL = [*sorted(EVERY_PATH), *(f"chat-{name}" for name in sorted(EVERY_PATH))]


@pytest.mark.slow
@pytest.mark.parametrize("manner", [*ALL, *(manner.__name__.replace("_", "-") for manner in CHAT)])
def test_no_server_fills_or_holds_bench(server: str, tmp_path: Path, manner: str) -> None:
    said, seconds, peak = bench(tmp_path, f"{server}/{manner}", "-n", "24", "-c", "8")
    kinds = dict.fromkeys(failures(tmp_path)) or {" ".join(said.split())[-160:]: None}
    print(f"| bench | {manner} | {peak:.0f} | {seconds:.1f} | {' / '.join(kinds)[:200]} |")
    assert 0 < peak < LIMIT_MB
    assert seconds < 120
    assert said.strip()
