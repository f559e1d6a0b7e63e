"""The supervisor on real processes: starting, stopping, limits, adoption, flows."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from refusals import check_nouns, mentions
from supervised import LONG, Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole.ledger.chain import Ledger
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.supervisor import span_of
from vlmconsole.runs.folder import RunFolder
from vlmconsole.system import processes


def test_two_run_at_once_and_the_third_waits(lab: Lab) -> None:
    first, second, third = lab.add(**LONG), lab.add(**LONG), lab.add(steps=1)
    lab.at_step(first), lab.at_step(second)
    assert lab.store.get(third).state == "queued" and lab.supervisor.decision.why[third].startswith("waiting for CPU")
    lab.store.cancel(first)
    assert lab.ends(first, third) == ["cancelled", "done"]
    run = lab.run(first)
    assert run.read_json("summary.json")["partial"] is True
    assert Ledger(lab.places.ledger).verify(run).status == "intact"
    assert run.job()["devices"] == ["cpu.0"] and run.job()["job"] == first


def test_a_job_took_as_long_as_its_run(lab: Lab) -> None:
    number = lab.add(steps=2)
    assert lab.ends(number) == ["done"]
    job, state = lab.store.get(number), lab.run(number).state()
    assert (job.started, job.ended) == (state["started"], state["ended"])
    lab.run(number).write_json("state.json", state | {"started": "soon", "ended": 1e200})
    assert span_of(lab.run(number)) == (None, None)


def test_a_deaf_job_is_killed_with_its_children_after_its_grace(lab: Lab) -> None:
    number = lab.add({"grace_s": 0.3}, mode="deaf", **LONG)
    run = lab.at_step(number)
    lab.store.cancel(number)
    assert lab.ends(number) == ["cancelled"]
    assert mentions(lab.store.get(number).reason or "", "did not stop")
    assert processes.family(None, run.path) == []
    assert run.state()["state"] == "cancelled" and Ledger(lab.places.ledger).verify(run).status == "intact"


def test_a_job_cancelled_in_its_first_moment_was_not_killed(lab: Lab) -> None:
    """Its worker does not listen yet: the signal that asks it to stop ends it."""
    for adopted in (False, True):
        number = lab.add(**LONG)
        lab.until(lambda: lab.store.get(number).state == "running")  # noqa: B023
        lab.store.cancel(number)
        if adopted:
            lab.crash()
        assert lab.ends(number) == ["cancelled"]
        assert lab.store.get(number).reason == "cancelled on request"
        assert lab.run(number).state()["reason"] == "cancelled on request"


def test_one_that_dies_while_it_is_asked_to_stop_says_how(lab: Lab) -> None:
    number = lab.add(mode="deaf", **LONG)
    lab.at_step(number)
    lab.store.cancel(number)
    lab.supervisor.tick()
    os.kill(lab.store.get(number).pid or 0, signal.SIGSEGV)
    assert lab.ends(number) == ["cancelled"]
    assert "SIGSEGV" in (lab.store.get(number).reason or "")


def test_a_stopped_process_is_killed_too(lab: Lab) -> None:
    number = lab.add({"grace_s": 0.3}, **LONG)
    lab.at_step(number)
    os.kill(lab.store.get(number).pid or 0, signal.SIGSTOP)
    lab.store.cancel(number)
    assert lab.ends(number) == ["cancelled"]


def test_a_killed_worker_is_lost_keeps_what_it_wrote_and_a_retry_goes_on(lab: Lab) -> None:
    number = lab.add(**LONG)
    run = lab.at_step(number, 3)
    os.kill(lab.store.get(number).pid or 0, signal.SIGKILL)
    assert lab.ends(number) == ["lost"]
    assert "SIGKILL" in (lab.store.get(number).reason or "")
    assert len(list(run.read_jsonl("samples.jsonl"))) >= 3
    assert Ledger(lab.places.ledger).verify(run).status == "intact"
    lab.store.again(number)
    again = lab.at_step(number)
    assert again.path != run.path and again.job()["earlier"] == str(run.path) and again.state()["attempt"] == 2


def test_retries_only_where_the_preset_says_so_and_with_back_off(lab: Lab) -> None:
    once, twice = lab.add(mode="raise"), lab.add({"retries": 1, "backoff_s": 0.2}, mode="raise")
    assert lab.ends(once) == ["failed"] and lab.store.get(once).attempt == 1
    lab.until(lambda: lab.store.get(twice).attempt == 2 and lab.store.get(twice).state == "failed")
    assert [attempt.state for attempt in lab.store.attempts(twice)] == ["failed"]


@pytest.mark.parametrize(("limit", "words"), [("wall_clock_s", "wall-clock limit"), ("no_progress_s", "no progress")])
def test_limits(lab: Lab, limit: str, words: str) -> None:
    number = lab.add({limit: 500, "grace_s": 20}, steps=100, seconds=600 if limit == "no_progress_s" else 0.05)
    # In its first step, after all the events of its start: a later one would count as progress.
    log = lab.until(lambda: lab.store.get(number).run and lab.run(number).file("log.txt"))
    lab.until(lambda: log.exists() and b"counting" in log.read_bytes())
    lab.supervisor.tick()
    if limit == "no_progress_s":  # this process was stopped for an hour: that is not held against the job
        lab.now = 3600
        lab.supervisor.tick()
    for _ in range(43):  # the clock is ours: nobody waits
        lab.now += 10
        lab.supervisor.tick()
    assert lab.supervisor.live[number].asked is None
    for _ in range(8):
        lab.now += 10
        lab.supervisor.tick()
    assert lab.ends(number) == ["failed"]
    for reason in (lab.store.get(number).reason, lab.run(number).state()["reason"]):
        check_nouns(reason or "", words, "500 s")


def test_a_new_supervisor_adopts_what_lives_and_buries_what_does_not(lab: Lab) -> None:
    lives, dies, ends = lab.add(**LONG), lab.add(**LONG), lab.add(steps=3, devices=())
    lab.at_step(lives), lab.at_step(dies)
    lab.until(lambda: lab.store.get(ends).pid)
    pids = [lab.store.get(number).pid or 0 for number in (lives, dies, ends)]
    lab.until(lambda: lab.run(ends).file("manifest.json").exists() or lab.store.get(ends).state == "done")
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    lab.crash()
    lab.supervisor.tick()
    assert lab.ends(dies, ends) == ["lost", "done"]
    assert lab.store.get(lives).state == "running" and lab.supervisor.live[lives].worker.pid == pids[0]
    rows = list(lab.run(lives).read_jsonl("samples.jsonl"))
    assert {row["pid"] for row in rows} == {pids[0]}
    lab.store.cancel(lives)
    assert lab.ends(lives) == ["cancelled"]


def test_a_pid_used_again_is_not_adopted(lab: Lab) -> None:
    number = lab.add(**LONG)
    run = lab.at_step(number)
    pid = lab.store.get(number).pid or 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run.set_state(None, pid=stranger.pid)  # as if the number had been given out again
        lab.crash()
        assert lab.ends(number) == ["lost"]
        assert stranger.poll() is None, "a stranger was killed"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_claim_whose_worker_never_began_goes_back_into_the_queue(lab: Lab) -> None:
    number = lab.add(steps=1)
    run = RunFolder.create(
        lab.places.runs, kind="job_kinds:COUNT", preset="count", spec={"steps": 1}, title="", home=lab.places.home
    )
    lab.store.claim(number, ("cpu.0",), None, str(run.path))  # and here the supervisor died
    lab.crash()
    assert lab.ends(number) == ["done"]
    assert lab.store.get(number).run != str(run.path) and not run.path.exists()
    assert lab.store.get(number).attempt == 1


@pytest.mark.parametrize("made", ["nothing", "folder", "half cleared away"])
def test_a_claim_whose_folder_was_not_finished_goes_back_too(lab: Lab, made: str) -> None:
    number, path = lab.add(steps=1), lab.places.runs / "20261129-000000-count-0000"
    if made != "nothing":
        path.mkdir()
    if made == "half cleared away":  # the last supervisor was killed between its mark and the end of the folder
        RunFolder(path).set_state("lost", "never began")
    lab.store.claim(number, ("cpu.0",), None, str(path))
    lab.crash()
    assert lab.ends(number) == ["done"] and not path.exists()


def test_a_flow_passes_results_on(lab: Lab) -> None:
    flow = lab.store.add(NewJob("f", "flow", "F", {}, devices=()))
    first = lab.add(flow=flow, step="first", steps=3)
    second = lab.store.add(
        NewJob(
            "c", "job_kinds:COUNT", "C", {"steps": "${first.steps}"}, flow=flow, step="second", after=((first, "ok"),)
        )
    )
    third = lab.store.add(
        NewJob(
            "c", "job_kinds:COUNT", "C", {"steps": "${first.nothing}"}, flow=flow, step="third", after=((second, "ok"),)
        )
    )
    assert lab.ends(second, third, flow) == ["done", "failed", "failed"]
    assert lab.run(second).read_json("summary.json")["steps"] == 3
    assert "has no “nothing”" in (lab.store.get(third).reason or "") and "step third" in (
        lab.store.get(flow).reason or ""
    )


def test_a_full_disk_fails_one_job_and_the_queue_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = RunFolder.create.__func__, []

    def create(*args: Any, **more: Any) -> RunFolder:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device", "/home/runs")
        return real(RunFolder, *args, **more)  # type: ignore[no-any-return]

    monkeypatch.setattr(RunFolder, "create", create)
    first, second = lab.add(steps=1), lab.add(steps=1)
    assert lab.ends(first, second) == ["failed", "done"]
    assert "/home/runs" in (lab.store.get(first).reason or "") and "No space" in (lab.store.get(first).reason or "")
