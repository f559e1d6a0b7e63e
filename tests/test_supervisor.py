"""The supervisor on real processes: starting, stopping, limits, adoption, servers, devices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.gates.ledger import Ledger
from vlmconsole.gauges.nvidia import Card, Reading
from vlmconsole.queue import process
from vlmconsole.queue.locks import DeviceLocks
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.store import Store
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.runs import processes
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

HERE = Path(__file__).parent


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv(process.LOCKS_VARIABLE, str(tmp_path / "devices"))
    monkeypatch.setenv(process.SLOTS_VARIABLE, "2")
    monkeypatch.setenv(process.IDLE_VARIABLE, "0.5")
    return Places(tmp_path / "home").ensure()


class Lab:
    """A supervisor in this very process, ticked by hand; `crash` forgets it as kill -9 would."""

    def __init__(self, places: Places, cards: tuple[Card, ...] = ()) -> None:
        self.places, self.cards = places, cards
        self.locks = DeviceLocks(places.home.parent / "devices")
        self.now = 0.0
        self.crash()

    def crash(self) -> None:
        machine = Machine(self.locks, 2, lambda: Reading(self.cards))
        self.supervisor = Supervisor(self.places, machine, clock=lambda: time.monotonic() + self.now)
        self.store = self.supervisor.store

    def add(self, options: dict[str, Any] | None = None, **more: Any) -> int:
        known = {key: more.pop(key) for key in list(more) if key in NewJob.__dataclass_fields__}
        kind = known.pop("kind", "job_kinds:COUNT")
        return self.store.add(NewJob("count", kind, "Counts", more, options or {}, **known))

    def until(self, ready: Callable[[], Any], seconds: float = 100) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.supervisor.tick()
            if value := ready():
                return value
            time.sleep(0.02)
        states = [(job.id, job.state, job.reason) for job in self.store.listing(True)]
        raise AssertionError(f"not within {seconds} s: {states}")

    def ends(self, *numbers: int) -> list[str]:
        self.until(lambda: all(self.store.get(number).state in FINAL for number in numbers))
        return [self.store.get(number).state for number in numbers]

    def run(self, number: int) -> RunFolder:
        return RunFolder(Path(self.store.get(number).run or ""))

    def at_step(self, number: int, step: int = 1) -> RunFolder:
        def there() -> bool:
            job = self.store.get(number)
            return job.state == "running" and any(
                row["step"] >= step for row in RunFolder(Path(job.run or "")).read_jsonl("samples.jsonl")
            )

        self.until(there)
        return self.run(number)


@pytest.fixture
def lab(places: Places) -> Iterator[Lab]:
    made = Lab(places)
    yield made
    for live in made.supervisor.live.values():
        live.worker.kill()


LONG = {"steps": 2000, "seconds": 0.02}


def test_two_run_at_once_and_the_third_waits(lab: Lab) -> None:
    first, second, third = lab.add(**LONG), lab.add(**LONG), lab.add(steps=1)
    lab.at_step(first), lab.at_step(second)
    assert lab.store.get(third).state == "queued" and lab.supervisor.decision.why[third].startswith("waiting for cpu")
    lab.store.cancel(first)
    assert lab.ends(first, third) == ["cancelled", "done"]
    run = lab.run(first)
    assert run.read_json("summary.json")["partial"] is True
    assert Ledger(lab.places.ledger).verify(run).status == "intact"
    assert run.job()["devices"] == ["cpu.0"] and run.job()["job"] == first


def test_a_deaf_job_is_killed_with_its_children_after_its_grace(lab: Lab) -> None:
    number = lab.add({"grace_s": 0.3}, mode="deaf", **LONG)
    run = lab.at_step(number)
    lab.store.cancel(number)
    assert lab.ends(number) == ["cancelled"]
    assert "did not stop by itself" in (lab.store.get(number).reason or "")
    assert processes.family(None, run.path) == []
    assert run.state()["state"] == "cancelled" and Ledger(lab.places.ledger).verify(run).status == "intact"


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


@pytest.mark.parametrize(
    ("limit", "words"), [("wall_clock_s", "wall-clock limit of 500 s"), ("no_progress_s", "no progress for 500 s")]
)
def test_limits(lab: Lab, limit: str, words: str) -> None:
    number = lab.add({limit: 500, "grace_s": 20}, steps=100, seconds=600 if limit == "no_progress_s" else 0.05)
    lab.until(lambda: lab.store.get(number).state == "running" and lab.run(number).state()["state"] == "running")
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
    assert words in (lab.store.get(number).reason or "") and words in lab.run(number).state()["reason"]


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


def test_device_locks_are_held_by_the_worker_and_freed_by_its_death(lab: Lab) -> None:
    number = lab.add(devices=("cpu:all",), **LONG)
    lab.at_step(number)
    assert lab.locks.held("cpu.0") and lab.locks.held("cpu.1")
    pid = lab.store.get(number).pid or 0
    assert f"pid {pid} " in lab.locks.holder("cpu.0")
    lab.crash()  # the supervisor is gone, the lock is not
    assert lab.locks.held("cpu.0")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not lab.locks.held("cpu.0") and not lab.locks.held("cpu.1")


def test_two_labs_of_one_machine_share_its_devices(lab: Lab, tmp_path: Path) -> None:
    other = Lab(Places(tmp_path / "other").ensure())
    first = lab.add(devices=("cpu:all",), **LONG)
    lab.at_step(first)
    second = other.add(steps=1)
    other.supervisor.tick()
    assert f"held by pid {lab.store.get(first).pid} " in other.supervisor.decision.why[second]
    assert not other.supervisor.idle()  # it will start by itself when the other lab is done
    lab.store.cancel(first)
    assert lab.ends(first) == ["cancelled"] and other.ends(second) == ["done"]


def test_cards_are_given_and_named_to_the_worker(places: Places) -> None:
    busy = Card("gpu0", "GPU-a", "Fake", 100, 90, processes=((os.getpid(), 21 * 1024**3),))
    lab = Lab(places, (busy, Card("gpu1", "GPU-b", "Fake", 100, 1)))
    number, waits = lab.add(devices=("gpu",), steps=1), lab.add(devices=("gpu0",), steps=1)
    assert lab.ends(number) == ["done"]
    assert lab.run(number).job()["devices"] == ["gpu1"]
    assert "cuda=GPU-b" in lab.run(number).log.read_text()
    why = lab.supervisor.decision.why[waits]
    assert why.startswith(f"waiting for gpu0, held by pid {os.getpid()} python") and why.endswith("21.0 GiB")
    lab.cards = (Card("gpu1", "GPU-b", "Fake", 100, 1),)  # the card falls off the bus
    lab.supervisor._looked = -1e9
    lab.supervisor.tick()
    assert "which is lost" in lab.supervisor.decision.why[waits]
    lab.cards = (Card("gpu0", "GPU-a", "Fake", 100, 1), *lab.cards)
    lab.supervisor._looked = -1e9
    assert lab.ends(waits) == ["done"]


def test_a_guest_gets_its_server_and_the_server_makes_room(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(profile: str, places: Places, keep: bool = False) -> NewJob:
        return NewJob(f"serve-{profile}", "job_kinds:SERVE", "S", {"profile": profile}, serves=profile, keep=keep)

    monkeypatch.setattr("vlmconsole.queue.supervisor.server_job", serve)
    guest, behind = lab.add(server="demo", steps=2), lab.add(steps=1)
    assert lab.ends(guest, behind) == ["done", "done"]
    # Two slots: one for the server, and the other was kept for its guest while it started.
    assert (lab.store.get(guest).started or 0) < (lab.store.get(behind).started or 0)
    server = lab.store.servers_for(guest)[0]
    assert server.state == "running" and "server=http://127.0.0.1:1" in lab.run(guest).log.read_text()
    alone = lab.add(devices=("cpu:all",), steps=1)
    assert lab.ends(alone, server.id) == ["done", "done"]
    assert "made room" in (lab.store.get(server.id).reason or "")


def test_a_kept_server_waits_for_the_hand_over_and_comes_back(lab: Lab) -> None:
    server = lab.add(kind="job_kinds:SERVE", serves="demo", keep=True, profile="demo")
    lab.until(lambda: lab.supervisor.ready_servers())
    train = lab.add(devices=("cpu:all",), steps=1)
    lab.supervisor.tick()
    lab.supervisor.tick()
    assert "confirm the hand-over" in lab.supervisor.decision.why[train]
    lab.store.set(train, hand_over=True)
    assert lab.ends(server, train) == ["done", "done"]
    back = next(job for job in lab.store.listing() if job.serves and job.id != server)
    lab.until(lambda: lab.store.get(back.id).state == "running")
    lab.store.cancel(back.id)
    assert lab.ends(back.id) == ["done"]


def test_a_server_that_fails_is_not_started_again_and_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(profile: str, places: Places, keep: bool = False) -> NewJob:
        return NewJob("serve", "job_kinds:COUNT", "S", {"mode": "raise"}, serves=profile)

    monkeypatch.setattr("vlmconsole.queue.supervisor.server_job", serve)
    guest = lab.add(server="demo", steps=1)
    lab.until(lambda: "which failed as job 2" in lab.supervisor.decision.why.get(guest, ""))
    assert len(lab.store.servers_for(guest)) == 1


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
    assert "No space left on device" in (lab.store.get(first).reason or "")


# --- the process around it, and the command line ---


def command(places: Places, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_command_line_from_adding_to_verifying(places: Places) -> None:
    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 2\n')
    listed = command(places, "jobs", "presets")[1]["presets"]
    assert {"name": "count", "kind": "job_kinds:COUNT", "title": "Counts"} in listed
    assert command(places, "jobs", "add", "count", "--plan")[1]["jobs"][0]["devices"] == ["cpu"]
    code, first = command(places, "jobs", "add", "count")
    assert code == 0 and first["id"] == 1
    assert command(places, "jobs", "add", "count", "--after", "1", "--set", "mode=raise")[1]["after"] == [
        {"job": 1, "when": "ok"}
    ]
    assert command(places, "jobs", "wait", "1")[0] == 0
    code, second = command(places, "jobs", "wait", "2")
    assert code == 1 and second["why"].startswith("RuntimeError")
    listed = command(places, "jobs", "list")[1]["jobs"]
    assert {job["id"]: job["state"] for job in listed} == {1: "done", 2: "failed"}
    assert "counting from 0" in command(places, "jobs", "logs", "1")[1]["lines"][0]
    code, verdict = command(places, "verify")
    assert code == 0 and verdict["intact"] and [run["status"] for run in verdict["runs"]] == ["intact"] * 2
    RunFolder(Path(second["run"])).append_jsonl("samples.jsonl", {"step": 3})
    code, verdict = command(places, "verify")
    assert code == 1 and verdict["runs"][0]["changed"] == ["samples.jsonl"]
    assert command(places, "jobs", "add", "cuont")[0] == 2 and command(places, "jobs", "cancel", "7")[0] == 1
    deadline = time.monotonic() + 60
    while process.running(places) is not None:
        assert time.monotonic() < deadline, "an idle supervisor did not end"
        time.sleep(0.1)


def test_only_one_supervisor_and_it_outlives_whoever_started_it(places: Places) -> None:
    store = Store(places.queue)
    number = store.add(NewJob("count", "job_kinds:COUNT", "C", {"steps": 90_000, "seconds": 0.02}))
    code = (
        "import sys, pathlib; from vlmconsole.queue import process; from vlmconsole.runs.places import Places\n"
        "[process.ensure(Places(pathlib.Path(sys.argv[1]))) for _ in range(3)]"
    )
    starters = [subprocess.Popen([sys.executable, "-c", code, str(places.home)]) for _ in range(3)]
    assert [starter.wait(30) for starter in starters] == [0, 0, 0]
    deadline = time.monotonic() + 120
    while store.get(number).state != "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    info = process.running(places)
    assert info is not None and store.get(number).state == "running"
    assert (places.state / "supervisor.log").read_text().count("started") == 1
    assert os.getsid(info["pid"]) == info["pid"] and os.getsid(store.get(number).pid or 0) == store.get(number).pid
    os.kill(info["pid"], signal.SIGHUP)  # as when the terminal goes away
    time.sleep(1.5)  # those that came too late try for a second, and would take over
    info = process.running(places)
    assert info is not None and (places.state / "supervisor.log").read_text().count("started") == 1
    os.kill(info["pid"], signal.SIGTERM)  # it leaves; its worker goes on
    while process.running(places) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    job = store.get(number)
    assert processes.alive(job.pid, job.pid_started)
    process.ensure(places)
    store.cancel(number)
    while store.get(number).state not in FINAL and time.monotonic() < deadline:
        time.sleep(0.05)
    assert store.get(number).state == "cancelled"


def test_a_foreground_run_ends_though_its_supervisor_was_killed(places: Places) -> None:
    (places.presets / "count.toml").write_text(
        'kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 40\nseconds = 0.05\n'
    )
    followed = subprocess.Popen(
        [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home), "run", "count", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    store, deadline = Store(places.queue), time.monotonic() + 60
    while not (found := store.listing(True)) or found[0].state != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    info = process.running(places)
    assert info is not None
    os.kill(info["pid"], signal.SIGKILL)
    out, _ = followed.communicate(timeout=100)
    assert followed.returncode == 0 and json.loads(out)["state"] == "done"
