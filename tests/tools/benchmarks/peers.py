"""Our load client beside aiperf and guidellm, each judged by the log of one server that knows when it wrote.

    python tests/tools/benchmarks/peers.py --aiperf VENV --guidellm VENV [--mock SCRIPT] [--json OUT]

Every measurement is one whole command, as a person would run it (ours: `vlmconsole bench`), against a server
process of its own; within a cell the clients follow each other, and each cell begins with another one. Told for
each: TTFT p50/p95 as the server wrote and as the client says, requests per second by the server's log, CPU seconds
and largest resident memory of all the client's processes, and the seconds from the command's start until its first
request had arrived. A peer whose environment is missing is said to be missing, and the others are measured.

SCRIPT is a server with the options of ours (--port --role-ms --ttft-ms --itl-ms --tokens --log) that writes a line
for each request with t_recv and t_first, seconds of the monotonic clock; without it
`vlmconsole.measure.calibration.reference`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil

from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.scoring.distribution import distribution

#: concurrency:itl ms:requests
CELLS = "1:40:3,4:40:8,32:40:64,128:40:256,1:5:10,4:5:24,32:5:128"
TOKENS, WORDS = 128, 64
SAMPLE_S = 0.2
LONGEST_S = 400.0

#: (request arrived, first text written), seconds of the monotonic clock, one entry a request
Truth = list[tuple[float, float]]


@dataclass(frozen=True)
class Work:
    """What a client is asked to do, and where it may write."""

    concurrency: int
    itl_ms: float
    requests: int
    base_url: str
    model: str
    folder: Path
    tokenizer: str


@dataclass(frozen=True)
class Said:
    """TTFT as the client reports it, ms, and what it says of its own figures."""

    p50: float
    p95: float
    n: int
    note: str = ""


@dataclass(frozen=True)
class Client:
    """A client: its version, the command of a cell, and where its figures stand afterwards."""

    name: str
    version: str
    command: Callable[[Work], list[str]]
    read: Callable[[Work, str], Said]


def ours() -> Client:
    def command(work: Work) -> list[str]:
        words = ["--base-url", work.base_url, "--model", work.model, "-c", str(work.concurrency), "--json"]
        words += ["-n", str(work.requests), "--warm-up", "0", "--output-tokens", str(TOKENS)]
        return [sys.executable, "-m", "vlmconsole", "--home", str(work.folder), "bench", *words]

    def read(work: Work, out: str) -> Said:
        summary = json.loads(out)["summary"]
        ttft = summary["ttft_s"]
        cost = summary["client"]
        note = f"{summary['invalid_because'] or 'valid'}; {cost['cpu_us_per_piece']:.0f} µs a piece"
        note += f"; sent {cost['start_s']:.2f} s after its client was asked for"
        if kernel := summary["ttft_kernel_s"]:
            note += f"; TTFT by the kernel's stamps {kernel['p50'] * 1e3:.1f} / {kernel['p95'] * 1e3:.1f} ms"
        return Said(ttft["p50"] * 1e3, ttft["p95"] * 1e3, ttft["n"], note)

    import vlmconsole

    return Client("vlmconsole", vlmconsole.__version__, command, read)


def aiperf(environment: Path) -> Client | str:
    program = environment / "bin" / "aiperf"

    def command(work: Work) -> list[str]:
        words = [
            "profile",
            "--model",
            work.model,
            "--url",
            work.base_url.removesuffix("/v1"),
            "--endpoint-type",
            "chat",
        ]
        words += ["--streaming", "--concurrency", str(work.concurrency), "--request-count", str(work.requests)]
        words += ["--synthetic-input-tokens-mean", str(WORDS), "--output-tokens-mean", str(TOKENS)]
        words += ["--tokenizer", work.tokenizer, "--artifact-dir", str(work.folder), "--ui", "none"]
        return [str(program), *words]

    def read(work: Work, out: str) -> Said:
        (report,) = work.folder.rglob("profile_export_aiperf.json")
        values = json.loads(report.read_text())
        ttft, count = values["time_to_first_token"], values["request_count"]
        return Said(ttft["p50"], ttft["p95"], int(count["avg"]))

    return _client("aiperf", environment, command, read)


def guidellm(environment: Path) -> Client | str:
    program = environment / "bin" / "guidellm"

    def command(work: Work) -> list[str]:
        words = ["run", "--backend", f"kind=openai_http,target={work.base_url.removesuffix('/v1')},model={work.model}"]
        words += ["--profile", f"kind=concurrent,streams={work.concurrency}"]
        words += ["--constraint", f"kind=max_requests,count={work.requests}"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={WORDS},output_tokens={TOKENS}"]
        words += ["--output", f"kind=json,path={work.folder / 'report.json'}", "--disable-console-interactive"]
        return [str(program), *words]

    def read(work: Work, out: str) -> Said:
        (found,) = json.loads((work.folder / "report.json").read_text())["benchmarks"]
        ttft = found["metrics"]["time_to_first_token_ms"]["successful"]
        return Said(ttft["percentiles"]["p50"], ttft["percentiles"]["p95"], ttft["count"])

    return _client("guidellm", environment, command, read)


def _client(
    name: str, environment: Path, command: Callable[[Work], list[str]], read: Callable[[Work, str], Said]
) -> Client | str:
    """The client of an environment, or why it is not there."""
    python = environment / "bin" / "python"
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    try:
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"{name}: not installed in {environment}, so it is not measured"
    return Client(name, done.stdout.strip(), command, read)


# -- the server ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reference(itl_ms: float) -> Iterator[tuple[str, str, Callable[[], Truth]]]:
    """(base URL, model, its log so far) of the project's own reference server."""
    with running(Schedule(role_ms=5, ttft_ms=50, itl_ms=itl_ms, tokens=TOKENS)) as server:
        yield (
            server.base_url,
            "reference",
            lambda: [(one["received"] / 1e9, one["first"] / 1e9) for one in server.truth() if "first" in one],
        )


