"""Two whole sweeps, cell by cell: cells of one name are compared, each under the rules of a single comparison.

A name alone proves nothing: what the cells were measured under decides, so a pair of one name and unlike
conditions is refused like any other pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmconsole.compare.runs import ComparedFigure, ComparedSide, Comparison, compare_sides, sides
from vlmconsole.measure.views import cells
from vlmconsole.runs.folder import RunFolder


@dataclass(frozen=True)
class CellPair:
    """The cells of one name of both sweeps, and whether they may be compared."""

    name: str
    a: ComparedSide
    b: ComparedSide
    comparison: Comparison
    rows: list[ComparedFigure]

    @classmethod
    def of(cls, name: str, a: ComparedSide, b: ComparedSide, only: str | None = None) -> CellPair:
        """Return the pair compared; `only` is the one condition that may differ."""
        return cls(name, a, b, *compare_sides(a, b, only))

    def to_json(self) -> dict[str, Any]:
        value = {"name": self.name, "sentence": self.comparison.sentence(), **self.comparison.to_json()}
        value["remarks"] = {name: side.remark for name, side in (("a", self.a), ("b", self.b)) if side.remark}
        if self.comparison.comparable:
            value["figures"] = [{**vars(row), "change": row.change} for row in self.rows]
        return value


@dataclass(frozen=True)
class SweepComparison:
    """All pairs in the order of the first sweep; `alone` says of each cell without a partner why it has none."""

    a: str
    b: str
    pairs: list[CellPair]
    alone: list[str]

    @property
    def comparable(self) -> bool:
        """Whether there are pairs and none of them is refused; cells without a partner hinder nothing."""
        return bool(self.pairs) and all(pair.comparison.comparable for pair in self.pairs)

    def under(self, only: str) -> SweepComparison:
        """Return the same pairs where the condition `only` may differ; nothing is read again."""
        return replace(self, pairs=[CellPair.of(pair.name, pair.a, pair.b, only) for pair in self.pairs])

    def sentence(self) -> str:
        """Return how many cells may be compared, in one sentence."""
        if not self.pairs:
            return "Not comparable: the two have no cell of the same name."
        count, good = len(self.pairs), sum(pair.comparison.comparable for pair in self.pairs)
        what = "cell" if count == 1 else "cells"
        if good == count:
            return f"Comparable: {count} {what} of the same names."
        return f"{good} of {count} {what} may be compared; the others are refused with their reasons."

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "comparable": self.comparable,
            "sentence": self.sentence(),
            "cells": [pair.to_json() for pair in self.pairs],
            "alone": self.alone,
        }


def is_sweep(run: RunFolder) -> bool:
    """Return whether the run has several cells, so that it can only be compared as a whole or by one of them."""
    return len(cells(run)) > 1


def compare_sweeps(a: RunFolder, b: RunFolder, only: str | None = None) -> SweepComparison:
    """Return every cell of `a` with the cell of that name of `b`. Raises LabError when one has no figures at all."""
    faults: list[str] = []
    left, right = _by_name(a, faults), _by_name(b, faults)
    pairs = [CellPair.of(name, side, right[name], only) for name, side in left.items() if name in right]
    alone = [*faults, *_alone(a, left, right, b.name), *_alone(b, right, left, a.name)]
    return SweepComparison(a.name, b.name, pairs, alone)


def _by_name(run: RunFolder, faults: list[str]) -> dict[str, ComparedSide]:
    """One damaged cell must not refuse the others: its sentence goes to `faults`."""
    return {side.name.removeprefix(f"{run.name}:"): side for side in sides(run, faults)}


def _alone(run: RunFolder, own: dict[str, ComparedSide], others: dict[str, ComparedSide], other: str) -> Sequence[str]:
    """A sentence for every cell of `run` that is not compared: it has no figures, or the other sweep has none."""
    unpaired = []
    for cell in cells(run):
        if cell.name not in own and not cell.summary:
            unpaired.append(f"{run.name}:{cell.name} has no figures: {cell.why or cell.state}")
        elif cell.name in own and cell.name not in others:
            unpaired.append(f"{run.name}:{cell.name} has no measured cell of that name in {other}")
    return unpaired
