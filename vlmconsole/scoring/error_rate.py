"""Error rates of written text: what `cer` and `wer` share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pydantic import Field

from vlmconsole.scoring.scorer import Score, Scorer, ScorerOptions, accepted


class RateOptions(ScorerOptions):
    """What counts as an error."""

    case: bool = Field(True, description="Case counts")
    spaces: bool = Field(True, description="Spaces and line ends count; else runs of them are one")


class ErrorRateScorer(Scorer[RateOptions]):
    """max(0, 1 − error rate) against the nearest accepted text; `details` hold the raw `error`, which may exceed 1.

    jiwer's default transforms: spaces at the ends do not count.
    """

    truth_form = "text, or list of accepted texts; none empty"
    Options = RateOptions

    def _check(self, truth: Any, options: RateOptions) -> str:
        texts = accepted(truth)
        if texts is None or not all(text.strip() for text in texts):
            return "the truth must be a text that is not empty, or a list of them"
        return ""

    def _score(self, prediction: str, truth: Any, options: RateOptions) -> Score:
        given = _plain(prediction, options)
        error = min(self.rate(_plain(text, options), given) for text in accepted(truth) or ())
        return Score(max(0.0, 1.0 - error), error == 0, details={"error": error})

    @staticmethod
    @abstractmethod
    def rate(truth: str, prediction: str) -> float:
        """Edits over the length of the truth."""


def _plain(text: str, options: RateOptions) -> str:
    text = text if options.case else text.casefold()
    return text if options.spaces else " ".join(text.split())
