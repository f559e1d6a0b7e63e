"""`exact`: the answer is one of the accepted ones, with what does not count taken away from both."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from pydantic import Field

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, accepted, right_or_wrong

_ARTICLES = re.compile(r"\b(a|an|the)\b\s*", re.IGNORECASE)
MISFIT = "the truth must be a text, a number, or a list of accepted answers"


class ExactOptions(ScorerOptions):
    """What counts in the comparison; true: it does."""

    case: bool = Field(False, description="Case counts")
    spaces: bool = Field(False, description="Spaces and line ends count; else runs of them are one, none at the ends")
    punctuation: bool = Field(False, description="Punctuation counts; inside words and numbers it always does")
    articles: bool = Field(True, description="A, an and the count")


def comparable(text: str, options: ExactOptions) -> str:
    """`text` without what does not count. A mark between letters or digits, a sign before a number and % remain."""
    text = unicodedata.normalize("NFC", text)
    if not options.case:
        text = text.casefold()
    if not options.punctuation:
        text = "".join(char for at, char in enumerate(text) if not _loose(text, at))
    if not options.articles:
        text = _ARTICLES.sub("", text)
    return text if options.spaces else " ".join(text.split())


def _loose(text: str, at: int) -> bool:
    """Whether the character is punctuation that belongs to no word and no number."""
    if not unicodedata.category(text[at]).startswith("P") or text[at] in "%‰":
        return False
    before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    signs = after.isdigit() and (text[at] in "-.,#" and not before.isalnum())
    return not signs and not (before.isalnum() and after.isalnum())


class ExactScorer(Scorer[ExactOptions]):
    """1 when the answer equals an accepted one, else 0; an empty answer is invalid."""

    name = "exact"
    summary = "The answer equals an accepted one"
    truth_form = "text, number, or list of accepted answers"
    Options = ExactOptions
    examples = (
        ScorerExample("Circle.", "circle", 1.0),
        ScorerExample("the circle", ["circle", "disc"], 0.0),
        ScorerExample("the circle", ["circle", "disc"], 1.0, {"articles": False}),
        ScorerExample("Circle", "circle", 0.0, {"case": True}),
    )

    def _check(self, truth: Any, options: ExactOptions) -> str:
        return MISFIT if accepted(truth) is None else ""

    def _score(self, prediction: str, truth: Any, options: ExactOptions) -> Score:
        answers = accepted(truth) or []
        right = comparable(prediction, options) in {comparable(answer, options) for answer in answers}
        if not prediction.strip() and not right:
            return Score(0.0, False, False, "the answer is empty")
        return right_or_wrong(right)


SCORER = ExactScorer()
