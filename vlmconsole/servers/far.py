"""A server on another machine: started and stopped there over SSH, its log copied, reached through one kept tunnel.

It is a program of that machine's own session: it goes on when this console, its tunnel and its SSH end. What it was
started for stands in `state/servers/NAME.far.json` here, so that its cost can be told.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from vlmconsole.engines.access import Access
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.remote import programs
from vlmconsole.remote.ssh import SshError, SshHost
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.runs.places import Places
from vlmconsole.servers import keys
from vlmconsole.servers.processes import LaunchError, Progress, folder, phase_in, tail
from vlmconsole.servers.tunnel import Tunnel
from vlmconsole.system.reading import read_json

ENVIRONMENTS = "~/.local/share/vlmconsole/environments"  # where `vlmconsole env make` puts them on Linux
LOOK = 2.0  # seconds between two looks at a server that starts there
_tunnels: dict[tuple[Path, str, int], Tunnel] = {}
_lock = threading.Lock()


def is_far(profile: ServerProfile) -> bool:
    """Whether the profile's server is on the loopback interface of another machine."""
    return bool(profile.ssh_host) and profile.loopback


def tunnel_to(profile: ServerProfile, places: Places) -> Tunnel | None:
    """This process's one tunnel to that server, opening; None for a profile that needs none. Raises SshError."""
    with _lock:
        for kept in _tunnels.values():
            if profile.base_url == kept.base_url:
                return kept  # the profile is at its tunnel's address already
    made = Tunnel.to(profile, places.state)
    if made is None:
        return None
    key = (places.state, profile.ssh_host, made.remote_port)
    with _lock:
        if key not in _tunnels:
            if not _tunnels:
                atexit.register(close_tunnels)
            _tunnels[key] = made.open()
        return _tunnels[key]


def close_tunnels() -> None:
    """End every tunnel that this process keeps."""
    with _lock:
        kept = list(_tunnels.values())
        _tunnels.clear()
    for tunnel in kept:
        tunnel.close()


async def reached(profile: ServerProfile, places: Places, timeout_s: float = 15.0) -> ServerProfile:
    """The profile at its tunnel's address, once that is up; as it is where none is needed.

    Raises SshError: at once with the reason of the last try while the tunnel is down; it goes on trying.
    """
    tunnel = tunnel_to(profile, places)
    if tunnel is None:
        return profile
    until = time.monotonic() + timeout_s
    while tunnel.state != "up":
        if tunnel.state == "down" or time.monotonic() > until:
            raise SshError(tunnel.why or f"no tunnel to {tunnel.host.name} within {timeout_s:g} s", tunnel.hint)
        await asyncio.sleep(0.05)
    return profile.at(tunnel.base_url, access=access(tunnel, profile, places))


def access(tunnel: Tunnel, profile: ServerProfile, places: Places) -> Access:
    """What is needed to be asked through its tunnel: that the port is ssh's, and the key of a start from here."""
    name = ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        name = Path(str(read_json(_record(places, profile.name))["key_file"])).name
    return Access(tunnel, folder(places) / name if name else None)


def process_name(profile: ServerProfile) -> str:
    """What its process is called there."""
    return f"serve-{profile.name}"


def command(profile: ServerProfile) -> tuple[list[str], str]:
    """(the words that start it there, the folder there). Raises ProfileError when the profile does not say."""
    if profile.launch is None or not profile.launch.argv:
        raise ProfileError(
            f"profile {profile.name}: launch.argv must be the words that start the server on {profile.ssh_host}",
            code="launch-missing",
        )
    port = urlsplit(profile.base_url).port or 80
    values = {"{port}": str(port), "{model}": profile.model}
    words = []
    for word in profile.launch.argv:
        for name, value in values.items():
            word = word.replace(name, value)
        words.append(word)
    if words[0] in ("python", "python3"):
        named = profile.launch.interpreter
        made = f"{ENVIRONMENTS}/{named.removeprefix('env:')}/bin/python"
        words[0] = made if named.startswith("env:") else named or words[0]
    place = profile.launch.folder or "~/"
    return [*words, *profile.launch.extra], "~/" if place == "~" else place


