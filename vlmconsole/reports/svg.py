"""Plots as SVG markup, drawn here so that they follow the page's light and dark colours and need no library.

Colours are classes of the page's style sheet; series differ in shape or dash as well. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vlmconsole.text.counts import many
from vlmconsole.text.numbers import decimal, figure

WIDTH = 760.0
CHARACTER = 6.9  # px of one, at most, in the size that names and tails are set in
COUNTED = frozenset({"step", "epoch"})  # axes on which there is nothing between whole numbers
LEFT, RIGHT, TOP, BOTTOM = 64.0, 20.0, 16.0, 44.0


@dataclass(frozen=True)
class PlotMark:
    """A point with its name; `good` False: hollow and named as set aside. `said` is its tool tip."""

    name: str
    x: float
    y: float
    good: bool = True
    said: str = ""


@dataclass(frozen=True)
class Polyline:
    """A curve: (x, y) in drawing order."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Span:
    """One line of a bar chart: consecutive parts (class, length) from `start` on, named left and right."""

    name: str
    start: float
    parts: Sequence[tuple[str, float]]
    said: str = ""
    tail: str = ""


@dataclass(frozen=True)
class Range:
    """An interval with its middle; `limit` is drawn as a tick across."""

    name: str
    low: float
    middle: float
    high: float
    tail: str = ""


def ticks(low: float, high: float, wanted: int = 5, *, whole: bool = False) -> list[float]:
    """Round values that cover low…high; equal ends are widened towards zero. `whole`: none between whole numbers."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = (min(0.0, low), max(0.0, high)) if abs(low) > 1e-9 else (low, low + 1.0)
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * m for m in (1, 2, 2.5, 5) if power * m >= rough), power * 10)
    if whole and step != int(step):
        step = 1.0 if step < 1 else 5.0
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


class _Axes:
    """A frame with grid lines; maps data to the drawing."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], x_label: str, y_label: str, height: float) -> None:
        self.x_ticks = ticks(min(xs), max(xs), 7, whole=x_label in COUNTED)
        self.y_ticks = ticks(min(ys), max(ys))
        self.height = height
        self.made: list[str] = []
        bottom = height - BOTTOM
        for value in self.y_ticks:
            y = self.y(value)
            self.made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.made.append(text(LEFT - 8, y + 4, decimal(value), "end tick"))
        for value in self.x_ticks:
            x = self.x(value)
            self.made.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
            self.made.append(text(x, bottom + 16, decimal(value), "middle tick"))
        self.made.append(text((LEFT + WIDTH - RIGHT) / 2, height - 8, x_label, "middle label"))
        middle = (TOP + bottom) / 2
        self.made.append(
            f'<text class="middle label" transform="translate(14 {middle:.1f}) rotate(-90)">{escape(y_label)}</text>'
        )

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def picture(title: str, height: float, made: Sequence[str]) -> str:
    """Return the parts as one drawing; `title` is what a screen reader says."""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}">'
        + "".join(made)
        + "</svg>"
    )


def _beside(y: float, bottom: float) -> list[float]:
    """Where a point's name may stand: level with it, a little above, a little below; always in the drawing."""
    rows = [y + 4 - 13 * step for step in (*range(5), *range(-1, -4, -1))]
    return [row for row in rows if TOP + 4 <= row <= bottom]


def scatter(title: str, marks: Sequence[PlotMark], x_label: str, y_label: str) -> str:
    """Named points. Axes start at 0, as both are amounts. A name that finds no room above or below its point stands in
    its tool tip alone, and the drawing says how many do.
    """
    height = 340.0
    axes = _Axes([0.0, *(m.x for m in marks)], [0.0, *(m.y for m in marks)], x_label, y_label, height)
    placed: list[tuple[float, float]] = []
    unnamed = 0
    for mark in marks:
        x, y = axes.x(mark.x), axes.y(mark.y)
        kind = "point" if mark.good else "point aside"
        tooltip = f"<title>{escape(mark.said or mark.name)}</title>"
        axes.made.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">{tooltip}</circle>')
        right = x < WIDTH - 120
        near = [py for px, py in placed if abs(px - x) < 90]
        place = next(
            (place_at for place_at in _beside(y, height - BOTTOM) if all(abs(py - place_at) >= 13 for py in near)), None
        )
        if place is None:
            unnamed += 1
            continue
        placed.append((x, place))
        axes.made.append(text(x + 9 if right else x - 9, place, mark.name, "name" if right else "name end"))
    if unnamed:
        more = f"{many(unnamed, 'name')} had no room: point at the points"
        axes.made.append(text(WIDTH - RIGHT, TOP - 3, more, "end tick"))
    return picture(title, height, axes.made)


def curves(title: str, lines: Sequence[Polyline], x_label: str, y_label: str, *, from_zero: bool = False) -> str:
    """Curves over a common x; each is named at its end and has its own dash."""
    height = 300.0
    every = [point for line in lines for point in line.points]
    ys = [y for _, y in every] + ([0.0] if from_zero else [])
    axes = _Axes([x for x, _ in every], ys, x_label, y_label, height)
    for at, line in enumerate(lines):
        way = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
        axes.made.append(f'<polyline class="curve c{at % 4}" points="{way}"/>')
        if len(line.points) == 1:
            x, y = line.points[0]
            axes.made.append(f'<circle class="point" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4"/>')
        if len(lines) > 1:
            axes.made.append(
                f'<line class="curve c{at % 4}" x1="{LEFT + 10 + at * 150}" x2="{LEFT + 40 + at * 150}" y1="9" y2="9"/>'
            )
            axes.made.append(text(LEFT + 46 + at * 150, 13, line.name, "name"))
    return picture(title, height, axes.made)


