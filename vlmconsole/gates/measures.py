"""Figures of one group, before and after over the same images, in exact arithmetic.

Scores are added as fractions, so that a figure that equals its limit is seen to equal it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlmconsole.gates.samples import Case, Sample
from vlmconsole.scoring.intervals import Interval, McNemar, mcnemar, paired_interval

PairedInterval = Callable[[list[float], list[float]], Interval]
_FINEST = 1000  # the largest denominator of a score that is taken for a fraction
_ROUNDING = 1e-9  # a score this near to such a fraction is that fraction, summed up in binary


def exact(score: float) -> Fraction:
    """Return the fraction that a score stands for: 0.6 is three fifths, not the nearest binary number.

    A score that is no such fraction (a CER over 1201 characters) is itself, unbent.
    """
    near = Fraction(score).limit_denominator(_FINEST)
    return near if abs(float(near) - score) <= _ROUNDING else Fraction(score)


@dataclass(frozen=True)
class BlindComparison:
    """What the images are worth in one group: `score` without them, and the paired gain with them."""

    score: Fraction
    interval: Interval
    cases: tuple[Case, ...] = ()  # blind and sighted answers, in order of id

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        low, high = self.interval.low, self.interval.high
        return {"score": float(self.score), "sight_gain": self.interval.difference, "interval": [low, high]}


@dataclass(frozen=True)
class Measures:
    """One group's figures. Shares are fractions from 0 to 1; `interval` is of the partial-reward difference."""

    n: int
    all_correct: tuple[Fraction, Fraction]  # before, after
    partial: tuple[Fraction, Fraction]
    interval: Interval
    flips: McNemar  # of all-correct
    valid: tuple[int, int]
    changed: tuple[str, ...]  # ids whose partial reward differs, losses first
    cases: tuple[Case, ...]  # what all of it is of, in order of id
    sight: BlindComparison | None = None  # where the tested model also answered blind

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "n": self.n,
            "all_correct": [float(x) for x in self.all_correct],
            "partial": [float(x) for x in self.partial],
            "difference": self.interval.difference,
            "interval": [self.interval.low, self.interval.high],
            "valid": list(self.valid),
            "wins": self.flips.wins,
            "losses": self.flips.losses,
            "both_right": self.flips.both_right,
            "both_wrong": self.flips.both_wrong,
            "mcnemar_p": self.flips.p,
            "changed": list(self.changed),
            **({"blind": self.sight.to_json()} if self.sight is not None else {}),
        }


def paired(
    before: list[Sample],
    after: list[Sample],
    *,
    interval: PairedInterval = paired_interval,
    blind: list[Sample] | None = None,
) -> Measures:
    """Figures of one group; all lists hold the same images in the same order. Raises ValueError for under two.

    `interval` gives the interval of two lists of scores; `blind` are after's answers without the images.
    """
    n = len(before)

    def between(first: list[Fraction], second: list[Fraction]) -> Interval:
        return interval([float(x) for x in first], [float(x) for x in second])

    first, second = [exact(s.partial) for s in before], [exact(s.partial) for s in after]
    moved = sorted((b - a, s.id) for a, b, s in zip(first, second, after, strict=True) if a != b)
    sight = None
    if blind is not None:
        unseen = [exact(s.partial) for s in blind]
        sight = BlindComparison(_mean(unseen), between(unseen, second), tuple(map(Case, blind, after)))
    return Measures(
        n=n,
        all_correct=(Fraction(sum(s.all_correct for s in before), n), Fraction(sum(s.all_correct for s in after), n)),
        partial=(_mean(first), _mean(second)),
        interval=between(first, second),
        flips=mcnemar([s.all_correct for s in before], [s.all_correct for s in after]),
        valid=(sum(s.valid for s in before), sum(s.valid for s in after)),
        changed=tuple(name for _, name in moved),
        cases=tuple(map(Case, before, after)),
        sight=sight,
    )


def of_counts(n: int, right: int, won: int, lost: int, interval: Interval) -> Measures:
    """Figures of right and wrong answers alone: `right` before, of which `lost` are lost, and `won` of the others won.

    Their samples are not known; blind answers are taken to be those of before.
    """
    after = right + won - lost
    shares = Fraction(right, n), Fraction(after, n)
    flips = McNemar(right - lost, lost, won, n - right - won, 1.0)
    return Measures(n, shares, shares, interval, flips, (right, after), (), (), BlindComparison(shares[0], interval))


def _mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)
