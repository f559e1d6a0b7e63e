"""Paired comparisons: percentile bootstrap of the mean difference, and the exact McNemar test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 9999
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """`difference` = mean(after) − mean(before), in the scores' own unit, with its percentile interval.

    `standard_error` is the bootstrap's. The resampling is over pictures: it says nothing about other trainings.
    """

    difference: float
    low: float
    high: float
    standard_error: float
    n: int
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = 0
    method: str = "paired percentile bootstrap"


@dataclass(frozen=True)
class McNemar:
    """`wins`: only after is right; `losses`: only before is right; `p`: exact two-sided probability."""

    both_right: int
    losses: int
    wins: int
    both_wrong: int
    p: float


def paired_interval(
    before: Sequence[float],
    after: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Interval of mean(after) − mean(before) over the same pictures in the same order.

    Equal inputs and seed give equal figures. Raises ValueError for unequal lengths or fewer than two pairs.
    """
    import numpy as np
    from scipy import stats

    if len(before) != len(after):
        raise ValueError(f"pairs needed, but there are {len(before)} scores before and {len(after)} after")
    if len(before) < 2:
        raise ValueError("an interval needs at least two pairs")
    first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("scores must be finite numbers: a missing score cannot be paired")

    def mean_difference(a: Any, b: Any, axis: int = -1) -> Any:
        return np.mean(b, axis=axis) - np.mean(a, axis=axis)

    result = stats.bootstrap(
        (first, second),
        mean_difference,
        n_resamples=resamples,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        # The old name of the argument works on every scipy from 1.11 on; a generator says which stream.
        random_state=np.random.default_rng(seed),
    )
    return Interval(
        difference=float((second - first).mean()),
        low=float(result.confidence_interval.low),
        high=float(result.confidence_interval.high),
        standard_error=float(result.standard_error),
        n=len(before),
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Exact McNemar test over the same pictures: right before and right after, in the same order."""
    if len(before) != len(after):
        raise ValueError(f"pairs needed, but there are {len(before)} answers before and {len(after)} after")
    pairs = [(bool(a), bool(b)) for a, b in zip(before, after, strict=True)]
    losses, wins = pairs.count((True, False)), pairs.count((False, True))
    return McNemar(
        both_right=pairs.count((True, True)),
        losses=losses,
        wins=wins,
        both_wrong=pairs.count((False, False)),
        p=mcnemar_p(losses, wins),
    )


def mcnemar_p(losses: int, wins: int) -> float:
    """Exact two-sided probability of so uneven a split of the discordant pairs; 1 when there are none."""
    from scipy import stats

    if losses + wins == 0:
        return 1.0
    return float(stats.binomtest(wins, losses + wins, 0.5).pvalue)
