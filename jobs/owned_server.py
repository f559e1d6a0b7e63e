"""A server that a measuring job owns: started for it, checked against what was wanted, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.http import EngineError, open_client, request
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.readback import readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.measure.bench import MeasuredServer
from vlmconsole.runs.logfile import left_out
from vlmconsole.servers import processes as launch
from vlmconsole.servers.server import Server as LabServer
from vlmconsole.servers.where import server_of
from vlmconsole.system import processes
from vlmconsole.system.redaction import redacted_bytes

LONGEST_LINE = 1024 * 1024  # bytes of a log that are taken at once

LOG_LIMIT = 32 * 1024 * 1024  # bytes of each start of a server that are kept of its log


@contextlib.contextmanager
def owned(context: Context, profile: ServerProfile, label: str) -> Iterator[MeasuredServer]:
    """Start the profile's server for this job alone, and end it with the block; its log comes into the run folder.

    label: tells this job's servers apart, e.g. "b4". The lab's shared server of that profile is left alone. Raises
    JobError when a server with other settings answers, LaunchError when none comes up, Stopped when asked to stop.
    """
    own = re.sub(r"[^a-z0-9._-]+", "-", f"{profile.name[:30]}-{label[:20]}-{context.run.name[-4:]}".lower())
    # Marked as this run's, so that it is found and ended even when the worker is killed.
    marked = profile.with_env({processes.RUN_MARK: str(context.run.path)})
    mine = server_of(marked.model_copy(update={"name": own}), context.places)
    if not mine.starts_here:
        raise JobError(f"{profile.name} is not a server that this lab starts")
    ready = False
    try:
        server = asyncio.run(_start(context, mine, label))
        ready = True
        yield server
    finally:
        context.log(f"server {label}: {asyncio.run(mine.stop())}")
        _keep_log(context, mine.log, label, moved=ready)


async def _start(context: Context, mine: LabServer, label: str) -> MeasuredServer:
    def progress(phase: str, seconds: float) -> None:
        context.log(f"server {label}: {phase} ({seconds:.1f} s)")

    starting = asyncio.create_task(mine.ensure(progress))
    while not starting.done():
        if context.stopping():
            starting.cancel()
            await asyncio.wait([starting])
            raise Stopped
        await asyncio.wait([starting], timeout=0.1)
    ready = starting.result()
    if not ready.started_here:
        raise JobError(
            f"a server answers at {ready.base_url} already, and this job needs its own there", "stop that one first"
        )
    settings = await readback(ready.profile)
    check(mine.profile, settings)
    context.events.note(f"server {label}: ready at {ready.base_url}, {settings_summary(settings)}")
    return MeasuredServer(ready.profile, settings, ready.model)


def check(profile: ServerProfile, settings: EffectiveSettings) -> None:
    """Raise JobError when a server that tells its settings has others than the profile wants."""
    wanted = {"running limit B": (profile.running_limit, settings.running_limit)}
    wanted["prefix cache"] = (profile.prefix_cache, settings.prefix_cache)
    for name, (want, have) in wanted.items():
        # Of several data-parallel ranks each may have the limit that was asked for.
        if want is not None and have is not None and have not in (want, want * settings.ranks):
            raise JobError(
                f"the server {profile.name} has {name} {_word(have)}, {_word(want)} is wanted", code="server-differs"
            )


def settings_summary(settings: EffectiveSettings) -> str:
    """Return the settings that matter for a measurement, as the server told them."""
    limit = "not told" if settings.running_limit is None else settings.running_limit
    cache = "not told" if settings.prefix_cache is None else _word(settings.prefix_cache)
    label, version = find_engine(settings.engine).label, settings.version or "(version not told)"
    return f"{label} {version}, B {limit}, prefix cache {cache}"


def alive(context: Context, server: MeasuredServer) -> bool:
    """Return whether an owned server still runs (it may have died under a cell)."""
    running = launch.recorded(context.places, server.profile.name)
    return running is not None and running.alive


def ask(server: MeasuredServer) -> EffectiveSettings | None:
    """Return the server's settings once more; None when it no longer answers."""
    try:
        return asyncio.run(readback(server.profile))
    except EngineError:
        return None


def answers(server: MeasuredServer) -> bool:
    """Return whether the server's address still answers a request, whatever it says: some know nothing but chat."""

    async def ask_once() -> None:
        async with open_client(server.profile, 10.0) as client:
            await request(client, server.profile, "/v1/models")

    try:
        asyncio.run(ask_once())
    except EngineError:
        return False
    return True


def _word(value: int | bool) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _keep_log(context: Context, log: Path, label: str, *, moved: bool) -> None:
    """The server's log beside the job's own. After a failed start it also stays where the error says it is."""
    target = context.run.file(f"server-{label}.log")
    with contextlib.suppress(FileNotFoundError), log.open("rb") as more, target.open("ab") as whole:
        if (dropped := log.stat().st_size - LOG_LIMIT) > 0:
            whole.write(left_out(dropped))
            more.seek(dropped)
            more.readline(LONGEST_LINE)  # half a line, in which half a key would not be known
        while line := more.readline(LONGEST_LINE):
            whole.write(redacted_bytes(line))
    if moved:
        log.unlink(missing_ok=True)
    log.with_suffix(".lock").unlink(missing_ok=True)
