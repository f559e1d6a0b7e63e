"""Pictures on their way into a question: pasted, dropped, typed as a path, fetched, from the clipboard, or from the
laptop through the inbox. Each is checked before it becomes a chip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import work

from vlmconsole.errors import LabError, refusal
from vlmconsole.screens.background import in_background
from vlmconsole.screens.chat.attach import await_in_inbox, open_all
from vlmconsole.screens.chat.composer import FAULT, PATHS, Chip, Question
from vlmconsole.screens.chat.desk import ChatDesk
from vlmconsole.screens.terminal.terminal import scp_line, under_ssh
from vlmconsole.text.plain import inert, one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture
    from vlmconsole.vision.paths import Pasted

IMAGE, PASTE = "/image", "/paste"


class ChatPictures(ChatDesk):
    """Holds the pictures that wait to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Picture] = []
        self._turn = asyncio.Lock()

    def in_turn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` beside the screen, which goes on taking keys and painting; what was begun before it ends first.

        So a paste and the Enter after it keep their order, however long the picture takes to be read.
        """

        async def waiting() -> None:
            async with self._turn:
                try:
                    await work()
                except (LabError, OSError) as error:  # a full disk, say: the question stays where it was
                    self.composer.notice(one_line(refusal(error), 300), "$error", about=FAULT)

        in_background(self, waiting, "in-turn")

    # -- chips ---------------------------------------------------------------------------------------------

    async def attach(self, paths: list[Path]) -> None:
        """Check files and show them as chips; what cannot be sent is said under the question."""
        self.composer.notice("reading the picture…")
        made = await open_all(paths, background=self.console.lab.settings.background)
        self.pending.extend(made.pictures)
        await self.show_pending()
        self.composer.notice("  ".join(made.errors), "$error")

    async def show_pending(self) -> None:
        link = self.console.link
        await self.composer.show_chips(
            [(picture, link.visual_tokens(picture) if link else None) for picture in self.pending]
        )
        self.show_budget()

    def show_budget(self) -> Any:
        """What the next question would take; counted by the class above."""

    async def on_chip_removed(self, event: Chip.Removed) -> None:
        event.stop()
        if event.index < len(self.pending):
            del self.pending[event.index]
        await self.show_pending()

    async def on_question_emptied(self, event: Question.Emptied) -> None:
        event.stop()
        if self.pending:
            self.pending.pop()
            await self.show_pending()

    # -- paths ---------------------------------------------------------------------------------------------

    def on_question_pasted(self, event: Question.Pasted) -> None:
        """A paste: picture paths become chips, everything else stays text, made inert."""
        event.stop()
        self.in_turn(partial(self._pasted, event))

    async def _pasted(self, event: Question.Pasted) -> None:
        from vlmconsole.vision.paths import parse_paths

        try:
            pasted = await asyncio.to_thread(parse_paths, event.text)
            if pasted.text:
                self.composer.question.insert(inert(pasted.text))
        finally:
            event.taken.set()  # what was typed after it may follow now
        await self._take(pasted)

    async def _take(self, pasted: Pasted) -> None:
        if pasted.found:
            await self.attach(list(pasted.found))
        if pasted.missing:
            self._expect(list(pasted.missing))

    async def offer_typed(self, text: str) -> bool:
        """Attach pictures whose paths stand in a typed question, as if they had been pasted; False: there are none.

        Nothing is sent then: a person looks at the chips, and at the words that stay, first. A path that is not here is
        said; it may be meant as it stands, so that a second Enter sends it.
        """
        from vlmconsole.vision.paths import parse_paths

        typed = await asyncio.to_thread(partial(parse_paths, typed=True), text)
        if typed.found:
            self.composer.question.replace_all(inert(typed.text))
            await self.attach(list(typed.found))
            if len(self.pending) >= len(typed.found):
                said = "the picture whose path was typed is attached; Enter sends, Backspace takes it away"
                self.composer.notice(
                    said if typed.text else said.replace("Enter sends", "type a question"), about=PATHS
                )
            if typed.missing:
                self._expect(list(typed.missing), "; Enter sends the rest")
        elif typed.missing:
            self._expect(list(typed.missing), "; Enter once more sends the words as they are")
        return bool(typed.found or typed.missing)

    def _expect(self, missing: list[Path], also: str = "") -> None:
        """Paths that are not here: over SSH they are the laptop's, and a line of scp brings them."""
        names = ", ".join(one_line(path.name, 60) for path in missing)
        if not under_ssh():
            said = ", ".join(one_line(path, 120) for path in missing)
            self.composer.notice(f"not found: {said}{also}", "$error", about=PATHS)
            return
        inbox = self.console.lab.places.inbox
        lines = "\n".join(one_line(scp_line(str(path), str(inbox)), 400) for path in missing)
        self.composer.notice(
            f"{names} is not on this machine{also}. Run this where it is; it is attached on arrival:\n{lines}",
            about=PATHS,
        )
        self._watch_inbox(inbox, {path.name for path in missing})

    @work(group="inbox", exclusive=True, exit_on_error=False)
    async def _watch_inbox(self, inbox: Path, names: set[str]) -> None:
        arrived: list[Path] = []
        await await_in_inbox(inbox, names, arrived.append)
        await self.attach(arrived)

    # -- commands ------------------------------------------------------------------------------------------

    async def command(self, text: str) -> bool:
        """Do what a question that begins with a slash asks for; False: it is none of these commands."""
        word, _, rest = text.partition(" ")
        if word not in (IMAGE, PASTE):
            return False
        self.composer.question.gone(text)
        if word == PASTE:
            await self._from_clipboard()
        else:
            await self._image_command(rest.strip())
        return True

    def action_paste(self) -> None:
        """p: the picture in the clipboard of this desktop."""
        self.in_turn(self._from_clipboard)

    async def _from_clipboard(self) -> None:
        from vlmconsole.screens.chat.clipboard import clipboard_picture
        from vlmconsole.vision.images import PictureError, open_picture

        self.composer.notice("asking the clipboard…")
        background = self.console.lab.settings.background
        try:
            data = await asyncio.to_thread(clipboard_picture)
            picture = await asyncio.to_thread(open_picture, data, name="clipboard.png", background=background)
        except PictureError as error:
            self.composer.notice(f"{error}{f' {error.hint}' if error.hint else ''}", "$error")
            return
        await self._add(picture)

    async def _image_command(self, words: str) -> None:
        from vlmconsole.vision.paths import parse_paths

        if not words:
            self.composer.notice(f"{IMAGE} PATH or URL attaches a picture", "$warning")
            return
        if words.startswith(("http://", "https://")):
            await self._fetch(words)
            return
        pasted = await asyncio.to_thread(parse_paths, words)
        await self._take(pasted)
        if not pasted.found and not pasted.missing:
            self.composer.notice(f"no picture named: {one_line(words, 120)}", "$error")

    async def _fetch(self, words: str) -> None:
        """A picture from the web; `--private` after the address allows one of this network."""
        from vlmconsole.vision.fetch import fetch_picture
        from vlmconsole.vision.images import PictureError, open_picture

        url, _, option = words.partition(" ")
        self.composer.notice(f"fetching {one_line(url, 120)}")
        background = self.console.lab.settings.background
        try:
            got = await fetch_picture(url, allow_private=option.strip() == "--private")
            picture = await asyncio.to_thread(open_picture, got.data, name=got.name, background=background)
        except PictureError as error:
            self.composer.notice(str(error), "$error")
            return
        await self._add(picture)

    async def _add(self, picture: Picture) -> None:
        self.pending.append(picture)
        self.composer.notice()
        await self.show_pending()
