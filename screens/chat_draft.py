"""What is written and not sent outlives the console: a closed terminal, a lost line, a killed process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.timer import Timer
from vlmconsole.screens.chat_pictures import ChatPictures

from vlmconsole.errors import LabError

if TYPE_CHECKING:
    from vlmconsole.screens.widgets.composer import Question

    from vlmconsole.vision.images import Picture

#: Seconds after a change until it is kept; what a killed console loses at most.
DRAFT_PAUSE = 1.0
BACK = "what was written and not sent is here again; Ctrl+G empties the line"


class ChatDraft(ChatPictures):
    """Keeps the question and its pictures beside the conversations, and brings back those of a console that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._due: Timer | None = None
        self._question: Question | None = None  # held: when the screen hears of its end, its widgets are gone
        self._written: tuple[str, int | None, list[Picture]] = ("", None, [])  # as it was last kept

    async def _furnish(self) -> None:
        await super()._furnish()
        self._question = self.composer.question
        if not self._question.text and not self.pending:
            await self._take_up()

    async def show_pending(self) -> None:
        await super().show_pending()
        self.keep_draft_soon()

    def on_unmount(self) -> None:
        self.keep_draft()

    def keep_draft_soon(self) -> None:
        """Keep it in a moment; not for each key."""
        if self._due is None and self._question is not None:
            self._due = self.set_timer(DRAFT_PAUSE, self._keep_in_time)

    async def _keep_in_time(self) -> None:
        self._due = None
        try:
            await asyncio.to_thread(self.store.keep_files, list(self.pending))
        except LabError as error:
            self.log.warning(f"what is written cannot be kept: {error}")
        self.keep_draft()

    def keep_draft(self) -> None:
        """Keep it now. A fault is not told here: sending will meet it, too, and the question still stands."""
        if self._question is None:
            return
        draft = (self._question.text, self.chat.id if self.chat is not None else None, list(self.pending))
        if draft == self._written:
            return
        try:
            self.store.keep_draft(*draft)
            self._written = draft
        except LabError as error:
            self.log.warning(f"what is written cannot be kept: {error}")

    async def _take_up(self) -> None:
        try:
            draft = self.store.take_draft()
        except LabError as error:
            self.notify(f"what was written and not sent stays where it is: {error}", severity="warning", markup=False)
            return
        if draft is None:
            return
        known = {chat.id: chat for chat in self.store.chats()}
        await self.open_chat(known.get(draft.chat_id) if draft.chat_id is not None else None)
        try:
            self.pending = [picture.load() for picture in draft.pictures]
        except LabError as error:  # its file is gone or was changed
            self.notify(str(error), severity="warning", markup=False)
        question = self.composer.question
        question.load_text(draft.text)
        question.move_cursor(question.document.end)
        await self.show_pending()
        self.notify(BACK, markup=False)
