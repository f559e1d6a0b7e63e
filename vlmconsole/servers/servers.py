"""The door to servers, whatever the engine: ensure one runs, stop it, say how it is, read its settings back."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from vlmconsole.engines import flags
from vlmconsole.engines.http import EngineError, http_error, open_client, request
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.engines.readback import served_model
from vlmconsole.engines.registry import find_engine
from vlmconsole.errors import LabError
from vlmconsole.remote import programs
from vlmconsole.remote.ssh import SshHost
from vlmconsole.runs.places import Places
from vlmconsole.servers import far, keys, launch_lines, processes
from vlmconsole.servers.located import at_running
from vlmconsole.servers.located import launched_here as launched_here
from vlmconsole.servers.located import located as located
from vlmconsole.servers.located import reachable as reachable
from vlmconsole.servers.processes import LaunchError, Progress, Running
from vlmconsole.servers.status import ServerStatus
from vlmconsole.system.typed_paths import named

OPEN = "started without a key, by an older version: other users of this machine can use it; restart it"
WARMING = "it answers, and is still warming up"
HEALTH_S = 10.0  # seconds for a token of a server that may be busy
_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that answers. profile: the same profile with the address and model name that are in force."""

    base_url: str
    model: str
    pid: int | None
    log: str | None
    profile: ServerProfile
    started_here: bool
    """True when this call started it; False when it ran already."""


async def ensure_server(profile: ServerProfile, places: Places, on_progress: Progress | None = None) -> Ready:
    """A server that answers: found running, or started and waited for.

    Several consoles may call this at once: one starts, the others wait and use the same server. Raises LaunchError,
    EngineError or ProfileError, each one line for people (LaunchError with the end of the log).
    """
    if far.is_far(profile):
        return await _far(profile, places)
    if not launched_here(profile):
        return await _reached(located(profile, places))
    begun = time.monotonic()

    def waiting() -> None:
        if on_progress is not None:
            on_progress("another console is starting it", time.monotonic() - begun)

    running = processes.recorded(places, profile.name)
    whole = not processes.damaged(places, profile.name)  # else it is mended below, with the lock held
    if whole and running is not None and running.alive and await _answers(at_running(profile, running)):
        return await _ready(profile, running, started_here=False)
    async with processes.locked(places, profile.name, waiting):
        running = processes.adopted(places, profile.name)
        if running is not None and running.alive:
            await _until_ready(profile, running, on_progress)
            return await _ready(profile, running, started_here=False)
        if running is not None:
            # It died, but helpers of its session may still hold the device.
            await processes.end(running, 1.0)
            processes.forget(places, profile.name)
        if profile.base_url and await _answers(profile):
            # Somebody started it by hand at the address that the profile names: use it, and do not own it.
            return await _reached(profile)
        return await _start(profile, places, on_progress)


async def start_far(profile: ServerProfile, places: Places, on_progress: Progress | None = None) -> Ready:
    """Start the server of a profile with an SSH host on its machine, and wait until it answers through the tunnel.

    Only where a person asks for it: a machine there may be paid by the hour. Raises SshError, LaunchError, EngineError
    or ProfileError.
    """
    phases = find_engine(profile.engine).phases
    new = await far.start(profile, places, _answers, tuple(phases), on_progress)
    return replace(await _far(profile, places), started_here=new)


async def _far(profile: ServerProfile, places: Places) -> Ready:
    at = await far.reached(profile, places)
    if not await _answers(at, 5.0):
        way = f"; start it: vlmconsole servers start {profile.name}" if profile.launch else ""
        port = urlsplit(profile.base_url).port
        raise EngineError(f"nothing answers on port {port} of {profile.ssh_host} (the tunnel is up){way}")
    return await _reached(at)


def launch_line(profile: ServerProfile, places: Places) -> str:
    """The command that starts it, as one would type it; "" when this lab does not start it. Raises ProfileError."""
    if profile.launch is None:
        return ""
    if far.is_far(profile):
        words, place = far.command(profile)
        return f"on {profile.ssh_host}, in {place}: {shlex.join(words)}"
    port = launch_lines.fixed_port(profile)
    words = find_engine(profile.engine).command(profile, places, port or 0)
    return shlex.join(words).replace("--port 0", "--port PORT")


