"""Time series in bounded memory: fine for the last hour, one band a minute for the last day."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

FINE = 3600  # points kept as they came: an hour at 1 Hz
COARSE = 1440  # minutes kept as lowest, mean, highest: a day
WINDOW = 600.0  # seconds that p50 and p95 look back


def percentile(values: Sequence[float], q: float) -> float | None:
    """The ``q`` quantile (0–1) with linear interpolation between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Band:
    """A stretch of time: its start (wall seconds), and the lowest, mean and highest value in it."""

    at: float
    low: float
    mean: float
    high: float


class _Ring:
    """A ring of rows of numbers, allocated once."""

    def __init__(self, rows: int, columns: int) -> None:
        self._data = array("d", bytes(8 * rows * columns))
        self._rows, self._columns = rows, columns
        self._next = self._filled = 0

    def push(self, row: Sequence[float]) -> None:
        start = self._next * self._columns
        for offset, value in enumerate(row):
            self._data[start + offset] = value
        self._next = (self._next + 1) % self._rows
        self._filled = min(self._filled + 1, self._rows)

    def __len__(self) -> int:
        return self._filled

    def row(self, back: int) -> tuple[float, ...]:
        """The row ``back`` steps before the newest (0: the newest)."""
        start = ((self._next - 1 - back) % self._rows) * self._columns
        return tuple(self._data[start : start + self._columns])


class Series:
    """One figure over time. Not safe for several threads: its board holds the lock."""

    def __init__(self, fine: int = FINE, coarse: int = COARSE) -> None:
        self._fine = _Ring(fine, 2)
        self._coarse = _Ring(coarse, 4)
        self._minute = -1.0
        self._open: list[float] = [0.0, 0.0, 0.0, 0.0]  # lowest, sum, highest, n of the minute under way

    def push(self, at: float, value: float) -> None:
        """Take ``value`` at wall-clock ``at``. Values that are not finite are left out."""
        if not math.isfinite(value):
            return
        self._fine.push((at, value))
        minute = at - at % 60.0
        if minute != self._minute:
            self._close_minute()
            self._minute, self._open = minute, [value, 0.0, value, 0.0]
        low, total, high, n = self._open
        self._open = [min(low, value), total + value, max(high, value), n + 1]

    def _close_minute(self) -> None:
        low, total, high, n = self._open
        if n:
            self._coarse.push((self._minute, low, total / n, high))

    @property
    def newest(self) -> tuple[float, float] | None:
        """(at, value) of the newest point."""
        if not len(self._fine):
            return None
        at, value = self._fine.row(0)
        return at, value

    def points(self, since: float = -math.inf, most: int = FINE) -> list[tuple[float, float]]:
        """(at, value) of the fine points not older than ``since``, oldest first, at most the ``most`` newest."""
        found: list[tuple[float, float]] = []
        for back in range(min(most, len(self._fine))):
            at, value = self._fine.row(back)
            if at < since:
                break
            found.append((at, value))
        return found[::-1]

    def quantiles(self, now: float, window: float = WINDOW) -> tuple[float | None, float | None]:
        """(p50, p95) over the last ``window`` seconds."""
        values = [value for _, value in self.points(now - window)]
        return percentile(values, 0.5), percentile(values, 0.95)

    def sparkline(self, now: float, seconds: float = 60.0, width: int = 30) -> list[float | None]:
        """The mean of each of ``width`` equal slices of the last ``seconds``, oldest first; None where nothing came."""
        sums, counts = [0.0] * width, [0] * width
        for at, value in self.points(now - seconds):
            slot = min(width - 1, max(0, int((at - (now - seconds)) / seconds * width)))
            sums[slot] += value
            counts[slot] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def bands(self, since: float) -> list[Band]:
        """One band a minute since ``since``, oldest first: the plot's far zoom. The minute under way is left out."""
        found: list[Band] = []
        for back in range(len(self._coarse)):
            at, low, mean, high = self._coarse.row(back)
            if at < since:
                break
            found.append(Band(at, low, mean, high))
        return found[::-1]
