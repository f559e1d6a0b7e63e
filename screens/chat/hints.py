"""The line under the question: what is to be said of it, and what sending it would take."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

FAULT = "fault"  # what a notice is about that goes when a question can be sent again
PATHS = "paths"  # what a notice is about that goes when the words are sent as they are
LENGTH = "length"  # what a notice is about that goes when the question is another one


class Hints(Horizontal):
    """A notice, over one that stands while there is no other, and the budget beside it."""

    def __init__(self) -> None:
        super().__init__(id="hints")
        self._about = ""
        self._standing = ""
        self._shown: dict[str, tuple[str, str]] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="notice")
        yield Static(id="budget")

    def notice(self, text: str = "", style: str = "$muted", about: str = "") -> None:
        """One line: an error, or what is being waited for. Text from outside is made inert.

        One that is `about` something goes when `withdraw` says that it is over.
        """
        self._about = about
        self._show("notice", text or self._standing, style)

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
        self._show("budget", text, style)

    def _show(self, name: str, text: str, style: str) -> None:
        if self._shown.get(name) != (text, style):  # with every key: laying the screen out anew would make typing slow
            self._shown[name] = (text, style)
            self.query_one(f"#{name}", Static).update(Content(text).stylize(style) if text else Content(""))
