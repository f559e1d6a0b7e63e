"""`vqa`: agreement with human answers, one or more; with ten it is the official score (`textvqa`)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions
from vlmconsole.scoring.textvqa import normalise

ENOUGH = 3  # like answers of other annotators that make an answer fully right


def human_agreement(matches: int, answers: int) -> Fraction:
    """Return the mean over annotators, each left out once, of min(1, matches among the others / 3).

    With three answers or fewer all others must agree (min(3, n − 1)); one answer alone is matched or not.
    """
    if answers == 1:
        return Fraction(matches)
    enough = min(ENOUGH, answers - 1)
    left_out = matches * min(enough, matches - 1) if matches else 0
    return Fraction(left_out + (answers - matches) * min(enough, matches), enough * answers)


class VqaScorer(Scorer[ScorerOptions]):
    """The share of agreement of VQA with any number of human answers, after VQA's own normalisation."""

    name = "vqa"
    summary = "Agreement with one or more human answers; with ten the official VQA score"
    truth_form = "text, or list of human answers"
    Options = ScorerOptions
    examples = (
        ScorerExample("two", ["2"], 1.0),
        ScorerExample("stop", ["stop"] * 3 + ["halt"] * 7, 0.9),
        ScorerExample("stop", ["stop", "halt"], 0.5),
    )

    def _check(self, truth: Any, options: ScorerOptions) -> str:
        answers = truth if isinstance(truth, list | tuple) else [truth]
        fits = answers and all(isinstance(answer, str) for answer in answers)
        return "" if fits else "the truth must be a human answer, or a list of them (texts)"

    def _score(self, prediction: str, truth: Any, options: ScorerOptions) -> Score:
        answers = [truth] if isinstance(truth, str) else list(truth)
        wanted = normalise(prediction)
        matches = sum(normalise(answer) == wanted for answer in answers)
        score = human_agreement(matches, len(answers))
        return Score(float(score), score == 1, details={"normalised": wanted, "matches": matches})


SCORER = VqaScorer()
