"""Measured runs drawn in lines of text: the cells' table, one axis against another, C × B, pairs, waterfalls.

Pure: (data, width) → lines, for screens and plain terminals. A line names what it stands for. Texts of a run are made
inert here.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from rich.cells import cell_len

from vlmconsole.desks.opened_run import OpenTarget
from vlmconsole.drawings.lines import Line, Piece, heading, line, wrapped
from vlmconsole.measure.axes import Axes
from vlmconsole.measure.machine_load import busy
from vlmconsole.measure.slo import slo_sentence
from vlmconsole.measure.views import Bar, CellView, PairLine, grid, parts, shortest
from vlmconsole.scoring.distribution import SMALL_N
from vlmconsole.text.fitting import fitted
from vlmconsole.text.numbers import UNKNOWN, figure
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import BAD, CHOSEN
from vlmconsole.text.times import latency

WAIT, PREFILL, REASONING, DECODE, LOST = "░", "▒", "▓", "█", "╌"
MOST_BARS = 16  # requests of one waterfall
PLOT_ROWS = 11
NARROW = (
    "E2E s",
    "TPOT ms",
    "p95 s",
    "n",
    "peak",
    "good/s",
)  # columns that a narrow pane has no room for, in this order


def cell_table(cells: Sequence[CellView], width: int, marked: Sequence[str] = ()) -> list[Line]:
    """Return a line a cell; those that are not valid say so in words, and why. `marked` are names of cells."""
    columns = {"C": 4, "B": 4, "TTFT p50 s": 12, "p95 s": 8, "TPOT ms": 9, "E2E s": 8, "tok/s": 8, "n": 5}
    if peaks := [len(cell.peak) for cell in cells if cell.peak]:  # a tuning's cells
        columns["peak"] = max(peaks) + 2
    if any(cell.goodput is not None for cell in cells):
        columns["good/s"] = 8
    names = [one_line(cell.name or "requests", 60) for cell in cells]
    longest = max(6, *map(cell_len, names))
    for less in NARROW:
        if sum(columns.values()) + min(longest, 20) + 3 > width:
            columns.pop(less, None)
    room = max(6, min(longest, width - sum(columns.values()) - 3))
    head = "".join(f"{name:>{size}}" for name, size in columns.items())
    made = [*heading("Cells" if len(cells) > 1 else "Figures"), line((" " * (room + 3) + head, "faint"))]
    for cell, name in zip(cells, names, strict=True):
        good, target = cell.state == "valid", OpenTarget("cell", cell.name)
        tpot = cell.share("tpot_s", "p50")
        values = {
            "C": _known(cell.concurrency),
            "B": _known(cell.running_limit),
            "TTFT p50 s": figure(cell.share("ttft_s", "p50")),
            "p95 s": figure(cell.share("ttft_s", "p95")),
            "TPOT ms": figure(tpot * 1000 if tpot is not None else None),
            "E2E s": figure(cell.share("e2e_s", "p50")),
            "tok/s": figure(cell.throughput),
            "n": _known(cell.n),
            "peak": cell.peak or UNKNOWN,
            "good/s": figure(cell.goodput),
        }
        row = "".join(f"{values[name]:>{size}}" for name, size in columns.items())
        mark = CHOSEN.mark if cell.name in marked else " " if good else BAD.mark
        style = "" if good else "error"
        made.append(line((f"{mark} ", style or "accent"), f"{fitted(name, room)} ", (row, style), target=target))
        if not good or cell.why:
            work = "" if cell.work.startswith("all ") else cell.work
            why = f"{cell.state.upper() if not good else ''} {' · '.join(filter(None, (cell.why, work)))}".strip()
            made += wrapped("  " + one_line(why, 300), width, style or "muted", target)
        elif cell.work and not cell.work.startswith("all "):
            made += wrapped("  " + one_line(cell.work, 300), width, "warning", target)
        if kept := slo_sentence(cell.summary):
            made += wrapped("  " + one_line(kept, 300), width, "muted", target)
    if any(cell.n is not None and cell.n < SMALL_N for cell in cells):
        made += wrapped(f"p95 is unreliable below {SMALL_N} requests", width, "faint")
    for cell in cells:
        if remark := busy(cell.summary):
            made += wrapped(f"{one_line(cell.name, 40)}: {remark}" if cell.name else remark, width, "warning")
    return made


def scatter(plane: Axes, width: int) -> list[Line]:
    """Return a letter for each valid cell; axes from 0."""
    placed = [point for point in plane.points if point.state == "valid"]
    if len(placed) < 2:
        return []
    widest, highest = max(point.x for point in placed) or 1.0, max(point.y for point in placed) or 1.0
    side = max(len(figure(highest)), 4) + 1
    columns = max(16, width - side - 2)
    letters = list(zip(string.ascii_uppercase, placed, strict=False))
    field: list[list[Piece]] = [[(" ", "")] * columns for _ in range(PLOT_ROWS)]
    for letter, point in letters:
        column = round(point.x / widest * (columns - 2))
        row = PLOT_ROWS - 1 - round(point.y / highest * (PLOT_ROWS - 1))
        while column < columns - 1 and field[row][column][0] != " ":
            column += 1
        field[row][column] = (letter, "bold accent")
    made = heading(plane.title, f"{plane.y} over {plane.x}")
    for at, signs in enumerate(field):
        value = {0: figure(highest), PLOT_ROWS // 2: figure(highest / 2), PLOT_ROWS - 1: "0"}.get(at, "")
        made.append(line((f"{value:>{side}}{'┤' if value else '│'}", "faint"), *signs))
    made.append(line((" " * side + "└" + "─" * columns, "faint")))
    middle, end = figure(widest / 2), figure(widest)
    axis = " " * (side + 1) + "0" + middle.rjust(columns // 2) + end.rjust(columns - columns // 2 - 1)
    made.append(line((axis, "faint")))
    return made + wrapped("   ".join(f"{letter} {one_line(point.name, 24)}" for letter, point in letters), width)


def heat(cells: Sequence[CellView], width: int) -> list[Line]:
    """Throughput and TTFT by C and B; each field holds its figure, and its ground says the same again."""
    table = grid(cells)
    if table is None:
        return []
    made: list[Line] = []
    for title, unit in (("Throughput", "tok/s"), ("TTFT p50", "s")):
        made += heading(f"{title} by C and B", unit)
        size = max(8, min(12, (width - 8) // len(table.columns)))
        made.append(line((" " * 8 + "".join(f"{f'C {c}':>{size - 1}} " for c in table.columns), "faint")))
        values = {
            place: cell.throughput if unit == "tok/s" else cell.share("ttft_s", "p50")
            for place, cell in table.cells.items()
        }
        most = max((value for value in values.values() if value is not None), default=1.0) or 1.0
        for b in table.rows:
            pieces: list[Piece] = [(f"{f'B {b}':>7} ", "faint")]
            for c in table.columns:
                cell, value = table.cell(c, b), values.get((c, b))
                if cell is not None and cell.state != "valid":
                    pieces.append((f"{f'{BAD.mark} {figure(value)}':>{size - 1}} ", "error"))
                else:
                    share = 0 if value is None else round(8 + 42 * value / most)
                    pieces.append((f"{figure(value):>{size - 1}} ", f"ground-{share}"))
            made.append(line(*pieces))
    return made


def pair_bars(rows: Sequence[PairLine], width: int) -> list[Line]:
    """Cold and warm TTFT of each pair, with the cached tokens beside the warm one."""
    if not rows:
        return []
    made = heading("Cold and warm pairs", "TTFT in s")
    longest = max((value for pair in rows for value in (pair.cold_s, pair.warm_s) if value), default=1.0)
    room = max(8, width - 38)
    arm = None
    for pair in rows:
        target = OpenTarget("arm", pair.arm)
        if pair.arm != arm:
            arm = pair.arm
            made.append(line((one_line(arm, 60), "accent"), target=target))
        for role, seconds in (("cold", pair.cold_s), ("warm", pair.warm_s)):
            name = (f"{pair.pair if role == 'cold' else '':>3} {role}  ", "muted")
            if seconds is None:
                made.append(line(name, ("no text came", "error"), target=target))
                continue
            bar = (PREFILL if role == "cold" else DECODE) * max(1, round(seconds / longest * room))
            cached = f"{'?' if pair.cached is None else pair.cached} of {_known(pair.prompt)} cached"
            tail = ("" if role == "cold" else cached, "muted")
            made.append(line(name, (bar, "accent"), f" {seconds:.3f}  ", tail, target=target))
    return made


def waterfalls(timelines: Sequence[tuple[str, Sequence[Bar]]], width: int) -> list[Line]:
    """Return a line a request on its cell's time axis, so that queueing is seen as steps."""
    if not timelines:
        return []
    legend: list[Piece] = [(PREFILL, "accent"), (" shortest TTFT  ", "faint"), (WAIT, "muted")]
    legend.append((" beyond it: waiting or slower  ", "faint"))
    if any(bar.thought for _, bars in timelines for bar in bars[:MOST_BARS]):
        legend += [(REASONING, "accent"), (" reasoning  ", "faint")]
    made = [*heading("Each request"), line(*legend, (DECODE, "accent"), (" decode", "faint"))]
    for name, bars in timelines:
        made += _waterfall(name, bars, width)
    return made