async def stop_server(profile: ServerProfile, places: Places) -> str:
    """Ends the server that was started here; returns what happened in words. Raises LaunchError when it survives."""
    if far.is_far(profile) and profile.launch is not None:
        return await far.stop(profile, places)
    if not launched_here(profile):
        where = f" on {profile.ssh_host}" if profile.ssh_host else ""
        raise LaunchError(f"{profile.name} was not started here; stop it where it runs{where}", code="server-foreign")
    assert profile.launch is not None
    async with processes.locked(places, profile.name):
        broken = processes.damaged(places, profile.name)
        running = processes.adopted(places, profile.name)
        if running is None:
            processes.forget(places, profile.name)
            return "was not running" + ("; its state file was damaged and is removed" if broken else "")
        took = await processes.end(running, profile.launch.stop_grace_s)
        processes.forget(places, profile.name)
        return took


def status(profile: ServerProfile, places: Places) -> ServerStatus:
    """What the records say, without asking the server; see `probe` for that."""
    if not launched_here(profile):
        return ServerStatus(profile.name, "unreachable", "not asked yet", profile.base_url)
    running = processes.recorded(places, profile.name)
    if running is None:
        return ServerStatus(profile.name, "stopped")
    if running.alive:
        return ServerStatus(profile.name, "starting", "", running.base_url, running.pid, running.launched, running.log)
    why = f"ended by itself (it had pid {running.pid})"
    return ServerStatus(profile.name, "ended", why, log=running.log)


async def probe(
    profile: ServerProfile, places: Places, timeout_s: float = 2.0, *, thoroughly: bool = False
) -> ServerStatus:
    """How the server is, asked: ready, still starting, or not reachable and why.

    thoroughly: of one that was not ready before, whether it has warmed up. SGLang makes a token to tell it, so that is
    nothing to ask again and again.
    """
    if far.is_far(profile):
        return await _probe_far(profile, places, timeout_s, thoroughly)
    known = status(profile, places)
    if known.state in ("stopped", "ended"):
        if not profile.base_url or not await _answers(profile, timeout_s):
            return known
        return ServerStatus(profile.name, "ready", "not started by this lab", profile.base_url)
    at = located(profile, places)
    try:
        async with open_client(at, timeout_s) as client:
            response = await request(client, at, find_engine(at.engine).ready_path)
            if response.status_code == 200 and thoroughly and await _warming_up(at, client):
                return ServerStatus(
                    profile.name, "starting", WARMING, at.base_url, known.pid, known.since, known.log, True
                )
    except (EngineError, ProfileError) as error:
        silent = isinstance(error, EngineError) and error.silent
        if known.pid is not None:
            return replace(known, silent=silent)
        return ServerStatus(profile.name, "unreachable", str(error), at.base_url, silent=silent)
    if response.status_code == 200:
        why = OPEN if known.pid is not None and _is_open(profile, places) else ""
        return ServerStatus(profile.name, "ready", why, at.base_url, known.pid, known.since, known.log)
    status_code, there = response.status_code, (at.base_url, known.pid, known.since, known.log)
    if status_code == 503:
        return ServerStatus(profile.name, "starting", WARMING, *there, True)
    refused = status_code in (401, 403)
    why = http_error(at, status_code, response.content) if refused else f"answers with status {status_code}"
    return ServerStatus(profile.name, "unreachable", why, *there, True, refused)


def _is_open(profile: ServerProfile, places: Places) -> bool:
    """Whether its server was started without a key, as an older version of the lab did, though it could have one."""
    running = processes.recorded(places, profile.name)
    return running is not None and not running.key_file and keys.lacks_key(profile, running.argv)


async def _warming_up(profile: ServerProfile, client: httpx.AsyncClient) -> bool:
    """Whether it lists its models and cannot answer yet: SGLang does so for as long as its first requests take."""
    path = find_engine(profile.engine).warm_path
    if not path:
        return False
    try:
        return (await request(client, profile, path, timeout_s=HEALTH_S)).status_code == 503
    except EngineError:
        return False  # busy with making that token: it has warmed up


async def _probe_far(profile: ServerProfile, places: Places, timeout_s: float, thoroughly: bool) -> ServerStatus:
    """As `probe`, through the tunnel. Without an answer, its machine is asked whether the process is there."""
    since, copy = far.launched(places, profile.name), far.log_copy(places, profile.name)
    log = str(copy) if copy.exists() else None
    there = ServerStatus(profile.name, "unreachable", "", f"{profile.base_url} on {profile.ssh_host}", None, since, log)
    try:
        at = await far.reached(profile, places, 5.0)
        if await _answers(at, timeout_s):
            async with open_client(at, timeout_s) as client:
                if thoroughly and await _warming_up(at, client):
                    return replace(there, state="starting", why=WARMING, answered=True)
            return replace(there, state="ready", why="" if since else "not started from here")
        if profile.launch is None:
            return replace(there, why=f"the tunnel is up, but nothing answers on {profile.ssh_host}")
        host = SshHost.parse(profile.ssh_host)
        process = await asyncio.to_thread(programs.status, host, far.process_name(profile))
    except LabError as error:
        return replace(there, why=str(error))
    if process.state == "running":
        return replace(there, state="starting", pid=process.pid)
    if process.state == "ended":
        return replace(there, state="ended", why=f"ended by itself on {profile.ssh_host}", since=None)
    return replace(there, state="stopped", since=None)


