"""How far a job is, how fast it goes and how long that will still take, from its progress events; times in words."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOW = 120.0  # seconds of progress that the present speed is taken from
SHORTEST = 1.0  # seconds: below this span two points say nothing about speed


def number(value: object) -> float | None:
    """A finite number of a foreign file, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def duration(seconds: float) -> str:
    """``0:07``, ``12:03``, ``3:05:00``, ``2 d 4 h``."""
    whole = max(0, round(seconds))
    if whole >= 48 * 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def about(seconds: float) -> str:
    """An expected time, rounded to what an estimate can mean: 40 s, 25 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` (None: the end is not known) at wall time ``t``; ``rate`` is units a second or None."""

    t: float
    done: float
    total: float | None
    unit: str
    note: str
    rate: float | None

    @property
    def share(self) -> float | None:
        """0 to 1, None without a total."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None

    def left(self, now: float) -> float | None:
        """Seconds still to go at the present speed, seen from ``now``; None while that cannot be said."""
        if not self.rate or self.total is None:
            return None
        return max(0.0, (self.total - self.done) / self.rate - max(0.0, now - self.t))


class Pace:
    """Takes progress events in; a smaller ``done`` or another ``total`` begins anew (a phase, a resumed run)."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=600)
        self._last: tuple[float, float, float | None, str, str] | None = None

    def add(self, event: Mapping[str, Any]) -> bool:
        """Whether ``event`` was one of progress, and a sound one."""
        t, done = number(event.get("t")), number(event.get("done"))
        if event.get("kind") != "progress" or t is None or done is None:
            return False
        total = number(event.get("total"))
        if self._last is not None and (done < self._last[1] or total != self._last[2]):
            self._points.clear()
        self._points.append((t, done))
        while self._points[-1][0] - self._points[0][0] > WINDOW and len(self._points) > 2:
            self._points.popleft()
        self._last = (t, done, total, str(event.get("unit") or ""), str(event.get("note") or ""))
        return True

    @property
    def now(self) -> Progress | None:
        if self._last is None:
            return None
        (t0, done0), (t1, done1) = self._points[0], self._points[-1]
        rate = (done1 - done0) / (t1 - t0) if t1 - t0 >= SHORTEST and done1 > done0 else None
        t, done, total, unit, note = self._last
        return Progress(t, done, total, unit, note, rate)
