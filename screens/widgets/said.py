"""A piece of text that is laid out and drawn again only when it says something else."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Said(Static):
    """`say` as often as one likes."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._said = Content("")

    def say(self, text: Content) -> None:
        if text != self._said or text.spans != self._said.spans:
            # A line of a fixed height is drawn again without asking where everything else goes.
            fixed = self.styles.height is not None and not self.styles.height.is_auto
            self._said = text
            self.update(text, layout=not fixed)
