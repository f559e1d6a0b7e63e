"""A server that this lab starts as a process of this machine (`engines.launch`): one for all consoles of a lab home."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path

from vlmconsole.engines import flags
from vlmconsole.engines.http import open_client
from vlmconsole.engines.launch_lines import fixed_port, flags_of
from vlmconsole.engines.profile import Launch, ServerProfile
from vlmconsole.servers import processes
from vlmconsole.servers.processes import LaunchError, Progress, Running
from vlmconsole.servers.server import Ready, Server
from vlmconsole.servers.status import ServerStatus
from vlmconsole.system.typed_paths import named

OPEN = "started without a key, by an older version: other users of this machine can use it; restart it"
_PORT_TRIES = 3


class Here(Server):
    """Found running, started or stopped under the lock of its name."""

    starts_here = True

    @property
    def _launch(self) -> Launch:
        assert self.profile.launch is not None
        return self.profile.launch

    async def ensure(self, on_progress: Progress | None = None) -> Ready:
        """Return a server that answers: found running, or started and waited for.

        Several consoles may call this at once: one starts, the others wait and use the same server.
        """
        name, begun = self.profile.name, time.monotonic()

        def waiting() -> None:
            if on_progress is not None:
                on_progress("another console is starting it", time.monotonic() - begun)

        running = processes.recorded(self.places, name)
        whole = not processes.damaged(self.places, name)  # else it is mended below, with the lock held
        if whole and running is not None and running.alive and await self._answers(self._at(running)):
            return await self._ready(self._at(running), running.pid)
        async with processes.locked(self.places, name, waiting):
            running = processes.adopted(self.places, name)
            if running is not None and running.alive:
                await self._until_ready(running, on_progress)
                return await self._ready(self._at(running), running.pid)
            if running is not None:
                # It died, but helpers of its session may still hold the device.
                await self._end(running, 1.0)
            if self.profile.base_url and await self._answers(self.profile):
                # Somebody started it by hand at the address that the profile names: use it, and do not own it.
                return await self._ready(self.profile)
            return await self._start(on_progress)

    async def stop(self) -> str:
        async with processes.locked(self.places, self.profile.name):
            broken = processes.damaged(self.places, self.profile.name)
            running = processes.adopted(self.places, self.profile.name)
            if running is None:
                processes.forget(self.places, self.profile.name)
                return "was not running" + ("; its state file was damaged and is removed" if broken else "")
            return await self._end(running, self._launch.stop_grace_s)

    def status(self) -> ServerStatus:
        running, name = processes.recorded(self.places, self.profile.name), self.profile.name
        if running is None:
            return ServerStatus(name, "stopped")
        if running.alive:
            return ServerStatus(name, "starting", "", running.base_url, running.pid, running.launched, running.log)
        return ServerStatus(name, "ended", f"ended by itself (it had pid {running.pid})", log=running.log)

    async def probe(self, timeout_s: float = 2.0, *, thoroughly: bool = False) -> ServerStatus:
        known = self.status()
        if known.state in ("stopped", "ended"):
            if not self.profile.base_url or not await self._answers(self.profile, timeout_s):
                return known
            return ServerStatus(known.name, "ready", "not started by this lab", self.profile.base_url)
        status = await self._asked(self.located(), known, timeout_s, thoroughly)
        return replace(status, why=OPEN) if status.state == "ready" and self.is_open() else status

    def is_open(self) -> bool:
        """Return whether it was started without a key, as an older version of the lab did, though it could have one."""
        running = processes.recorded(self.places, self.profile.name)
        if running is None or running.key_file or self.profile.names_key or not self.engine.key_variable:
            return False
        return "api-key" not in flags_of(running.argv)

    def located(self) -> ServerProfile:
        running = processes.recorded(self.places, self.profile.name)
        return self._at(running) if running is not None and running.alive else self.profile

    def launch_line(self) -> str:
        words = self.engine.command(self.profile, self.places, fixed_port(self.profile) or 0)
        return shlex.join(words).replace("--port 0", "--port PORT")

    def _at(self, running: Running) -> ServerProfile:
        return self.profile.at(running.base_url, access=running.access)

    async def _end(self, running: Running, grace_s: float) -> str:
        how = await processes.end(running, grace_s)
        processes.forget(self.places, self.profile.name)
        return how

    async def _start(self, on_progress: Progress | None) -> Ready:
        fixed = fixed_port(self.profile)
        for attempt in range(_PORT_TRIES):
            if fixed and processes.port_answers(fixed):
                raise LaunchError(
                    f"port {fixed} is taken by another program; stop it, or change the profile {self.profile.name}",
                    code="port-taken",
                )
            running = await self._spawn(fixed or processes.free_port(), on_progress, check=attempt == 0)
            try:
                await self._until_ready(running, on_progress)
            except LaunchError:
                stolen = processes.port_answers(running.port) and processes.port_owner(running) != "ours"
                await self._end(running, self._launch.stop_grace_s)
                if stolen and not fixed and attempt + 1 < _PORT_TRIES:
                    continue  # between our choosing a free port and the server's binding it, somebody else took it
                raise
            return await self._ready(self._at(running), running.pid, started_here=True)
        raise AssertionError("the last try returns or raises")

    async def _spawn(self, port: int, on_progress: Progress | None, *, check: bool) -> Running:
        name, places = self.profile.name, self.places
        words = self.engine.command(self.profile, places, port)
        env = {**self.engine.environment(self.profile, places), **self._launch.env}
        cwd = named(self._launch.folder) if self._launch.folder else None
        words_with_key, secrets, key_file = self._keyed(words, name)
        if check:
            await self._check(words, env, cwd, on_progress)
        if on_progress is not None:
            on_progress("starting python", 0.0)
        return processes.spawn(places, name, words_with_key, port=port, env=env | secrets, cwd=cwd, key_file=key_file)

    async def _check(
        self, words: list[str], env: dict[str, str], cwd: Path | None, on_progress: Progress | None
    ) -> None:
        """The program and its flags, before anything is started with them. Raises ProfileError."""
        name, cwd = self.profile.name, cwd or processes.folder(self.places)
        # What the lab itself writes is known to it: only a user's additions are worth the question.
        if self.engine.writes_line and not self._launch.extra:
            flags.program(name, words, cwd)
            return
        if self.engine.package and on_progress is not None:
            on_progress("checking the launch flags", 0.0)
        unchecked = await flags.check(name, self.engine, words, env, cwd, self.places.cache)
        if unchecked and on_progress is not None:
            on_progress(unchecked, 0.0)

    async def _until_ready(self, running: Running, on_progress: Progress | None) -> None:
        at = self._at(running)
        async with open_client(at, 5.0) as client:
            await processes.until_ready(
                running,
                lambda: self._answers(at, client=client),
                timeout_s=self._launch.start_timeout_s,
                phases=self.engine.phases,
                progress=on_progress,
            )
