"""Intervals of a share: of so many trials, how many came out one way."""

from __future__ import annotations

from functools import lru_cache

CONFIDENCE = 0.95


@lru_cache(8192)
def share_interval(count: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper and Pearson's interval of count / n, which covers at least `confidence` whatever the true share.

    Numbers that are not whole are effective counts, of trials that depend on each other. Raises ValueError for a
    count outside of 0 to n, or n that is not above 0.
    """
    from scipy.stats import beta

    if not n > 0 or not 0 <= count <= n:
        raise ValueError(f"{count} of {n} is no share")
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, count, n - count + 1)) if count > 0 else 0.0
    high = float(beta.ppf(1 - tail, count + 1, n - count)) if count < n else 1.0
    return low, high
