"""A server on another machine: started and stopped there over SSH, its log copied, reached through one kept tunnel.

It is a program of that machine's own session: it goes on when this console, its tunnel and its SSH end. What it was
started for stands in `state/servers/NAME.far.json` here, so that its cost can be told.
"""

from __future__ import annotations

import asyncio
import atexit
import shlex
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlmconsole.engines.access import Access
from vlmconsole.engines.http import EngineError, open_client
from vlmconsole.engines.launch_lines import filled
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.remote import programs
from vlmconsole.remote.ssh import SshError, SshHost
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.servers import keys
from vlmconsole.servers.processes import LaunchError, Progress, folder, phase_in, tail
from vlmconsole.servers.server import WARMING, Ready, Server
from vlmconsole.servers.status import ServerStatus
from vlmconsole.servers.tunnel import Tunnel
from vlmconsole.system.reading import read_json

ENVIRONMENTS = "~/.local/share/vlmconsole/environments"  # where `vlmconsole env make` puts them on Linux
LOOK = 2.0  # seconds between two looks at a server that starts there
UP_S = 15.0  # seconds that a tunnel may take to come up
_tunnels: dict[tuple[Path, str, int], Tunnel] = {}
_lock = threading.Lock()


class Far(Server):
    """On the loopback interface of the profile's SSH host. It is started only where a person asks for it."""

    @property
    def host(self) -> SshHost:
        """Its machine. Raises SshError when that is no host."""
        return SshHost.parse(self.profile.ssh_host)

    @property
    def process_name(self) -> str:
        """What its process is called there."""
        return f"serve-{self.profile.name}"

    @property
    def log(self) -> Path:
        """The copy here of its log."""
        return folder(self.places) / f"{self.profile.name}.far.log"

    async def ensure(self, on_progress: Progress | None = None) -> Ready:
        """Return the server, when it answers: it is never started unasked, as its machine may be paid by the hour."""
        at = await self.reach()
        if not await self._answers(at, 5.0):
            way = f"; start it: vlmconsole servers start {self.profile.name}" if self.profile.launch else ""
            port = urlsplit(self.profile.base_url).port
            raise EngineError(f"nothing answers on port {port} of {self.profile.ssh_host} (the tunnel is up){way}")
        return await self._ready(at)

    async def start(self, on_progress: Progress | None = None) -> Ready:
        """Start it there, or find it running, and wait until it answers through the tunnel."""
        if self.profile.launch is None:
            return await self.ensure(on_progress)
        begun = time.monotonic()

        def progress(phase: str) -> None:
            if on_progress is not None:
                on_progress(phase, time.monotonic() - begun)

        (words, place), host = self.command(), self.host
        progress(f"connecting to {host.name}")
        before = await asyncio.to_thread(programs.status, host, self.process_name)
        if before.state != "running":
            self.log.unlink(missing_ok=True)
            words, secrets, key_file = self._keyed(words, f"{self.profile.name}.far", far=True)
            env = self.profile.launch.env
            await asyncio.to_thread(programs.launch, host, self.process_name, words, env, place, secrets)
            record = {"host": host.name, "launched": time.time(), "key_file": key_file.name if key_file else ""}
            write_atomic(self._record_file, to_json(record))
        limit_s, phase = self.profile.launch.start_timeout_s, ""
        while not await self._answers(await self.reach()):
            now = await asyncio.to_thread(programs.status, host, self.process_name)
            log = await asyncio.to_thread(self.fetch_log)
            if now.state != "running":
                raise LaunchError(
                    f"{self.profile.name} ended on {host.name} while starting.{tail(str(log))}", code="server-ended"
                )
            end = log.read_bytes()[-65536:].decode("utf-8", "replace") if log.exists() else ""
            if (at := phase_in(end, self.engine.phases)) != phase:
                progress(at)
                phase = at
            if time.monotonic() - begun > limit_s:
                raise LaunchError(
                    f"{self.profile.name} was not ready on {host.name} within {limit_s:.0f} s.{tail(str(log))}",
                    code="start-timeout",
                )
            await asyncio.sleep(LOOK)
        progress("ready")
        return replace(await self.ensure(), started_here=before.state != "running")

    async def stop(self) -> str:
        """End it there; returns what happened in words. Raises SshError."""
        if self.profile.launch is None:
            raise LaunchError(
                f"{self.profile.name} was not started here; stop it where it runs on {self.profile.ssh_host}",
                code="server-foreign",
            )
        host = self.host
        how = await asyncio.to_thread(programs.stop, host, self.process_name, self.profile.launch.stop_grace_s)
        self._record_file.unlink(missing_ok=True)
        keys.forget(folder(self.places), f"{self.profile.name}.far")
        if how == "none":
            return f"was not running on {host.name}, or was not started from a console"
        billed = "; its GPU memory is released, the instance is still billed" if self.profile.price_per_hour else ""
        return f"{how} on {host.name}{billed}"

    def status(self) -> ServerStatus:
        return ServerStatus(self.profile.name, "unreachable", "not asked yet", self.profile.base_url)

    async def probe(self, timeout_s: float = 2.0, *, thoroughly: bool = False) -> ServerStatus:
        """As everywhere, through the tunnel. Without an answer, its machine is asked whether the process is there."""
        since, log = self._record().get("launched"), str(self.log) if self.log.exists() else None
        where = f"{self.profile.base_url} on {self.profile.ssh_host}"
        status = ServerStatus(self.profile.name, "unreachable", "", where, None, since, log)
        try:
            at = await self.reach(5.0)
            if await self._answers(at, timeout_s):
                async with open_client(at, timeout_s) as client:
                    if thoroughly and await self._warming_up(at, client):
                        return replace(status, state="starting", why=WARMING, answered=True)
                return replace(status, state="ready", why="" if since else "not started from here")
            if self.profile.launch is None:
                return replace(status, why=f"the tunnel is up, but nothing answers on {self.profile.ssh_host}")
            process = await asyncio.to_thread(programs.status, self.host, self.process_name)
        except LabError as error:
            return replace(status, why=str(error))
        if process.state == "running":
            return replace(status, state="starting", pid=process.pid)
        if process.state == "ended":
            return replace(status, state="ended", why=f"ended by itself on {self.profile.ssh_host}", since=None)
        return replace(status, state="stopped", since=None)

    async def reach(self, timeout_s: float = UP_S) -> ServerProfile:
        """As `located`, once the tunnel is up; it is waited for `timeout_s` seconds, unless it is down."""
        tunnel, until = self._tunnel(), time.monotonic() + timeout_s
        while tunnel.state not in ("up", "down"):
            if time.monotonic() > until:
                raise SshError(tunnel.why or f"no tunnel to {tunnel.host.name} within {timeout_s:g} s", tunnel.hint)
            await asyncio.sleep(0.05)
        return self.located()

    def located(self) -> ServerProfile:
        """Return the profile at its tunnel's address: the port must be that ssh's; with the key of a start from here.

        Raises SshError with the reason of the last try while the tunnel is not up; it goes on trying.
        """
        tunnel = self._tunnel()
        if tunnel.state != "up":
            raise SshError(tunnel.why or f"the tunnel to {tunnel.host.name} is opening", tunnel.hint)
        key = Path(str(self._record().get("key_file", ""))).name
        return self.profile.at(tunnel.base_url, access=Access(tunnel, folder(self.places) / key if key else None))

    def _tunnel(self) -> Tunnel:
        """This process's one tunnel to that server, opening."""
        with _lock:
            for tunnel in _tunnels.values():
                if self.profile.base_url == tunnel.base_url:
                    return tunnel  # the profile is at its tunnel's address already
        port = urlsplit(self.profile.base_url).port or 80
        host, key = self.host, (self.places.state, self.profile.ssh_host, port)
        with _lock:
            if key not in _tunnels:
                if not _tunnels:
                    atexit.register(close_tunnels)
                _tunnels[key] = Tunnel(host, port, self.places.state).open()
            return _tunnels[key]

    def command(self) -> tuple[list[str], str]:
        """(the words that start it there, the folder there). Raises ProfileError when the profile does not say."""
        launch = self.profile.launch
        if launch is None or not launch.argv:
            raise ProfileError(
                f"profile {self.profile.name}: launch.argv must be the words that start the server"
                f" on {self.profile.ssh_host}",
                code="launch-missing",
            )
        values = {"port": str(urlsplit(self.profile.base_url).port or 80), "model": self.profile.model}
        words = [filled(word, values) for word in launch.argv]
        if words[0] in ("python", "python3") and launch.interpreter:
            name = launch.interpreter.removeprefix("env:")
            made = f"{ENVIRONMENTS}/{name}/bin/python"
            words[0] = made if name != launch.interpreter else launch.interpreter
        return [*words, *launch.extra], "~/" if launch.folder in ("", "~") else launch.folder

    def launch_line(self) -> str:
        if self.profile.launch is None:
            return ""
        words, place = self.command()
        return f"on {self.profile.ssh_host}, in {place}: {shlex.join(words)}"

    def fetch_log(self) -> Path:
        """Add to the copy here what its log there has grown by, 256 KiB at most a call. Raises SshError."""
        have = self.log.stat().st_size if self.log.exists() else 0
        if new := programs.read_log(self.host, self.process_name, have):
            with self.log.open("ab") as file:
                file.write(new)
        return self.log

    @property
    def _record_file(self) -> Path:
        return folder(self.places) / f"{self.profile.name}.far.json"

    def _record(self) -> dict[str, Any]:
        """What its start from here wrote down: `launched` (wall clock, s), `key_file`; {} without one."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = read_json(self._record_file)
            return {"launched": float(record["launched"]), "key_file": record.get("key_file", "")}
        return {}


def close_tunnels() -> None:
    """End every tunnel that this process keeps."""
    with _lock:
        tunnels = list(_tunnels.values())
        _tunnels.clear()
    for tunnel in tunnels:
        tunnel.close()
