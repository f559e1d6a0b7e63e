"""`textvqa`: the official score against exactly ten human answers (`scoring.textvqa`)."""

from __future__ import annotations

from typing import Any

from vlmconsole.scoring import textvqa
from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions


class TextVqaScorer(Scorer[ScorerOptions]):
    """The soft score of TextVQA and VQA 2.0: each annotator left out once, min(1, matches / 3), averaged."""

    name = "textvqa"
    version = textvqa.SCORER.partition("/")[2]
    summary = "Official TextVQA soft score against ten human answers"
    truth_form = "list of ten human answers"
    Options = ScorerOptions
    examples = (
        ScorerExample("Stop", ["stop"] * 3 + ["halt"] * 7, 0.9),
        ScorerExample("go", ["stop"] * 10, 0.0),
    )

    def _check(self, truth: Any, options: ScorerOptions) -> str:
        texts = isinstance(truth, list | tuple) and all(isinstance(answer, str) for answer in truth)
        if not texts or len(truth) != textvqa.ANNOTATORS:
            return f"TextVQA needs the {textvqa.ANNOTATORS} human answers"
        return ""

    def _score(self, prediction: str, truth: Any, options: ScorerOptions) -> Score:
        score = textvqa.soft_score(prediction, truth) or 0.0
        return Score(score, score == 1.0, details={"normalised": textvqa.normalise(prediction)})


SCORER = TextVqaScorer()
