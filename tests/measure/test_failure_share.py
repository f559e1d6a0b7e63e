"""A cell of which too many requests failed is INVALID wherever it is shown: the rest is no sample of the load."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vlmconsole.compare.runs import compare_runs
from vlmconsole.measure.bench import BenchSettings
from vlmconsole.measure.settings import FAILURE_LIMIT
from vlmconsole.measure.summary import CellSummary, Gatherer, Lag
from vlmconsole.measure.sweep import SweepSettings
from vlmconsole.measure.views import cells
from vlmconsole.runs.folder import RunFolder

EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


@contextmanager
def refusing(good: int, status: int = 503) -> Iterator[str]:
    """A server that answers `good` chat requests and refuses every later one."""
    counter = itertools.count()

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send(200, b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            fine = next(counter) < good
            self.send(200 if fine else status, EVENTS if fine else b'{"error": {"message": "queue full"}}')

        def send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def summary(planned: int, failed: dict[str, int], limit: float = FAILURE_LIMIT) -> CellSummary:
    gathered = Gatherer(None, False)
    gathered.measured = planned
    gathered.times["e2e"] = [1.0] * (planned - sum(failed.values()))
    for kind, count in failed.items():
        for _ in range(count):
            gathered.add_failure(kind, kind)
    lag = Lag(probe=None, kernel=None)
    return gathered.summary(
        name="c", lag=lag, lag_limit_s=1.0, client=None, server={}, broken=None, failure_limit=limit
    )


@pytest.mark.parametrize(
    ("planned", "failed", "limit", "valid"),
    [
        (24, {"http error": 20}, 0.05, False),
        (24, {"http error": 1}, 0.05, True),
        (24, {"stalled": 1, "reset": 1}, 0.05, False),
        (20, {"reset": 1}, 0.05, True),
        (12, {"reset": 1}, 0.05, False),
        (12, {"reset": 1}, 0.0, False),
        (12, {}, 0.0, True),
        (12, {"reset": 6}, 0.5, True),
        (12, {"reset": 11}, 1.0, True),
    ],
)
def test_the_share_of_failures_decides(planned: int, failed: dict[str, int], limit: float, valid: bool) -> None:
    found = summary(planned, failed, limit)
    assert found.valid is valid
    if not valid:
        assert found.invalid_because is not None
        assert f"{sum(failed.values())} of {planned}" in found.invalid_because
        assert all(kind in found.invalid_because for kind in failed)


def test_the_default_is_in_no_settings_that_were_written_before() -> None:
    assert "failure_limit" not in BenchSettings().model_dump(mode="json")
    assert BenchSettings(failure_limit=0.2).model_dump(mode="json")["failure_limit"] == 0.2
    sweep = SweepSettings(grid={"concurrency": [1, 2]})
    assert "failure_limit" not in sweep.model_dump(mode="json")
    sweep = SweepSettings(grid={"concurrency": [1, 2]}, failure_limit=0.5)
    assert [cell.settings.failure_limit for cell in sweep.expand()] == [0.5, 0.5]


def ran(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "VLMCONSOLE_HOME": str(home)}
    command = [sys.executable, "-P", "-m", "vlmconsole", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_twenty_of_twenty_four_refused(tmp_path: Path) -> None:
    with refusing(4) as url:
        words = ("--base-url", url, "--model", "m", "-n", "24", "--warm-up", "0", "--set", "lag_limit_ms=10000")
        done = ran(tmp_path, "bench", *words)
    assert "INVALID" in done.stdout and "20 of 24" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    (cell,) = cells(RunFolder(run))
    assert cell.state == "invalid" and "20 of 24" in cell.why
    verdict, _ = compare_runs(RunFolder(run), RunFolder(run))
    assert not verdict.comparable and "20 of 24" in verdict.sentence()
