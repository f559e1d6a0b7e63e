"""What is written and not sent outlives the console: a closed terminal, a lost line, a killed process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.timer import Timer

from vlmconsole.errors import LabError
from vlmconsole.screens.chat.pictures import ChatPictures

if TYPE_CHECKING:
    from vlmconsole.chats.records import Chat
    from vlmconsole.screens.chat.composer import Question
    from vlmconsole.vision.images import Picture

#: Seconds after a change until it is kept; what a killed console loses at most.
DRAFT_PAUSE = 1.0
#: Seconds between two tries to keep what the store did not take.
KEEP_AGAIN = 5.0
CHANGING = "editing · Enter re-asks and hides later turns · Esc Esc cancels"
BACK = "what was written and not sent is here again; Ctrl+G empties the line"


class ChatDraft(ChatPictures):
    """Keeps the question and its pictures beside the conversations, and brings back those of a console that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._due: Timer | None = None
        self._question: Question | None = None  # held: when the screen hears of its end, its widgets are gone
        #: The question that is being changed, by its message's id.
        self.changing: int | None = None
        #: What was written when that began; it comes back when that ends.
        self._aside: tuple[str, list[Picture]] = ("", [])
        #: As it was last kept; None: otherwise than it stands.
        self._written: tuple[str, int | None, int | None, list[Picture]] | None = ("", None, None, [])

    async def _furnish(self) -> None:
        await super()._furnish()
        self._question = self.composer.question
        if not self._question.text and not self.pending:
            await self._take_up()

    async def open_chat(self, chat: Chat | None) -> None:
        """What is written goes along into another conversation, and changes no question there."""
        if self.changing is not None and (chat is None or self.chat is None or chat.id != self.chat.id):
            self.changing = None
            self.composer.stand()
            await self.bring_back()
        await super().open_chat(chat)
        self.keep_draft_soon()

    async def show_pending(self) -> None:
        await super().show_pending()
        self.keep_draft_soon()

    def on_unmount(self) -> None:
        self.keep_draft()

    async def bring_back(self) -> None:
        """Put what was written before a question was changed before what is written now."""
        (text, pictures), self._aside = self._aside, ("", [])
        if text:
            self.composer.question.back(text)
        if pictures:
            self.pending = [*pictures, *self.pending]
            await self.show_pending()

    def keep_draft_soon(self) -> None:
        """Keep it in a moment; not for each key."""
        if self._due is None and self._question is not None:
            self._due = self.set_timer(DRAFT_PAUSE, self._keep_in_time)

    async def _keep_in_time(self) -> None:
        self._due = None
        with suppress(LabError):  # told when it is sent
            await asyncio.to_thread(self.store.keep_files, list(self.pending))
        if not self.keep_draft():
            self._due = self.set_timer(KEEP_AGAIN, self._keep_in_time)

    def keep_draft(self) -> bool:
        """Keep it now. Whether it is: a fault is not told here, as sending will meet it, and the question stands."""
        if self._question is None:
            return True
        chat = self.chat.id if self.chat is not None else None
        draft = (self._question.text, chat, self.changing, list(self.pending))
        if draft != self._written:
            try:
                self.store.keep_draft(*draft)
            except LabError as error:
                self.log.warning(f"what is written cannot be kept: {error}")
                return False
            self._written = draft
        return True

    async def _take_up(self) -> None:
        try:
            draft = self.store.take_draft()
        except LabError as error:
            self.notify(f"what was written and not sent stays where it is: {error}", severity="warning", markup=False)
            return
        if draft is None:
            return
        self._written = None
        known = {chat.id: chat for chat in self.store.chats()}
        await self.open_chat(known.get(draft.chat_id) if draft.chat_id is not None else None)
        for picture in draft.pictures:
            try:
                self.pending.append(picture.load())
            except LabError as error:  # its file is gone or was changed
                self.notify(str(error), severity="warning", markup=False)
        if draft.changing in {message.id for message in self.transcript.messages if message.role == "user"}:
            self.changing = draft.changing
            self.composer.stand(CHANGING)
        question = self.composer.question
        question.load_text(draft.text)
        question.move_cursor(question.document.end)
        await self.show_pending()
        if draft.text.strip() or self.pending:
            self.notify(BACK, markup=False)