@contextlib.contextmanager
def mock(script: Path, itl_ms: float) -> Iterator[tuple[str, str, Callable[[], Truth]]]:
    """The same of another server's script."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        words = ["--port", str(port), "--ttft-ms", "50", "--itl-ms", str(itl_ms), "--tokens", str(TOKENS)]
        process = subprocess.Popen([sys.executable, str(script), *words, "--log", str(log)], stdout=subprocess.DEVNULL)
        try:
            _wait_for(f"http://127.0.0.1:{port}/v1/models", process)

            def truth() -> Truth:
                rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
                return [(row["t_recv"], row["t_first"]) for row in rows if "t_first" in row]

            yield f"http://127.0.0.1:{port}/v1", "mock-model", truth
        finally:
            process.terminate()
            process.wait(10)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not start") from None
            time.sleep(0.05)


# -- one command -----------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What the command and everything it started took. CPU of a process between its last sample and its end is lost."""

    began: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    processes: int = 0
    code: int | None = None
    out: str = ""
    err: str = ""


def run(command: list[str], work: Work) -> Cost:
    """Run the command, and sample its processes and those that work in its folder (ours start a worker apart)."""
    environment = {
        **os.environ,
        "VLMCONSOLE_DEVICE_LOCKS": str(work.folder / "locks"),
        "VLMCONSOLE_SUPERVISOR_IDLE": "0.5",
        "NO_COLOR": "1",
    }
    cost, cpu = Cost(), {}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        cost.began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=work.folder)
        try:
            while process.poll() is None and time.monotonic() - cost.began < LONGEST_S:
                now = _family(process.pid, work.folder)
                cpu |= {key: seconds for key, (seconds, _) in now.items()}
                cost.rss_mb = max(cost.rss_mb, sum(rss for _, rss in now.values()) / 2**20)
                cost.processes = max(cost.processes, len(now))
                time.sleep(SAMPLE_S)
            cost.wall_s = time.monotonic() - cost.began
        finally:
            if process.poll() is None:
                for one in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        cost.out, cost.err, cost.code = out.read(), err.read(), process.returncode
    cost.cpu_s = sum(cpu.values())
    return cost


def _family(pid: int, folder: Path) -> dict[tuple[int, float], tuple[float, float]]:
    """(pid, start) → (CPU seconds, resident bytes) of the command, its descendants, and what its folder's worker is."""
    roots = [pid]
    for one in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in one.info["cmdline"] or ()):
            roots.append(one.pid)
    found = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(root)
            for one in [top, *top.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess), one.oneshot():
                    times = one.cpu_times()
                    found[one.pid, one.create_time()] = (times.user + times.system, one.memory_info().rss)
    return found


