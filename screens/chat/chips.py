"""The pictures that go with a question, as chips in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

SHORTEST = 8  # cells of a picture's name that stay on a chip however narrow the screen is
MORE = "+{} more"


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
        self.tooltip = Content(one_line(f"{picture.description}. {picture.note}".strip(". ")))

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


class Chips(Horizontal):
    """As many chips as the line holds whole, and how many more there are."""

    def __init__(self) -> None:
        super().__init__(id="chips")
        self._chips: list[Chip] = []
        self._more = Static(id="more-chips")

    async def show(self, pictures: Sequence[tuple[Picture, int | None]], cells: int) -> None:
        """The pictures in a line of `cells`, each with its expected visual tokens (None: unknown)."""
        await self.remove_children()
        self._chips = [Chip(index, picture, tokens) for index, (picture, tokens) in enumerate(pictures)]
        self._more = Static(id="more-chips")
        self.fit(cells)
        await self.mount_all([*self._chips, self._more])
        self.set_class(bool(pictures), "-some")

    def fit(self, cells: int) -> None:
        """The line is `cells` long now."""
        for chip in self._chips:
            chip.fit(cells - (len(MORE) + 1 if len(self._chips) > 1 else 0))
        shown, used = len(self._chips), sum(chip.cells + 1 for chip in self._chips)
        while shown > 1 and used + (len(MORE) if shown < len(self._chips) else -1) > cells:
            shown -= 1
            used -= self._chips[shown].cells + 1
        for chip in self._chips:
            chip.display = chip.index < shown
        left = len(self._chips) - shown
        self._more.update(Content(MORE.format(left)).stylize("$muted") if left else "")
        self._more.display = bool(left)