def _waterfall(name: str, bars: Sequence[Bar], width: int) -> list[Line]:
    least, begin = shortest(bars), min(bar.sent for bar in bars)
    some = bars[:MOST_BARS]
    span = max(bar.end for bar in some) - begin or 1.0
    room = max(10, width - 7)

    def column(seconds: float) -> int:
        return max(0, min(room, round(seconds / span * room)))

    thought = any(bar.thought for bar in some)
    what = "shortest wait for a first token, of the reasoning" if thought else "shortest TTFT"
    note = "no request gave text" if least is None else f"{what} {latency(least)}"
    title = line((one_line(name or "requests", 60), "accent"), (f"  {note}", "faint"), target=OpenTarget("cell", name))
    made = [line(), title]
    for bar in some:
        wait, prefill, _ = parts(bar, least)
        ends, at = [], bar.sent - begin
        for seconds in (0.0, wait, prefill, bar.thought):
            at += seconds
            ends.append(column(at))
        start, waited, filled, answers = ends
        end = max(column(bar.end - begin), start + 1)
        pieces: list[Piece] = [(f"{bar.index:>4} ", "muted"), ("× " if bar.failed else "  ", "error")]
        pieces.append((" " * start, ""))
        if bar.failed:
            pieces.append((LOST * (end - start), "error"))
        else:
            pieces += [
                (WAIT * (waited - start), "muted"),
                (PREFILL * (filled - waited), "accent"),
                (REASONING * (answers - filled), "accent"),
                (DECODE * (end - answers), "accent"),
            ]
        made.append(line(*pieces, target=OpenTarget("request", name, bar.index)))
    made.append(line((" " * 7 + "0" + latency(span).rjust(room - 1), "faint")))
    if len(bars) > MOST_BARS:
        made.append(line((f"{len(bars) - MOST_BARS} more requests in requests.jsonl", "faint")))
    return made


def _known(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
