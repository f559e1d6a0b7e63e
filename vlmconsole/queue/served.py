"""Servers as jobs: a server that somebody asks for is queued as a job of kind `serve` and waited for.

So it holds its device in the one ledger of this machine, has a log and a line on the Jobs screen, and outlives whoever
asked. Several consoles asking at once join the same job.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, Job, limit
from vlmconsole.queue.serving import server_job
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views, waits
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.processes import LaunchError, Progress
from vlmconsole.servers.server import Ready, Server
from vlmconsole.servers.status import ServerStatus
from vlmconsole.servers.where import server_of

TICK = 0.1  # seconds between two looks at the job
TELL = 1.0  # seconds between two looks why it waits
DYING = 5.0  # seconds in which the job of a server that just died says so
_QUEUED = re.compile(r"job \d+ waits(?: for|:) (.+)", re.DOTALL)  # see `view.waits`
AHEAD = 200  # queued jobs looked into to say why ours waits


def serving(store: Store, name: str) -> Job | None:
    """Return the job that serves that profile, or will: one that runs before one that waits."""
    active = [job for job in store.active() if job.serves == name]
    waiting = [line.id for line in store.lines() if line.serves == name]
    return active[0] if active else store.get(waiting[0]) if waiting else None


def with_its_job(status: ServerStatus, store: Store, places: Places) -> tuple[ServerStatus, Job | None]:
    """Return a server's status with the job that serves it or will, which says more of one that is not there."""
    job = serving(store, status.name)
    if job is None or status.state not in ("stopped", "ended"):
        return status, job
    why = views(store, places, [job], process.running(places) is not None, AHEAD)[0].why
    waits = job.state == "queued" and why.startswith("waiting ")
    return replace(status, state="starting", waits=waits, why=f"job {job.id}: {why or job.state}"), job


def waited_for(phase: str) -> str:
    """Return what a start waits for in the queue, from its phase as `ensure_served` tells it; "" once it began."""
    queued = _QUEUED.match(phase)
    return queued[1] if queued else ""


async def ensure_served(profile: ServerProfile, places: Places, on_progress: Progress | None = None) -> Ready:
    """Return a server that answers: found running, or queued as a job that stays, and waited for.

    `on_progress(phase, seconds)` also says why the job still waits. Raises LaunchError (with the job's reason),
    EngineError or ProfileError, each one line for people. A cancelled caller leaves the job to others.
    """
    server = server_of(profile, places)
    return await (_by_its_job(server, on_progress) if server.starts_here else server.ensure(on_progress))


async def start_served(profile: ServerProfile, places: Places, on_progress: Progress | None = None) -> Ready:
    """As `ensure_served`, for a person who asks for it: also on a machine that may be paid by the hour."""
    server = server_of(profile, places)
    return await (_by_its_job(server, on_progress) if server.starts_here else server.start(on_progress))


async def _by_its_job(server: Server, on_progress: Progress | None) -> Ready:
    if (await server.probe()).state == "ready":
        return await server.ensure(on_progress)
    # What can never start is said now, and not when its job's turn comes.
    await asyncio.to_thread(server.launch_line)
    begun = time.monotonic()

    def report(phase: str) -> None:
        if on_progress is not None:
            on_progress(phase, time.monotonic() - begun)

    store = Store(server.places.queue)
    try:
        number, new = await _joined(store, server.profile.name, server.places)
        await _until_up(store, number, server, report)
    finally:
        store.close()
    return replace(await server.ensure(), started_here=new)


async def _joined(store: Store, name: str, places: Places) -> tuple[int, bool]:
    """The number of a job that will bring the server, one that is there or a new one; and whether it is new."""
    deadline = time.monotonic() + DYING
    while True:
        job = serving(store, name)
        if job is None:
            with store.change():  # looked at again inside, so that two consoles do not queue it twice
                job = serving(store, name)
                new = job is None
                number = job.id if job is not None else store.add(server_job(name, places, keep=True))
            process.ensure(places)
            return number, new
        running = processes.recorded(places, name)
        died = bool(job.run and RunFolder(Path(job.run)).file("ready.json").exists())
        died = died and not (running is not None and running.alive)
        if not died or time.monotonic() > deadline:
            if job.state == "queued":
                process.ensure(places)
            if not job.keep:
                with contextlib.suppress(LabError):  # it may have ended just now; then the wait says so
                    store.set(job.id, keep=True)
            return job.id, False
        await asyncio.sleep(TICK)  # its job is about to notice that the server is gone


async def _until_up(store: Store, number: int, server: Server, report: Callable[[str], None]) -> None:
    """Wait until the job's server process is there and answers. Raises LaunchError with the reason when it ends."""
    name, places = server.profile.name, server.places
    looked, phase = -TELL, ""
    while True:
        job = store.get(number)
        if job.state in FINAL:
            reason = job.reason or "no reason given"
            log = f" (log: {RunFolder(Path(job.run)).log})" if job.run and "log" not in reason else ""
            raise LaunchError(f"{name}: its job {number} {job.state}: {reason}{log}")
        running = processes.recorded(places, name)
        if job.state == "running" and running is not None and running.alive:
            now = processes.phase_of(running.log, server.engine.phases)
            if now != phase:
                report(now)
                phase = now
            if job.run and RunFolder(Path(job.run)).file("ready.json").exists():
                return
        elif job.state == "queued" and time.monotonic() - looked >= TELL:
            looked = time.monotonic()
            supervised = process.running(places) is not None
            if not supervised:
                process.ensure(places)
            why = views(store, places, [job], True, AHEAD)[0].why
            now = "starting" if why == "starts now" else f"job {number} {waits(why)}"
            if now != phase:
                report(now)
                phase = now
        await asyncio.sleep(TICK)


async def stop_served(profile: ServerProfile, places: Places) -> str:
    """End the server that this lab started, through its job where it has one; returns what happened in words.

    Raises LaunchError when it is not ours to stop or survives.
    """
    server = server_of(profile, places)
    if not server.starts_here:
        return await server.stop()
    store = Store(places.queue)
    try:
        job = serving(store, profile.name)
        if job is None:
            return await server.stop()
        store.cancel(job.id, "stopped on request")
        process.ensure(places)
        assert profile.launch is not None
        deadline = time.monotonic() + profile.launch.stop_grace_s + limit(job.options, "grace_s", 30.0) + 10.0
        while store.get(job.id).state not in FINAL:
            if time.monotonic() > deadline:
                raise LaunchError(f"{profile.name}: its job {job.id} does not end; see `vlmconsole jobs show {job.id}`")
            await asyncio.sleep(TICK)
        return "ended" if job.state != "queued" else "was still waiting; its job is cancelled"
    finally:
        store.close()
