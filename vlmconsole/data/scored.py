"""An answer to an example, scored as the example says, or by a scorer that the settings name."""

from __future__ import annotations

from collections.abc import Iterable

from vlmconsole.data.example import Example
from vlmconsole.scoring.scorers import Scored, read_truth, score


def score_example(example: Example, answer: object, scorer: str = "") -> Scored:
    """Score `answer` to the last question by `scorer` ("": the example's own, with its options).

    Raises ScoringError when the truth does not fit, UnknownScorerError and OptionsError.
    """
    name = scorer or example.scorer
    options = example.options if name == example.scorer else {}
    return score(name, answer, read_truth(name, example.truth), options)


def common_scorer(examples: Iterable[Example]) -> str:
    """The one scorer of all these examples, without options; "" where there are several, or options."""
    scorers = {example.scorer if not example.options else "" for example in examples}
    return scorers.pop() if len(scorers) == 1 else ""
