"""`relaxed`: ChartQA's relaxed accuracy, as its official code computes it, oddities included."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, accepted, right_or_wrong


class RelaxedOptions(ScorerOptions):
    """The largest relative change that is right."""

    tolerance: float = Field(0.05, ge=0, lt=1, description="Relative tolerance, a share of the truth")


class RelaxedScorer(Scorer[RelaxedOptions]):
    """Numbers within 5 % of the truth, everything else as text without case. No thousands separators, no units.

    Source: Methani et al. 2020 (PlotQA) and Masry et al. 2022 (ChartQA); floats are theirs, so is a truth of 0 as text.
    """

    name = "relaxed"
    summary = "ChartQA's relaxed accuracy: numbers within 5 %, text without case"
    truth_form = "text, number, or list of accepted answers"
    Options = RelaxedOptions
    examples = (
        ScorerExample("9.5", "10", 1.0),
        ScorerExample("Germany", "germany", 1.0),
        ScorerExample("1,000", "1000", 0.0),
    )

    def _check(self, truth: Any, options: RelaxedOptions) -> str:
        return "the truth must be a text, a number, or a list of them" if accepted(truth) is None else ""

    def _score(self, prediction: str, truth: Any, options: RelaxedOptions) -> Score:
        return right_or_wrong(any(_near(prediction, answer, options.tolerance) for answer in accepted(truth) or ()))


def _near(prediction: str, target: str, tolerance: float) -> bool:
    given, wanted = _float(prediction), _float(target)
    if given is not None and wanted:
        return abs(given - wanted) / abs(wanted) <= tolerance
    return prediction.lower() == target.lower()


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        return None


SCORER = RelaxedScorer()
