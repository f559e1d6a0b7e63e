"""Two trainings side by side: their figures and curves when they may be compared, else every condition that differs."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from vlmconsole.compare.runs import ComparedFigure, ComparedSide, Comparison
from vlmconsole.compare.trainings import NO_VERDICT, Trained, TrainingComparison, drawn_curves
from vlmconsole.runs.conditions import Conditions
from vlmconsole.screens.runs.comparison import ComparisonSheet

CURVE_ROOM = 55  # columns of a curve's line that are not bars


class TrainingSheet(ComparisonSheet):
    """The sheet of two measurements, with a training's own conditions and its curves below the figures."""

    def __init__(self, comparison: TrainingComparison, again: Callable[[str | None], TrainingComparison]) -> None:
        """`again` compares anew when one condition is called the experiment; `found` is what it said without."""
        self._trained, self._again = comparison, again
        super().__init__(_side(comparison.a), _side(comparison.b))

    def _compared(self) -> tuple[Comparison, list[ComparedFigure]]:
        if self._only is not None:
            self._trained = self._again(self._only)
        return self._trained.comparison, self._trained.rows

    def _drawn(self, names: int, width: int) -> list[Content]:
        curves = drawn_curves(self._trained, max(12, width - CURVE_ROOM))
        return [Content(""), *map(Content, curves), Content(""), Content(NO_VERDICT).stylize("$muted")]


def _side(trained: Trained) -> ComparedSide:
    """What the sheet shows of a side besides figures: its name, and its steps as n."""
    return ComparedSide(trained.name, Conditions(), {"n": trained.summary.get("steps")}, trained.invalid)
