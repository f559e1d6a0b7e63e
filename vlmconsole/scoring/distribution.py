"""Distributions of measured values: exact percentiles, and whether there are enough values for a p95."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALL_N = 60  # below it a p95 rests on the three largest values or fewer


@dataclass(frozen=True)
class Distribution:
    """Exact figures of all values (no histogram, no sketch), with n. `flag` says when a p95 is not worth much."""

    n: int
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    flag: str | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` quantile (0…1) of values in ascending order, linear between the two nearest.

    The same rule as numpy's default (Hyndman and Fan's type 7). Raises ValueError without values.
    """
    if not ordered:
        raise ValueError("no values, no percentile")
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def few(n: int, what: str = "values") -> str | None:
    """Return what is to be said beside a p95 of so few values; None where there are enough."""
    return f"p95 rests on few {what} (n = {n} < {SMALL_N})" if n < SMALL_N else None


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Return the distribution of the known values; None when there is none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Distribution(
        n=len(known),
        mean=math.fsum(known) / len(known),
        min=known[0],
        p50=percentile(known, 0.5),
        p90=percentile(known, 0.9),
        p95=percentile(known, 0.95),
        p99=percentile(known, 0.99),
        max=known[-1],
        flag=few(len(known)),
    )