async def _start(profile: ServerProfile, places: Places, on_progress: Progress | None) -> Ready:
    assert profile.launch is not None
    engine, fixed = find_engine(profile.engine), launch_lines.fixed_port(profile)
    for attempt in range(_PORT_TRIES):
        port = fixed or processes.free_port()
        if fixed and processes.port_answers(fixed):
            raise LaunchError(
                f"port {fixed} is taken by another program; stop it, or change the profile {profile.name}",
                code="port-taken",
            )
        words = engine.command(profile, places, port)
        env = {**engine.environment(profile, places), **profile.launch.env}
        secret, key_file = _key(profile, places, words)
        cwd = named(profile.launch.folder) if profile.launch.folder else None
        if attempt == 0:
            await _check_line(profile, places, words, env, cwd, on_progress)
        if on_progress is not None:
            on_progress("starting python", 0.0)
        if secret:
            words, env = engine.keyed(words), {**env, engine.key_variable: secret}
        running = processes.spawn(places, profile.name, words, port=port, env=env, cwd=cwd, key_file=key_file)
        try:
            await _until_ready(profile, running, on_progress)
        except LaunchError:
            stolen = processes.port_answers(port) and processes.port_owner(running) != "ours"
            await processes.end(running, profile.launch.stop_grace_s)
            processes.forget(places, profile.name)
            if stolen and not fixed and attempt + 1 < _PORT_TRIES:
                continue  # between our choosing a free port and the server's binding it, somebody else took it
            raise
        return await _ready(profile, running, started_here=True)
    raise AssertionError("the last try returns or raises")


def _key(profile: ServerProfile, places: Places, words: list[str]) -> tuple[str, Path | None]:
    """The key that its server is to ask for: the profile's own, or one of this start and its file; ("", None): none."""
    if not find_engine(profile.engine).takes_key(words):
        return "", None
    return (own, None) if (own := profile.api_key()) else keys.new_key(processes.folder(places), profile.name)


async def _check_line(
    profile: ServerProfile,
    places: Places,
    words: list[str],
    env: dict[str, str],
    cwd: Path | None,
    on_progress: Progress | None,
) -> None:
    """The program and its flags, before anything is started with them. Raises ProfileError."""
    assert profile.launch is not None
    engine = find_engine(profile.engine)
    # What the lab itself writes is known to it: only a user's additions are worth the question.
    if engine.writes_line and not profile.launch.extra:
        flags.program(profile.name, words, cwd or processes.folder(places))
        return
    if engine.package and on_progress is not None:
        on_progress("checking the launch flags", 0.0)
    unchecked = await flags.check(profile.name, engine, words, env, cwd or processes.folder(places), places.cache)
    if unchecked and on_progress is not None:
        on_progress(unchecked, 0.0)


async def _until_ready(profile: ServerProfile, running: Running, on_progress: Progress | None) -> None:
    assert profile.launch is not None
    at = at_running(profile, running)
    async with open_client(at, 5.0) as client:

        async def answers() -> bool:
            return await _answers(at, client=client)

        await processes.until_ready(
            running,
            answers,
            timeout_s=profile.launch.start_timeout_s,
            phases=find_engine(profile.engine).phases,
            progress=on_progress,
        )


async def _answers(profile: ServerProfile, timeout_s: float = 2.0, client: httpx.AsyncClient | None = None) -> bool:
    try:
        if client is not None:
            return (await request(client, profile, find_engine(profile.engine).ready_path)).status_code == 200
        async with open_client(profile, timeout_s) as own:
            return (await request(own, profile, find_engine(profile.engine).ready_path)).status_code == 200
    except (EngineError, ProfileError):
        return False


async def _ready(profile: ServerProfile, running: Running, *, started_here: bool) -> Ready:
    at = at_running(profile, running)
    model = await served_model(at)
    return Ready(running.base_url, model, running.pid, running.log, at.at(at.base_url, model), started_here)


async def _reached(profile: ServerProfile) -> Ready:
    if not profile.base_url:
        raise ProfileError(f"profile {profile.name} has neither base_url nor [launch]: where is the server?")
    model = await served_model(profile)
    return Ready(profile.base_url, model, None, None, profile.at(profile.base_url, model), False)
