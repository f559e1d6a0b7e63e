"""The text of a question: any number of lines, sent by Enter."""

from __future__ import annotations

import asyncio
import contextlib
import unicodedata
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea

from vlmconsole.screens.keys import bindings

PASTE_WAIT = 1.0  # seconds that keys wait at most until a paste before them has been looked at


class QuestionArea(TextArea):
    """The text itself. Enter sends; a paste stays whole, line ends and all."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("composer",), "chat")

    class Sent(Message):
        """Enter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

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
        # F1 to F7 are the screens while one writes, too: a TextArea would select its line by F6, all of it by F7.
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

    def put(self, text: str) -> None:
        """Write `text` in the place of what stands, and go to its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def gone(self, text: str) -> None:
        """Take away what was sent. What was typed after its Enter stays."""
        self.put(self.text.removeprefix(text) if self.text.startswith(text) else "")

    def back(self, text: str) -> None:
        """Put back what could not be sent, before what was typed since.

        Without TextArea.Changed: nobody typed, and what is said about it must stay.
        """
        if text:  # what is loaded cannot be undone
            with self.prevent(TextArea.Changed):
                self.put(text + self.text)

    def replace_all(self, text: str) -> None:
        """Put `text` in the place of what stands, so that an undo brings that back."""
        self.replace(text, (0, 0), self.document.end)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_send(self) -> None:
        self.post_message(self.Sent(self.text))

    def action_copy(self) -> None:
        """Ctrl+C: copy what is selected; else stop the answer, where one comes."""
        if self.answering and not self.selected_text:
            self.post_message(self.Interrupted())
        else:
            super().action_copy()
