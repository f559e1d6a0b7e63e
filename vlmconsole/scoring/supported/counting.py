"""`counting`: the lab's own task, both counts in one strict JSON object (`scoring.reward`)."""

from __future__ import annotations

from typing import Any

from vlmconsole.scoring import reward
from vlmconsole.scoring.answer import CountAnswer
from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions


class CountingScorer(Scorer[ScorerOptions]):
    """1 for both counts, 0.5 for one, 0 for none or another form."""

    name = "counting"
    version = reward.SCORER.partition("/")[2]
    summary = "Two counts in exactly one JSON object; half for each right one"
    truth_form = 'JSON text or object {"red_circles": 3, "blue_squares": 2}'
    Options = ScorerOptions
    examples = (
        ScorerExample('{"red_circles": 3, "blue_squares": 1}', '{"red_circles": 3, "blue_squares": 2}', 0.5),
        ScorerExample("3 and 2", '{"red_circles": 3, "blue_squares": 2}', 0.0),
    )

    def _check(self, truth: Any, options: ScorerOptions) -> str:
        try:
            reward.read_truth(truth if isinstance(truth, str | dict | CountAnswer) else "")
        except (reward.TruthError, TypeError, ValueError) as error:
            return str(error)
        return ""

    def _score(self, prediction: str, truth: Any, options: ScorerOptions) -> Score:
        result = reward.score_counts(prediction, reward.read_truth(truth))
        return Score(result.reward, result.all_correct, result.valid, result.reason)


SCORER = CountingScorer()
