"""Asking: from what is typed to an answer in the transcript, and what it will take of the context."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import work

from vlmconsole.chats.records import Chat, StoredMessage
from vlmconsole.errors import LabError
from vlmconsole.screens.chat.composer import FAULT, LENGTH, PATHS, Composer
from vlmconsole.screens.chat.draft import CHANGING, KEEP_AGAIN, ChatDraft
from vlmconsole.screens.keys import TYPED
from vlmconsole.screens.link import ServerLink
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.client.sight import Budget
    from vlmconsole.screens.chat.turn import Turn
    from vlmconsole.vision.images import Picture

COMMANDS = ", ".join(f"{word} {more}".strip() for word, more, _ in TYPED)
AFRESH = "begin a new conversation"  # how the advice ends where the question alone would fit
ANSWERING = "still answering · x or Ctrl+C stops it"
STOPS = "Ctrl+C stops the answer"
CANCELLED = "edit cancelled · i, then Ctrl+Z brings its text back"
_SLASH = re.compile(r"/[a-z]+(?=\s|$)")
#: The budget is counted this long (seconds) after the last key.
BUDGET_PAUSE = 0.25
#: It is not waited for longer than this (seconds): a server that hangs must not keep a question back.
BUDGET_WAIT = 3.0


class ChatAsk(ChatDraft):
    """Holds the answers that are being given."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Turn] = []
        self._coming: set[int] = set()  # answers whose turn begins after the next paint
        self.cost: Budget | None = None
        self._counted_for: tuple[ServerLink, str] | None = None  # the server and its state when it last changed
        #: What is set for a conversation that is not stored yet.
        self.draft: dict[str, Any] = {}
        self._warned = ""  # a question that is too long, and was said to be
        self._offered = ""  # a question whose paths were made out, or not found, and was said to be

    # -- budget --------------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        if self.composer.question.text:
            self.composer.notice()
        else:  # emptied by sending: what is said about that stays, what is said about its length does not
            self.composer.withdraw(LENGTH)
        self.show_budget()
        self.keep_draft_soon()

    @work(group="budget", exclusive=True, exit_on_error=False)
    async def show_budget(self) -> None:
        """What the next question would take of the context, beside the composer; counted a moment after typing."""
        await asyncio.sleep(BUDGET_PAUSE)
        self.cost = await self._count(self.composer.question.text, self.pending)
        self._say_budget()

    def show_server(self) -> None:
        """What was written before its server was there is counted, and its pictures are, once it is."""
        super().show_server()
        link = self.console.link
        self._say_what_is_waited_for()
        state = (link, link.view.state) if link is not None else None
        if self.furnished and state != self._counted_for:
            self._counted_for = state
            if self.composer.question.text.strip() or self.pending:
                self.in_turn(self.show_pending)

    async def open_chat(self, chat: Chat | None) -> None:
        """What was counted for the conversation before is not said of this one."""
        self.workers.cancel_group(self, "budget")
        self.cost = None
        self._say_budget()
        await super().open_chat(chat)
        if self.composer.question.text.strip() or self.pending:
            self.show_budget()

    def _say_budget(self) -> None:
        cost = self.cost
        if cost is None or not (self.composer.question.text.strip() or self.pending):
            self.composer.budget("")
            self.composer.withdraw(LENGTH)
            return
        about = "" if cost.text_exact else "about "
        taken = f"{about}{(cost.visual or 0) + cost.text} + {cost.answer}"
        of = f" of {cost.context}{self._turns_said()}" if cost.context else self._turns_said()
        self.composer.budget(f"context {taken}{of}", "$muted" if cost.fits else "$warning")
        if not cost.fits:
            offer = ". Ctrl+T shrinks it" if cost.shrink_to is not None and self.pending else ""
            if cost.advice.endswith(AFRESH) and len(self._kept_before()) > 2:
                offer = f", or Ctrl+R sends its newest turns alone{offer}"
            # Said by every count of it, however late: Enter stands for "all the same" from then on.
            again = not cost.certain and self._warned and self._warned == self.composer.question.text.strip()
            also = ". Enter once more sends it all the same" if again else ""
            self.composer.notice(one_line(cost.advice, 300) + offer + also, "$warning", about=LENGTH)

    def _turns_said(self) -> str:
        """Which part of the conversation goes along, where it is not all of it."""
        asked = [message.id for message in self._kept_before() if message.role == "user"]
        return f" · last {sum(one >= self.since for one in asked)} of {len(asked)} questions" if self.since else ""

    async def _count(self, text: str, pictures: list[Picture], since: int | None = None) -> Budget | None:
        """The budget of a question with what stands before it, from message `since` on (None: as it is set)."""
        from vlmconsole.chats.history import request_messages, turns
        from vlmconsole.chats.sampling import Sampling
        from vlmconsole.models.messages import Message

        link = self.console.link
        if link is None:
            return None
        kept = turns(self._kept_before(), link.profile.name, self.since if since is None else since)
        messages = request_messages(self.system, kept)
        messages.append(Message("user", text, tuple(pictures)))
        try:
            async with asyncio.timeout(BUDGET_WAIT):
                question = Sampling.read(self.sampling).question(messages, self.console.lab.settings)
                return await link.budget(question)
        except (LabError, RuntimeError, ValueError, OSError) as error:  # a timeout is an OSError
            self.log.warning(f"the budget could not be counted: {error}")
            return None

    async def action_fit(self) -> None:
        """Ctrl+T: shrink the last picture to what the budget allows; the change is named on its chip."""
        if self.cost is None or self.cost.shrink_to is None or not self.pending:
            self.composer.notice("nothing needs to shrink")
            return
        self.pending[-1] = await asyncio.to_thread(self.pending[-1].resized_to, *self.cost.shrink_to)
        self.composer.notice()
        await self.show_pending()

    def action_empty(self) -> None:
        """Ctrl+G: all of what is written away; the pictures stay."""
        self.composer.question.replace_all("")

    # -- asking --------------------------------------------------------------------------------------------

    def on_composer_sent(self, event: Composer.Sent) -> None:
        event.stop()
        self.in_turn(partial(self._send, event.text))

    async def _send(self, typed: str) -> None:
        """Send what is typed, unless something stands against it; then say what, and send nothing."""
        if not self.composer.question.text.startswith(typed):
            return  # an Enter pressed twice: what stood there has been sent
        text = typed.strip()
        if await self.command(text):
            return
        if not text and not self.pending:
            return
        slash = _SLASH.match(text)
        if slash is not None and not Path(slash[0]).exists():
            self.composer.notice(f"no such command: {one_line(slash[0], 40)}; there are {COMMANDS}", "$warning")
            return
        if self._offered != text and await self.offer_typed(text):
            self._offered = text
            return
        link, fault = self.console.link, self._fault()
        if fault or link is None:
            self.composer.notice(fault, "$warning", about=FAULT)
            return
        cost = await self._count(text, self.pending)
        if cost is not None and not cost.fits and (cost.certain or self._warned != text):
            self.cost, self._warned = cost, text
            self._say_budget()
            return
        pictures, self.pending, self._warned, self._offered = self.pending, [], "", ""
        self.composer.withdraw(PATHS)
        self.composer.question.gone(typed)
        await self.show_pending()
        try:
            await self._put(link, text, pictures)
        except LabError:  # a full disk, say
            self.pending = [*pictures, *self.pending]
            self.composer.question.back(typed)
            await self.show_pending()
            raise
        self.keep_draft()
        await self.answer(link)

    def _fault(self) -> str:
        """Why nothing can be sent now, "" when it can."""
        if self.running or self._coming:
            return ANSWERING
        if self.console.link is None and self.console.no_server:
            return self.console.no_server
        if self.console.link is None or not self.furnished:
            return "still looking for the server; your question stays here"
        return ""

    async def _put(self, link: ServerLink, text: str, pictures: list[Picture]) -> None:
        """Store a question and show it. Raises what the store does; it holds nothing of the question then, and a
        question that it was to replace stands as it was."""
        self.store.keep_files(pictures)  # before: other consoles wait for what is written together
        with self.store.together():
            chat = self.chat
            if chat is None:
                chat = self.store.new_chat(server=link.profile.name, title=one_line(text, 60) or pictures[0].name)
                self.store.set_chat(chat.id, **self.draft)
            if self.changing is not None:
                self.store.supersede(chat.id, self.changing)
            question = self.store.add(chat.id, "user", text, pictures=pictures)
        self.chat, self.draft = self.store.chat(chat.id), {}
        if self.changing is not None:
            self.changing = None
            self.composer.stand()
            await self.bring_back()
            await self.show_messages(chat)
        else:
            await self.transcript.append(question)
        self.show_welcome()

    async def answer(self, link: ServerLink, *, instead: int | None = None) -> StoredMessage:
        """Have the conversation's last question answered by `link`, in the background; returns the empty answer.

        `instead`: the answer that it replaces, which is put aside with all that followed.
        """
        assert self.chat is not None
        with self.store.together():
            if instead is not None:
                self.store.supersede(self.chat.id, instead)
            message = self.store.add(self.chat.id, "assistant", "", state="streaming", server=link.profile.name)
        self._coming.add(message.id)
        self.chat = self.store.chat(self.chat.id)
        if instead is not None:
            await self.show_messages(self.chat)
        else:
            await self.transcript.append(message)
        self.show_list()
        # Paint first: laying out a picture in the same moment would make our own stamps late.
        self.call_after_refresh(self._answer, link, message)
        return message

    @work(group="answer", exit_on_error=False)
    async def _answer(self, link: ServerLink, message: StoredMessage) -> None:
        assert self.chat is not None

        from vlmconsole.screens.chat.turn import Turn

        def show(text: str, reasoning: str) -> None:
            if view := self.transcript.view_of(message.id):
                view.grow(text, turn.ttft_s, reasoning)
            if turn.ttft_s is not None and message.id not in self.begun:
                self.begun[message.id] = turn.ttft_s
                self.show_why()

        turn = Turn(
            link,
            self.store,
            self.chat,
            message,
            self.console.lab.settings,
            show=show,
            since_key=self.console.since_key,
        )
        self.running.append(turn)
        self._coming.discard(message.id)
        self._say_what_stops()
        self._say_what_is_waited_for()
        try:
            finished = await turn.run()
        finally:
            self.running.remove(turn)
            self.begun.pop(message.id, None)
            if not self.running:
                self.composer.withdraw(FAULT)
            self._say_what_stops()
        self.transcript.replace(finished)
        if finished.state == "stopped" and not turn.sent:
            await self._take_back(finished)
        self.show_list()
        if turn.unkept:
            await self._keep_late(turn)

    def _say_what_stops(self) -> None:
        """The keys that stop an answer are there, and in the footer, while one runs."""
        self.composer.question.answering = bool(self.running)
        if self.changing is None:
            self.composer.stand(STOPS if self.running else "")
        self.refresh_bindings()

    async def _take_back(self, answer: StoredMessage) -> None:
        """Put a question whose answer was stopped before it was sent back into the composer, before what is there."""
        if self.chat is None or self.chat.id != answer.chat_id:
            return
        *_, question = [item for item in self.transcript.messages if item.id < answer.id and item.role == "user"]
        kept = self.store.messages(self.chat.id, superseded=True, evidence=0)
        if any(item.id > question.id and item.id != answer.id for item in kept):
            return  # asked of a second server too, or asked again: the conversation has it
        try:
            pictures = [picture.load() for picture in question.pictures]
        except ValueError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.store.supersede(self.chat.id, question.id)
        await self.show_messages(self.chat)
        self.show_welcome()
        self.pending = [*pictures, *self.pending]
        self.composer.question.back(question.text)
        await self.show_pending()
        self.keep_draft()

    def _say_what_is_waited_for(self) -> None:
        """Of the server in use: one that has yet to start, or to come back, is no first token that is late."""
        if not self.running:
            return
        from vlmconsole.screens.chat.message import FIRST_TOKEN, SERVER

        link = self.console.link
        for turn in self.running:
            view = self.transcript.view_of(turn.message.id)
            if view is not None and link is not None and turn.message.server == link.profile.name:
                view.wait_for(FIRST_TOKEN if link.view.state == "ready" else link.view.reason or SERVER)

    async def _keep_late(self, turn: Turn) -> None:
        """Try until the store takes the answer, to the console's end."""
        self.notify(
            f"This answer cannot be kept: {one_line(turn.unkept, 300)}. It stays here and is tried again.",
            severity="error",
            timeout=3 * KEEP_AGAIN,
            markup=False,
        )
        try:
            while turn.unkept:
                await asyncio.sleep(KEEP_AGAIN)
                turn.keep()
        except asyncio.CancelledError:
            turn.keep()
            raise
        self.notify("The answer that could not be kept is kept now.", markup=False)

    async def action_again(self) -> None:
        """r: ask the chosen question once more; the old answer and what followed are put aside, not deleted."""
        link, old = self.console.link, self.chosen_answer()
        if self.chat is None or link is None or old is None:
            return
        if fault := self._fault():
            self.notify(fault, severity="warning", markup=False)
            return
        await self.answer(link, instead=old.id)

    async def action_change(self) -> None:
        """c: put the chosen question back into the composer; sending it replaces it and what followed."""
        asked = self.chosen_question()
        if asked is None:
            return
        if self.running:
            self.notify(ANSWERING, severity="warning", markup=False)
            return
        try:
            pictures = [picture.load() for picture in asked.pictures]
        except ValueError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        question = self.composer.question
        if self.changing is None:  # else what is written is a change of another question
            self._aside = question.text, self.pending
        self.changing, self.pending = asked.id, pictures
        question.load_text(asked.text)
        question.move_cursor(question.document.end)
        await self.show_pending()
        self.action_write()
        self.composer.stand(CHANGING)

    def action_stop(self) -> None:
        """x, and Ctrl+C while writing: stop the answer; what came of it stays."""
        for turn in self.running:
            turn.stop()

    async def action_leave(self) -> None:
        """Esc: leave the composer or the filter. Outside of them: stop changing a question; an answer goes on."""
        if self.typing:
            self.leave_composer()
            if self.running:
                self.composer.notice(ANSWERING, about=FAULT)
        elif self.changing is not None:
            self.changing, self.pending = None, []
            self.composer.stand()
            self.composer.question.replace_all("")
            await self.bring_back()
            await self.show_pending()
            self.composer.notice(CANCELLED)
        elif self.running:
            self.composer.notice(ANSWERING, "$warning", about=FAULT)
        else:
            self.leave_composer()

    def on_question_interrupted(self) -> None:
        self.action_stop()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys that stop are there while there is something to stop."""
        if action == "stop" and not self.running:
            return False
        return super().check_action(action, parameters)

    # -- settings of this conversation ---------------------------------------------------------------------

    @property
    def system(self) -> str:
        return str(self.draft.get("system", "")) if self.chat is None else self.chat.system

    @property
    def sampling(self) -> dict[str, Any]:
        return dict(self.draft.get("sampling", {})) if self.chat is None else self.chat.sampling

    def keep_settings(self, **kept: Any) -> None:
        """Set system prompt or sampling of this conversation, or of the one that its first question will begin."""
        if self.chat is None:
            self.draft = {**self.draft, **kept}
        else:
            self.store.set_chat(self.chat.id, **kept)
            self.chat = self.store.chat(self.chat.id)

    @property
    def max_tokens(self) -> int:
        return int(self.sampling.get("max_tokens", self.console.lab.settings.max_tokens))

    @property
    def temperature(self) -> float:
        return float(self.sampling.get("temperature", self.console.lab.settings.temperature))

    @property
    def asking(self) -> dict[str, Any]:
        """How the next question would be asked, in the words of a request."""
        extra = {name: self.sampling.get(name) for name in ("seed", "top_p")}
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, "system": bool(self.system), **extra}

    @property
    def since(self) -> int:
        """The id of the first message that is sent; 0: all of them."""
        return int(self.sampling.get("since", 0))

    @property
    def adapter(self) -> str:
        return str(self.sampling.get("adapter", ""))

    def _kept_before(self) -> list[StoredMessage]:
        """The messages that stay before the next question."""
        return [m for m in self.transcript.messages if self.changing is None or m.id < self.changing]
