"""The supervisor's devices, servers and their guests: who gets what, who waits for whom."""

import os
import signal
from pathlib import Path

import pytest
from refusals import mentions
from supervised import LONG, Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole.cli.jobs import line
from vlmconsole.desks.queue import QueueRow
from vlmconsole.gauges.nvidia import GpuCard
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.view import views
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.detail import _cause


def test_device_locks_are_held_by_the_worker_and_freed_by_its_death(lab: Lab) -> None:
    number = lab.add(devices=("cpu:all",), **LONG)
    lab.at_step(number)
    assert lab.locks.held("cpu.0") and lab.locks.held("cpu.1")
    pid = lab.store.get(number).pid or 0
    assert f"pid {pid}, " in lab.locks.holder("cpu.0")
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
    assert f"(pid {lab.store.get(first).pid}, another lab home)" in other.supervisor.decision.why[second]
    assert not other.supervisor.idle()  # it will start by itself when the other lab is done
    lab.store.cancel(first)
    assert lab.ends(first) == ["cancelled"] and other.ends(second) == ["done"]


def test_cards_are_given_and_named_to_the_worker(places: Places) -> None:
    busy = GpuCard("gpu0", "GPU-a", "Fake", 100, 90, processes=((os.getpid(), 21 * 1024**3),))
    lab = Lab(places, (busy, GpuCard("gpu1", "GPU-b", "Fake", 100, 1)))
    number, waits = lab.add(devices=("gpu",), steps=1), lab.add(devices=("gpu0",), steps=1)
    assert lab.ends(number) == ["done"]
    assert lab.run(number).job()["devices"] == ["gpu1"]
    assert "cuda=GPU-b" in lab.run(number).log.read_text()
    why = lab.supervisor.decision.why[waits]
    assert mentions(why, "waiting for gpu0", f"pid {os.getpid()} python") and why.endswith("21 GiB")
    lab.cards = (GpuCard("gpu1", "GPU-b", "Fake", 100, 1),)  # the card falls off the bus
    lab.supervisor._looked = -1e9
    lab.supervisor.tick()
    assert "which is lost" in lab.supervisor.decision.why[waits]
    lab.cards = (GpuCard("gpu0", "GPU-a", "Fake", 100, 1), *lab.cards)
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
    shown = views(lab.store, lab.places, [lab.store.get(train), lab.store.get(server)])
    ways = f"`vlmconsole servers stop demo`, or `vlmconsole jobs hand-over {train}`"
    assert mentions(shown[0].why_with_commands, f"job {server}", "hand-over") and shown[0].why_with_commands.endswith(
        ways
    )
    assert line(shown[0]).endswith(ways) and shown[1].blocker is None and shown[1].why_with_commands == shown[1].why
    cause = _cause(QueueRow(shown[0].job, shown[0].why, blocker=shown[0].blocker)).plain
    assert mentions(cause.splitlines()[-1], "h", "F6 x", "demo"), "on the screen its keys"
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
    lab.until(lambda: mentions(lab.supervisor.decision.why.get(guest, ""), "failed", "job 2"))
    assert len(lab.store.servers_for(guest)) == 1
