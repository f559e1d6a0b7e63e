"""One door to every scorer, by name: evaluation, gates and audits score an answer the same way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.scoring.registry import find_scorer, scorer_names, unknown
from vlmconsole.scoring.scorer import ScoringError as ScoringError


@dataclass(frozen=True)
class Scored:
    """`reward` and `partial` from 0 to 1; `all_correct`: fully right; `valid`: in the task's format.

    `details` are the scorer's further figures (JSON values).
    """

    valid: bool
    all_correct: bool
    partial: float
    reward: float
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def read_truth(scorer: str, truth: Any) -> Any:
    """Return the truth as its scorer takes it, from a dataset's row: for TextVQA a list of human answers, also as JSON
    text.

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


def score(scorer: str, answer: object, truth: Any, options: Mapping[str, Any] | None = None) -> Scored:
    """Score one answer text against a truth (a JSON value). Raises ScoringError when the truth does not fit,
    UnknownScorerError and OptionsError."""
    result = find_scorer(scorer).score(answer, truth, options)
    return Scored(result.valid, result.correct, result.score, result.score, result.reason, result.details)


def known_scorer(name: str) -> str:
    """Return the name again, "" too. Raises ValueError, for a setting, when there is no such scorer."""
    if name and (reason := unknown(name)):
        raise ValueError(reason)
    return name


def fitting_scorers(truth: Any) -> list[str]:
    """Return the scorers that can judge a truth with their defaults, the narrowest of meaning first."""
    return [name for name in sorted(scorer_names(), key=_breadth) if not _misfit(name, truth)]


def _breadth(name: str) -> tuple[int, str]:
    narrow = ("counting", "textvqa", "number", "choice", "boxes", "json", "naming", "exact")
    return (narrow.index(name) if name in narrow else len(narrow), name)


def _misfit(name: str, truth: Any) -> str:
    try:
        return find_scorer(name).check(truth)
    except ScoringError as error:  # pragma: no cover - a plug-in that raises instead of saying
        return error.message
