"""Time series in bounded memory: fine for the last hour, one band a minute for the last day."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from vlmconsole.scoring.distribution import percentile

FINE = 3600  # points kept as they came: an hour at 1 Hz
COARSE = 1440  # minutes kept as lowest, mean, highest: a day
WINDOW = 600.0  # seconds that p50 and p95 look back


@dataclass(frozen=True)
class Band:
    """A stretch of time: its start (wall seconds), and the lowest, mean and highest value in it."""

    at: float
    low: float
    mean: float
    high: float


class _Ring:
    """A ring of rows of numbers, one array a column, allocated once. Columns are read as slices: a loop is slow."""

    def __init__(self, rows: int, columns: int) -> None:
        self._columns = [array("d", bytes(8 * rows)) for _ in range(columns)]
        self._rows = rows
        self._next = self._filled = 0

    def push(self, *row: float) -> None:
        place = self._next
        for column, value in zip(self._columns, row, strict=True):
            column[place] = value
        self._next = place + 1 if place + 1 < self._rows else 0
        if self._filled < self._rows:
            self._filled += 1

    def __len__(self) -> int:
        return self._filled

    @property
    def full(self) -> bool:
        return self._filled == self._rows

    def column(self, index: int) -> array[float]:
        """Return a copy of one column, oldest first."""
        whole = self._columns[index]
        return whole[: self._next] if self._filled < self._rows else whole[self._next :] + whole[: self._next]


class Series:
    """One figure over time. Not safe for several threads: its board holds the lock."""

    def __init__(self, fine: int = FINE, coarse: int = COARSE) -> None:
        self._fine = _Ring(fine, 2)
        self._coarse = _Ring(coarse, 4)
        self._minute = -1.0
        self._low = self._total = self._high = 0.0  # of the minute under way
        self._count = 0

    def push(self, at: float, value: float) -> None:
        """Take `value` at wall-clock `at`. Values that are not finite are left out."""
        if not math.isfinite(value):
            return
        self._fine.push(at, value)
        minute = at - at % 60.0
        if minute != self._minute:
            if self._count:
                self._coarse.push(self._minute, self._low, self._total / self._count, self._high)
            self._minute, self._low, self._total, self._high, self._count = minute, value, 0.0, value, 0
        self._low, self._high = min(self._low, value), max(self._high, value)
        self._total += value
        self._count += 1

    @property
    def newest(self) -> tuple[float, float] | None:
        """(at, value) of the newest point."""
        points = self.points()
        return points[-1] if points else None

    @property
    def full(self) -> bool:
        """Whether the oldest fine points have been pushed out, so that only minutes are known of the time before."""
        return self._fine.full

    def _since(self, since: float) -> tuple[array[float], array[float]]:
        """Times and values of the fine points not older than `since`; readings come in the order of their times."""
        times, values = self._fine.column(0), self._fine.column(1)
        first = bisect_left(times, since)
        return times[first:], values[first:]

    def points(self, since: float = -math.inf) -> list[tuple[float, float]]:
        """(at, value) of the fine points not older than `since`, oldest first."""
        return list(zip(*self._since(since), strict=True))

    def quantiles(self, now: float, window: float = WINDOW) -> tuple[float | None, float | None]:
        """(p50, p95) over the last `window` seconds."""
        values = sorted(self._since(now - window)[1])
        return (percentile(values, 0.5), percentile(values, 0.95)) if values else (None, None)

    def sparkline(self, now: float, seconds: float = 60.0, width: int = 30) -> list[float | None]:
        """Return the mean of each of `width` equal slices of the last `seconds`, oldest first; None where nothing
        came.
        """
        sums, counts = [0.0] * width, [0] * width
        for at, value in zip(*self._since(now - seconds), strict=True):
            slot = min(width - 1, max(0, int((at - (now - seconds)) / seconds * width)))
            sums[slot] += value
            counts[slot] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def bands(self, since: float) -> list[Band]:
        """Return one band a minute since `since`, oldest first: the plot's far zoom. The minute under way is left
        out.
        """
        rows = zip(*(self._coarse.column(index) for index in range(4)), strict=True)
        return [Band(*row) for row in rows if row[0] >= since]
