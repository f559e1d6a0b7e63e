"""`cer`: the character error rate of read text."""

from __future__ import annotations

import jiwer

from vlmconsole.scoring.error_rate import ErrorRateScorer
from vlmconsole.scoring.scorer import ScorerExample


class CharacterErrorScorer(ErrorRateScorer):
    """1 − edits of characters over the truth's characters, by jiwer."""

    name = "cer"
    summary = "Character error rate: 1 − edits / characters of the truth, never below 0"
    examples = (ScorerExample("abc", "abcd", 0.75), ScorerExample("world hello", "hello world", 1 - 8 / 11))

    @staticmethod
    def rate(truth: str, prediction: str) -> float:
        """Edits of characters over the truth's characters."""
        return float(jiwer.cer(truth, prediction))


SCORER = CharacterErrorScorer()
