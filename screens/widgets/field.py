"""The line of text of every dialog, form and filter."""

from __future__ import annotations

from textual.widgets import Input


class Field(Input):
    """Its cursor stands still: a blinking one would be painted anew all the time, over a slow line too."""

    def on_mount(self) -> None:
        self.cursor_blink = False
