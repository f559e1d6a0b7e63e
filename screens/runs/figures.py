"""Everything a run holds, line after line; the cursor stands on a figure, and Enter opens what is behind it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message

from vlmconsole.desks.opened_run import Opened, Target
from vlmconsole.measure.axes import axes
from vlmconsole.reports.parts import Facts, Pictures, Plot, Prose, Section, Table
from vlmconsole.runs.folder import FINAL
from vlmconsole.runs.live_view import Told
from vlmconsole.screens.runs.drawings import (
    FigureLine,
    cell_table,
    heading,
    heat,
    pair_bars,
    scatter,
    waterfalls,
    wrapped,
)
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.text.bars import sparkline
from vlmconsole.text.fitting import fitted
from vlmconsole.text.numbers import figure
from vlmconsole.text.plain import inert, one_line

STYLES = {"bad": "$error", "warn": "$warning"}
MOST_ROWS = 40  # of one table; the report has all of them


def lines_of(opened: Opened, width: int, marked: Sequence[str] = ()) -> list[FigureLine]:
    """The whole of an opened run for `width` cells; `marked` are names of cells."""
    made: list[FigureLine] = []
    if opened.cells:
        made += cell_table(opened.cells, opened.name, width, marked)
        for one in axes(opened.cells):
            made += scatter(one, width)
        made += heat(opened.cells, width)
    for section in opened.conditions:
        for part in section.parts:
            if part.title.startswith("Verdict"):
                made += _part(part, width)
    made += pair_bars(opened.pairs, width)
    made += waterfalls(opened.falls, width)
    if not opened.cells:
        made += _curves(opened.told, width)
    early = [one for one in opened.sections if one.title not in ("Settings", "Settings and summary", "What it told")]
    for section in early:
        made += _section(section, width)
    for section in opened.conditions:
        made += heading("Conditions")
        for part in section.parts:
            if not part.title.startswith("Verdict") and not isinstance(part, Plot) and part.title != "Pairs":
                made += _part(part, width)
    late = [one for one in opened.sections if one not in early]
    if opened.state not in FINAL:  # what it says now before what it was asked for
        late.reverse()
    for section in late:
        made += _section(section, width)
    while made and not made[0].text:
        made = made[1:]
    return made


def _curves(told: Told, width: int) -> list[FigureLine]:
    curves = [curve for curve in told.curves if curve.points]
    if not curves:
        return []
    longest = max(cell_len(one_line(curve.name, 30)) for curve in curves)
    made = heading("Curves", "first, last, course")
    for curve in curves:
        values = [value for _, value in curve.points]
        unit = f" {one_line(curve.unit, 8)}" if curve.unit else ""
        said = f"{figure(values[0]):>10} {figure(curve.last):>10}{unit}"
        room = max(4, width - longest - cell_len(said) - 4)
        made.append(
            FigureLine(
                Content.assemble(
                    (fitted(one_line(curve.name, 30), longest), "$muted"),
                    said,
                    "  ",
                    (sparkline(values, min(room, 48)), "$accent"),
                )
            )
        )
    return made


def _section(section: Section, width: int) -> list[FigureLine]:
    made = heading(one_line(section.title, 120))
    for part in section.parts:
        made += _part(part, width)
    return made


def _part(part: Table | Plot | Facts | Prose | Pictures, width: int) -> list[FigureLine]:
    made: list[FigureLine] = []
    if isinstance(part, Plot | Pictures):  # the report has the pictures
        return []
    if part.title:
        made.append(FigureLine(Content(one_line(part.title, 120)).stylize("$accent")))
    if isinstance(part, Prose):
        for line in part.lines:
            made += wrapped(inert(line), width, STYLES.get(part.kind, ""))
    elif isinstance(part, Facts):
        longest = min(max((cell_len(name) for name, _ in part.rows), default=0), width // 2)
        for name, value in part.rows:
            value = one_line(value, 400)
            label = one_line(name, longest)
            if longest + 2 + cell_len(value) <= width:
                made.append(FigureLine(Content.assemble((f"{fitted(label, longest)}  ", "$muted"), value)))
                continue
            made.append(FigureLine(Content(label).stylize("$muted")))
            made += wrapped(value, width - 2, "")
    else:
        made += _table(part, width)
    if part.note:
        made += wrapped(part.note, width, "$faint")
    return made


def _table(table: Table, width: int) -> list[FigureLine]:
    """Columns as wide as they need to be; texts give way where there is no room, figures never."""
    rows = [[one_line(value, 120) for value in row] for row in table.rows[:MOST_ROWS]]
    heads = [column.name for column in table.columns]
    sizes = [max([cell_len(heads[at]), *(cell_len(row[at]) for row in rows)]) for at in range(len(heads))]
    texts = [at for at, column in enumerate(table.columns) if not column.figures]
    while sum(sizes) + 2 * len(sizes) > width and any(sizes[at] > 8 for at in texts):
        widest = max(texts, key=lambda at: sizes[at])
        sizes[widest] -= 1

    def line(values: Sequence[str]) -> str:
        cells = (fitted(value, sizes[at], right=table.columns[at].figures) for at, value in enumerate(values))
        return "  ".join(cells)

    made = [FigureLine(Content(line(heads)).stylize("$faint"))]
    for at, row in enumerate(rows):
        style = STYLES.get(table.marks[at], "") if table.marks else ""
        made.append(FigureLine(Content(line(row)).stylize(style) if style else Content(line(row))))
    if len(table.rows) > MOST_ROWS:
        made.append(FigureLine(Content(f"{len(table.rows) - MOST_ROWS} more in the report").stylize("$faint")))
    return made


class RunFigures(LineView):
    """Shows one opened run; posts `Opened` when a chosen line is clicked again."""

    class Clicked(Message):
        pass

    def __init__(self) -> None:
        super().__init__(id="run-figures")
        self._opened: Opened | None = None
        self._marked: tuple[str, ...] = ()
        self._lines: list[FigureLine] = []
        self._width = 0

    @property
    def target(self) -> Target:
        """What the cursor's line opens; the run where a line names nothing of its own."""
        found = self._lines[self.cursor].target if 0 <= self.cursor < len(self._lines) else None
        return found or Target("run")

    def show(self, opened: Opened | None, marked: tuple[str, ...] = ()) -> None:
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
        return Content.assemble((here, "$accent"), self._lines[y].text)

    def jump(self, by: int) -> None:
        """To the next or the previous heading."""
        heads = [y for y in range(1, len(self._lines)) if not self._lines[y - 1].text and self._lines[y].text]
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
