"""The composer: everything that is written and not sent, its pictures, and what sending it would take."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Static

from vlmconsole.chats.conversation import Conversation
from vlmconsole.chats.records import Draft, StoredMessage
from vlmconsole.errors import LabError, refusal
from vlmconsole.screens.background import in_background
from vlmconsole.screens.chat.attachments import Attachments, await_in_inbox
from vlmconsole.screens.chat.budget import Budgeter
from vlmconsole.screens.chat.chips import Chip, Chips
from vlmconsole.screens.chat.drafts import KEEP_AGAIN, Drafts
from vlmconsole.screens.chat.hints import FAULT, LENGTH, PATHS, Hints
from vlmconsole.screens.chat.question import QuestionArea
from vlmconsole.screens.console import Console, console_of
from vlmconsole.screens.keys import TYPED, with_keys
from vlmconsole.screens.terminal.terminal import scp_line, under_ssh
from vlmconsole.text.plain import inert, one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture
    from vlmconsole.vision.paths import Pasted

COMMANDS = ", ".join(f"{word} {more}".strip() for word, more, _ in TYPED)
CHANGING = "editing · Enter re-asks and hides later turns · Esc Esc cancels"
CANCELLED = "edit cancelled · {chat.write}, then Ctrl+Z brings its text back"
BACK = "Draft restored; {chat.empty} clears it"
_SLASH = re.compile(r"/[a-z]+(?=\s|$)")
#: The budget is counted this long (seconds) after the last key.
BUDGET_PAUSE = 0.25
#: Seconds after a change until it is stored; what a killed console loses at most.
DRAFT_PAUSE = 1.0


class Composer(Vertical):
    """Chips, the question, and a line that says what sending would cost (or why it cannot be).

    Sending itself is the screen's: it gets `QuestionArea.Sent`, asks whether it is `ready`, and has it by `take`.
    """

    def __init__(
        self, conversation: Conversation, attachments: Attachments, budgeter: Budgeter, drafts: Drafts
    ) -> None:
        super().__init__()
        self._conversation, self._attachments = conversation, attachments
        self._budgeter, self._drafts = budgeter, drafts
        self.question, self.hints = QuestionArea(), Hints()
        self._chips = Chips()
        self._turn = asyncio.Lock()
        self._due: Timer | None = None  # when the draft is stored next
        self._offered = ""  # a question whose paths were made out, or not found, and was said to be

    def compose(self) -> ComposeResult:
        yield self._chips
        with Horizontal(id="entry"):
            yield Static("┃", id="prompt")
            yield self.question
        yield self.hints

    @property
    def console(self) -> Console:
        """The app, as screens know it."""
        return console_of(self)

    @property
    def written(self) -> bool:
        """Is there anything that could be sent?"""
        return bool(self.question.text.strip() or self._attachments.pictures)

    def in_turn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` beside the screen, which goes on taking keys and painting; what was begun before it ends first.

        So a paste and the Enter after it keep their order, however long the picture takes to be read.
        """

        async def waiting() -> None:
            async with self._turn:
                try:
                    await work()
                except (LabError, OSError) as error:  # a full disk, say: the question stays where it was
                    self.hints.notice(one_line(refusal(error), 300), "$error", about=FAULT)

        in_background(self, waiting, "in-turn")

    # -- sending -------------------------------------------------------------------------------------------

    async def ready(self, text: str) -> bool:
        """Return whether `text` can be sent as far as its words go; what stands against it is said."""
        slash = _SLASH.match(text)
        if slash is not None and not Path(slash[0]).exists():
            self.hints.notice(f"unknown command {one_line(slash[0], 40)} · use {COMMANDS}", "$warning")
            return False
        if self._offered != text and await self._offer_typed(text):
            self._offered = text
            return False
        return True

    async def take(self, typed: str) -> list[Picture]:
        """Return the pictures of the question `typed`, which is on its way: what was written after it stays."""
        pictures, self._offered = self._attachments.take(), ""
        self._budgeter.sent()
        self.hints.withdraw(PATHS)
        self.question.gone(typed)
        await self.show_pictures()
        return pictures

    async def give_back(self, text: str, pictures: list[Picture]) -> None:
        """Put a question that was not sent before what is written now."""
        self._attachments.put_back(pictures)
        self.question.back(text)
        await self.show_pictures()

    # -- changing a question -------------------------------------------------------------------------------

    async def begin_change(self, asked: StoredMessage) -> bool:
        """Write `asked` anew; what is written now waits for the end of that. False: its pictures are gone."""
        try:
            pictures = [picture.load() for picture in asked.pictures]
        except ValueError as error:
            self.notify(str(error), severity="error", markup=False)
            return False
        aside = self._attachments.take()
        if self._conversation.changing is None:  # else what is written is a change of another question
            self._drafts.put_aside(self.question.text, aside)
        self._conversation.changing = asked.id
        self._attachments.put_back(pictures)
        self.question.put(asked.text)
        await self.show_pictures()
        self.hints.stand(CHANGING)
        return True

    async def end_change(self) -> None:
        """Put what was written before a question was changed before what is written now."""
        self._conversation.changing = None
        self.hints.stand()
        text, pictures = self._drafts.take_aside()
        if text or pictures:
            await self.give_back(text, pictures)

    async def cancel_change(self) -> None:
        """The question that is being changed stays as it was."""
        self._attachments.take()
        self.question.replace_all("")
        await self.end_change()
        await self.show_pictures()
        self.hints.notice(with_keys(CANCELLED))

    # -- drafts --------------------------------------------------------------------------------------------

    def store_draft_soon(self) -> None:
        """Store what is written in a moment; not for each key."""
        if self._due is None:
            self._due = self.set_timer(DRAFT_PAUSE, self._store_draft_in_time)

    async def _store_draft_in_time(self) -> None:
        self._due = None
        with suppress(LabError):  # told when it is sent
            await self._drafts.store_files(self._attachments.pictures)
        if not self.store_draft():
            self._due = self.set_timer(KEEP_AGAIN, self._store_draft_in_time)

    def store_draft(self) -> bool:
        """Store it now. Whether it is: a fault is not told here, as sending will meet it, and the question stands."""
        try:
            self._drafts.store(self.question.text, self._attachments.pictures)
        except LabError as error:
            self.log.warning(f"the draft cannot be saved: {error}")
            return False
        return True

    def on_unmount(self) -> None:
        self.store_draft()

    async def restore(self, draft: Draft) -> None:
        """What another console left unsent, for the conversation that is open."""
        for picture in draft.pictures:
            try:
                self._attachments.pictures.append(picture.load())
            except LabError as error:  # its file is gone or was changed
                self.notify(str(error), severity="warning", markup=False)
        if draft.changing in {message.id for message in self._conversation.messages if message.role == "user"}:
            self._conversation.changing = draft.changing
            self.hints.stand(CHANGING)
        self.question.put(draft.text)
        await self.show_pictures()
        if self.written:
            self.notify(with_keys(BACK), markup=False)

    # -- budget --------------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        if self.question.text:
            self.hints.notice()
        else:  # emptied by sending: what is said about that stays, what is said about its length does not
            self.hints.withdraw(LENGTH)
        self.count_soon()
        self.store_draft_soon()

    @work(group="budget", exclusive=True, exit_on_error=False)
    async def count_soon(self) -> None:
        """What the next question would take of the context, beside it; counted a moment after typing."""
        await asyncio.sleep(BUDGET_PAUSE)
        self._budgeter.cost = await self._budgeter.count(self.question.text, self._attachments.pictures)
        self.show_cost()

    def show_cost(self) -> None:
        """The last count, and what to do where it does not fit."""
        cost = self._budgeter.cost
        if cost is None or not self.written:
            self.hints.budget("")
            self.hints.withdraw(LENGTH)
            return
        self.hints.budget(self._budgeter.summary(), "$muted" if cost.fits else "$warning")
        if advice := self._budgeter.advice(self.question.text, pictures=bool(self._attachments.pictures)):
            self.hints.notice(advice, "$warning", about=LENGTH)

    def forget_cost(self) -> None:
        """What was counted for one conversation is not said of another."""
        self.workers.cancel_group(self, "budget")
        self._budgeter.cost = None
        self.show_cost()

    async def fit(self) -> None:
        """Shrink the last picture to what the budget allows; the change is named on its chip."""
        cost = self._budgeter.cost
        if cost is None or cost.shrink_to is None or not self._attachments.pictures:
            self.hints.notice("no image needs shrinking")
            return
        await self._attachments.shrink_last(*cost.shrink_to)
        self.hints.notice()
        await self.show_pictures()

    # -- pictures ------------------------------------------------------------------------------------------

    async def attach(self, paths: list[Path]) -> None:
        """Check files and show them as chips; what cannot be sent is said under the question."""
        self.hints.notice("reading the image…")
        errors = await self._attachments.open(paths)
        await self.show_pictures()
        self.hints.notice("  ".join(errors), "$error")

    async def show_pictures(self) -> None:
        """The pictures that wait to be sent, each with its expected visual tokens where they are known."""
        link = self.console.link
        pictures = self._attachments.pictures
        tokens = [link.visual_tokens(picture) if link else None for picture in pictures]
        await self._chips.show(list(zip(pictures, tokens, strict=True)), self._cells)
        self.count_soon()
        self.store_draft_soon()

    async def on_chip_removed(self, event: Chip.Removed) -> None:
        event.stop()
        self._attachments.remove(event.index)
        await self.show_pictures()

    async def on_question_area_emptied(self, event: QuestionArea.Emptied) -> None:
        event.stop()
        if self._attachments.pictures:
            self._attachments.pictures.pop()
            await self.show_pictures()

    def on_question_area_pasted(self, event: QuestionArea.Pasted) -> None:
        """A paste: picture paths become chips, everything else stays text, made inert."""
        event.stop()
        self.in_turn(partial(self._pasted, event))

    async def _pasted(self, event: QuestionArea.Pasted) -> None:
        from vlmconsole.vision.paths import parse_paths

        try:
            pasted = await asyncio.to_thread(parse_paths, event.text)
            if pasted.text:
                self.question.insert(inert(pasted.text))
        finally:
            event.taken.set()  # what was typed after it may follow now
        await self._attach_paths(pasted)

    async def _attach_paths(self, pasted: Pasted) -> None:
        if pasted.paths:
            await self.attach(list(pasted.paths))
        if pasted.missing:
            self._expect(list(pasted.missing))

    async def _offer_typed(self, text: str) -> bool:
        """Attach pictures whose paths stand in a typed question, as if they had been pasted; False: there are none.

        Nothing is sent then: a person looks at the chips, and at the words that stay, first. A path that is not here is
        said; it may be meant as it stands, so that a second Enter sends it.
        """
        from vlmconsole.vision.paths import parse_paths

        typed = await asyncio.to_thread(partial(parse_paths, typed=True), text)
        if typed.paths:
            self.question.replace_all(inert(typed.text))
            await self.attach(list(typed.paths))
            if len(self._attachments.pictures) >= len(typed.paths):
                hint = "image attached from the path you typed · Enter sends · Backspace removes it"
                self.hints.notice(hint if typed.text else hint.replace("Enter sends", "type a question"), about=PATHS)
            if typed.missing:
                self._expect(list(typed.missing), "; Enter sends the rest")
        elif typed.missing:
            self._expect(list(typed.missing), "; Enter again sends the text anyway")
        return bool(typed.paths or typed.missing)

    def _expect(self, missing: list[Path], also: str = "") -> None:
        """Paths that are not here: over SSH they are the laptop's, and a line of scp brings them."""
        names = ", ".join(one_line(path.name, 60) for path in missing)
        if not under_ssh():
            unreadable = ", ".join(one_line(path, 120) for path in missing)
            self.hints.notice(f"not found: {unreadable}{also}", "$error", about=PATHS)
            return
        inbox = self.console.lab.places.inbox
        lines = "\n".join(one_line(scp_line(str(path), str(inbox)), 400) for path in missing)
        self.hints.notice(
            f"{names} is not on this machine{also}. Run this where it is; the image is attached on arrival:\n{lines}",
            about=PATHS,
        )
        self._watch_inbox(inbox, {path.name for path in missing})

    @work(group="inbox", exclusive=True, exit_on_error=False)
    async def _watch_inbox(self, inbox: Path, names: set[str]) -> None:
        arrived: list[Path] = []
        await await_in_inbox(inbox, names, arrived.append)
        await self.attach(arrived)

    async def image(self, words: str) -> None:
        """`/image PATH or URL`; `--private` after the address allows one of this network."""
        from vlmconsole.vision.images import PictureError
        from vlmconsole.vision.paths import parse_paths

        if not words:
            self.hints.notice("/image PATH or URL attaches an image", "$warning")
        elif words.startswith(("http://", "https://")):
            url, _, option = words.partition(" ")
            self.hints.notice(f"fetching {one_line(url, 120)}")
            try:
                await self._attachments.fetch(url, allow_private=option.strip() == "--private")
            except PictureError as error:
                self.hints.notice(str(error), "$error")
                return
            self.hints.notice()
            await self.show_pictures()
        else:
            pasted = await asyncio.to_thread(parse_paths, words)
            await self._attach_paths(pasted)
            if not pasted.paths and not pasted.missing:
                self.hints.notice(f"no image path in: {one_line(words, 120)}", "$error")

    async def paste(self, words: str = "") -> None:
        """`/paste`: the picture in the clipboard of this desktop."""
        from vlmconsole.vision.images import PictureError

        self.hints.notice("reading the clipboard…")
        try:
            await self._attachments.paste()
        except PictureError as error:
            self.hints.notice(f"{error}{f' {error.hint}' if error.hint else ''}", "$error")
            return
        self.hints.notice()
        await self.show_pictures()

    @property
    def _cells(self) -> int:
        return (self.size.width or self.app.size.width) - 2

    def on_resize(self) -> None:
        self._chips.fit(self._cells)
