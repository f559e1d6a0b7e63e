"""The composer: a question of any number of lines, and the chips of the pictures that go with it."""

from __future__ import annotations

import asyncio
import contextlib
import unicodedata
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

from vlmconsole.screens.keys import bindings
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture


FAULT = "fault"  # what a notice is about that goes when a question can be sent again
PATHS = "paths"  # what a notice is about that goes when the words are sent as they are
LENGTH = "length"  # what a notice is about that goes when the question is another one
SHORTEST = 8  # cells of a picture's name that stay on a chip however narrow the screen is
PASTE_WAIT = 1.0  # seconds that keys wait at most until a paste before them has been looked at


class Question(TextArea):
    """The text itself. Enter sends; a paste stays whole, line ends and all."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("composer",), "chat")

    class Pasted(Message):
        """A paste that may be paths. Who takes it sets `taken` when its words stand: keys wait for that."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text
            self.taken = asyncio.Event()

    class Interrupted(Message):
        """Ctrl+C with nothing selected: the answer that comes is to stop."""

    class Emptied(Message):
        """Backspace in an empty question: the last chip goes."""

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True, show_line_numbers=False, compact=True, highlight_cursor_line=False, id="question"
        )
        self.cursor_blink = False
        self.answering = False  # whether an answer comes that could be stopped
        # F1 to F6 are the screens while one writes, too: a TextArea would select its line by F6, all of it by F7.
        for key in ("f6", "f7"):
            self._bindings.key_to_bindings.pop(key, None)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        pasted = self.Pasted(event.text).set_sender(self)
        assert self.parent is not None
        # To the parent at once: in this widget's own queue it would wait for the end of this very handler.
        self.parent.post_message(pasted)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pasted.taken.wait(), PASTE_WAIT)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":  # a TextArea would take it as a new line
            event.prevent_default()
            event.stop()
            self.action_send()
            return
        if event.character and not event.is_printable and unicodedata.category(event.character) == "Zs":
            # A blank of another kind (Alt+Space of a Mac, a full-width space, those in names of screenshots) is no
            # printable character to Python, so that a TextArea would drop it.
            event.prevent_default()
            event.stop()
            self.insert(event.character)
            return
        if event.key == "backspace" and not self.text:
            event.prevent_default()
            event.stop()
            self.post_message(self.Emptied())

    def gone(self, text: str) -> None:
        """Take away what was sent. What was typed after its Enter stays."""
        rest = self.text.removeprefix(text) if self.text.startswith(text) else ""
        self.load_text(rest)
        self.move_cursor(self.document.end)

    def back(self, text: str) -> None:
        """Put back what could not be sent, before what was typed since."""
        self.load_text(text + self.text)
        self.move_cursor(self.document.end)

    def replace_all(self, text: str) -> None:
        """Put `text` in the place of what stands, so that an undo brings that back."""
        self.replace(text, (0, 0), self.document.end)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_send(self) -> None:
        self.post_message(Composer.Sent(self.text))

    def action_copy(self) -> None:
        """Ctrl+C: copy what is selected; else stop the answer, where one comes."""
        if self.answering and not self.selected_text:
            self.post_message(self.Interrupted())
        else:
            super().action_copy()


class Chip(Static):
    """A picture that will be sent; a click takes it away."""

    class Removed(Message):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, index: int, picture: Picture, tokens: int | None) -> None:
        width, height = picture.size
        cost = f" · {many(tokens, 'token')}" if tokens is not None else ""
        note = "" if not picture.changes else " · changed"
        self.index, self._file = index, picture.name
        self._about = f" {width}×{height}{cost}{note} ✕ "
        self.cells = 0
        super().__init__(self._text(32), classes="chip")
        self.tooltip = Content(one_line(f"{picture.said}. {picture.note}".strip(". ")))

    def _text(self, name: int) -> Content:
        text = Content.assemble((f" {self.index + 1} ", "$accent"), one_line(self._file, name), (self._about, "$muted"))
        self.cells = text.cell_length
        return text

    def fit(self, room: int) -> None:
        """Shorten the name so that the mark that takes the picture away stays within `room` cells."""
        text = self._text(32)
        for name in range(31, SHORTEST - 1, -1):
            if self.cells <= room:
                break
            text = self._text(name)
        self.update(text)

    def on_click(self) -> None:
        self.post_message(self.Removed(self.index))


class Composer(Vertical):
    """Chips, the question, and a line that says what sending would cost (or why it cannot be)."""

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__()
        self._about = ""
        self._standing = ""
        self._said: dict[str, tuple[str, str]] = {}
        self._chips: list[Chip] = []
        self._more = Static(id="more-chips")

    def compose(self) -> ComposeResult:
        yield Horizontal(id="chips")
        with Horizontal(id="entry"):
            yield Static("┃", id="prompt")
            yield Question()
        with Horizontal(id="hints"):
            yield Static(id="notice")
            yield Static(id="budget")

    @property
    def question(self) -> Question:
        return self.query_one(Question)

    async def show_chips(self, pictures: list[tuple[Picture, int | None]]) -> None:
        """The pictures waiting to be sent, each with its expected visual tokens (None: unknown)."""
        chips = self.query_one("#chips", Horizontal)
        await chips.remove_children()
        made = [Chip(index, picture, tokens) for index, (picture, tokens) in enumerate(pictures)]
        self._chips, self._more = made, Static(id="more-chips")
        self._fit_chips()
        await chips.mount_all([*made, self._more])
        chips.set_class(bool(pictures), "-some")

    def on_resize(self) -> None:
        self._fit_chips()

    def _fit_chips(self) -> None:
        """As many chips as the line holds whole, and how many more there are."""
        room = (self.size.width or self.app.size.width) - 2
        more = "+{} more"
        for chip in self._chips:
            chip.fit(room - (len(more) + 1 if len(self._chips) > 1 else 0))
        shown, used = len(self._chips), sum(chip.cells + 1 for chip in self._chips)
        while shown > 1 and used + (len(more) if shown < len(self._chips) else -1) > room:
            shown -= 1
            used -= self._chips[shown].cells + 1
        for chip in self._chips:
            chip.display = chip.index < shown
        left = len(self._chips) - shown
        self._more.update(Content(more.format(left)).stylize("$muted") if left else "")
        self._more.display = bool(left)

    def notice(self, text: str = "", style: str = "$muted", about: str = "") -> None:
        """One line under the question: an error, or what is being waited for. Text from outside is made inert.

        One that is `about` something goes when `withdraw` says that it is over.
        """
        self._about = about
        self._say("notice", text or self._standing, style)

    def stand(self, text: str = "") -> None:
        """What is said from now on while nothing else is; "" for nothing."""
        self._standing = text
        self.notice()

    def withdraw(self, about: str) -> None:
        """Take the notice away if it is about that."""
        if about and self._about == about:
            self.notice()

    def budget(self, text: str, style: str = "$muted") -> None:
        """What sending would take of the context."""
        self._say("budget", text, style)

    def _say(self, name: str, text: str, style: str) -> None:
        if self._said.get(name) != (text, style):  # with every key: laying the screen out anew would make typing slow
            self._said[name] = (text, style)
            self.query_one(f"#{name}", Static).update(Content(text).stylize(style) if text else Content(""))
