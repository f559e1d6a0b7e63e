"""Scoring written a second time, from the rules alone, so that an audit does not repeat a scorer's mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.scoring.answer import LARGEST_COUNT
from vlmconsole.scoring.scorers import score

FIELDS = ("red_circles", "blue_squares")


@dataclass(frozen=True)
class ScoredAnswer:
    """One answer's marks; `reward` and `partial` as exact fractions."""

    valid: bool
    all_correct: bool
    partial: Fraction
    reward: Fraction


NONE = ScoredAnswer(False, False, Fraction(0), Fraction(0))


def counting_reward(answer: Any, truth: str) -> ScoredAnswer:
    """Exactly one JSON object with exactly the two counts as whole numbers: half the reward for each right one."""
    if not isinstance(answer, str):
        return NONE
    try:
        pairs = json.loads(
            answer, object_pairs_hook=list, parse_constant=_refuse, parse_float=_refuse, parse_int=_count
        )
        wanted = json.loads(truth)
    except (ValueError, RecursionError):
        return NONE
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return NONE
    if sorted(str(key) for key, _ in pairs) != sorted(FIELDS):
        return NONE
    counts = dict(pairs)
    if not all(type(counts[field]) is int for field in FIELDS):
        return NONE
    right = Fraction(sum(counts[field] == wanted[field] for field in FIELDS), 2)
    return ScoredAnswer(True, right == 1, right, right)


def naming_reward(answer: Any, truth: str) -> ScoredAnswer:
    """Return one word, whatever its case and the space around it, with or without a full stop."""
    if not isinstance(answer, str) or not answer.strip():
        return NONE
    word = answer.strip()
    word = word[:-1] if word.endswith(".") else word
    right = Fraction(word.casefold() == truth.casefold())
    return ScoredAnswer(True, bool(right), right, right)


#: by a scorer's name; the others are scored again by the scorer itself, which tests hold to reference vectors
MARKERS: dict[str, Callable[[Any, str], ScoredAnswer]] = {"counting": counting_reward, "naming": naming_reward}


def scored_again(scorer: str, answer: Any, truth: Any, options: Mapping[str, Any] | None = None) -> ScoredAnswer | None:
    """Return one answer by the rule of a scorer (name, with or without version); None where it cannot be repeated
    here.
    """
    name = scorer.partition("/")[0]
    if name == "counting" and not isinstance(truth, str):
        truth = json.dumps(truth)
    if name in MARKERS and isinstance(truth, str) and not options:
        return MARKERS[name](answer, truth)
    if not name or name == "judge" or ":" in name:  # another model's word, or code that is not the lab's
        return None
    try:
        scored = score(name, answer, truth, options)
    except LabError:  # no such scorer, or it takes no such truth or options
        return None
    return ScoredAnswer(scored.valid, scored.all_correct, Fraction(scored.partial), Fraction(scored.reward))


def _count(digits: str) -> int:
    if digits.startswith("-") or len(digits) > len(str(LARGEST_COUNT)):
        raise ValueError(f"{digits[:20]} is no count")
    return int(digits)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no count")
