"""Intervals of bounded scores that hold their level at small n: of a share, a mean, and a paired difference.

Gaffke's bounds (N. Gaffke, 2005; Learned-Miller and Thomas, 2019): the values' weights are drawn as a Bayesian
bootstrap draws them, with one more value at the range's end. For right or wrong they are the Clopper–Pearson bounds,
which hold exactly; for other scores their coverage is measured (docs/measurements.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlmconsole.scoring import shares
from vlmconsole.scoring.intervals import CONFIDENCE, Interval, paired_interval

SMALL = 32  # pairs below which a percentile bootstrap does not hold its level
FEW_MOVED = 16  # pairs that differ, likewise: resampling cannot show what it has not seen
METHOD = "Gaffke bounds"
DRAWS = 99_999
_AT_ONCE = 1 << 21  # drawn weights held at a time


@dataclass(frozen=True)
class MeanInterval:
    """A mean of scores with its interval, in the scores' own unit; `n` scores."""

    mean: float
    low: float
    high: float
    n: int
    confidence: float = CONFIDENCE
    method: str = METHOD

    def to_json(self) -> dict[str, float]:
        """Mean, low and high as plain JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def share_interval(right: int, n: int, confidence: float = CONFIDENCE) -> MeanInterval:
    """Return the share of `right` among `n` with its exact (Clopper–Pearson) interval. Raises ValueError without n."""
    low, high = shares.share_interval(right, n, confidence)
    return MeanInterval(right / n, low, high, n, confidence, "Clopper–Pearson")


def mean_interval(
    scores: Sequence[float],
    *,
    least: float = 0.0,
    most: float = 1.0,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    draws: int = DRAWS,
) -> MeanInterval:
    """Return the mean of scores that lie from `least` to `most`, with Gaffke's bounds; shares have theirs exactly.

    Equal scores and seed give equal figures. Raises ValueError without scores, or for one outside the range.
    """
    import numpy as np

    values = np.asarray(scores, dtype=float)
    if not len(values) or not np.isfinite(values).all() or values.min() < least or values.max() > most:
        raise ValueError(f"scores from {least:g} to {most:g} needed")
    n, mean = len(values), math.fsum(values) / len(values)
    distinct, counts = np.unique(values, return_counts=True)
    if set(distinct.tolist()) <= {least, most}:
        exact = share_interval(int((values == most).sum()), n, confidence)
        low, high = (least + (most - least) * end for end in (exact.low, exact.high))
        return MeanInterval(mean, low, high, n, confidence, exact.method)
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // len(distinct))
    lows, highs = [], []
    for begin in range(0, draws, step):
        count = min(step, draws - begin)
        weights = random.standard_gamma(counts, size=(count, len(distinct)))
        extra = random.standard_exponential(count)
        total, sum_ = weights.sum(axis=1) + extra, weights @ distinct
        lows.append((sum_ + extra * least) / total)
        highs.append((sum_ + extra * most) / total)
    rest = (1 - confidence) / 2
    low = min(mean, float(np.quantile(np.concatenate(lows), rest)))
    high = max(mean, float(np.quantile(np.concatenate(highs), 1 - rest)))
    return MeanInterval(mean, low, high, n, confidence)


def paired_bounds(
    before: Sequence[float],
    after: Sequence[float],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
) -> Interval:
    """Gaffke's bounds of mean(after) − mean(before) for paired scores from 0 to 1.

    Raises ValueError for unequal lengths, fewer than two pairs, or scores outside 0 to 1.
    """
    import numpy as np

    if len(before) != len(after):
        raise ValueError(f"pairs needed, but there are {len(before)} scores before and {len(after)} after")
    if len(before) < 2:
        raise ValueError("an interval needs at least two pairs")
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    bounds = mean_interval(differences.tolist(), least=-1.0, most=1.0, confidence=confidence, seed=seed, draws=draws)
    return Interval(
        difference=bounds.mean,
        low=bounds.low,
        high=bounds.high,
        standard_error=float(differences.std(ddof=1) / math.sqrt(len(differences))),
        n=len(differences),
        confidence=confidence,
        resamples=draws,
        seed=seed,
        method=f"paired {METHOD}",
    )


def paired_difference(
    before: Sequence[float], after: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of mean(after) − mean(before) that holds its level at this n.

    Gaffke's bounds below SMALL pairs, or where fewer than FEW_MOVED differ; else the percentile bootstrap.
    """
    moved = sum(a != b for a, b in zip(before, after, strict=False))
    if len(before) < SMALL or moved < FEW_MOVED:
        return paired_bounds(before, after, seed=seed, confidence=confidence)
    return paired_interval(before, after, seed=seed, confidence=confidence)
