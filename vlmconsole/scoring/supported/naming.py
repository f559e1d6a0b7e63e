"""`naming`: the lab's own naming questions, one word."""

from __future__ import annotations

from typing import Any

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, right_or_wrong


class NamingScorer(Scorer[ScorerOptions]):
    """One word, compared without case, surrounding space and a closing full stop; nothing else is forgiven."""

    name = "naming"
    summary = "One word, whatever its case, the space around it and a closing full stop"
    truth_form = "text"
    Options = ScorerOptions
    examples = (ScorerExample(" Circle.", "circle", 1.0), ScorerExample("a circle", "circle", 0.0))

    def _check(self, truth: Any, options: ScorerOptions) -> str:
        return "" if isinstance(truth, str) and truth else "the truth of a naming question is one word"

    def _score(self, prediction: str, truth: str, options: ScorerOptions) -> Score:
        if not prediction.strip():
            return Score(0.0, False, False, "there is no answer text")
        return right_or_wrong(prediction.strip().removesuffix(".").casefold() == truth.casefold())


SCORER = NamingScorer()
