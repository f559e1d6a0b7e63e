"""Times as people read them: how long, about how long, how fast, and when."""

from __future__ import annotations

import time

from vlmconsole.text.numbers import UNKNOWN, figure

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Return a time by the clock: `0:07`, `12:03`, `3:05:00`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole >= 2 * DAY:
        return f"{whole // DAY} d {whole % DAY // HOUR} h"
    hours, rest = divmod(whole, HOUR)
    minutes, left = divmod(rest, MINUTE)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def about(seconds: float) -> str:
    """Return a time as exact as an estimate or an age can mean: `7.5 s`, `40 s`, `25 min`, `3.5 h`, `24 h`, `3 d`."""
    if seconds < 89.5:
        return f"{seconds:.2g} s"
    if seconds < 1.5 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    hours = seconds / HOUR
    if hours < 47.5:
        return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
    return f"{seconds / DAY:.0f} d"


def age(seconds: float | None) -> str:
    """Return how old something is, in whole seconds at the finest: `0 s`, `40 s`, `2 min`; "" where it is not known."""
    return "" if seconds is None else about(max(0, round(seconds)))


def latency(seconds: float | None) -> str:
    """Return a measured time, ms below a second, never more than three digits: `8.51 ms`, `430 ms`, `1.23 s`."""
    if seconds is None:
        return UNKNOWN
    return f"{figure(1000 * seconds)} ms" if abs(seconds) < 0.9995 else f"{figure(seconds)} s"


def clock(at: float) -> str:
    """Local time of day: `14:05:09`."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def minute(at: float) -> str:
    """Local day and minute: `2026-12-01 14:05`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def moment(at: float) -> str:
    """Local day and second: `2026-12-01 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def is_today(at: float, now: float) -> bool:
    """Return whether `at` is on the local day of `now`."""
    return time.localtime(at)[:3] == time.localtime(now)[:3]
