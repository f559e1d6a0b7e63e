"""A key that a server repeats reaches no disk and no screen, whatever layer wrote it and wherever it stands."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from echoing_server import FORMS, echoing

from vlmconsole.jobs import owned_server
from vlmconsole.jobs.contract import Context
from vlmconsole.runs.events import json_line
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.system.redaction import (
    MARK,
    RedactedStream,
    StreamRedactor,
    redact,
    redacted,
    redacted_bytes,
    remember,
    without_keys,
)

KEY = "qz7-Kt/4+pL~93_wXe"  # with signs that layers encode
remember(KEY)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with echoing() as url:
        yield url


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_hidden_in_every_form(form: str) -> None:
    written = FORMS[form](KEY)
    for text in (f"key {written}!", written, f"{written}{written}", f"a%20b \\n {written} &amp;"):
        hidden = without_keys(text)
        assert written not in hidden and MARK in hidden, hidden


@pytest.mark.parametrize(
    "written",
    [
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.b64encode(f"me:{KEY}:x".encode()).decode(),
        base64.urlsafe_b64encode(f"us:{KEY}".encode()).decode(),
        KEY.replace("/", "\\/"),
        json.dumps({"a": KEY}),
        KEY.replace("/", "%2F").replace("+", "%2b"),
        KEY.replace("/", "%252F"),
        KEY.encode().hex().upper(),
        "".join(f"\\u{ord(char):04X}" if at % 2 else char for at, char in enumerate(KEY)),
        "".join(f"&#x{ord(char):x};" if at % 3 else char for at, char in enumerate(KEY)),
    ],
)
def test_further_forms(written: str) -> None:
    hidden = without_keys(f"x{written}y")
    assert MARK in hidden
    core = base64.b64encode(KEY.encode()).decode()[4:16]
    assert KEY not in hidden and core not in hidden


def test_what_is_no_key_stays() -> None:
    for text in ("the bearer of news", "qz7-Kt", "sk-i lift", "100 % &amp; \\n", "", "answer sk-not-an-error"):
        assert without_keys(text) == text
    assert redact("the Bearer abc.def and sk-abcdef123") == f"the Bearer {MARK} and {MARK}"
    assert redact("secret", "secret") == MARK
    assert redact("secrets secret", "secret") == f"secrets {MARK}"  # a short key counts only by itself
    assert redact("abc", "abc") == "abc"


def test_values_lines_and_bytes() -> None:
    remember("1234567890")
    value = {KEY: [KEY, 1, None, {"b": f"x{KEY}"}], "n": 1234567890, "t": (KEY,)}
    assert redacted(value) == {MARK: [MARK, 1, None, {"b": f"x{MARK}"}], "n": 1234567890, "t": [MARK]}
    assert json.loads(json_line(value))["n"] == 1234567890
    assert redacted_bytes(b"\xff" + KEY.encode() + b"\xfe") == b"\xff" + MARK.encode() + b"\xfe"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_key_that_comes_in_pieces(size: int) -> None:
    text = f"It is {KEY}, or {FORMS['base64'](KEY)}; qz7-K is none. {KEY[:-1]}"
    stream, parts = StreamRedactor(), []
    for at in range(0, len(text), size):
        parts.append(stream.feed(text[at : at + size]))
        assert KEY not in "".join(parts) and KEY[:9] not in "".join(parts)
    parts.append(stream.finish())
    assert "".join(parts) == without_keys(text)


def test_printing_hides_it(capsys: pytest.CaptureFixture[str]) -> None:
    print(f"got {KEY}", file=RedactedStream(sys.stdout))  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"got {MARK}\n"


@pytest.mark.parametrize("line", [f"GET / Bearer {KEY}", f"{FORMS['base64'](KEY)} x", f"\xff {FORMS['percent'](KEY)}"])
def test_a_server_s_log_comes_into_a_run_without_it(tmp_path: Path, line: str) -> None:
    places = Places(tmp_path).ensure()
    run = RunFolder.create(places.runs, kind="sweep", preset="p", spec={}, title="t", home=tmp_path)
    log = processes.folder(places) / "box.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"first\n{line}\nlast", "latin-1")
    for _ in range(2):  # a second start of the server is appended
        owned_server._keep_log(Context(run, places), log, "b4", moved=False)
    kept = run.file("server-b4.log").read_text("latin-1")
    assert kept.count("first\n") == kept.count("last") == 2
    assert KEY not in kept and line not in kept


def test_a_job_s_log_and_events_have_it_not(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="sweep", preset="p", spec={}, title="t", home=tmp_path)
    run.events.note(f"the server says {KEY}", "warning")
    run.set_state("failed", f"401: {KEY}")
    run.write_json("summary.json", {"first_failures": [f"x {KEY}"]})
    assert not [path for path in run.path.iterdir() if KEY in path.read_text("utf-8")]


# -- surfaces ------------------------------------------------------------------------------------------------------


def ran(home: Path, *words: str) -> str:
    """Everything that a command printed."""
    env = {**os.environ, "VLMCONSOLE_HOME": str(home), "ECHO_KEY": KEY}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "vlmconsole", *words], capture_output=True, text=True, env=env, timeout=120
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def leaks(home: Path, printed: str, written: str) -> list[str]:
    """Where the key, or the way it was written, can be read: files of the lab home, and what was printed."""
    needles = [KEY.encode(), written.encode(), json.dumps(written)[1:-1].encode()]
    places = [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]
    return places + [line for line in printed.splitlines() if any(needle.decode() in line for needle in needles)]


def profile(home: Path, url: str, engine: str) -> None:
    (home / "servers").mkdir(parents=True)
    text = f'engine = "{engine}"\nbase_url = "{url}"\napi_key_env = "ECHO_KEY"\nserved_model = "m"\n'
    (home / "servers" / "echo.toml").write_text(text)


@pytest.mark.parametrize("way", ["error", "event-base64", "answer"])
def test_bench_keeps_no_key(server: str, tmp_path: Path, way: str) -> None:
    home = tmp_path / "home"
    profile(home, f"{server}/{way}", "openai")
    printed = ran(home, "bench", "--server", "echo", "-n", "2", "--warm-up", "0")
    assert leaks(home, printed, FORMS[way.partition("-")[2] or "plain"](KEY)) == []
    assert MARK in "".join(path.read_text("utf-8") for path in home.rglob("requests.jsonl"))


WAYS = [
    *("page", "reasoning", "model", "metrics", "settings", "usage"),
    *(f"{where}-{form}" for where in ("error", "event", "answer") for form in FORMS),
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_surface_keeps_or_shows_a_key(server: str, tmp_path: Path, way: str) -> None:
    home = tmp_path / "home"
    profile(home, f"{server}/{way}", "sglang" if way in ("metrics", "settings") else "openai")
    bench = ran(home, "bench", "--server", "echo", "-n", "2", "--warm-up", "0")
    printed = "".join(
        (
            bench,
            ran(home, "servers", "show", "echo"),
            ran(home, "servers", "show", "echo", "--json"),
            ran(home, "gauges", "--once", "--server", "echo", "--record", str(home / "gauges.jsonl")),
            ran(home, "chat", "Hello", "--server", "echo"),
            ran(home, "chat", "Hello", "--server", "echo", "--json"),
            ran(home, "runs", "show", "last"),
            ran(home, "runs", "show", "last", "--json"),
            ran(home, "runs", "export", "last", "--html", str(home / "report.html")),
        )
    )
    assert leaks(home, printed, FORMS[way.partition("-")[2] or "plain"](KEY)) == []
