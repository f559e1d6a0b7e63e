"""What happened between two scrapes: rates from counters, quantiles from histograms, restarts recognised."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from vlmconsole.engines.metrics import Histogram, Scrape

SHORT = 10.0  # seconds that a rate "now" looks back: shorter, and whole requests make it jump
LONG = 60.0


@dataclass(frozen=True)
class Quantile:
    """An estimate from buckets, in the histogram's unit. It lies in `low`–`high`: the server keeps no more.

    Inside the bucket the observations are taken as evenly spread (linear interpolation). When they lie beyond the
    last finite bound, `value` is that bound and `high` is infinite.
    """

    value: float
    low: float
    high: float


def quantile(histogram: Histogram, q: float) -> Quantile | None:
    """Return the `q` quantile (0–1) of a histogram (usually a difference of two); None when it holds nothing."""
    bounds = sorted(histogram.buckets)
    if not bounds:
        return None
    counts, highest = [], 0.0
    for bound in bounds:  # a scrape that raced with a request may be one short in a later bucket
        highest = max(highest, histogram.buckets[bound])
        counts.append(highest)
    if highest <= 0:
        return None
    rank = q * highest
    index = next(index for index, count in enumerate(counts) if count >= rank and count > 0)
    below = counts[index - 1] if index else 0.0
    high = bounds[index]
    low = bounds[index - 1] if index else min(0.0, high)
    if math.isinf(high):
        return Quantile(low, low, math.inf)
    share = (rank - below) / (counts[index] - below) if counts[index] > below else 1.0
    return Quantile(low + (high - low) * share, low, high)


def difference(new: Histogram, old: Histogram | None) -> Histogram:
    """Return what was observed between two scrapes of one histogram (`old` None: since the server's start)."""
    if old is None:
        return new
    buckets = {bound: max(0.0, count - old.buckets.get(bound, 0.0)) for bound, count in new.buckets.items()}
    return Histogram(buckets, max(0.0, new.sum - old.sum), max(0.0, new.count - old.count))


class Window:
    """The last `seconds` of scrapes of one server. A counter that falls means a new server: the past is dropped."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.restarts = 0
        self._kept: deque[tuple[float, Scrape]] = deque()

    def push(self, at: float, scrape: Scrape) -> bool:
        """Take a scrape made `at` (monotonic seconds). True when it shows that the server was restarted."""
        restarted = bool(self._kept) and _fell(self._kept[-1][1], scrape)
        if restarted:
            self._kept.clear()
            self.restarts += 1
        self._kept.append((at, scrape))
        # One scrape older than the window stays: it is the base that the window is measured from.
        while len(self._kept) > 2 and self._kept[1][0] <= at - self.seconds:
            self._kept.popleft()
        return restarted

    def clear(self) -> None:
        self._kept.clear()

    def _base(self, seconds: float) -> tuple[float, Scrape] | None:
        if len(self._kept) < 2:
            return None
        newest = self._kept[-1][0]
        at_or_before = [entry for entry in list(self._kept)[:-1] if entry[0] <= newest - seconds + 0.05]
        return at_or_before[-1] if at_or_before else self._kept[0]

    def counted(self, figure: str, seconds: float | None = None) -> tuple[float, float] | None:
        """(growth, over how many seconds) of a counter; None without two scrapes or without that counter.

        A counter that a server only writes once it has something counts from zero; one that fell (a cache's own
        statistics, reset by a flush) tells nothing until the fall has left the window.
        """
        base = self._base(self.seconds if seconds is None else seconds)
        if base is None or figure not in self._kept[-1][1].counters:
            return None
        at, scrape = self._kept[-1]
        span = at - base[0]
        growth = scrape.counters[figure] - base[1].counters.get(figure, 0.0)
        return (growth, span) if span > 0 and growth >= 0 else None

    def rate(self, figure: str, seconds: float | None = None) -> float | None:
        """Growth per second over the last `seconds` (or as much of them as was seen)."""
        counted = self.counted(figure, seconds)
        return None if counted is None else counted[0] / counted[1]

    def observed(self, figure: str, seconds: float | None = None) -> Histogram | None:
        """Return what a histogram took in over the last `seconds`; None without two scrapes or without that
        histogram.
        """
        base = self._base(self.seconds if seconds is None else seconds)
        if base is None or figure not in self._kept[-1][1].histograms:
            return None
        old = base[1].histograms.get(figure)
        return difference(self._kept[-1][1].histograms[figure], old or Histogram({}, 0.0, 0.0))

    @property
    def span(self) -> float:
        """Seconds from the oldest kept scrape to the newest: what "last" really means in the first minute."""
        return self._kept[-1][0] - self._kept[0][0] if self._kept else 0.0

    @property
    def enough(self) -> bool:
        """Whether there are the two scrapes that every delta needs."""
        return len(self._kept) >= 2

    def fell(self, figure: str, scrape: Scrape) -> bool:
        """Return whether a counter of a scrape to come is below the newest kept one."""
        last = self._kept[-1][1].counters.get(figure) if self._kept else None
        return last is not None and scrape.counters.get(figure, last) < last

    def moved(self) -> bool:
        """Return whether any counter grew between the two newest scrapes: something ran."""
        if len(self._kept) < 2:
            return False
        new, old = self._kept[-1][1], self._kept[-2][1]
        grew = any(value > old.counters.get(figure, 0.0) for figure, value in new.counters.items())
        return grew or any(
            value.count > (old.histograms[figure].count if figure in old.histograms else 0.0)
            for figure, value in new.histograms.items()
        )


def _fell(old: Scrape, new: Scrape) -> bool:
    """A counter went down, or one that was there is gone: both only happen when the server starts anew.

    A server that tells its uptime is taken at its word: a flush resets some of mlx-vlm's other counters.
    """
    if "uptime" in old.counters and "uptime" in new.counters:
        return new.counters["uptime"] < old.counters["uptime"]
    for figure, value in old.counters.items():
        if new.counters.get(figure, 0.0) < value:
            return True
    for figure, histogram in old.histograms.items():
        later = new.histograms.get(figure)
        if histogram.count > 0 and (later is None or later.count < histogram.count):
            return True
        if later is not None and later.buckets.keys() != histogram.buckets.keys():
            return True
    return False
