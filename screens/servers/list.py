"""The list of server profiles: a sign and a word for the state, the engine, and what the state comes from."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message

from vlmconsole.desks.servers import Line
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.servers.servers import NAMES
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import sign_of


class ServerList(LineView):
    """One line a profile; the cursor stays on its profile. Posts `Chosen` when it moves to another."""

    class Chosen(Message):
        pass

    class Opened(Message):
        """A line was clicked that was chosen already."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: tuple[Line, ...] = ()

    @property
    def chosen(self) -> Line | None:
        return self.lines[self.cursor] if 0 <= self.cursor < len(self.lines) else None

    def show(self, lines: tuple[Line, ...], first: str = "") -> None:
        """`first` is the profile that the cursor stands on when nothing was chosen yet."""
        name = self.chosen.profile.name if self.chosen is not None else first
        before, self.lines = self.lines, lines
        names = [line.profile.name for line in lines]
        self.cursor = names.index(name) if name in names else min(max(self.cursor, 0), len(lines) - 1)
        changed = [y for y, line in enumerate(lines) if y >= len(before) or _told(before[y]) != _told(line)]
        if len(lines) != self.count:
            self.sized(len(lines))
        for y in changed:
            self.sized(len(lines), changed=range(y, y + 1))

    def choose(self, index: int) -> None:
        before = self.cursor
        super().choose(index)
        if self.cursor != before:
            self.post_message(self.Chosen())

    def line(self, y: int, width: int) -> Content:
        name, engine, state, _ = _told(self.lines[y])
        mark, style = painted(sign_of(state))
        longest = min(24, max(cell_len(line.profile.name) for line in self.lines))
        shown = Content(one_line(name)).truncate(longest, ellipsis=True, pad=True)
        return Content.assemble(
            " ",
            (mark, style),
            " ",
            shown,
            "  ",
            (f"{engine:<8} ", "$muted"),
            (state, style if state != "ready" else ""),
        ).truncate(width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            if index == self.cursor:
                self.post_message(self.Opened())
            self.choose(index)


def _told(line: Line) -> tuple[str, str, str, str]:
    engine = NAMES[line.profile.engine]
    return line.profile.name, engine if len(engine) <= 8 else line.profile.engine, line.status.word, line.why
