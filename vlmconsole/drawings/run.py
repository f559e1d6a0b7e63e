"""Everything that an opened run holds, line after line: its drawings, its verdict, its conditions, its sections."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from vlmconsole.desks.opened_run import OpenedRun
from vlmconsole.drawings.lines import Line, heading, line, wrapped
from vlmconsole.drawings.measured import cell_table, heat, pair_bars, scatter, waterfalls
from vlmconsole.measure.axes import axes
from vlmconsole.reports.parts import Facts, Paragraph, Pictures, ReportPlot, Section, Table
from vlmconsole.runs.folder import FINAL
from vlmconsole.runs.live_view import RunState
from vlmconsole.text.bars import sparkline
from vlmconsole.text.fitting import fitted
from vlmconsole.text.numbers import figure
from vlmconsole.text.plain import inert, one_line

STYLES = {"bad": "error", "warn": "warning"}
MOST_ROWS = 40  # of one table; the report has all of them


def lines_of(opened: OpenedRun, width: int, marked: Sequence[str] = ()) -> list[Line]:
    """Return the whole of an opened run for `width` cells; `marked` are names of cells."""
    made: list[Line] = []
    if opened.cells:
        made += cell_table(opened.cells, width, marked)
        for plane in axes(opened.cells):
            made += scatter(plane, width)
        made += heat(opened.cells, width)
    for section in opened.conditions:
        for part in section.parts:
            if part.title.startswith("Verdict"):
                made += _part(part, width)
    made += pair_bars(opened.pairs, width)
    made += waterfalls(opened.falls, width)
    if not opened.cells:
        made += _curves(opened.told, width)
    early = [section for section in opened.sections if section.title not in ("Settings", "Settings and summary", "Log")]
    for section in early:
        made += _section(section, width)
    for section in opened.conditions:
        made += heading("Conditions")
        for part in section.parts:
            if not part.title.startswith("Verdict") and not isinstance(part, ReportPlot) and part.title != "Pairs":
                made += _part(part, width)
    late = [plane for plane in opened.sections if plane not in early]
    if opened.state not in FINAL:  # what it says now before what it was asked for
        late.reverse()
    for section in late:
        made += _section(section, width)
    while made and not made[0].pieces:
        made = made[1:]
    return made


def _curves(state: RunState, width: int) -> list[Line]:
    curves = [curve for curve in state.curves if curve.points]
    if not curves:
        return []
    longest = max(cell_len(one_line(curve.name, 30)) for curve in curves)
    made = heading("Curves", "first, last, course")
    for curve in curves:
        values = [value for _, value in curve.points]
        unit = f" {one_line(curve.unit, 8)}" if curve.unit else ""
        label = f"{figure(values[0]):>10} {figure(curve.last):>10}{unit}"
        room = max(4, width - longest - cell_len(label) - 4)
        name = (fitted(one_line(curve.name, 30), longest), "muted")
        made.append(line(name, f"{label}  ", (sparkline(values, min(room, 48)), "accent")))
    return made


def _section(section: Section, width: int) -> list[Line]:
    made = heading(one_line(section.title, 120))
    for part in section.parts:
        made += _part(part, width)
    return made


def _part(part: Table | ReportPlot | Facts | Paragraph | Pictures, width: int) -> list[Line]:
    made: list[Line] = []
    if isinstance(part, ReportPlot | Pictures):  # the report has the pictures
        return []
    if part.title:
        made.append(line((one_line(part.title, 120), "accent")))
    if isinstance(part, Paragraph):
        for text in part.lines:
            made += wrapped(inert(text), width, STYLES.get(part.kind, ""))
    elif isinstance(part, Facts):
        longest = min(max((cell_len(name) for name, _ in part.rows), default=0), width // 2)
        for name, value in part.rows:
            value = one_line(value, 400)
            label = one_line(name, longest)
            if longest + 2 + cell_len(value) <= width:
                made.append(line((f"{fitted(label, longest)}  ", "muted"), value))
                continue
            made.append(line((label, "muted")))
            made += wrapped(value, width - 2, "")
    else:
        made += _table(part, width)
    if part.note:
        made += wrapped(part.note, width, "faint")
    return made


def _table(table: Table, width: int) -> list[Line]:
    """Columns as wide as they need to be; texts give way where there is no room, figures never."""
    rows = [[one_line(value, 120) for value in row] for row in table.rows[:MOST_ROWS]]
    heads = [column.name for column in table.columns]
    sizes = [max([cell_len(heads[at]), *(cell_len(row[at]) for row in rows)]) for at in range(len(heads))]
    texts = [at for at, column in enumerate(table.columns) if not column.figures]
    while sum(sizes) + 2 * len(sizes) > width and any(sizes[at] > 8 for at in texts):
        widest = max(texts, key=lambda at: sizes[at])
        sizes[widest] -= 1

    def row_of(values: Sequence[str]) -> str:
        cells = (fitted(value, sizes[at], right=table.columns[at].figures) for at, value in enumerate(values))
        return "  ".join(cells)

    made = [line((row_of(heads), "faint"))]
    for at, row in enumerate(rows):
        style = STYLES.get(table.marks[at], "") if table.marks else ""
        made.append(line((row_of(row), style)))
    if len(table.rows) > MOST_ROWS:
        made.append(line((f"{len(table.rows) - MOST_ROWS} more in the report", "faint")))
    return made
