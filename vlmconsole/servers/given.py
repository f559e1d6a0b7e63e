"""A server that is only given by its address: nobody here starts or stops it."""

from __future__ import annotations

from urllib.parse import urlsplit

from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.servers.processes import LaunchError, Progress, Running, folder, recorded
from vlmconsole.servers.server import Ready, Server
from vlmconsole.servers.status import ServerStatus


class Given(Server):
    """Asked where the profile says. One of this lab's own servers at that address is given its key."""

    async def ensure(self, on_progress: Progress | None = None) -> Ready:
        """Return the server, when it answers and names its model."""
        if not self.profile.base_url:
            raise ProfileError(f"profile {self.profile.name} has neither base_url nor [launch]: where is the server?")
        return await self._ready(self.located())

    async def stop(self) -> str:
        where = f" on {self.profile.ssh_host}" if self.profile.ssh_host else ""
        raise LaunchError(
            f"{self.profile.name} was not started here; stop it where it runs{where}", code="server-foreign"
        )

    def status(self) -> ServerStatus:
        return ServerStatus(self.profile.name, "unreachable", "not asked yet", self.profile.base_url)

    async def probe(self, timeout_s: float = 2.0, *, thoroughly: bool = False) -> ServerStatus:
        return await self._asked(self.located(), self.status(), timeout_s, thoroughly)

    def located(self) -> ServerProfile:
        running = self._own()
        return self.profile if running is None else self.profile.at(self.profile.base_url, access=running.access)

    def _own(self) -> Running | None:
        """The lab's own running server at the address that the profile gives (`--base-url`, a second profile)."""
        if self.profile.route != "loopback" or self.profile.access.held is not None:
            return None
        port, records = urlsplit(self.profile.base_url).port, sorted(folder(self.places).glob("*.json"))
        names = (path.stem for path in records if not path.name.endswith(".far.json"))
        servers = (recorded(self.places, name) for name in names)
        return next((it for it in servers if it is not None and it.port == port and it.alive), None)
