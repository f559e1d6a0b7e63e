"""Servers as jobs: asked for by consoles and commands, queued, shared, stopped; on a small real server process."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import tomlkit
from folders import HELPERS
from refusals import mentions, refused
from small_server import profile as small

from vlmconsole.engines.profile import ProfileError, ServerProfile, load_profiles
from vlmconsole.queue import process
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.served import ensure_served, serving, stop_served
from vlmconsole.queue.serving import server_job
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places
from vlmconsole.screens.link import ServerLink
from vlmconsole.screens.widgets.topbar import fitted
from vlmconsole.servers import processes
from vlmconsole.servers.processes import LaunchError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv(process.LOCKS_VARIABLE, str(tmp_path / "devices"))
    monkeypatch.setenv(process.SLOTS_VARIABLE, "1")
    monkeypatch.setenv(process.IDLE_VARIABLE, "0.5")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    return Places(tmp_path / "lab").ensure()


def saved(places: Places, **how: object) -> ServerProfile:
    """The small server as a profile of that lab, where its job finds it."""
    made = small(**how)  # type: ignore[arg-type]
    assert made.launch is not None
    table = {
        "engine": made.engine,
        "launch": {"argv": list(made.launch.argv), "start_timeout_s": 20.0, "stop_grace_s": 5.0},
    }
    places.servers.mkdir(parents=True, exist_ok=True)
    (places.servers / "box.toml").write_text(tomlkit.dumps(table))
    return made


@pytest.mark.slow
async def test_a_server_asked_for_twice_is_one_job_that_stays_until_stopped(places: Places) -> None:
    box, phases = saved(places), list[str]()
    one, two = await asyncio.gather(
        ensure_served(box, places, lambda phase, _: phases.append(phase)), ensure_served(box, places)
    )
    assert one.pid == two.pid and one.started_here != two.started_here
    store = Store(places.queue)
    job = serving(store, "box")
    assert job is not None and job.keep and job.state == "running" and "cpu.0" in job.granted
    assert len(store.listing(True)) == 1
    again = await ensure_served(box, places)
    assert again.pid == one.pid and not again.started_here

    os.kill(one.pid or 0, signal.SIGKILL)
    fresh = await ensure_served(box, places)
    assert fresh.pid != one.pid and fresh.started_here
    assert store.get(job.id).state == "failed" and "ended by itself" in (store.get(job.id).reason or "")
    assert await stop_served(box, places) == "ended"
    assert processes.recorded(places, "box") is None and serving(store, "box") is None
    assert await stop_served(box, places) == "was not running"


@pytest.mark.slow
async def test_it_says_why_it_waits_and_why_it_failed(places: Places) -> None:
    store = Store(places.queue)
    busy = store.add(NewJob("count", "job_kinds:COUNT", "C", {"steps": 9000, "seconds": 0.02}))
    process.ensure(places)
    while store.get(busy).state != "running":
        await asyncio.sleep(0.05)
    phases: list[str] = []
    asked = asyncio.create_task(ensure_served(saved(places, how="dies"), places, lambda phase, _: phases.append(phase)))
    while not phases:
        await asyncio.sleep(0.05)
    assert mentions(phases[0], "job 2", "waits", "cpu")
    store.cancel(busy)
    with pytest.raises(LaunchError, match=r"(?s)job 2 failed: .*no such weights"):
        await asked


async def test_what_can_never_start_is_said_before_it_is_queued(places: Places) -> None:
    """A model that is not on this machine; the queue is not asked, however long it is."""
    profile = load_profiles(places.servers)["mlx-local"].model_copy(update={"model": str(places.home / "nowhere")})
    with refused("model-missing", str(places.home / "nowhere"), error=ProfileError):
        await asyncio.wait_for(ensure_served(profile, places), 20)
    store = Store(places.queue)
    assert store.listing(True) == [] and process.running(places) is None
    store.close()


async def test_a_server_that_still_waits_is_stopped_by_taking_its_job_back(places: Places) -> None:
    store = Store(places.queue)
    store.set_meta("drained", True)
    box = saved(places)
    asked = asyncio.create_task(ensure_served(box, places))
    while serving(store, "box") is None:
        await asyncio.sleep(0.02)
    assert mentions(await stop_served(box, places), "waiting", "cancelled")
    with pytest.raises(LaunchError, match="cancelled"):
        await asked


@pytest.mark.slow
async def test_the_console_says_that_its_server_has_gone(places: Places) -> None:
    box, seen = saved(places), list[str]()
    link = ServerLink(box, places, lambda: seen.append(link.view.short))
    await link.start()
    assert link.view.state == "ready", link.view
    link.look()
    running = processes.recorded(places, "box")
    assert seen[-1] == "box · ready" and running is not None
    os.kill(running.pid, signal.SIGKILL)
    while running.alive:
        await asyncio.sleep(0.02)
    link.look()
    assert link.view.short.startswith("box · ended")
    await link.close()
    await stop_served(box, places)


@pytest.mark.slow
async def test_the_console_finds_its_server_again_whoever_started_it(places: Places) -> None:
    box, seen = saved(places), list[str]()
    link = ServerLink(box, places, lambda: seen.append(link.view.short))

    async def looks(said: str) -> None:
        for _ in range(600):
            link.look()
            if said in link.view.short:
                return
            await asyncio.sleep(0.05)
        raise AssertionError((said, seen))

    await link.start()
    assert link.view.state == "ready", link.view
    await stop_served(box, places)
    await looks("box · ended")
    store = Store(places.queue)
    store.set_meta("drained", True)
    queued = store.add(server_job("box", places, keep=True))
    link._move(note="as after a hand-over")
    await looks(f"box · stopped · job {queued}")
    store.set_meta("drained", False)
    process.ensure(places)
    del seen[:]
    await looks("box · ready")
    assert seen[0].startswith("box · starting") and not any("ended" in said for said in seen), seen
    assert await link.ensure() is link._client
    store.close()
    await link.close()
    await stop_served(box, places)


@pytest.mark.parametrize(
    ("said", "room", "shown"),
    [
        ("demo · starting python 12 s", 40, "demo · starting python 12 s"),
        ("demo · starting python 12 s", 19, "demo · starti… 12 s"),
        ("demo · starting python 12 s", 8, "demo · …"),
        ("a-profile-of-a-long-name · ready", 12, "a-profile-o…"),
    ],
)
def test_a_short_line_keeps_the_seconds_of_a_start(said: str, room: int, shown: str) -> None:
    assert fitted(said, room) == shown
