"""Intervals of a difference by percentile bootstrap, paired and unpaired, and the exact McNemar test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

RESAMPLES = 9999
CONFIDENCE = 0.95
LEAST = 6  # values of each side that an unpaired interval needs: with six it still covers about 95 of 100
_AT_ONCE = 1 << 20  # resampled values held at a time


@dataclass(frozen=True)
class Interval:
    """`difference` = after − before of the means (or medians), in the values' own unit, with its percentile interval.

    `n` is the number of pairs, or of the smaller side. `standard_error` is the bootstrap's. The resampling is over
    pictures (or requests): it says nothing about other trainings, or another hour on the same machine.
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


def unpaired_interval(
    before: Sequence[float],
    after: Sequence[float],
    *,
    statistic: Literal["median", "mean"] = "median",
    relative: bool = False,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Interval of median(after) − median(before) (or of the means) where nothing pairs the values of both sides.

    Each side is resampled on its own, as often as it has values. With `relative` all figures are shares of the first:
    after / before − 1. Equal inputs and seed give equal figures. Raises ValueError for values that are no finite
    numbers (or, with `relative`, not above zero) and for fewer than `LEAST` of a side.
    """
    import numpy as np

    sides = [np.asarray(side, dtype=float) for side in (before, after)]
    least = min(map(len, sides))
    if least < LEAST:
        raise ValueError(f"an interval needs at least {LEAST} values of each side, not {least}")
    if not all(np.isfinite(side).all() for side in sides):
        raise ValueError("values must be finite numbers")
    if relative and not all((side > 0).all() for side in sides):
        raise ValueError("a change in shares needs values above zero")
    middle = np.median if statistic == "median" else np.mean
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // max(map(len, sides)))
    drawn = []
    for begin in range(0, resamples, step):
        count = min(step, resamples - begin)
        first, second = (middle(side[random.integers(len(side), size=(count, len(side)))], axis=1) for side in sides)
        drawn.append(second / first - 1 if relative else second - first)
    differences = np.concatenate(drawn)
    rest = (1 - confidence) / 2
    first, second = (middle(side) for side in sides)
    low, high = np.quantile(differences, [rest, 1 - rest])
    return Interval(
        difference=float(second / first - 1 if relative else second - first),
        low=float(low),
        high=float(high),
        standard_error=float(differences.std(ddof=1)),
        n=least,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
        method=f"unpaired percentile bootstrap of {statistic}s",
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
