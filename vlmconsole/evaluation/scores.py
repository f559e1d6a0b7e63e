"""The score of an evaluation as its summary holds it: by side, paired, blind; in lines and in a few words.

Runs of earlier versions hold figures by group alone: their scores are put together from those, without an interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.text.counts import many
from vlmconsole.text.numbers import number, percent, signed
from vlmconsole.text.plain import one_line

SIDES = ("before", "after")


@dataclass(frozen=True)
class SideScore:
    """One side: mean score (0 to 1) of the `answered` among `n` examples, its 95 % interval, and how they came out."""

    side: str
    n: int
    answered: int
    mean: float
    interval: tuple[float, float] | None
    correct: int
    invalid: int

    @property
    def failed(self) -> int:
        """Requests that gave no answer: they are no wrong answers, and no part of the mean."""
        return self.n - self.answered

    @property
    def text(self) -> str:
        """`33.3 % (25.1 … 42.4), n = 120, 40 right, 4 invalid`."""
        ends = f" ({percent(self.interval[0], unit='')} … {percent(self.interval[1])})" if self.interval else ""
        parts = [f"{percent(self.mean)}{ends}", f"n = {self.answered}", f"{self.correct} right"]
        parts += [f"{self.invalid} invalid"] if self.invalid else []
        parts += [f"{many(self.failed, 'request')} failed, not counted"] if self.failed else []
        return ", ".join(parts)


def side_scores(summary: Mapping[str, Any]) -> dict[str, SideScore]:
    """Return the scores of a summary, by side; {} of a run that has none."""
    scores = {side: score for side in SIDES if (score := _stored(summary, side) or _gathered(summary, side))}
    return scores


def score_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what an evaluation measured, a line each: the score of each side, the difference, the flips, sight,
    groups.
    """
    sides = side_scores(summary)
    if not sides:
        return []
    alone = len(sides) == 1
    lines = [f"score{'' if alone else ' ' + side}: {score.text}" for side, score in sides.items()]
    paired = summary.get("paired")
    if isinstance(paired, dict) and (change := _difference(paired, "difference")):
        p = number(paired.get("mcnemar_p"))
        flips = f"{paired.get('wins')} won, {paired.get('losses')} lost"
        lines.append(f"difference: {change}; {flips}, McNemar p {'not known' if p is None else f'{p:.3g}'}")
    sight = summary.get("blind")
    if isinstance(sight, dict) and (gain := _difference(sight, "sight_gain")):
        lines.append(f"blind ({sight.get('how')}): score {percent(sight.get('score'))}; sight gain {gain}")
    groups = summary.get("groups")
    if isinstance(groups, dict) and len(groups) > 1:
        for name, group in groups.items():
            held = [group.get(side) for side in sides] if isinstance(group, dict) else []
            shares = [percent(figures.get("partial")) for figures in held if isinstance(figures, dict)]
            lines += [f"  {one_line(name, 60)}: {' → '.join(shares)}"] if shares else []
    return lines


def short_score(summary: Mapping[str, Any]) -> str:
    """Return the score in a few words: `33.3 %, n 120`, of two sides `33 → 58 %`; "" of a run that has none."""
    sides = side_scores(summary)
    if len(sides) == 2:
        before, after = (sides[side] for side in SIDES)
        return f"{percent(before.mean, 0, '')} → {percent(after.mean, 0)}"
    return next((f"{percent(score.mean)}, n {score.answered}" for score in sides.values()), "")


def _difference(value: Mapping[str, Any], key: str) -> str:
    """`+0.2480 (+0.1700 … +0.3300)`; "" where it is not whole."""
    change, low, high = (number(value.get(name)) for name in (key, "low", "high"))
    if change is None or low is None or high is None:
        return ""
    return f"{signed(change)} ({signed(low)} … {signed(high)})"


def _stored(summary: Mapping[str, Any], side: str) -> SideScore | None:
    scores = summary.get("scores")
    held = scores.get(side) if isinstance(scores, dict) else None
    if not isinstance(held, dict):
        return None
    mean, low, high = (number(held.get(key)) for key in ("mean", "low", "high"))
    counts = [number(held.get(key)) for key in ("n", "answered", "correct", "invalid")]
    if mean is None or any(count is None for count in counts):
        return None
    n, answered, correct, invalid = (int(count or 0) for count in counts)
    return SideScore(side, n, answered, mean, None if low is None or high is None else (low, high), correct, invalid)


def _gathered(summary: Mapping[str, Any], side: str) -> SideScore | None:
    """Of a run of an earlier version: the groups' figures put together."""
    groups = summary.get("groups")
    if not isinstance(groups, dict):
        return None
    of_side = [
        group[side] for group in groups.values() if isinstance(group, dict) and isinstance(group.get(side), dict)
    ]
    sums = dict.fromkeys(("n", "answered", "partial", "correct", "valid"), 0.0)
    for held in of_side:
        answered, partial, right = (number(held.get(key)) for key in ("answered", "partial", "all_correct"))
        if not answered or partial is None or right is None:
            sums["n"] += number(held.get("n")) or 0
            continue
        sums["n"] += number(held.get("n")) or answered
        sums["answered"] += answered
        sums["partial"] += answered * partial
        sums["correct"] += answered * right
        sums["valid"] += number(held.get("valid")) or 0
    answered = sums["answered"]
    if not answered:
        return None
    invalid = round(answered - sums["valid"])
    mean = sums["partial"] / answered
    return SideScore(side, round(sums["n"]), round(answered), mean, None, round(sums["correct"]), invalid)
