"""What is written and not sent outlives the console: a closed terminal, a lost line, a killed process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlmconsole.chats.conversation import Conversation
from vlmconsole.chats.records import Draft

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

#: Seconds between two tries to store what the store did not take.
KEEP_AGAIN = 5.0


class Drafts:
    """Stores the question that is being written, its pictures, and which question it changes. Raises LabError."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        #: As it was last stored; None: otherwise than it is in the store.
        self._stored: tuple[str, int | None, int | None, list[Picture]] | None = ("", None, None, [])
        #: What was being written when a question began to be changed.
        self._aside: tuple[str, list[Picture]] = ("", [])

    async def store_files(self, pictures: Sequence[Picture]) -> None:
        """The pictures' files, in a thread: `store` finds them there."""
        await asyncio.to_thread(self._conversation.store.keep_files, list(pictures))

    def store(self, text: str, pictures: Sequence[Picture]) -> None:
        """What is written now, for this conversation; nothing is written to the disk where that has not moved."""
        chat = self._conversation.chat
        draft = (text, chat.id if chat is not None else None, self._conversation.changing, list(pictures))
        if draft != self._stored:
            self._conversation.store.keep_draft(*draft)
            self._stored = draft

    def lost(self) -> Draft | None:
        """Return the newest draft of a console that is gone; from now on it is this one's."""
        draft = self._conversation.store.take_draft()
        if draft is not None:
            self._stored = None
        return draft

    def put_aside(self, text: str, pictures: list[Picture]) -> None:
        """Remember what is being written while another question is changed."""
        self._aside = text, pictures

    def take_aside(self) -> tuple[str, list[Picture]]:
        """Return what was put aside, and forget it."""
        aside, self._aside = self._aside, ("", [])
        return aside
