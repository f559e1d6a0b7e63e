"""Two evaluations side by side: scores with their paired differences, wins and losses, or what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.content import Content

from vlmconsole.compare.evaluations import INTERVAL_MEANS, EvaluatedSide, EvaluationComparison
from vlmconsole.compare.runs import ComparedFigure, ComparedSide, Comparison
from vlmconsole.runs.conditions import Conditions
from vlmconsole.screens.runs.comparison import ComparisonSheet
from vlmconsole.text.plain import inert


class EvaluationSheet(ComparisonSheet):
    """The sheet of two measurements, with what the pairs show below the scores."""

    INTERVAL_MEANS: ClassVar[str] = INTERVAL_MEANS

    def __init__(self, comparison: EvaluationComparison, again: Callable[[str | None], EvaluationComparison]) -> None:
        """`again` compares anew when one condition is called the variable."""
        self._evaluated, self._again = comparison, again
        super().__init__(_side(comparison.a), _side(comparison.b))

    def _compared(self) -> tuple[Comparison, list[ComparedFigure]]:
        if self._only is not None:
            self._evaluated = self._again(self._only)
        return self._evaluated.comparison, self._evaluated.rows

    def _drawn(self, names: int, width: int) -> list[Content]:
        remarks = [Content(inert(remark)).stylize("$warning") for remark in self._evaluated.remarks]
        return [Content(""), *map(Content, self._evaluated.lines), *remarks]


def _side(side: EvaluatedSide) -> ComparedSide:
    """What the sheet shows of a side besides figures: its name, and its examples as n."""
    return ComparedSide(side.name, Conditions(), {"n": len(side.samples)}, side.invalid)
