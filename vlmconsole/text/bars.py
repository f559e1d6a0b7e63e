"""Bars of one line's height: the course of a curve, and how far something is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

STEPS = "▁▂▃▄▅▆▇"  # without the full block: curves on neighbouring lines must not grow together
Point = float | None


def sparkline(
    points: Sequence[Point], width: int | None = None, low: float | None = None, high: float | None = None
) -> str:
    """Return the curve in at most `width` characters, each the mean of its part; a space where nothing was measured.

    `low` and `high` are the ends of the scale, so that curves can share one; without them those of the curve itself.
    """
    columns = len(points) if width is None else min(width, len(points))
    if columns < 1:
        return ""
    edges = [at * len(points) // columns for at in range(columns + 1)]
    means = [_mean(points[begin:end]) for begin, end in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    bottom = min(known) if low is None else low
    span = (max(known) if high is None else high) - bottom
    if span <= 1e-12 * max(map(abs, known)):
        span = 0.0
    return "".join(" " if mean is None else STEPS[_step(mean - bottom, span)] for mean in means)


def progress_bar(share: float, width: int) -> tuple[str, str]:
    """(done, still to do), which differ in weight as well as in colour; full only when it is."""
    done = max(0, min(width, int(share * width + 1e-9)))
    return "━" * done, "─" * (width - done)


def _mean(points: Sequence[Point]) -> float | None:
    known = [point for point in points if point is not None]
    return sum(known) / len(known) if known else None


def _step(height: float, span: float) -> int:
    return max(0, min(len(STEPS) - 1, int(height / span * len(STEPS)))) if span else 0
