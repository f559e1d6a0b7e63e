"""`wer`: the word error rate of read text."""

from __future__ import annotations

import jiwer

from vlmconsole.scoring.error_rate import ErrorRateScorer
from vlmconsole.scoring.scorer import ScorerExample


class WordErrorScorer(ErrorRateScorer):
    """1 − edits of words over the truth's words, by jiwer."""

    name = "wer"
    summary = "Word error rate: 1 − edits / words of the truth, never below 0"
    examples = (ScorerExample("one three", "one two three", 1 - 1 / 3), ScorerExample("w o r d", "word", 0.0))

    @staticmethod
    def rate(truth: str, prediction: str) -> float:
        """Edits of words over the truth's words."""
        return float(jiwer.wer(truth, prediction))


SCORER = WordErrorScorer()
