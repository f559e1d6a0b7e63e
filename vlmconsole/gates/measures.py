"""Figures of one group, before and after over the same pictures, in exact arithmetic.

Scores are halves, tenths or thirds of tenths; they are added as fractions, so that a figure that equals its
limit is seen to equal it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlmconsole.gates.samples import Case, Sample
from vlmconsole.scoring.intervals import CONFIDENCE, RESAMPLES, Interval, McNemar, mcnemar, paired_interval

_FINEST = 1000  # every scorer's values are multiples of 1/30 or coarser; binary rounding is far below


def exact(score: float) -> Fraction:
    """The fraction that a score stands for: 0.6 is three fifths, not the nearest binary number."""
    return Fraction(score).limit_denominator(_FINEST)


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
        }


def paired(
    before: list[Sample],
    after: list[Sample],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Measures:
    """Figures of one group; both lists hold the same pictures in the same order. Raises ValueError for under two."""
    n = len(before)

    def mean(values: list[Fraction]) -> Fraction:
        return sum(values, Fraction(0)) / n

    first, second = [exact(s.partial) for s in before], [exact(s.partial) for s in after]
    moved = sorted((b - a, s.id) for a, b, s in zip(first, second, after, strict=True) if a != b)
    return Measures(
        n=n,
        all_correct=(Fraction(sum(s.all_correct for s in before), n), Fraction(sum(s.all_correct for s in after), n)),
        partial=(mean(first), mean(second)),
        interval=paired_interval(
            [float(x) for x in first],
            [float(x) for x in second],
            seed=seed,
            resamples=resamples,
            confidence=confidence,
        ),
        flips=mcnemar([s.all_correct for s in before], [s.all_correct for s in after]),
        valid=(sum(s.valid for s in before), sum(s.valid for s in after)),
        changed=tuple(name for _, name in moved),
        cases=tuple(map(Case, before, after)),
    )
