"""Measured runs drawn in lines of text: the cells' table, TTFT against throughput, C × B, pairs, waterfalls.

Pure: (data, width) → lines. A line names what it opens. Texts of a run are made inert here.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from vlmconsole.desks.opened_run import Target
from vlmconsole.measure.axes import Axes
from vlmconsole.measure.machine_load import busy
from vlmconsole.measure.views import Bar, Cell, PairLine, grid, parts, shortest
from vlmconsole.text.numbers import UNKNOWN, figure
from vlmconsole.text.plain import one_line

WAIT, PREFILL, DECODE, LOST = "░", "▒", "█", "╌"
MOST_BARS = 16  # requests of one waterfall
PLOT_ROWS = 11
Piece = Content | str | tuple[str, str]


@dataclass(frozen=True)
class FigureLine:
    """A line, and what Enter opens on it (None: what the run as a whole rests on)."""

    text: Content
    target: Target | None = None


def heading(title: str, note: str = "") -> list[FigureLine]:
    """An empty line and a title."""
    return [FigureLine(Content("")), FigureLine(Content.assemble((title, "bold"), (f"  {note}", "$faint")))]


def wrapped(text: str, width: int, style: str = "$muted", target: Target | None = None) -> list[FigureLine]:
    """A sentence over as many lines as it takes."""
    return [FigureLine(part.stylize(style) if style else part, target) for part in Content(text).wrap(max(10, width))]


def cell_table(found: Sequence[Cell], run: str, width: int, marked: Sequence[str]) -> list[FigureLine]:
    """A line a cell; those that are not valid say so in words, and why."""
    columns = {"C": 4, "B": 4, "TTFT p50 s": 12, "p95 s": 8, "TPOT ms": 9, "E2E s": 8, "tok/s": 8, "n": 5}
    names = [one_line(cell.name or "requests", 60) for cell in found]
    longest = max(map(len, names))
    for less in ("E2E s", "TPOT ms", "p95 s", "n"):  # a narrow pane has no room for them
        if sum(columns.values()) + min(longest, 20) + 3 > width:
            del columns[less]
    room = max(6, min(longest, width - sum(columns.values()) - 3))
    heads, sizes = tuple(columns), tuple(columns.values())
    head = "".join(f"{name:>{size}}" for name, size in zip(heads, sizes, strict=True))
    made = [
        *heading("Cells" if len(found) > 1 else "Figures"),
        FigureLine(Content(" " * (room + 3) + head).stylize("$faint")),
    ]
    for cell, name in zip(found, names, strict=True):
        good, target = cell.state == "valid", Target("cell", cell.name)
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
        }
        row = "".join(f"{values[name]:>{size}}" for name, size in zip(heads, sizes, strict=True))
        sign = "◆" if cell.name in marked else " " if good else "✗"
        style = "" if good else "$error"
        label = name if len(name) <= room else name[: room - 1] + "…"
        made.append(
            FigureLine(
                Content.assemble((f"{sign} ", style or "$accent"), (f"{label:<{room + 1}}", ""), (row, style)), target
            )
        )
        if not good or cell.why:
            why = f"{cell.state.upper() if not good else ''} {cell.why or cell.work}".strip()
            made += wrapped("  " + one_line(why, 300), width, style or "$muted", target)
        elif cell.work and not cell.work.startswith("all "):
            made += wrapped("  " + one_line(cell.work, 300), width, "$warning", target)
    small = [n for cell in found if (n := cell.n) is not None and n < 60]
    if small:
        made += wrapped("p95 rests on few requests where n < 60", width, "$faint")
    for cell in found:
        if remark := busy(cell.summary):
            made += wrapped(f"{one_line(cell.name, 40)}: {remark}" if cell.name else remark, width, "$warning")
    return made


def scatter(one: Axes, width: int) -> list[FigureLine]:
    """A letter for each valid cell; axes from 0."""
    placed = [point for point in one.points if point.state == "valid"]
    if len(placed) < 2:
        return []
    widest, highest = max(point.x for point in placed) or 1.0, max(point.y for point in placed) or 1.0
    side = max(len(figure(highest)), 4) + 1
    columns = max(16, width - side - 2)
    field: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(PLOT_ROWS)]
    for letter, point in zip(string.ascii_uppercase, placed, strict=False):
        column = round(point.x / widest * (columns - 2))
        row = PLOT_ROWS - 1 - round(point.y / highest * (PLOT_ROWS - 1))
        while column < columns - 1 and field[row][column][0] != " ":
            column += 1
        field[row][column] = (letter, "bold $accent")
    made = heading(one.title, f"{one.y} over {one.x}")
    for at, signs in enumerate(field):
        value = {0: figure(highest), PLOT_ROWS // 2: figure(highest / 2), PLOT_ROWS - 1: "0"}.get(at, "")
        edge = "┤" if value else "│"
        made.append(FigureLine(Content.assemble((f"{value:>{side}}{edge}", "$faint"), *signs)))
    made.append(FigureLine(Content(" " * side + "└" + "─" * columns).stylize("$faint")))
    end, middle = f"{figure(widest)}", f"{figure(widest / 2)}"
    axis = " " * (side + 1) + "0" + middle.rjust(columns // 2) + end.rjust(columns - columns // 2 - 1)
    made.append(FigureLine(Content(axis).stylize("$faint")))
    names = [
        f"{letter} {one_line(point.name, 24)}" for letter, point in zip(string.ascii_uppercase, placed, strict=False)
    ]
    made += wrapped("   ".join(names), width)
    return made


def heat(found: Sequence[Cell], width: int) -> list[FigureLine]:
    """Throughput and TTFT by C and B; each field holds its figure, and its ground says the same again."""
    table = grid(found)
    if table is None:
        return []
    made: list[FigureLine] = []
    for title, unit in (("Throughput", "tok/s"), ("TTFT p50", "s")):
        made += heading(f"{title} by C and B", unit)
        size = max(8, min(12, (width - 8) // len(table.columns)))
        made.append(
            FigureLine(Content(" " * 8 + "".join(f"{f'C {c}':>{size - 1}} " for c in table.columns)).stylize("$faint"))
        )
        values = {
            place: cell.throughput if unit == "tok/s" else cell.share("ttft_s", "p50")
            for place, cell in table.cells.items()
        }
        most = max((value for value in values.values() if value is not None), default=1.0) or 1.0
        for b in table.rows:
            pieces: list[Piece] = [(f"{f'B {b}':>7} ", "$faint")]
            for c in table.columns:
                cell, value = table.cell(c, b), values.get((c, b))
                said = UNKNOWN if cell is None or value is None else figure(value)
                if cell is not None and cell.state != "valid":
                    pieces.append((f"{'✗ ' + said:>{size - 1}} ", "$error"))
                else:
                    share = 0 if value is None else round(8 + 42 * value / most)
                    pieces += [(f"{said:>{size - 1}} ", f"on $accent {share}%")]
            made.append(FigureLine(Content.assemble(*pieces)))
    return made


def pair_bars(found: Sequence[PairLine], width: int) -> list[FigureLine]:
    """Cold and warm TTFT of each pair, with the cached tokens beside the warm one."""
    if not found:
        return []
    made = heading("Cold and warm pairs", "TTFT in s")
    longest = max((value for pair in found for value in (pair.cold_s, pair.warm_s) if value), default=1.0)
    tail = 28
    room = max(8, width - 10 - tail)
    arm = None
    for pair in found:
        target = Target("arm", pair.arm)
        if pair.arm != arm:
            arm = pair.arm
            made.append(FigureLine(Content(one_line(arm, 60)).stylize("$accent"), target))
        for role, seconds in (("cold", pair.cold_s), ("warm", pair.warm_s)):
            number = str(pair.pair) if role == "cold" else ""
            if seconds is None:
                made.append(
                    FigureLine(
                        Content.assemble((f"{number:>3} {role}  ", "$muted"), ("no text came", "$error")), target
                    )
                )
                continue
            bar = (PREFILL if role == "cold" else DECODE) * max(1, round(seconds / longest * room))
            cached = (
                ""
                if role == "cold"
                else f"{'?' if pair.cached is None else pair.cached} of {_known(pair.prompt)} cached"
            )
            made.append(
                FigureLine(
                    Content.assemble(
                        (f"{number:>3} {role}  ", "$muted"), (bar, "$accent"), f" {seconds:.3f}  ", (cached, "$muted")
                    ),
                    target,
                )
            )
    return made


def waterfalls(found: Sequence[tuple[str, tuple[Bar, ...]]], width: int) -> list[FigureLine]:
    """A line a request on its cell's time axis, so that queueing is seen as steps."""
    if not found:
        return []
    made = heading("Each request")
    legend = [(PREFILL, "$accent"), (" shortest TTFT  ", "$faint"), (WAIT, "$muted")]
    legend += [(" beyond it: waiting or slower  ", "$faint"), (DECODE, "$accent"), (" decode", "$faint")]
    made.append(FigureLine(Content.assemble(*legend)))
    for name, bars in found:
        made += _waterfall(name, bars, width)
    return made


