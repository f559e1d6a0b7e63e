"""Everything a run holds, line after line; the cursor stands on a figure, and Enter opens what is behind it."""

from __future__ import annotations

import re

from textual import events
from textual.content import Content
from textual.message import Message

from vlmconsole.desks.opened_run import OpenedRun, OpenTarget
from vlmconsole.drawings.lines import Line
from vlmconsole.drawings.run import lines_of
from vlmconsole.screens.widgets.lines import LineView

_GROUND = re.compile(r"\bground-(\d+)")
_TONE = re.compile(r"\b(accent|muted|faint|warning|error)\b")


class RunFigures(LineView):
    """Shows one opened run; posts `Opened` when a chosen line is clicked again."""

    class Clicked(Message):
        pass

    def __init__(self) -> None:
        super().__init__(id="run-figures")
        self._opened: OpenedRun | None = None
        self._marked: tuple[str, ...] = ()
        self._lines: list[Line] = []
        self._width = 0

    @property
    def target(self) -> OpenTarget:
        """What the cursor's line opens; the run where a line names nothing of its own."""
        target = self._lines[self.cursor].target if 0 <= self.cursor < len(self._lines) else None
        return target or OpenTarget("run")

    def show(self, opened: OpenedRun | None, marked: tuple[str, ...] = ()) -> None:
        """Put a run there; the same one again keeps its place."""
        if opened is self._opened and marked == self._marked:
            return
        another = opened is None or self._opened is None or opened.name != self._opened.name
        self._opened, self._marked = opened, marked
        if another:
            self.cursor = -1
            self.scroll_to(y=0, animate=False, force=True)
        self._build()

    def _build(self) -> None:
        self._width = self.scrollable_content_region.width or self.size.width
        room = max(20, self._width - 2)
        self._lines = lines_of(self._opened, room, self._marked) if self._opened is not None else []
        self.cursor = min(max(self.cursor, 0), len(self._lines) - 1)
        self.sized(len(self._lines))
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width and self.scrollable_content_region.width != self._width:
            self._build()

    def line(self, y: int, width: int) -> Content:
        here = "▸" if y == self.cursor and self.has_focus else " "
        return Content.assemble((here, "$accent"), content_of(self._lines[y]))

    def jump(self, by: int) -> None:
        """To the next or the previous heading."""
        heads = [y for y in range(1, len(self._lines)) if not self._lines[y - 1].pieces and self._lines[y].pieces]
        after = (
            [y for y in heads if y > self.cursor] if by > 0 else [y for y in reversed([0, *heads]) if y < self.cursor]
        )
        if after:
            self.choose(after[0])
            self.scroll_to(y=after[0], animate=False, force=True)

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            if index == self.cursor:
                self.post_message(self.Clicked())
            self.choose(index)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


def content_of(line: Line) -> Content:
    """Return a drawn line in our colours."""
    pieces = ((text, _TONE.sub(r"$\1", _GROUND.sub(r"on accent \1%", style))) for text, style in line.pieces)
    return Content.assemble(*pieces)
