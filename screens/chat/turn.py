"""One question on its way to a server and back: batched to the screen, saved as it comes, closed honestly."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmconsole.chats.history import request_messages, turns
from vlmconsole.chats.records import Chat, MessageState, StoredMessage, StoredPicture
from vlmconsole.chats.sampling import Question, Sampling, Usual
from vlmconsole.chats.store import ChatStore
from vlmconsole.client.lag import LagMeter
from vlmconsole.errors import LabError
from vlmconsole.screens.link import ServerLink
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.client.answer import Answer
    from vlmconsole.streams.stream import Delta

#: Pieces are shown together this often, and saved this often (seconds). Where painting takes long, on a busy machine,
#: they are shown more rarely (at least every RAREST), so that two thirds of the time are left for keys.
PAINT, SAVE, RAREST = 0.066, 1.0, 1.0
#: Somebody types as long as the last key is not longer ago than TYPING; the answer then gives way, up to GIVE_WAY.
TYPING, GIVE_WAY = 0.12, 0.3

_STATES: dict[str, MessageState] = {"done": "done", "cut": "cut", "error": "failed", "cancelled": "stopped"}


class ChatTurn:
    """Asks `link` with the conversation so far, as its settings say. `run` always ends with a finished message.

    It is in the store then, unless `unkept` says why not (a full disk, say): `keep` tries that again.
    """

    def __init__(
        self,
        link: ServerLink,
        store: ChatStore,
        chat: Chat,
        message: StoredMessage,
        usual: Usual,
        *,
        show: Callable[[str, str], None],
        since_key: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.message = message
        self._link, self._store, self._chat, self._usual = link, store, chat, usual
        self._sampling = Sampling.read(chat.sampling)
        self._show, self._since_key = show, since_key
        # Read here, in the event loop: the store's connection belongs to it.
        before = [item for item in store.messages(chat.id, evidence=0) if item.id < message.id]
        # What another server answered to the same question is not part of what this one is asked.
        asked = max((index for index, item in enumerate(before) if item.role == "user"), default=-1)
        self._before = before[: asked + 1]
        self._reference: dict[str, Any] = {}  # what was sent, by the messages' ids
        self._left_out = 0  # questions before this one that were not sent, as the person chose
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        self._pieces = 0
        self._asking: asyncio.Task[Answer] | None = None
        self._stopped = False
        self._sent: float | None = None
        self._ended: dict[str, Any] = {}  # how it ended, as the store takes it
        self.unkept = ""
        #: Seconds from the request to the first piece of text, as the finished answer will have it; None before.
        self.ttft_s: float | None = None

    @property
    def sent(self) -> bool:
        """Whether the question was on its way to the server: before that, nobody has it but this console."""
        return self._sent is not None

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def reasoning(self) -> str:
        return self._reasoning.getvalue()

    def stop(self) -> None:
        """Close the connection; what has come is kept and marked."""
        self._stopped = True
        if self._asking is not None:
            self._asking.cancel()

    async def run(self) -> StoredMessage:
        """Ask, show, save. Faults end up in the message, not in an exception."""
        lag = LagMeter()
        painting = asyncio.create_task(self._paint(lag))
        try:
            question = await asyncio.to_thread(self._question)
            with lag:
                self._asking = asyncio.create_task(
                    self._link.ask(question, on_delta=self._take, on_sent=self._note_sent)
                )
                if self._stopped:
                    self._asking.cancel()
                answer = await self._asking
        except asyncio.CancelledError:
            finished = self._finish("stopped" if self._stopped else "interrupted")
            if not self._stopped:
                raise
        except (LabError, RuntimeError, ValueError, OSError) as error:
            finished = self._finish("cut" if self._text.tell() else "failed", error=str(error))
        else:
            finished = self._close(answer, lag)
        finally:
            painting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await painting
        return finished

    def _question(self) -> Question:
        # What is asked now goes whatever was chosen for what stands before it: again, or at a second server.
        asked = self._before[-1].id if self._before else 0
        since = min(self._sampling.since, asked)
        self._left_out = sum(item.role == "user" and item.id < since for item in self._before)
        sent = turns(self._before, self._link.profile.name, since)
        self._reference = {"message_ids": [item.id for item in sent]}
        if self._chat.system.strip():
            self._reference["system"] = self._chat.system
        return self._sampling.question(request_messages(self._chat.system, sent, StoredPicture.load), self._usual)

    def _note_sent(self, at: float) -> None:
        self._sent = at

    def _take(self, delta: Delta) -> None:
        if delta.kind == "text" and not self._text.tell() and self._sent is not None:
            self.ttft_s = delta.at - self._sent
        (self._text if delta.kind == "text" else self._reasoning).write(delta.text)
        self._pieces += 1

    async def _paint(self, lag: LagMeter) -> None:
        loop = asyncio.get_running_loop()
        shown = saved = 0
        saved_at = loop.time()
        while True:
            seen = len(lag)
            await asyncio.sleep(PAINT)
            # The paint before fell into this sleep, and how late the loop was tells how long it took.
            await asyncio.sleep(min(RAREST, 3 * lag.worst_since(seen)) - PAINT)
            until = loop.time() + GIVE_WAY
            while self._since_key() < TYPING and loop.time() < until:
                await asyncio.sleep(TYPING / 4)
            pieces = self._pieces
            if pieces != shown:
                shown = pieces
                self._show(self.text, self.reasoning)
            if pieces != saved and loop.time() - saved_at >= SAVE:
                saved, saved_at = pieces, loop.time()
                with contextlib.suppress(LabError):  # said at the end, if it cannot be kept then either
                    self._store.progress(self.message.id, self.text, self.reasoning)

    def _close(self, answer: Answer, lag: LagMeter) -> StoredMessage:
        facts: dict[str, Any] = answer.to_json()
        facts["client"] = lag.facts()
        facts["settings"] = self._link.settings
        # By reference: the messages are in the store already, and in full they would grow with the square.
        asked = {name: value for name, value in answer.request.items() if name != "messages"}
        facts["request"] = {**asked, **self._reference, "body_sha256": answer.body_sha256} if asked else {}
        facts["usage_raw"] = answer.result.usage.raw
        if self._left_out:
            facts["questions_left_out"] = self._left_out
        result = answer.result
        state = _STATES[result.ended]
        if state == "stopped" and not self._stopped:
            state = "interrupted"  # the console is going away: nobody asked for a stop
        if state == "failed" and result.text:
            state = "cut"  # an error in mid-answer: what had come is as good as a cut line's
        return self._finish(
            state,
            text=result.text,
            reasoning=result.reasoning,
            error=result.error or "",
            answer=facts,
        )

    def _finish(
        self,
        state: MessageState,
        *,
        text: str | None = None,
        reasoning: str | None = None,
        error: str = "",
        answer: dict[str, Any] | None = None,
    ) -> StoredMessage:
        self._ended = {
            "text": self.text if text is None else text,
            "reasoning": self.reasoning if reasoning is None else reasoning,
            "state": state,
            "error": one_line(error, 500) if error else "",
            "answer": answer,
        }
        return self.keep()

    def keep(self) -> StoredMessage:
        """Put how it ended into the store; `unkept` says why that cannot be. The message comes back all the same."""
        try:
            kept = self._store.finish(self.message.id, **self._ended)
        except LabError as error:
            self.unkept = str(error)
            return replace(self.message, **self._ended)
        self.unkept = ""
        return kept
