"""Asking: from what is typed to an answer that is shown as it comes, and stored at last."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from vlmconsole.chats.records import Chat, StoredMessage
from vlmconsole.errors import LabError
from vlmconsole.screens.background import in_background
from vlmconsole.screens.chat.drafts import KEEP_AGAIN
from vlmconsole.screens.chat.hints import FAULT
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.link import ServerLink
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.screens.chat.screen import ChatScreen
    from vlmconsole.screens.chat.turn import ChatTurn
    from vlmconsole.vision.images import Picture

ANSWERING = "still answering · {chat.stop} or {chat.stop_or_copy} stops it"
STOPS = "{chat.stop_or_copy} stops the answer"


class Asker:
    """Has the questions of a chat screen answered. What was asked in one conversation goes on in the next."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.running: list[ChatTurn] = []
        self._coming: set[int] = set()  # answers whose turn begins after the next paint
        #: TTFT (seconds) of answers that are being given, by message id.
        self.begun: dict[int, float] = {}

    @property
    def fault(self) -> str:
        """Why nothing can be sent now, "" when it can."""
        console = self._screen.console
        if self.running or self._coming:
            return with_keys(ANSWERING)
        if console.link is None and console.no_server:
            return console.no_server
        if console.link is None or not self._screen.furnished:
            return "still looking for the server · your message stays here"
        return ""

    def stop(self) -> None:
        """Stop what is being answered; what came of it stays."""
        for turn in self.running:
            turn.stop()

    def running_turn(self, message_id: int) -> ChatTurn | None:
        """Return the turn that gives an answer, while it is running."""
        return next((turn for turn in self.running if turn.message.id == message_id), None)

    async def send(self, typed: str) -> None:
        """Send the question `typed`, unless something stands against it; then say what, and send nothing."""
        screen, composer, budgeter = self._screen, self._screen.composer, self._screen.budgeter
        if not composer.question.text.startswith(typed):
            return  # an Enter pressed twice: what stood there has been sent
        text = typed.strip()
        word, _, words = text.partition(" ")
        if command := screen.commands.get(word):
            composer.question.gone(text)
            await command(words.strip())
            return
        pictures = screen.attachments.pictures
        if not (text or pictures) or not await composer.ready(text):
            return
        link, fault = screen.console.link, self.fault
        if fault or link is None:
            composer.hints.notice(fault, "$warning", about=FAULT)
            return
        if budgeter.refuses(text, await budgeter.count(text, screen.attachments.pictures)):
            composer.show_cost()
            return
        pictures = await composer.take(typed)
        try:
            await self._put(link, text, pictures)
        except LabError:  # a full disk, say
            await composer.give_back(typed, pictures)
            raise
        composer.store_draft()
        await self.answer(link)

    async def _put(self, link: ServerLink, text: str, pictures: list[Picture]) -> None:
        """Store a question and show it."""
        screen = self._screen
        changing = screen.conversation.changing is not None
        screen.conversation.add_question(text, pictures, link.profile.name)
        if changing:
            await screen.composer.end_change()
            await screen.transcript.show()
        else:
            await screen.transcript.append()
        screen.show_welcome()

    async def again(self, old: StoredMessage) -> None:
        """Ask the question of an answer once more; the answer and what followed are put aside, not deleted."""
        link = self._screen.console.link
        if link is None:
            return
        if fault := self.fault:
            self._screen.notify(fault, severity="warning", markup=False)
        else:
            await self.answer(link, instead=old.id)

    async def answer(self, link: ServerLink, *, instead: int | None = None) -> StoredMessage:
        """Have the conversation's last question answered by `link`, in the background; returns the empty answer.

        `instead`: the answer that it replaces, which is put aside with all that followed.
        """
        screen, conversation = self._screen, self._screen.conversation
        message = conversation.add_answer(link.profile.name, instead=instead)
        self._coming.add(message.id)
        chat = conversation.chat
        assert chat is not None
        if instead is not None:
            await screen.transcript.show()
        else:
            await screen.transcript.append()
        screen.conversations.show()
        # Paint first: laying out a picture in the same moment would make our own stamps late.
        run = partial(self._run, link, chat, message)
        screen.call_after_refresh(in_background, screen, run, "answer", may_fail=True)
        return message

    async def _run(self, link: ServerLink, chat: Chat, message: StoredMessage) -> None:
        from vlmconsole.screens.chat.turn import ChatTurn

        screen = self._screen

        def show(text: str, reasoning: str) -> None:
            if view := screen.transcript.view_of(message.id):
                view.grow(text, turn.ttft_s, reasoning)
            if turn.ttft_s is not None and message.id not in self.begun:
                self.begun[message.id] = turn.ttft_s
                screen.show_why()

        console = screen.console
        store = screen.conversation.store
        turn = ChatTurn(link, store, chat, message, console.lab.settings, show=show, since_key=console.since_key)
        self.running.append(turn)
        self._coming.discard(message.id)
        self._show_stop()
        self.show_waiting()
        try:
            finished = await turn.run()
        finally:
            self.running.remove(turn)
            self.begun.pop(message.id, None)
            if not self.running:
                screen.composer.hints.withdraw(FAULT)
            self._show_stop()
        screen.conversation.replace(finished)
        screen.transcript.update_message(finished)
        if finished.state == "stopped" and not turn.sent:
            await self._take_back(finished)
        screen.conversations.show()
        if turn.unkept:
            await self._store_late(turn)

    def _show_stop(self) -> None:
        """The keys that stop an answer are there, and in the footer, while one runs."""
        composer = self._screen.composer
        composer.question.answering = bool(self.running)
        if self._screen.conversation.changing is None:
            composer.hints.stand(with_keys(STOPS) if self.running else "")
        self._screen.refresh_bindings()

    def show_waiting(self) -> None:
        """What the answers wait for: a server that has yet to start or to come back is no first token that is late."""
        if not self.running:
            return
        from vlmconsole.screens.chat.message import FIRST_TOKEN

        link = self._screen.console.link
        for turn in self.running:
            view = self._screen.transcript.view_of(turn.message.id)
            if view is not None and link is not None and turn.message.server == link.profile.name:
                view.wait_for(
                    FIRST_TOKEN if link.view.state == "ready" else link.view.reason or f"{link.profile.name} to start"
                )

    async def _take_back(self, answer: StoredMessage) -> None:
        """Put a question whose answer was stopped before it was sent back into the composer, before what is there."""
        screen = self._screen
        question = screen.conversation.unsent(answer)
        if question is None:
            return
        try:
            pictures = [picture.load() for picture in question.pictures]
        except ValueError as error:
            screen.notify(str(error), severity="error", markup=False)
            return
        screen.conversation.put_aside(question)
        await screen.transcript.show()
        screen.show_welcome()
        await screen.composer.give_back(question.text, pictures)
        screen.composer.store_draft()

    async def _store_late(self, turn: ChatTurn) -> None:
        """Try until the store takes the answer, to the console's end."""
        self._screen.notify(
            f"This answer cannot be saved: {one_line(turn.unkept, 300)}. It stays here; saving is retried.",
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
        self._screen.notify("The answer is saved now.", markup=False)
