"""What the next question will take of its server's context, and what can be done where it is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlmconsole.chats.conversation import Conversation
from vlmconsole.errors import LabError
from vlmconsole.screens.keys import with_keys
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.client.sight import Budget
    from vlmconsole.screens.link import ServerLink
    from vlmconsole.vision.images import Picture

#: A count is not waited for longer than this (seconds): a server that hangs must not keep a question back.
BUDGET_WAIT = 3.0
#: Of the context, what is left free for the next question, so that not each one has to ask again.
SPARE = 0.25


class Budgeter:
    """Counts questions of one conversation for the server that `link` gives, and remembers the last count."""

    def __init__(self, conversation: Conversation, link: Callable[[], ServerLink | None]) -> None:
        self._conversation, self._link = conversation, link
        #: Of the question that is being written; None while it is not counted.
        self.cost: Budget | None = None
        self._warned = ""  # a question that is too long, and was said to be

    async def count(self, text: str, pictures: Sequence[Picture], since: int | None = None) -> Budget | None:
        """Return the budget of a question with all that is sent before it; None where it cannot be counted.

        `since`: id of the first message that would be sent (None: as the conversation has it).
        """
        link = self._link()
        if link is None:
            return None
        question = self._conversation.question(text, pictures, link.profile.name, since)
        try:
            async with asyncio.timeout(BUDGET_WAIT):
                return await link.budget(question)
        except (LabError, RuntimeError, ValueError, OSError):  # a timeout is an OSError
            return None

    async def most_that_fit(self, text: str, pictures: Sequence[Picture]) -> int | None:
        """Return how many of the last questions fit with the one that is written; None where the context is not known.

        They leave room for another after it, unless none would then.
        """
        count = await self._fitting(text, pictures, 1 - SPARE)
        if count == 0 and (text.strip() or pictures):
            return await self._fitting(text, pictures, 1.0)
        return count

    async def _fitting(self, text: str, pictures: Sequence[Picture], share: float) -> int | None:
        asked = self._conversation.questions()
        low, high = 0, len(asked) + 1  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            cost = await self.count(text, pictures, since=asked[-middle].id)
            if cost is None or cost.context is None:
                return None
            fits = (cost.visual or 0) + cost.text + cost.answer <= share * cost.context
            low, high = (middle, high) if fits else (low, middle)
        return low

    def refuses(self, text: str, cost: Budget | None) -> bool:
        """Is a question too long to be sent? One that only may be is refused once: Enter again sends it."""
        if cost is None or cost.fits or (not cost.certain and self._warned == text):
            return False
        self.cost, self._warned = cost, text
        return True

    def sent(self) -> None:
        """The question is on its way: the next one is refused anew."""
        self._warned = ""

    def summary(self) -> str:
        """Return the last count in a few words, and which part of the conversation goes along where that is not all of
        it.
        """
        cost = self.cost
        if cost is None:
            return ""
        about = "" if cost.text_exact else "about "
        context = f" of {cost.context}" if cost.context else ""
        return f"context {about}{(cost.visual or 0) + cost.text} + {cost.answer}{context}{self._part()}"

    def _part(self) -> str:
        since = self._conversation.sampling.since
        asked = self._conversation.questions()
        return f" · last {sum(message.id >= since for message in asked)} of {len(asked)} questions" if since else ""

    def advice(self, text: str, *, pictures: bool) -> str:
        """Return what to do about a question that does not fit; "" where it does, or is not counted."""
        cost = self.cost
        if cost is None or cost.fits:
            return ""
        offer = with_keys(". {chat.fit} shrinks it") if cost.shrink_to is not None and pictures else ""
        if cost.fits_alone and len(self._conversation.before()) > 2:
            offer = with_keys("; {chat.recent} sends only the newest turns") + offer
        # By every count of it, however late: Enter stands for "all the same" from then on.
        again = not cost.certain and self._warned and self._warned == text.strip()
        return one_line(cost.advice, 300) + offer + (". Enter again sends it anyway" if again else "")
