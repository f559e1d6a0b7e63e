"""The console's one line to the server that answers: starting it, asking it, and what is known about it.

Everything heavy (HTTP client, engine modules) is imported when first needed, never for the first frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places
from vlmconsole.screens.keys import with_keys
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.chats.sampling import Question
    from vlmconsole.client.answer import Answer
    from vlmconsole.client.chat import ChatClient
    from vlmconsole.client.sight import Budget
    from vlmconsole.engines.adapter_choice import SelectedAdapter
    from vlmconsole.engines.effective import EffectiveSettings
    from vlmconsole.engines.profile import ServerProfile
    from vlmconsole.servers.server import Server
    from vlmconsole.streams.stream import Delta
    from vlmconsole.vision.images import Picture

State = Literal["stopped", "starting", "ready", "failed"]
FIND = 1.0  # seconds between two questions to a server that somebody else starts, whether it answers by now
PULSE = 5.0  # seconds between two questions to a server whose end no record shows, whether it still answers
PULSE_S = 3.0  # the longest that it may take to say so
ENDED = "stopped · starts on your next message"
SILENT = "does not answer"
WARMING = "warming up"


@dataclass(frozen=True)
class ServerView:
    """What the status line says. `note` is the progress while starting, the cause when failed."""

    state: State = "stopped"
    profile: str = ""
    model: str = ""
    engine: str = ""
    version: str = ""
    note: str = ""
    adapter: str = ""
    waits: str = ""  # what the job of a server that is to start waits for in the queue

    def with_adapter(self, name: str) -> ServerView:
        """Return the same, with the adapter that a conversation names."""
        return replace(self, adapter=one_line(name, 40)) if name else self

    @property
    def reason(self) -> str:
        """What a server that is to start waits for in the queue, with the ways out; "" when it does not wait there."""
        ways = with_keys(" · F3 shows the queue · {chat.server} picks another server")
        return self.waits + ways if self.waits else ""

    @property
    def short(self) -> str:
        return f"{self.profile}{self._plus} · {self._said}"

    @property
    def long(self) -> str:
        engine = f"{self.engine} {self.version}".strip()
        return " · ".join(part for part in (self.profile, f"{self.model}{self._plus}", engine, self._said) if part)

    @property
    def _plus(self) -> str:
        return f" + {self.adapter}" if self.adapter else ""

    @property
    def _said(self) -> str:
        return self.note if self.state in ("starting", "stopped") and self.note else self.state


def settings_said(effective: EffectiveSettings) -> dict[str, Any]:
    """Read-back settings under the words of the field, for the Why panel; only what the server did say."""
    named = {
        "running limit B": effective.running_limit,
        "context": effective.context,
        "KV capacity": effective.kv_tokens,
        "prefix cache": effective.prefix_cache,
        "precision": effective.precision,
    }
    return {name: value for name, value in named.items() if value is not None}


class ServerLink:
    """One server profile in use. `changed` is called in the event loop whenever `view` or `settings` moved."""

    def __init__(self, profile: ServerProfile, places: Places, changed: Callable[[], None]) -> None:
        self.profile = profile
        self.places = places
        self.settings: dict[str, Any] = {}
        self.view = ServerView(profile=profile.name, model=profile.model, engine=profile.engine)
        self._changed = changed
        self._client: ChatClient | None = None
        self._starting: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._failed: int | None = None  # the process that did not do: only another one is tried unasked
        self._effects: dict[SelectedAdapter, SelectedAdapter] = {}
        self._phase, self._since = "", 0.0  # of a start: what it is at, and when (monotonic) it began
        self._ours = False  # whether its process was started by this lab, so that its end can be seen
        self._pid: int | None = None  # that process: another one is another server, with settings of its own
        self._asking = 0  # questions of ours under way: then its silence says nothing
        self._pulsed, self._missed = 0.0, 0  # when it was last asked whether it answers, and how often it did not

    @property
    def _server(self) -> Server:
        from vlmconsole.servers.where import server_of

        return server_of(self.profile, self.places)

    async def ensure(self) -> ChatClient:
        """Return a client of a server that is there: found, or started again when it has died. Raises LabError.

        Callers that come while it is starting wait for the same start.
        """
        server = self._server
        pid = server.status().pid
        # Another process is another server: another port, another key, perhaps other settings.
        alive = not server.starts_here or (pid is not None and pid == self._pid)
        if self._client is None or self.view.state != "ready" or not alive:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.create_task(self._start())
            # A stopped question must not stop the server's start, which others may wait for too.
            await asyncio.shield(self._starting)
        if self._client is None:
            raise LabError(self.view.note or f"server {self.profile.name} is not ready")
        return self._client

    async def start(self) -> None:
        """Start or find the server and read its settings back; ends in state ready or failed, never raises."""
        with contextlib.suppress(LabError):  # the state says it
            await self.ensure()

    def look(self) -> None:
        """Say so when the server that was ready has gone, and when it was started again: by its record, or by asking
        it now and then. While one is starting: how long it has taken by now.
        """
        state = self.view.state
        if state == "starting" and self._phase:
            self._move(note=f"{self._phase} {time.monotonic() - self._since:.0f} s")
        busy = any(task is not None and not task.done() for task in (self._starting, self._finding))
        if busy or (state == "starting" and self.view.note != WARMING):
            return
        server = self._server
        if not server.starts_here or self.view.note in (SILENT, WARMING):
            self._pulse()
            return
        pid = server.status().pid
        if state == "ready" and self._ours and pid is None:
            self._move(state="stopped", note=ENDED)
            self._finding = asyncio.create_task(self._who_brings_it())
        elif state in ("stopped", "failed") and pid not in (None, self._failed):
            self._finding = asyncio.create_task(self._find())
        elif state == "ready" and self._ours and pid != self._pid:
            self._starting = asyncio.create_task(self._start())
        elif state == "stopped" and self.view.note not in ("", ENDED):
            self._finding = asyncio.create_task(self._who_brings_it())
        elif state == "ready":
            self._pulse()

    def _pulse(self) -> None:
        """Begin to ask whether it answers, where that is due: not while it answers us."""
        if not self._asking and time.monotonic() - self._pulsed >= PULSE:
            self._pulsed = time.monotonic()
            self._finding = asyncio.create_task(self._ask_whether_it_answers())

    async def _ask_whether_it_answers(self) -> None:
        """The state of a server by its own word; one that comes back is read anew."""
        from vlmconsole.desks.servers import measuring

        state = self.view.state
        with contextlib.suppress(LabError):
            if await asyncio.to_thread(measuring, self.places):
                return  # a question from here would be in its figures
        status = await self._server.probe(PULSE_S, thoroughly=state != "ready")
        if self._asking or self.view.state != state:
            return
        self._missed = self._missed + 1 if status.silent else 0
        if status.state == "ready":
            if state != "ready":
                self._starting = asyncio.create_task(self._start())
        elif state == "failed":
            return  # it says why already
        elif status.answered and status.state == "starting":
            self._phase = ""
            self._move(state="starting", note=WARMING)
        elif status.silent:
            if self._missed > 1:  # once is what a long prompt of somebody else's does
                self._move(state="stopped", note=SILENT)
        else:
            self._move(state="stopped", note=status.word)

    async def _find(self) -> None:
        """Follow a start that is not ours (a hand-over's end, another console, the servers screen) until it answers."""
        self._phase, self._since = "starting", time.monotonic()
        self._move(state="starting", note="starting")
        while self._starting is None or self._starting.done():  # else a question came, and its own start says all
            status = await self._server.probe()
            if status.state == "ready":
                self._starting = asyncio.create_task(self._start())
            elif status.pid is None:
                self._move(state="stopped", note=ENDED)
                return
            else:
                await asyncio.sleep(FIND)

    async def _job_that_brings_it(self) -> int | None:
        """The job that starts the server again by itself, where one waits to: after a hand-over."""

        def waiting() -> int | None:
            from vlmconsole.queue.served import serving
            from vlmconsole.queue.store import Store
            from vlmconsole.runs.folder import RunFolder

            if not self.places.queue.exists():
                return None
            store = Store(self.places.queue)
            try:
                job = serving(store, self.profile.name)
                if job is None or job.stop is not None:
                    return None
                was_up = bool(job.run) and RunFolder(Path(job.run or "")).file("ready.json").exists()
                return None if was_up else job.id
            finally:
                store.close()

        with contextlib.suppress(LabError):  # the jobs screen says what is wrong with the queue
            return await asyncio.to_thread(waiting)
        return None

    async def _who_brings_it(self) -> None:
        """Say which job brings a stopped server back."""
        number = await self._job_that_brings_it()
        if self.view.state == "stopped":
            note = ENDED if number is None else f"stopped · job {number} restarts it"
            if note != self.view.note:
                self._move(note=note)

    async def close(self) -> None:
        """Close the connection; the server goes on."""
        if self._finding is not None:
            self._finding.cancel()
        if self._client is not None:
            await self._client.aclose()

    async def _start(self) -> None:
        from vlmconsole.client.chat import ChatClient
        from vlmconsole.engines.registry import find_engine
        from vlmconsole.queue.served import ensure_served

        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        self._phase = ""
        self._move(state="starting", note="", waits="")
        try:
            ready = await ensure_served(self.profile, self.places, self._progress)
            self.profile, self._ours, self._pid = ready.profile, ready.pid is not None, ready.pid
            client = ChatClient(self.profile)
            await client.prepare()
            warm = self._ours or await self._warm()
        except (LabError, RuntimeError, ValueError, OSError) as error:
            self._failed = self._server.status().pid
            back = await self._job_that_brings_it()
            if back is None:
                self._move(state="failed", note=str(error), waits="")
            else:  # it made room for a job, and comes back by itself
                self._move(state="stopped", note=f"stopped · job {back} restarts it", waits="")
            return
        self._client, self._missed, self._pulsed = client, 0, time.monotonic()
        # Where it is still warming up a question is taken all the same: the server keeps it until it can answer.
        self._phase = self._phase if warm else ""
        state, note = ("ready", "") if warm else ("starting", WARMING)
        self._take(client, state=state, note=note, waits="", engine=find_engine(self.profile.engine).label)

    async def _warm(self) -> bool:
        """Whether a server that somebody else started can answer by now: SGLang lists its models before that."""
        from vlmconsole.desks.servers import measuring
        from vlmconsole.engines.registry import find_engine

        if not find_engine(self.profile.engine).warm_path or await asyncio.to_thread(measuring, self.places):
            return True
        return (await self._server.probe(PULSE_S, thoroughly=True)).state != "starting"

    def _take(self, client: ChatClient, **more: Any) -> None:
        """Show the settings that the client read last: a server may be restarted with others under our eyes."""
        if client.settings is not None:
            self.settings = settings_said(client.settings)
        version = (client.settings.version if client.settings else None) or ""
        moved = replace(self.view, model=Path(client.model).name, version=version, **more)
        if moved != self.view or more:
            self.view = moved
            self._changed()

    def _progress(self, phase: str, waited_s: float) -> None:
        from vlmconsole.queue.served import waited_for

        waits = waited_for(phase)
        self._phase, self._since = "waits" if waits else one_line(phase, 60), time.monotonic() - waited_s
        self._move(note=f"{self._phase} {waited_s:.0f} s", waits=one_line(waits, 300))

    def _move(self, **fields: Any) -> None:
        self.view = replace(self.view, **fields)
        self._changed()

    async def ask(
        self,
        question: Question,
        *,
        on_delta: Callable[[Delta], None],
        on_sent: Callable[[float], None] | None = None,
    ) -> Answer:
        """Return one question; waits for a server that is starting. Cancelling the task closes the socket. Raises
        LabError for one that is certainly longer than the context.

        An adapter is looked at anew for each question, and its effect once, where a server may do without it unasked.
        """
        from vlmconsole.models.prompt import is_long

        client, messages, max_tokens = await self.ensure(), question.messages, question.max_tokens
        long = is_long(messages)  # it may have been sent before the server, and so its context, was there
        if long or not question.chosen:
            cost = await client.budget(messages, max_tokens, chosen=question.chosen)
            if long and cost.certain:
                raise LabError(f"not sent: {cost.advice}")
            max_tokens = cost.answer
        selected = None
        if question.adapter:
            selected = await asyncio.to_thread(self.adapter, question.adapter, question.other_base)
        if selected is not None:
            from vlmconsole.client.adapter_effect import with_effect

            if selected not in self._effects:
                self._effects[selected] = await with_effect(client, selected, messages)
            selected = self._effects[selected]
        self._asking += 1
        try:
            answer = await client.ask(
                messages,
                max_tokens=max_tokens,
                temperature=question.temperature,
                adapter=selected,
                extra=dict(question.extra),
                on_delta=on_delta,
                on_sent=on_sent,
            )
        finally:
            self._asking -= 1
        self._take(client)
        if answer.result.ended == "error":
            self._pulsed = 0.0  # is it there at all? asked at the next look
        return answer

    def adapter(self, name: str, other_base: bool = False) -> SelectedAdapter | None:
        """Return the adapter `name` for this server, checked; None for the base alone. May read gigabytes: not for the
        event loop. Raises AdapterError, a LabError."""
        from vlmconsole.training.adapters.serving import select

        settings = self._client.settings if self._client is not None else None
        precision = settings.precision if settings is not None else None
        return select(name, self.profile, precision, self.places, other_base=other_base)

    async def budget(self, question: Question) -> Budget | None:
        """Tokens of a question before it is sent; None while there is no server to ask for its context."""
        if self._client is None:
            return None
        return await self._client.budget(question.messages, question.max_tokens, chosen=question.chosen)

    def visual_tokens(self, picture: Picture) -> int | None:
        """Expected visual tokens of a picture by the model's processor settings; None when they are unknown."""
        from vlmconsole.client.sight import expected_tokens
        from vlmconsole.engines.served_model import picture_settings

        settings = self._client.settings if self._client is not None else None
        return expected_tokens(picture, picture_settings(self.profile, settings))
