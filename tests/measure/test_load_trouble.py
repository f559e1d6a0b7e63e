"""The load client in trouble: failing and dying servers, a stop, a starved client, a parent that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import HELPERS
from load_runs import PATIENT, RECIPE, TOKENS, measure, rows, run_fixture, server_fixture  # noqa: F401

from vlmconsole.measure.calibration.reference import FAULTS, Reference, Schedule, running
from vlmconsole.measure.client.process import LoadError
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.runs.folder import RunFolder


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("http500", "http error", "500: asked to fail"),
        ("reset", "reset", "after 3 pieces"),
        ("cut", "closed early", "[DONE]"),
        ("event", "error event", "out of memory"),
        ("stall", "stalled", "0.5 s"),
        ("silent", "stalled", "0.5 s"),
        ("garbage", "garbage", "no HTTP answer"),
        ("page", "no stream", "Welcome!"),
    ],
)
def test_each_failure_is_counted_kept_and_explained(
    server: Reference, run: RunFolder, fault: str, kind: str, said: str
) -> None:
    summary = measure(run, server.fault_url(fault), 3, concurrency=2, stall_timeout_s=0.5)
    assert (summary.n, summary.failures, summary.failure_kinds) == (0, 3, {kind: 3})
    assert summary.ttft_s is None  # failed requests are in no latency
    assert not summary.valid
    for row in rows(run):
        assert row["failure"]["kind"] == kind
        assert said in row["failure"]["detail"]
        assert not row["counted"]
    assert fault in FAULTS


def test_a_server_that_closes_after_each_answer_is_measured_on_fresh_connections(
    server: Reference, run: RunFolder
) -> None:
    summary = measure(run, server.fault_url("close"), 6, concurrency=2)
    assert (summary.n, summary.failures) == (6, 0)
    assert {row["served_before"] for row in rows(run)} == {0}


def test_a_server_that_dies_leaves_none_out_of_the_books(run: RunFolder) -> None:
    with running(Schedule(role_ms=1, ttft_ms=10, itl_ms=2, tokens=TOKENS)) as dying:
        summary = measure(run, dying.fault_url("die"), 60, concurrency=2)
        dying.process.wait(5)
    assert summary.n == 0
    assert summary.failures == 60
    kinds = summary.failure_kinds
    assert kinds["refused"] >= 1
    assert kinds["not sent"] >= 30  # it gave up, rather than hammer a port where nobody is
    assert sorted(row["index"] for row in rows(run)) == list(range(60))
    assert all(row["failure"]["detail"] for row in rows(run))


def test_nobody_there_is_refused_and_said(run: RunFolder) -> None:
    summary = measure(run, "http://127.0.0.1:1/v1", 2)
    assert summary.failure_kinds == {"refused": 2}
    assert "refused" in summary.first_failures[0].lower()


def test_an_unknown_host_is_told_before_anything(run: RunFolder) -> None:
    with pytest.raises(LoadError, match="is not known"):
        measure(run, "http://no-such-host.invalid/v1", 1)
    with pytest.raises(LoadError, match="no address"):
        Target.of("ftp://here")


def test_stopping_keeps_what_was_in_flight(server: Reference, run: RunFolder) -> None:
    url = f"{server.fault_url('stall')}/chat/completions"  # three pieces, then nothing: both stay in flight
    cell = LoadCell("stopped", Target.of(url), list(RECIPE.bodies(range(50))), 2, lag_limit_s=PATIENT)
    hung: list[float] = []

    def stopping() -> bool:
        if not hung and [one["pieces"] for one in server.truth() if one["id"].startswith("stopped-")] == [3, 3]:
            hung.append(time.monotonic())
        return bool(hung) and time.monotonic() > hung[0] + 0.5  # by then even a busy client has read them

    summary = run_cell(cell, run, stopping=stopping)
    assert not summary.valid
    assert summary.invalid_because == "stopped on request"
    assert summary.failure_kinds == {"cancelled": 2, "not sent": 48}
    found = rows(run)
    assert sorted(row["index"] for row in found) == list(range(50))
    assert [row["pieces"] for row in found if row["failure"]["kind"] == "cancelled"] == [3, 3]


def test_stopping_before_the_first_request_is_no_error(server: Reference, run: RunFolder) -> None:
    cell = LoadCell("stop", Target.of(server.chat_url), list(RECIPE.bodies(range(500))), 1, lag_limit_s=PATIENT)
    summary = run_cell(cell, run, stopping=lambda: True)
    assert summary.invalid_because == "stopped on request"
    assert summary.n + summary.failures == 500
    assert summary.failure_kinds["not sent"] > 400


def test_a_starved_client_marks_its_cell_invalid(server: Reference, run: RunFolder) -> None:
    """Burners on the only processor that the client may use: its lag passes the limit, and the cell says so."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no processor affinity here")
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    burn = "while True: pass"
    try:
        os.sched_setaffinity(0, one)  # inherited by the client and by the burners, not by the server
        burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(4)]
        try:
            summary = measure(run, server.base_url, 16, concurrency=8, lag_limit_s=0.001)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
    finally:
        os.sched_setaffinity(0, allowed)
    assert summary.n == 16
    assert not summary.valid
    assert summary.invalid_because is not None
    assert "client" in summary.invalid_because
    assert summary.ttft_s is not None  # shown, not used
    worst = summary.lag.worst_p99()
    assert worst is not None
    assert worst > 0.001
    assert summary.lag.run_queue_wait_s is None or summary.lag.run_queue_wait_s > 0


def test_the_client_ends_when_its_parent_goes_away(server: Reference, tmp_path: Path) -> None:
    """Its input closes; it must not go on loading a server that nobody measures any more."""
    script = (
        "import sys; sys.argv = ['x']; from pathlib import Path; from load_runs import *\n"
        f"run = RunFolder.create(Path({str(tmp_path)!r}), kind='b', preset='p', spec={{}}, title='t', home=Path('.'))\n"
        f"print('up', flush=True); measure(run, {server.base_url!r}, 5000, concurrency=2)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=HELPERS, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    before = len(server.truth())
    deadline = time.monotonic() + 20
    while len(server.truth()) < before + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    time.sleep(1.5)
    ended = len(server.truth())
    time.sleep(0.7)
    assert len(server.truth()) == ended