def measure(client: Client, cell: tuple[int, float, int], script: Path | None, tokenizer: str) -> dict[str, Any]:
    """One client on one cell. `failed` says why there are no figures."""
    concurrency, itl_ms, requests = cell
    found: dict[str, Any] = {"client": client.name, "concurrency": concurrency, "itl_ms": itl_ms}
    opened = reference(itl_ms) if script is None else mock(script, itl_ms)
    with opened as (base_url, model, truth), tempfile.TemporaryDirectory(prefix="peers-") as folder:
        work = Work(concurrency, itl_ms, requests, base_url, model, Path(folder), tokenizer)
        cost = run(client.command(work), work)
        seen = truth()
        found |= {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "rss_mb": cost.rss_mb, "processes": cost.processes}
        found["load"] = os.getloadavg()[0]
        server = distribution((first - read) * 1e3 for read, first in seen)
        if server is None:
            return {**found, "failed": f"no request arrived (exit {cost.code}): {_end(cost)}"}
        found["start_s"] = min(read for read, _ in seen) - cost.began
        span = max(first for _, first in seen) - min(read for read, _ in seen) + (TOKENS - 1) * itl_ms / 1e3
        found |= {"arrived": len(seen), "truth_ms": [server.p50, server.p95], "requests_per_s": len(seen) / span}
        try:
            told = client.read(work, cost.out)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {**found, "failed": f"no figures (exit {cost.code}, {error!r}): {_end(cost)}"}
        found |= {"said_ms": [told.p50, told.p95], "n": told.n, "note": told.note}
        found["error_ms"] = [told.p50 - server.p50, told.p95 - server.p95]
        return found


def _end(cost: Cost) -> str:
    """The last words of a command that failed, without the frames that some draw around them."""
    said = "".join(sign for sign in cost.err.strip() or cost.out.strip() if sign.isascii() and sign != "|")
    return " ".join(said.split())[-500:]


def line(found: dict[str, Any]) -> str:
    """One measurement as a row of a Markdown table."""
    cell = f"| {found['concurrency']} | {found['itl_ms']:g} | {found['client']} "
    if "failed" in found:
        return f"{cell}| – | – | – | – | – | – | – | failed: {found['failed']} |"
    (t50, t95), (s50, s95), (e50, e95) = found["truth_ms"], found["said_ms"], found["error_ms"]
    return (
        f"{cell}| {found['n']} | {t50:.1f} / {t95:.1f} | {s50:.1f} / {s95:.1f} | {e50:+.1f} / {e95:+.1f}"
        f" | {found['requests_per_s']:.2f} | {found['cpu_s']:.1f} | {found['rss_mb']:.0f}"
        f" | {found['start_s']:.1f} | {found['load']:.1f} | {found['note']} |"
    )


HEAD = (
    "| C | itl ms | client | n | server's TTFT p50 / p95 ms | client's | error | req/s | CPU s | RSS MiB |"
    " first request after s | load | it says itself |\n|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", type=Path, help="the virtual environment that has it")
    parser.add_argument("--guidellm", type=Path, help="the virtual environment that has it")
    parser.add_argument("--mock", type=Path, help="a server script instead of the project's own")
    parser.add_argument("--cells", default=CELLS, help="concurrency:itl ms:requests,…")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    asked = parser.parse_args()
    tokenizer = str(files("vlmconsole.assets") / "tiny-qwen2.5-vl")
    clients: list[Client] = [ours()]
    for make, environment in ((aiperf, asked.aiperf), (guidellm, asked.guidellm)):
        made = make(environment) if environment else f"{make.__name__}: no environment given, so it is not measured"
        clients.append(made) if isinstance(made, Client) else print(made)
    print(", ".join(f"{one.name} {one.version}" for one in clients), f"· {os.cpu_count()} CPUs\n")
    print(HEAD, flush=True)
    results = []
    for number, text in enumerate(asked.cells.split(",")):
        concurrency, itl, requests = text.split(":")
        turn = number % len(clients)
        for client in [*clients[turn:], *clients[:turn]]:
            results.append(measure(client, (int(concurrency), float(itl), int(requests)), asked.mock, tokenizer))
            print(line(results[-1]), flush=True)
            if asked.json:
                versions = {one.name: one.version for one in clients}
                asked.json.write_text(json.dumps({"versions": versions, "cells": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
