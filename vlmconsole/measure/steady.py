"""The steady window of a load: the part of a run in which the wanted load stood and its times no longer drifted.

The rule, the same for every run and stated before any (`RULE`):

1. The load stood from the first moment on at which as many requests were in flight as a closed loop wants (from the
   first request in an open loop) until the last request was sent: what is sent later, or drains, is not in it.
2. Its warm-in is cut off where MSER-5 says (White, Cobb and Spratt, Winter Simulation Conference 2000): the series of
   times to first text, in the order of sending, in batches of five; of all cuts in the first half the one after which
   the standard error of the rest is smallest.
3. What is left must not drift: the means of eight equal parts of it are tested for a trend (Mann 1945, Kendall 1975);
   |S| ≥ 20, which chance alone gives in 1.4 of 100 steady runs, means that there is no steady window.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.measure.request_table import RequestTimes
from vlmconsole.scoring.distribution import distribution

BATCH = 5
PARTS, TREND = 8, 20  # of the rest, and the trend among them
LEAST = 8 * BATCH  # requests below which no window is looked for
RULE = (
    "from the moment the wanted load stood (C in flight; open loop: the first request) to the last request sent; less"
    f" the warm-in by MSER-{BATCH} over TTFT in sending order, at most a half; none where the means of {PARTS} parts of"
    f" the rest have a trend (Mann–Kendall |S| ≥ {TREND}), or of fewer than {LEAST} requests"
)


@dataclass(frozen=True)
class SteadyWindow:
    """Seconds after the first request was sent; `n` requests that count were sent in it. Without one, `why` not."""

    from_s: float | None = None
    to_s: float | None = None
    n: int = 0
    why: str = ""

    def holds(self, sent: float, first: float) -> bool:
        """Return whether a request sent at `sent` is in the window of a run whose first was sent at `first`."""
        return self.from_s is not None and self.to_s is not None and self.from_s <= sent - first <= self.to_s


def steady_window(requests: Iterable[RequestTimes], concurrency: int | None) -> SteadyWindow:
    """Return the window of a run's requests; `concurrency` is that of a closed loop, None an open loop."""
    ordered = sorted(requests, key=lambda request: request.sent)
    if not ordered:
        return SteadyWindow(why="no request was sent")
    begin, first, last = full_from(ordered, concurrency), ordered[0].sent, ordered[-1].sent
    if begin is None:
        return SteadyWindow(why=f"there were never {concurrency} requests in flight")
    loaded = [request for request in ordered if request.sent >= begin and not request.failed]
    values = [
        value for request in loaded if (value := request.e2e if request.ttft is None else request.ttft) is not None
    ]
    if len(values) < LEAST or len(values) < len(loaded):
        return SteadyWindow(why=f"{len(values)} requests with a TTFT or E2E, fewer than {LEAST}, or not all")
    cut = warm_in(values)
    if abs(trend(values[cut:])) >= TREND:
        return SteadyWindow(why="the times drifted to the end")
    left = loaded[cut:]
    return SteadyWindow(round(left[0].sent - first, 6), round(last - first, 6), len(left))


def steady_figures(requests: Iterable[RequestTimes], concurrency: int | None) -> dict[str, Any]:
    """Return the steady window as a summary has it: where it lies, and the figures of the requests sent in it."""
    listed = list(requests)
    window = steady_window(listed, concurrency)
    if window.from_s is None or window.to_s is None:
        return {"from_s": None, "to_s": None, "n": 0, "why": window.why}
    first = min(request.sent for request in listed)
    inside = [request for request in listed if not request.failed and window.holds(request.sent, first)]
    figures = {
        f"{key}_s": dataclasses.asdict(spread)
        for key in ("ttft", "tpot", "e2e")
        if (spread := distribution(getattr(request, key) for request in inside)) is not None
    }
    return {"from_s": window.from_s, "to_s": window.to_s, "n": window.n, **figures}


def full_from(ordered: Sequence[RequestTimes], concurrency: int | None) -> float | None:
    """Return the moment at which `concurrency` requests were in flight for the first time; None: never."""
    if concurrency is None:
        return ordered[0].sent
    edges = sorted([(request.sent, 1) for request in ordered] + [(request.end, -1) for request in ordered])
    now = 0
    for at, step in edges:
        now += step
        if now >= min(concurrency, len(ordered)):
            return at
    return None


def warm_in(values: Sequence[float]) -> int:
    """Return how many values at the start MSER-5 cuts off: a multiple of BATCH, at most half of them."""
    means = [math.fsum(values[at : at + BATCH]) / BATCH for at in range(0, len(values) - BATCH + 1, BATCH)]
    best, cut, total, squares = math.inf, 0, 0.0, 0.0
    shift = means[-1]  # keeps the sums of squares small
    for count, at in enumerate(range(len(means) - 1, -1, -1), start=1):
        total += means[at] - shift
        squares += (means[at] - shift) ** 2
        error = max(0.0, squares - total * total / count) / count**2
        if error <= best and at <= len(means) // 2:
            best, cut = error, at
    return cut * BATCH


def trend(values: Sequence[float]) -> int:
    """Kendall's S of the means of PARTS equal parts: 28 where each is above all before it, −28 the other way."""
    size = len(values) // PARTS
    if not size:
        return 0
    means = [math.fsum(values[part * size : (part + 1) * size]) / size for part in range(PARTS)]
    return sum((later > early) - (later < early) for early, later in itertools.combinations(means, 2))
