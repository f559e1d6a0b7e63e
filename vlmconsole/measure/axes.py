"""Which axes the cells of a measured run are drawn on: it depends on what the cells differ in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmconsole.measure.views import CellView
from vlmconsole.text.numbers import number

FEWEST = 3  # cells that differ in one thing alone make a course of it; of two one reads the table


@dataclass(frozen=True)
class AxisPoint:
    """One cell on its axes, both in the unit that the axis names."""

    name: str
    x: float
    y: float
    state: str  # of the cell: valid, invalid, failed


@dataclass(frozen=True)
class Axes:
    """One plot: what its axes are called, with their units, and its points in the order of the cells.

    `only`: the one thing its cells differ in; "" where they may differ in anything.
    """

    title: str
    x: str
    y: str
    points: tuple[AxisPoint, ...]
    only: str = ""


def axes(cells: Sequence[CellView]) -> list[Axes]:
    """Return the plots of a run's cells: what a larger picture, a longer prompt or a longer answer costs where three
    cells or
    more differ in that alone; and throughput against TTFT, unless such a course has every cell. Each has two points.
    """
    made = [
        *_alone(cells, "image", "What a larger image costs", "input tokens", "TTFT p50, s", _input_tokens, _ttft),
        *_alone(
            cells, "input_tokens", "What a longer prompt costs", "input tokens", "TTFT p50, s", _input_tokens, _ttft
        ),
        *_alone(
            cells, "output_tokens", "What a longer answer costs", "output tokens", "E2E p50, s", _output_tokens, _e2e
        ),
    ]
    if any(len(line.points) == len(cells) for line in made):
        return made
    both = Axes("Throughput against TTFT", "TTFT p50, s", "throughput, tok/s", _points(cells, _ttft, _throughput))
    return [both, *made] if len(both.points) > 1 else made


Read = Callable[[CellView], float | None]

#: How many requests a cell has changes nothing of what one costs; a picture's tokens are a part of the prompt's.
_APART = {"image": ("requests", "warm_up", "input_tokens")}


def _alone(measured: Sequence[CellView], key: str, title: str, x: str, y: str, across: Read, up: Read) -> list[Axes]:
    """One plot for each group of cells alike in all settings and in B but for `key`."""
    apart = (key, "name", *_APART.get(key, ("requests", "warm_up")))
    groups: dict[str, list[CellView]] = {}
    for cell in measured:
        others = sorted((name, repr(value)) for name, value in cell.settings.items() if name not in apart)
        groups.setdefault(f"{others} {cell.running_limit}", []).append(cell)
    wide = [cells for cells in groups.values() if len({repr(cell.settings.get(key)) for cell in cells}) >= FEWEST]
    made = [_points(cells, across, up) for cells in wide]
    return [Axes(title, x, y, points, key) for points in made if len({point.x for point in points}) >= FEWEST]


def _points(cells: Sequence[CellView], across: Read, up: Read) -> tuple[AxisPoint, ...]:
    placed = [(cell, across(cell), up(cell)) for cell in cells]
    return tuple(AxisPoint(cell.name, x, y, cell.state) for cell, x, y in placed if x is not None and y is not None)


def _ttft(cell: CellView) -> float | None:
    return cell.share("ttft_s", "p50")


def _e2e(cell: CellView) -> float | None:
    return cell.share("e2e_s", "p50")


def _throughput(cell: CellView) -> float | None:
    return cell.throughput


def _input_tokens(cell: CellView) -> float | None:
    return number(cell.conditions.get("input_tokens"))


def _output_tokens(cell: CellView) -> float | None:
    return number(cell.conditions.get("output_tokens"))