def _waterfall(name: str, bars: Sequence[Bar], width: int) -> list[FigureLine]:
    least, begin = shortest(bars), min(bar.sent for bar in bars)
    some = bars[:MOST_BARS]
    span = max(bar.end for bar in some) - begin or 1.0
    room = max(10, width - 7)

    def column(seconds: float) -> int:
        return max(0, min(room, round(seconds / span * room)))

    thought = any(bar.thought for bar in some)
    what = "shortest wait for a first token, of the reasoning" if thought else "shortest TTFT"
    note = f"{what} {figure(least)} s" if least is not None else "no request gave text"
    made = [
        FigureLine(Content("")),
        FigureLine(
            Content.assemble((one_line(name or "requests", 60), "$accent"), (f"  {note}", "$faint")),
            Target("cell", name),
        ),
    ]
    for bar in some:
        wait, prefill, _ = parts(bar, least)
        at = [
            column(bar.sent - begin),
            column(bar.sent - begin + wait),
            column(bar.sent - begin + wait + prefill),
            column(bar.end - begin),
        ]
        if at[3] == at[0]:
            at[3] = at[0] + 1
        pieces: list[Piece] = [(f"{bar.index:>4} ", "$muted"), ("× " if bar.failed else "  ", "$error"), " " * at[0]]
        if bar.failed:
            pieces.append((LOST * (at[3] - at[0]), "$error"))
        else:
            pieces += [
                (WAIT * (at[1] - at[0]), "$muted"),
                (PREFILL * (at[2] - at[1]), "$accent"),
                (DECODE * (at[3] - at[2]), "$accent"),
            ]
        made.append(FigureLine(Content.assemble(*pieces), Target("request", name, bar.index)))
    end = f"{figure(span)} s"
    made.append(FigureLine(Content(" " * 7 + "0" + end.rjust(room - 1)).stylize("$faint")))
    if len(bars) > MOST_BARS:
        made.append(FigureLine(Content(f"{len(bars) - MOST_BARS} more requests in requests.jsonl").stylize("$faint")))
    return made


def _known(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