async def start(
    profile: ServerProfile,
    places: Places,
    answers: Callable[[ServerProfile], object],
    phases: tuple[tuple[str, str], ...] = (),
    on_progress: Progress | None = None,
) -> bool:
    """Start it there, or find it running, and wait until `answers` (awaitable → bool) says so; True: started now.

    Raises SshError, ProfileError, or LaunchError with the end of its log.
    """
    host = SshHost.parse(profile.ssh_host)
    words, place = command(profile)
    assert profile.launch is not None
    name, begun = process_name(profile), time.monotonic()

    def told(phase: str) -> None:
        if on_progress is not None:
            on_progress(phase, time.monotonic() - begun)

    told(f"connecting to {host.name}")
    before = await asyncio.to_thread(programs.status, host, name)
    if before.state != "running":
        log_copy(places, profile.name).unlink(missing_ok=True)
        engine, (secret, key_file) = find_engine(profile.engine), _key(profile, places, words)
        words = engine.keyed(words, far=True) if secret else words
        secrets = {engine.key_variable: secret} if secret else {}
        await asyncio.to_thread(programs.launch, host, name, words, profile.launch.env, place, secrets)
        record = {"host": host.name, "launched": time.time(), "key_file": key_file.name if key_file else ""}
        write_atomic(_record(places, profile.name), to_json(record))
    phase = ""
    while True:
        at = await reached(profile, places)
        if await answers(at):  # type: ignore[misc]
            told("ready")
            return before.state != "running"
        now = await asyncio.to_thread(programs.status, host, name)
        log = await asyncio.to_thread(fetch_log, profile, places)
        if now.state != "running":
            raise LaunchError(f"{profile.name} ended on {host.name} while starting.{tail(str(log))}")
        said = phase_in(log.read_bytes()[-65536:].decode("utf-8", "replace") if log.exists() else "", phases)
        if said != phase:
            told(said)
            phase = said
        if time.monotonic() - begun > profile.launch.start_timeout_s:
            wait = profile.launch.start_timeout_s
            raise LaunchError(f"{profile.name} was not ready on {host.name} within {wait:.0f} s.{tail(str(log))}")
        await asyncio.sleep(LOOK)


def _key(profile: ServerProfile, places: Places, words: list[str]) -> tuple[str, Path | None]:
    """As `servers` gives one to a server here; mlx-vlm's own server, which is started there, reads it as well."""
    if not find_engine(profile.engine).takes_key(words):
        return "", None
    return (own, None) if (own := profile.api_key()) else keys.new_key(folder(places), f"{profile.name}.far")


async def stop(profile: ServerProfile, places: Places) -> str:
    """End it there; returns what happened in words. Raises SshError."""
    host = SshHost.parse(profile.ssh_host)
    grace = profile.launch.stop_grace_s if profile.launch is not None else 10.0
    how = await asyncio.to_thread(programs.stop, host, process_name(profile), grace)
    _record(places, profile.name).unlink(missing_ok=True)
    keys.forget(folder(places), f"{profile.name}.far")
    if how == "none":
        return f"was not running on {host.name}, or was not started from a console"
    billed = "; its GPU memory is released, the instance is still billed" if profile.price_per_hour else ""
    return f"{how} on {host.name}{billed}"


def launched(places: Places, name: str) -> float | None:
    """When it was started from here, wall clock; None when it was not."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(read_json(_record(places, name))["launched"])
    return None


def fetch_log(profile: ServerProfile, places: Places) -> Path:
    """Add to the copy here what its log there has grown by, 256 KiB at most a call; returns it. Raises SshError."""
    copy = log_copy(places, profile.name)
    have = copy.stat().st_size if copy.exists() else 0
    new = programs.read_log(SshHost.parse(profile.ssh_host), process_name(profile), have)
    if new:
        with copy.open("ab") as file:
            file.write(new)
    return copy


def log_copy(places: Places, name: str) -> Path:
    """Where the copy of its log lies here."""
    return folder(places) / f"{name}.far.log"


def _record(places: Places, name: str) -> Path:
    return folder(places) / f"{name}.far.json"
