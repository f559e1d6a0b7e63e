"""Servers as a screen needs them: every profile with its state, and of the chosen one all that can be known.

Nothing here may be called in an event loop's thread: it reads the disk and asks servers, each within a time limit.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import vlmconsole.assets
from vlmconsole.client.adapter_effect import Effect, effect
from vlmconsole.client.chat import ChatClient
from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.compared import Setting, compare_settings
from vlmconsole.engines.effective import EffectiveSettings, Flushed
from vlmconsole.engines.profile import ProfileError, ServerProfile, load_profiles
from vlmconsole.engines.readback import flush, readback
from vlmconsole.errors import LabError
from vlmconsole.models.messages import Message
from vlmconsole.queue.model import Job
from vlmconsole.queue.served import start_served, stop_served, with_its_job
from vlmconsole.queue.store import Store
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.logfile import LogPage
from vlmconsole.runs.places import Places
from vlmconsole.servers.costs import cost_said
from vlmconsole.servers.processes import LaunchError, Progress
from vlmconsole.servers.server import Server
from vlmconsole.servers.status import ServerStatus
from vlmconsole.servers.where import server_of
from vlmconsole.vision.images import open_picture

OTHERS = 10.0  # seconds between two questions to a server that is not chosen
SETTLED = 15.0  # seconds after which the chosen server's settings are read back again
AHEAD = 200  # queued jobs looked into to say why a server's job waits


@dataclass(frozen=True)
class ServerLine:
    """One profile in the list. `job` is the one that serves it or will; `why` says what its state comes from."""

    profile: ServerProfile
    status: ServerStatus
    job: Job | None = None
    why: str = ""


@dataclass(frozen=True)
class Sheet:
    """The chosen server. `unread` says why nothing was read back."""

    line: ServerLine
    settings: tuple[Setting, ...] = ()
    effective: EffectiveSettings | None = None
    unread: str = ""
    cost: str = ""
    log: LogPage | None = None


@dataclass(frozen=True)
class ServersView:
    """One look: all profiles, the files that are none, the chosen one, and why nobody is asked ("" usually)."""

    lines: tuple[ServerLine, ...] = ()
    problems: tuple[str, ...] = ()
    sheet: Sheet | None = None
    quiet: str = ""


@dataclass
class _Asked:
    """What a server said last."""

    at: float
    status: ServerStatus
    read_at: float = 0.0
    effective: EffectiveSettings | None = None
    unread: str = ""


@dataclass
class ServerDesk:
    """Of one lab home; belongs to one thread. Faults of servers become their state; LabError is the queue's."""

    places: Places
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _store: Store | None = None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def look(self, name: str | None, page: LogPage | None = None) -> ServersView:
        """Return everything now; `name` is the chosen profile (None: the first), `page` its log as last read."""
        problems: list[ProfileError] = []
        profiles = load_profiles(self.places.servers, problems=problems)
        if self._store is None:
            self._store = Store(self.places.queue)
        measuring = next((job for job in self._store.active() if _alone(job)), None)
        chosen = name if name in profiles else next(iter(profiles), None)
        if measuring is None:
            asyncio.run(self._ask(profiles, chosen))
        lines = tuple(self._line(profile) for profile in profiles.values())
        sheet = next((self._sheet(line, page) for line in lines if line.profile.name == chosen), None)
        # A question from here would be in its figures.
        quiet = f"job {measuring.id} measures alone: servers are not asked meanwhile" if measuring else ""
        return ServersView(lines, tuple(str(problem) for problem in problems), sheet, quiet)

    async def _ask(self, profiles: Mapping[str, ServerProfile], chosen: str | None) -> None:
        now = time.monotonic()
        due = [
            profile
            for name, profile in profiles.items()
            if name == chosen or name not in self._asked or now - self._asked[name].at > OTHERS
        ]
        fresh = {name for name in profiles if name not in self._asked or self._asked[name].status.state != "ready"}
        statuses = await asyncio.gather(
            *(server_of(profile, self.places).probe(thoroughly=profile.name in fresh) for profile in due)
        )
        for profile, status in zip(due, statuses, strict=True):
            before = self._asked.get(profile.name)
            asked = _Asked(now, status)
            if before is not None and status.state == "ready" and before.status.base_url == status.base_url:
                asked = replace(before, at=now, status=status)
            self._asked[profile.name] = asked
        if chosen is None:
            return
        asked, server = self._asked[chosen], server_of(profiles[chosen], self.places)
        with suppress(LabError):  # the state says already that the machine cannot be reached
            await asyncio.to_thread(server.fetch_log)
        if asked.status.state != "ready":
            asked.effective, asked.unread, asked.read_at = None, asked.status.why, 0.0
        elif not asked.read_at or now - asked.read_at > SETTLED:
            try:
                asked.effective, asked.unread = await readback(await server.reach()), ""
            except LabError as error:
                asked.effective, asked.unread = None, str(error)
            asked.read_at = now

    def _line(self, profile: ServerProfile) -> ServerLine:
        asked = self._asked.get(profile.name)
        status = asked.status if asked is not None else server_of(profile, self.places).status()
        assert self._store is not None
        status, job = with_its_job(status, self._store, self.places)
        return ServerLine(profile, status, job, status.why)

    def _sheet(self, line: ServerLine, page: LogPage | None) -> Sheet:
        asked = self._asked.get(line.profile.name)
        effective = asked.effective if asked is not None else None
        log = server_of(line.profile, self.places).log
        if not log.exists() and line.job is not None and line.job.run:
            log = RunFolder(Path(line.job.run)).log
        read = None
        if log.exists():
            same = page is not None and page.path == log and page.size <= log.stat().st_size
            read = logfile.grown(page) if same and page is not None else logfile.tail(log)
        return Sheet(
            line,
            tuple(compare_settings(line.profile, effective)),
            effective,
            asked.unread if asked is not None else "",
            cost_said(line.profile, line.status, time.time()),
            read,
        )

    # --- doing: each is what the command of the same name does ---
    def start(self, name: str, on_progress: Progress | None = None) -> str:
        """Bring the server, through its job; returns once it answers. Raises LabError with the reason."""
        profile = self._profile(name)
        ready = asyncio.run(start_served(profile, self.places, on_progress))
        self._asked.pop(name, None)
        return f"{name} {'started' if ready.started_here else 'was running'}: {ready.base_url}"

    def stop(self, name: str) -> str:
        """End it, through its job where it has one. Raises LabError when it is not ours or survives."""
        how = asyncio.run(stop_served(self._profile(name), self.places))
        self._asked.pop(name, None)
        return f"{name} {how}"

    def restart(self, name: str, on_progress: Progress | None = None) -> str:
        self.stop(name)
        return self.start(name, on_progress)

    def flush(self, name: str) -> Flushed:
        """Empty its prefix cache, and say whether it really did."""

        async def flushed(server: Server) -> Flushed:
            return await flush(await server.reach())

        return asyncio.run(flushed(server_of(self._profile(name), self.places)))

    def effects(self, name: str) -> dict[str, Effect]:
        """Ask base and adapter the same, for each adapter that the server itself names. Raises LabError.

        mlx-vlm loads the base and then the adapter anew for it, and everyone else's requests wait meanwhile.
        """
        return asyncio.run(_effects(self._profile(name), self.places))

    def _profile(self, name: str) -> ServerProfile:
        profiles = load_profiles(self.places.servers, problems=[])
        if name not in profiles:
            raise LaunchError(f"there is no server profile {name!r} any more")
        return profiles[name]


async def _effects(profile: ServerProfile, places: Places) -> dict[str, Effect]:
    sample = open_picture(Path(vlmconsole.assets.__file__).parent / "pictures" / "scene-regular.png")
    question = [Message("user", COUNT_PROMPT, (sample,))]
    client = ChatClient(await server_of(profile, places).reach())
    try:
        await client.prepare()
        names = client.settings.adapters if client.settings is not None else ()
        return {name: await effect(client, SelectedAdapter(name, name), question) for name in names}
    finally:
        await client.aclose()


def measuring(places: Places) -> bool:
    """Return whether a job measures times now: then servers are asked nothing."""
    if not places.queue.exists():
        return False
    store = Store(places.queue)
    try:
        return any(_alone(job) for job in store.active())
    finally:
        store.close()


def _alone(job: Job) -> bool:
    """Whether a running job measures times, and therefore has every CPU slot to itself."""
    return "cpu:all" in job.devices