def spans(title: str, lines: Sequence[Span], x_label: str, names: float = 110.0) -> str:
    """Horizontal bars on one axis: waterfalls and paired times."""
    row, top = 18.0, 8.0
    height = top + row * len(lines) + 42
    longest = max((line.start + sum(length for _, length in line.parts) for line in lines), default=1.0) or 1.0
    marks = [tick for tick in ticks(0.0, longest, 8) if tick <= longest * 1.02]
    room = WIDTH - names - (RIGHT if not any(line.tail for line in lines) else 190)
    bottom = height - 40

    def x(value: float) -> float:
        return names + value / longest * room

    made = [f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>' for t in marks]
    made += [text(x(tick), bottom + 16, decimal(tick), "middle tick") for tick in marks]
    made.append(text(names + room / 2, height - 6, x_label, "middle label"))
    for at, line in enumerate(lines):
        y, begin = top + at * row, line.start
        made.append(text(names - 8, y + 13, line.name, "end name"))
        tooltip = f"<title>{escape(line.said)}</title>" if line.said else ""
        made.append(f"<g>{tooltip}")
        for kind, length in line.parts:
            if length > 0:
                width = max(0.7, x(begin + length) - x(begin))
                made.append(f'<rect class="{kind}" x="{x(begin):.1f}" y="{y + 3}" width="{width:.1f}" height="12"/>')
            begin += length
        made.append("</g>")
        if line.tail:
            made.append(text(x(begin) + 8, y + 13, line.tail, "name"))
    return picture(title, height, made)


def ranges(title: str, rows: Sequence[Range], x_label: str, zero: float = 0.0) -> str:
    """Intervals about a line at `zero`."""
    row, top = 24.0, 8.0
    names = CHARACTER * max((len(each.name) for each in rows), default=0) + 24
    tails = CHARACTER * max((len(each.tail) for each in rows), default=0) + 20
    height = top + row * len(rows) + 42
    values = [zero, *(v for each in rows for v in (each.low, each.high))]
    marks = ticks(min(values), max(values), 6)
    room, bottom = max(160.0, WIDTH - names - tails), height - 40

    def x(value: float) -> float:
        return names + (value - marks[0]) / (marks[-1] - marks[0]) * room

    made = [f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{bottom}"/>' for t in marks]
    made += [text(x(tick), bottom + 16, decimal(tick), "middle tick") for tick in marks]
    made.append(text(names + room / 2, height - 6, x_label, "middle label"))
    made.append(f'<line class="zero" x1="{x(zero):.1f}" x2="{x(zero):.1f}" y1="{top}" y2="{bottom}"/>')
    for at, each in enumerate(rows):
        y = top + at * row + 12
        made.append(text(names - 8, y + 4, each.name, "end name"))
        made.append(f'<line class="interval" x1="{x(each.low):.1f}" x2="{x(each.high):.1f}" y1="{y}" y2="{y}"/>')
        for end in (each.low, each.high):
            made.append(f'<line class="interval" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{y - 5}" y2="{y + 5}"/>')
        made.append(f'<circle class="point" cx="{x(each.middle):.1f}" cy="{y}" r="4"/>')
        if each.tail:
            made.append(text(names + room + 10, y + 4, each.tail, "name"))
    return picture(title, height, made)


def heat(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: dict[tuple[int, int], tuple[float, str, bool]],
    x_label: str,
    y_label: str,
) -> str:
    """Return a map of (column, row) → (value, second line, good): its figure stands in each field, so no colour is
    needed.
    """
    names, box_height, top = 110.0, 52.0, 6.0
    box = min(150.0, (WIDTH - names - RIGHT) / max(1, len(columns)))
    height = top + box_height * len(rows) + 44
    most = max((value for value, _, good in values.values() if good), default=1.0) or 1.0
    made: list[str] = []
    for r, name in enumerate(rows):
        y = top + r * box_height
        made.append(text(names - 10, y + box_height / 2 + 4, name, "end name"))
        for c in range(len(columns)):
            cell_value = values.get((c, r))
            x = names + c * box
            if cell_value is None:
                made.append(f'<rect class="nothing" x="{x}" y="{y}" width="{box - 3}" height="{box_height - 3}"/>')
                continue
            value, second, good = cell_value
            share = max(0.0, min(1.0, value / most))
            kind = "heat" if good else "nothing"
            made.append(
                f'<rect class="{kind}" x="{x}" y="{y}" width="{box - 3}" height="{box_height - 3}"'
                f' style="fill-opacity:{0.08 + 0.42 * share:.2f}"/>'
            )
            middle = x + box / 2 - 1.5
            made.append(text(middle, y + 21, figure(value), "middle big"))
            made.append(text(middle, y + 38, second, "middle tick"))
    bottom = top + box_height * len(rows)
    for c, name in enumerate(columns):
        made.append(text(names + c * box + box / 2, bottom + 14, name, "middle name"))
    made.append(text(names + len(columns) * box / 2, bottom + 34, f"{x_label}; rows: {y_label}", "middle label"))
    return picture(title, height, made)
