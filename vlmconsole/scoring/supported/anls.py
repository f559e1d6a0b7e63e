"""`anls`: average normalised Levenshtein similarity, the score of DocVQA and its relatives."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from rapidfuzz.distance import Levenshtein

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, accepted


class AnlsOptions(ScorerOptions):
    """Where likeness ends."""

    threshold: float = Field(0.5, ge=0, le=1, description="Similarity below which an answer scores 0")


class AnlsScorer(Scorer[AnlsOptions]):
    """1 − distance / length to the nearest accepted answer, 0 below the threshold. Case and runs of spaces are one.

    Source: Biten et al. 2019 (ST-VQA), as lmms-eval computes it: the length is that of the texts as written.
    """

    name = "anls"
    summary = "Similarity by edits to the nearest accepted answer, 0 below a half"
    truth_form = "text, number, or list of accepted answers"
    Options = AnlsOptions
    examples = (
        ScorerExample("abcx", "abcd", 0.75),
        ScorerExample("the address is 12 Main Street", ["12 Main Street"], 0.0),
    )

    def _check(self, truth: Any, options: AnlsOptions) -> str:
        return "the truth must be a text, a number, or a list of them" if accepted(truth) is None else ""

    def _score(self, prediction: str, truth: Any, options: AnlsOptions) -> Score:
        similarity = 1 - min(_distance(prediction, answer) for answer in accepted(truth) or ())
        score = similarity if similarity >= options.threshold else 0.0
        reason = "" if score else f"similarity {similarity:.2f} is below {options.threshold:g}"
        return Score(score, score == 1.0, True, reason, {"similarity": similarity})


def _distance(prediction: str, answer: str) -> float:
    """The share of characters to edit; the length is upper-cased, which `ß` makes longer, as the source has it."""
    length = max(len(answer.upper()), len(prediction.upper()))
    return Levenshtein.distance(_plain(answer), _plain(prediction)) / length if length else 0.0


def _plain(text: str) -> str:
    return " ".join(text.strip().lower().split())


SCORER = AnlsScorer()
