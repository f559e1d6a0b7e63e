"""`contains`: an accepted answer stands somewhere in the answer, as whole words."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, accepted, right_or_wrong


class ContainsOptions(ScorerOptions):
    """How an accepted answer is looked for."""

    case: bool = Field(False, description="Case counts")
    whole: bool = Field(True, description="Whole words only: cat is not in category")
    every: bool = Field(
        False, description="All accepted answers must stand there, in any order; the score is their share"
    )


class ContainsScorer(Scorer[ContainsOptions]):
    """1 when an accepted answer is in the text, else 0. A long answer contains much: see the length beside it."""

    name = "contains"
    summary = "An accepted answer stands in the answer as whole words"
    truth_form = "text, number, or list of accepted answers; none empty"
    Options = ContainsOptions
    examples = (
        ScorerExample("It is a red circle.", "circle", 1.0),
        ScorerExample("a category", "cat", 0.0),
        ScorerExample("red and green", ["red", "blue"], 0.5, {"every": True}),
    )

    def _check(self, truth: Any, options: ContainsOptions) -> str:
        texts = accepted(truth)
        if texts is None or not all(text.strip() for text in texts):
            return "the truth must be a text that is not empty, a number, or a list of them"
        return ""

    def _score(self, prediction: str, truth: Any, options: ContainsOptions) -> Score:
        texts = accepted(truth) or []
        hits = [_holds(_plain(prediction, options), _plain(text, options), options.whole) for text in texts]
        if not options.every:
            return right_or_wrong(any(hits))
        return Score(sum(hits) / len(hits), all(hits))


def _plain(text: str, options: ContainsOptions) -> str:
    text = " ".join(text.split())
    return text if options.case else text.casefold()


def _holds(text: str, wanted: str, whole: bool) -> bool:
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not whole or not (_inside_word(text, at) or _inside_word(text, end)):
            return True
        at = text.find(wanted, at + 1)
    return False


def _inside_word(text: str, at: int) -> bool:
    return 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()


SCORER = ContainsScorer()
