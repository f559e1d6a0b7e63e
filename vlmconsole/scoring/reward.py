"""The counting reward: one function for evaluation, in-process training, verl and the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.scoring.answer import FIELDS, CountAnswer, Invalid, parse_counts

SCORER = "counting/1"  # name and version, kept with every result


class TruthError(ValueError):
    """The truth beside a picture is not two counts: a fault of the data, never of the model."""


@dataclass(frozen=True)
class CountScore:
    """`reward` and `partial` from 0 to 1, whether both counts are right, whether the format is valid, and why not."""

    reward: float
    all_correct: bool
    partial: float
    valid: bool
    reason: str = ""


def score_counts(answer: object, truth: CountAnswer) -> CountScore:
    """Score one answer text: both counts right 1, one right 0.5, none or an invalid format 0.

    `partial` is the mean of the two fields' correctness, 0 for an invalid answer; so it equals the reward,
    and is kept under its own name because gates are stated in it.
    """
    parsed = parse_counts(answer)
    if isinstance(parsed, Invalid):
        return CountScore(reward=0.0, all_correct=False, partial=0.0, valid=False, reason=parsed.reason)
    right = [getattr(parsed, name) == getattr(truth, name) for name in FIELDS]
    partial = sum(right) / len(right)
    return CountScore(reward=partial, all_correct=all(right), partial=partial, valid=True)


def read_truth(value: str | Mapping[str, Any] | CountAnswer) -> CountAnswer:
    """Return the truth of one picture, from JSON text (as in verl's `ground_truth`) or a mapping.

    Raises TruthError unless it is exactly the two counts.
    """
    if isinstance(value, CountAnswer):
        return value
    parsed = parse_counts(value if isinstance(value, str) else json.dumps(dict(value)))
    if isinstance(parsed, Invalid):
        raise TruthError(f'the truth must be two counts like {{"red_circles": 3, "blue_squares": 2}}: {parsed.reason}')
    return parsed
