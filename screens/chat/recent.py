"""A conversation that has outgrown its server's context goes on with its newest turns, and every answer says so."""

from __future__ import annotations

from functools import partial

from vlmconsole.chats.records import StoredMessage
from vlmconsole.screens.chat.adapter import ChatAdapter
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

COMMAND = "/recent"
ALL = "all"
#: Of the context, what is left free for the next question, so that not each one has to ask again.
SPARE = 0.25


class ChatRecent(ChatAdapter):
    """Keeps with the conversation from which question on it is sent. Nothing is left out unasked, nothing deleted."""

    async def command(self, text: str) -> bool:
        """`/recent` for what fits, `/recent N` for the last N questions, `/recent all` for everything again."""
        word, _, rest = text.partition(" ")
        if word != COMMAND:
            return await super().command(text)
        self.composer.question.gone(text)
        await self._keep_recent(rest.strip())
        return True

    def action_recent(self) -> None:
        """Ctrl+R: what fits beside the question that is being written, which stays."""
        self.in_turn(partial(self._keep_recent, ""))

    async def _keep_recent(self, words: str) -> None:
        asked = [message for message in self._kept_before() if message.role == "user"]
        if self.chat is None or not asked:
            self.composer.notice("nothing stands before the next question yet", "$warning")
            return
        if words == ALL:
            kept: int | None = len(asked)
        elif words.isdecimal() and len(words) < 7:
            kept = min(int(words), len(asked))
        elif words:
            self.composer.notice(f"{COMMAND}, {COMMAND} N or {COMMAND} {ALL}, not {one_line(words, 40)}", "$warning")
            return
        else:
            self.composer.notice("counting what fits…")
            kept = await self._most_that_fit(asked)
        if kept is None:
            self.composer.notice(f"how much fits is not known; {COMMAND} N sends the last N questions", "$warning")
            return
        sampling = {key: value for key, value in self.sampling.items() if key != "since"}
        if kept < len(asked):
            sampling["since"] = asked[-kept].id if kept else asked[-1].id + 1
        self.keep_settings(sampling=sampling)
        self.show_budget()
        if kept == len(asked):
            said = "the whole conversation goes with the next question"
        elif kept:
            said = f"the last {kept} of {many(len(asked), 'question')} go with the next one, each with its answer"
        else:
            said = "nothing of what stands above goes with the next question"
        again = "" if kept == len(asked) else f"; {COMMAND} {ALL} sends everything again"
        self.composer.notice(said + again)

    async def _most_that_fit(self, asked: list[StoredMessage]) -> int | None:
        """How many of the last questions fit with the one that is written; None where the context is not known.

        They leave room for another after it, unless none would then.
        """
        text = self.composer.question.text
        kept = await self._fitting(asked, text, 1 - SPARE)
        return await self._fitting(asked, text, 1.0) if kept == 0 and (text.strip() or self.pending) else kept

    async def _fitting(self, asked: list[StoredMessage], text: str, share: float) -> int | None:
        low, high = 0, len(asked) + 1  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            cost = await self._count(text, self.pending, since=asked[-middle].id)
            if cost is None or cost.context is None:
                return None
            fits = (cost.visual or 0) + cost.text + cost.answer <= share * cost.context
            low, high = (middle, high) if fits else (low, middle)
        return low
