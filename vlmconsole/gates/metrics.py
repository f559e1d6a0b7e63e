"""Measures of one group, before and after over the same pictures, in exact arithmetic.

Scores are halves, tenths or thirds of tenths; they are added as fractions, so that a figure that equals its
limit is seen to equal it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlmconsole.gates.plan import Gate, Plan
from vlmconsole.gates.samples import Sample
from vlmconsole.scoring.intervals import CONFIDENCE, RESAMPLES, Interval, McNemar, mcnemar, paired_interval

_NOISE = 1e-9
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

    def value(self, gate: Gate) -> Fraction:
        """What a gate compares with its limit, in the gate's unit."""
        before, after = self.partial
        if gate.metric == "all_correct":
            return self.all_correct[1]
        if gate.metric == "partial":
            return after
        if gate.metric == "partial_drop":
            return (before - after) * 100
        low = self.interval.low
        # A bound is a difference of binary means: one that should be 0 can come out as 1e-17, and is no gain.
        return Fraction(low) if abs(low) > _NOISE else Fraction(0)

    def sides(self, gate: Gate) -> tuple[float, float]:
        """Before and after of the share that the gate is about."""
        before, after = self.all_correct if gate.metric == "all_correct" else self.partial
        return float(before), float(after)

    def step(self, gate: Gate) -> Fraction:
        """How far one picture more or less right moves the measure (gate's unit)."""
        return Fraction(100 if gate.unit == "points" else 1, self.n)

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


def passes(gate: Gate, value: Fraction) -> bool:
    """Whether the value holds the limit: inclusive, except a lower bound, which must lie above."""
    if gate.sign == ">":
        return value > gate.exact_limit
    return value >= gate.exact_limit if gate.sign == ">=" else value <= gate.exact_limit


def margin(gate: Gate, value: Fraction) -> Fraction:
    """How far on the right side of the limit (negative: on the wrong side), in the gate's unit."""
    return gate.exact_limit - value if gate.sign == "<=" else value - gate.exact_limit


def measure(plan: Plan, before: list[Sample], after: list[Sample]) -> Measures:
    """Figures of one group under a plan's own seed, resamples and confidence."""
    return paired(before, after, seed=plan.seeds.bootstrap, resamples=plan.resamples, confidence=plan.confidence)


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
    )
