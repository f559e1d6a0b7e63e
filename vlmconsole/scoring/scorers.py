"""One door to every scorer, by name: evaluation, gates and audits score an answer the same way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.scoring import reward, textvqa

NAMING = "naming/1"


@dataclass(frozen=True)
class Scored:
    """`reward` and `partial` from 0 to 1; `all_correct`: fully right; `valid`: in the task's format."""

    valid: bool
    all_correct: bool
    partial: float
    reward: float
    reason: str = ""


class ScoringError(LabError):
    """The truth cannot be scored against: a fault of the data, never of the model."""


def _counting(answer: object, truth: str | Sequence[str]) -> Scored:
    try:
        result = reward.score_counts(answer, reward.read_truth(truth if isinstance(truth, str) else ""))
    except reward.TruthError as error:
        raise ScoringError(str(error)) from None
    return Scored(result.valid, result.all_correct, result.partial, result.reward, result.reason)


def _naming(answer: object, truth: str | Sequence[str]) -> Scored:
    """One word, compared without case, surrounding space and a closing full stop; nothing else is forgiven."""
    if not isinstance(truth, str) or not truth:
        raise ScoringError("the truth of a naming question is one word")
    if not isinstance(answer, str) or not answer.strip():
        return Scored(False, False, 0.0, 0.0, "there is no answer text")
    right = answer.strip().removesuffix(".").casefold() == truth.casefold()
    return Scored(True, right, float(right), float(right))


def _textvqa(answer: object, truth: str | Sequence[str]) -> Scored:
    score = textvqa.soft_score(answer if isinstance(answer, str) else "", [] if isinstance(truth, str) else truth)
    if score is None:
        raise ScoringError(f"TextVQA needs the {textvqa.ANNOTATORS} human answers")
    if not isinstance(answer, str):
        return Scored(False, False, 0.0, 0.0, "there is no answer text")
    return Scored(True, score == 1.0, score, score)


#: name in a plan → (name with version, function)
SCORERS: dict[str, tuple[str, Callable[[object, str | Sequence[str]], Scored]]] = {
    "counting": (reward.SCORER, _counting),
    "naming": (NAMING, _naming),
    "textvqa": (textvqa.SCORER, _textvqa),
}


def read_truth(scorer: str, truth: Any) -> Any:
    """The truth as its scorer takes it, from a dataset's row: for TextVQA a list of human answers, also as JSON text.

    Raises ScoringError when it is no such list.
    """
    if scorer != "textvqa":
        return truth
    try:
        answers = json.loads(truth) if isinstance(truth, str) else truth
    except ValueError:
        answers = None
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ScoringError("the truth of a TextVQA question is a JSON list of the human answers")
    return tuple(answers)


def score(scorer: str, answer: object, truth: Any) -> Scored:
    """Score one answer text. Raises ScoringError when the truth does not fit, KeyError for an unknown scorer."""
    return SCORERS[scorer][1](answer, truth)


def known_scorer(name: str) -> str:
    """The name again, "" too. Raises ValueError, for a setting, when there is no such scorer."""
    if name and name not in SCORERS:
        raise ValueError(f"unknown scorer {name!r}: one of {', '.join(SCORERS)}")
    return name
