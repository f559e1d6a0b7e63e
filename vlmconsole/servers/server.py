"""The server of a profile, wherever it lives: started here, on another machine, or only given by its address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import httpx

from vlmconsole.engines.http import EngineError, http_error, open_client, request
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.engines.readback import served_model
from vlmconsole.engines.registry import find_engine
from vlmconsole.runs.places import Places
from vlmconsole.servers import keys
from vlmconsole.servers.processes import Progress, folder
from vlmconsole.servers.status import ServerStatus

WARMING = "it answers, and is still warming up"
WARM_S = 10.0  # seconds for a token of a server that may be busy


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


class Server(ABC):
    """One profile's server in one lab home. Nothing is held open, so objects are made as they are needed.

    What goes wrong is a LabError with one line for people: LaunchError with the end of the log, EngineError,
    ProfileError, SshError.
    """

    starts_here: ClassVar[bool] = False
    """Whether this lab starts it as a process of this machine, so that its record shows its end."""

    def __init__(self, profile: ServerProfile, places: Places) -> None:
        self.profile, self.places = profile, places
        self.engine = find_engine(profile.engine)

    @abstractmethod
    async def ensure(self, on_progress: Progress | None = None) -> Ready:
        """Return a server that answers: found running, or started and waited for where that costs nothing."""

    async def start(self, on_progress: Progress | None = None) -> Ready:
        """As `ensure`, for a person who asks for it: also started where its machine may be paid by the hour."""
        return await self.ensure(on_progress)

    @abstractmethod
    async def stop(self) -> str:
        """End it; returns what happened in words. Raises LaunchError when it is not ours to stop or survives."""

    @abstractmethod
    def status(self) -> ServerStatus:
        """Return what the records say, without asking it."""

    @abstractmethod
    async def probe(self, timeout_s: float = 2.0, *, thoroughly: bool = False) -> ServerStatus:
        """Return how it is, asked: ready, still starting, or not reachable and why.

        thoroughly: of one that was not ready before, whether it has warmed up. That may cost a token, so it is nothing
        to ask again and again.
        """

    def located(self) -> ServerProfile:
        """Return the profile with the address of its running server, as far as that is known here."""
        return self.profile

    async def reach(self) -> ServerProfile:
        """Return the profile with the address that it is asked at from here, once that is open."""
        return self.located()

    def launch_line(self) -> str:
        """Return the command that starts it, as one would type it; "" when this lab does not start it. Raises
        ProfileError.
        """
        return ""

    @property
    def log(self) -> Path:
        """The file here that holds its log, if there is any."""
        return folder(self.places) / f"{self.profile.name}.log"

    def fetch_log(self) -> Path:
        """As `log`, with what has come since where it is written elsewhere. May take seconds."""
        return self.log

    # --- for the kinds of servers
    async def _answers(
        self, at: ServerProfile, timeout_s: float = 2.0, client: httpx.AsyncClient | None = None
    ) -> bool:
        try:
            if client is None:
                async with open_client(at, timeout_s) as own:
                    return await self._answers(at, client=own)
            return (await request(client, at, self.engine.ready_path)).status_code == 200
        except (EngineError, ProfileError):
            return False

    async def _warming_up(self, at: ServerProfile, client: httpx.AsyncClient) -> bool:
        """Whether it lists its models and cannot answer yet: some do so for as long as their first requests take."""
        if not self.engine.warm_path:
            return False
        try:
            return (await request(client, at, self.engine.warm_path, timeout_s=WARM_S)).status_code == 503
        except EngineError:
            return False  # busy with making that token: it has warmed up

    async def _asked(self, at: ServerProfile, known: ServerStatus, timeout_s: float, thoroughly: bool) -> ServerStatus:
        """What is `known` of it, with what it says at an address."""
        status = replace(known, base_url=at.base_url)
        try:
            async with open_client(at, timeout_s) as client:
                response = await request(client, at, self.engine.ready_path)
                if response.status_code == 200 and not (thoroughly and await self._warming_up(at, client)):
                    return replace(status, state="ready", why="")
        except (EngineError, ProfileError) as error:
            silent = isinstance(error, EngineError) and error.silent
            if known.pid is not None:
                return replace(known, silent=silent)
            return replace(status, state="unreachable", why=str(error), silent=silent)
        code = response.status_code
        if code in (200, 503):
            return replace(status, state="starting", why=WARMING, answered=True)
        refused = code in (401, 403)
        why = http_error(at, code, response.content) if refused else f"answers with status {code}"
        return replace(status, state="unreachable", why=why, answered=True, refused=refused)

    async def _ready(self, at: ServerProfile, pid: int | None = None, *, started_here: bool = False) -> Ready:
        model = await served_model(at)
        log = str(self.log) if pid is not None else None
        return Ready(at.base_url, model, pid, log, at.at(at.base_url, model), started_here)

    def _keyed(
        self, words: list[str], name: str, *, far: bool = False
    ) -> tuple[list[str], dict[str, str], Path | None]:
        """(the words of a start, what its environment gets unseen, the file of a key that was made for this start).

        The key is the profile's own, or a new one; nothing is changed where the launch line takes none.
        """
        if not self.engine.takes_key(words):
            return words, {}, None
        own = self.profile.api_key()
        secret, key_file = (own, None) if own else keys.new_key(folder(self.places), name)
        return self.engine.keyed(words, far=far), {self.engine.key_variable: secret}, key_file
