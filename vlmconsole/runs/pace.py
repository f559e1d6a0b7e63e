"""How far a job is, how fast it goes and how long that will still take, from its progress events."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmconsole.text.counts import of_many
from vlmconsole.text.numbers import number
from vlmconsole.text.times import duration

WINDOW = 120.0  # seconds of progress that the present speed is taken from
EARLY, LITTLE = 30.0, 0.05  # seconds, and share of the whole: before both are over the time left is a wild guess
SHOWN = 0.5  # seconds: a shorter time left would be written as 0:00
AS_LAST_TIME = "as last time"  # what a flow's time left is taken from
STEADY = 15.0  # seconds of a phase before its speed is that of the whole: the first steps are slow
SHORTEST = 1.0  # seconds: below this span two points say nothing about speed


@dataclass(frozen=True)
class Progress:
    """`done` of `total` (None: the end is not known) at wall time `t`; `rate` is units a second or None.

    Of a job with several phases these are of its present `phase`; `overall` is then the share of the whole job (0
    to 1), and `overall_rate` how much of it is done a second.
    """

    t: float
    done: float
    total: float | None
    unit: str
    note: str
    rate: float | None
    phase: str = ""
    overall: float | None = None
    overall_rate: float | None = None
    began: float | None = None  # wall seconds of the job's first word, where it is known
    ends: float | None = None  # wall seconds at which it is to end, where that is known by more than its own speed

    @property
    def share(self) -> float | None:
        """Of the whole job, 0 to 1; None without a total."""
        if self.overall is not None:
            return min(1.0, max(0.0, self.overall))
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None

    def left(self, now: float) -> float | None:
        """Seconds the whole job still takes at the present speed, seen from `now`; None while that is not known.

        Nor is it in the first seconds, before enough is done to tell from, between two phases, or past the moment at
        which the job should have been over: it is never 0.
        """
        if self.ends is not None:
            return self.ends - now if self.ends - now >= SHOWN else None
        if self.began is not None and (self.t - self.began < EARLY or (self.share or 0.0) < LITTLE):
            return None
        if self.overall is not None:
            if not self.overall_rate or self._between:
                return None
            left = (1.0 - min(1.0, self.overall)) / self.overall_rate
        elif not self.rate or self.total is None:
            return None
        else:
            left = (self.total - self.done) / self.rate
        left -= max(0.0, now - self.t)
        return left if left >= SHOWN else None

    def left_said(self, now: float) -> str:
        """`12:03 left`, with what it is taken from where that is not its own speed; "" while it is not known."""
        left = self.left(now)
        return "" if left is None else f"{duration(left)} left{f', {AS_LAST_TIME}' if self.ends is not None else ''}"

    @property
    def _between(self) -> bool:
        """Its phase is over, and others follow that have told nothing yet."""
        return self.overall is not None and self.overall < 1 and bool(self.total) and self.done >= (self.total or 0)

    def counted(self) -> str:
        """`training: 738 of 1152 steps`, in plain words: how far its phase is."""
        if self._between and self.phase:
            return f"{self.phase} is done"
        return f"{f'{self.phase}: ' if self.phase else ''}{of_many(self.done, self.total, self.unit)}"


class Pace:
    """Takes progress events in; a smaller `done` or another `total` begins anew (a phase, a resumed run).

    `began` (wall seconds) is when the job did; without it the first event counts.
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = began
        self._points: deque[tuple[float, float]] = deque(maxlen=600)
        self._whole: deque[tuple[float, float]] = deque(maxlen=600)
        self._last: Progress | None = None

    def add(self, event: Mapping[str, Any]) -> bool:
        """Return whether `event` was one of progress, and a sound one."""
        t, done = number(event.get("t")), number(event.get("done"))
        if event.get("kind") != "progress" or t is None or done is None:
            return False
        total, phase, overall = number(event.get("total")), str(event.get("phase") or ""), number(event.get("overall"))
        if self._began is None:
            self._began = t
        last = self._last
        if last is not None and (done < last.done or (total, phase) != (last.total, last.phase)):
            self._points.clear()
            if phase != last.phase:  # another kind of work, at another speed
                self._whole.clear()
        _keep(self._points, t, done)
        if overall is not None:
            _keep(self._whole, t, overall)
        unit, note = str(event.get("unit") or ""), str(event.get("note") or "")
        self._last = Progress(t, done, total, unit, note, None, phase, overall)
        return True

    @property
    def now(self) -> Progress | None:
        if self._last is None:
            return None
        return replace(self._last, rate=_rate(self._points), overall_rate=_rate(self._whole, STEADY), began=self._began)


def _keep(points: deque[tuple[float, float]], t: float, done: float) -> None:
    points.append((t, done))
    while points[-1][0] - points[0][0] > WINDOW and len(points) > 2:
        points.popleft()


def _rate(points: deque[tuple[float, float]], shortest: float = SHORTEST) -> float | None:
    if not points:
        return None
    (t0, done0), (t1, done1) = points[0], points[-1]
    return (done1 - done0) / (t1 - t0) if t1 - t0 >= shortest and done1 > done0 else None
