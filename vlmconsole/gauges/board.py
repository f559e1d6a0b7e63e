"""The board: every source's readings put together into tiles, each with its source, its age and its state."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmconsole.gauges.figures import Batch, Figure, Mark, title_of
from vlmconsole.gauges.series import Series

LATE = 3.0  # seconds without an answer before a source is said to be late and its figures are taken off
MARKS = 200
CONSOLE = "console"  # marks that a person or the console set come under this name; it has no figures
SERIES = 200  # figures at most: a source that invents names cannot fill the memory

State = Literal["ok", "stale", "none", "missing"]


@dataclass(frozen=True)
class GaugeTile:
    """One figure on the screen. `state`: ok; stale (the source itself says it is old); none (the source answers, but
    has no such figure yet); missing (the source does not answer). `why` explains all but a plain ok.

    `p50` and `p95`: over the last ten minutes of points, or the source's own estimate (`why` then says so).
    `points`: means of 30 slices of the last minute, oldest first, None where nothing came.
    `subject`: the server or run that the figure and its points belong to; "" where its source has but one.
    """

    key: str
    title: str
    value: float | None
    unit: str
    total: float | None
    p50: float | None
    p95: float | None
    points: tuple[float | None, ...]
    source: str
    age_s: float | None
    state: State
    why: str
    subject: str = ""


@dataclass(frozen=True)
class SourceState:
    """How a source does: `why` and `hint` are for people, `age_s` is the time since its last good reading.

    `readings`: how many good ones there were; rates need two.
    """

    state: Literal["ok", "missing", "waiting"]
    why: str
    hint: str
    age_s: float | None
    readings: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment (`t`: wall-clock seconds). What the command prints and the screen paints."""

    t: float
    tiles: Mapping[str, GaugeTile]
    sources: Mapping[str, SourceState]
    marks: tuple[Mark, ...]
    job: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class _Seen:
    """What the board knows of one source."""

    keys: tuple[str, ...]
    registered: float
    slow: float = 0.0  # seconds between its readings: a slow source is not late before its time
    last: Batch | None = None
    good: float | None = None  # when its last good reading came
    readings: int = 0


class Board:
    """Takes batches from any thread and gives snapshots to any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sources: dict[str, _Seen] = {}
        self._series: dict[str, Series] = {}
        self._figures: dict[str, tuple[str, float, Figure]] = {}  # key → source, at, figure
        self._marks: deque[Mark] = deque(maxlen=MARKS)
        self._job: Mapping[str, Any] | None = None

    def expect(self, source: str, keys: Iterable[str], slow: float = 0.0) -> None:
        """Announce a source, so that its tiles are there (with a reason) before its first answer."""
        with self._lock:
            self._sources[source] = _Seen(tuple(keys), self._clock(), slow)

    def take(self, batch: Batch, slow: float = 0.0) -> None:
        """Take one reading of a source that is read every `slow` seconds (0: every tick)."""
        with self._lock:
            if batch.source == CONSOLE:
                self._marks.extend(batch.marks)
                return
            seen = self._sources.setdefault(batch.source, _Seen((), batch.at))
            seen.last, seen.slow = batch, slow
            self._marks.extend(batch.marks)
            if batch.missing:
                return
            seen.good = batch.at
            seen.readings += 1
            if batch.source == "own":
                self._job = batch.job
            for key, figure in batch.figures.items():
                if key not in self._series and len(self._series) >= SERIES:
                    continue
                if key in self._figures and figure.subject != self._figures[key][2].subject:
                    self._series[key] = Series()  # another server's or run's figures: a curve of their own
                self._figures[key] = (batch.source, batch.at, figure)
                series = self._series.setdefault(key, Series())
                if figure.samples:
                    for sample in figure.samples:
                        series.push(batch.at, sample)
                elif figure.value is not None and not figure.stale:
                    series.push(batch.at, figure.value)

    def series(self, key: str) -> Series | None:
        """Return the curve behind a tile, for the large plot. Read it under :meth:`reading`."""
        return self._series.get(key)

    def reading(self) -> threading.Lock:
        """Return the lock to hold while a series is read."""
        return self._lock

    def snapshot(self) -> Snapshot:
        """Return everything as of now."""
        with self._lock:
            now = self._clock()
            states = {name: self._state(name, seen, now) for name, seen in self._sources.items()}
            keys = [(key, name) for name, seen in self._sources.items() for key in seen.keys]
            known = {key for key, _ in keys}
            keys += [(key, entry[0]) for key, entry in self._figures.items() if key not in known]
            tiles = {key: self._tile(key, name, states[name], now) for key, name in keys}
            return Snapshot(now, tiles, states, tuple(self._marks), self._job)

    def _state(self, name: str, seen: _Seen, now: float) -> SourceState:
        age = None if seen.good is None else max(0.0, now - seen.good)
        if seen.last is None:
            waited = now - seen.registered
            why = "waiting for the first reading" if waited < LATE + seen.slow else f"no answer for {waited:.0f} s"
            return SourceState("waiting" if waited < LATE + seen.slow else "missing", why, "", None)
        if seen.last.missing:
            return SourceState("missing", seen.last.missing, seen.last.hint, age, seen.readings)
        if age is not None and age > LATE + seen.slow:
            return SourceState("missing", f"no answer for {age:.0f} s; still asking", "", age, seen.readings)
        return SourceState("ok", "", "", age, seen.readings)

    def _tile(self, key: str, name: str, source: SourceState, now: float) -> GaugeTile:
        title, unit = title_of(key)
        series = self._series.get(key)
        p50, p95 = series.quantiles(now) if series else (None, None)
        points = tuple(series.sparkline(now)) if series else ()
        _, at, figure = self._figures.get(key, (name, now, Figure(None, note=source.why)))
        age: float | None = max(0.0, now - at) + figure.age_s
        state: State = "stale" if figure.stale else "ok"
        value, why = figure.value, figure.note
        if figure.samples and value is None:
            value = figure.samples[-1]
        if figure.p50 is not None or figure.p95 is not None:
            p50, p95 = figure.p50, figure.p95
        if source.state != "ok":
            state, why = "missing", source.why
            # A figure of the past that looks like one of now misleads: it is shown for a moment, then taken off.
            value = value if key in self._figures and now - at <= LATE + self._sources[name].slow else None
        elif value is None:
            state = "none"
        if key not in self._figures:
            age = None
        return GaugeTile(key, title, value, unit, figure.total, p50, p95, points, name, age, state, why, figure.subject)
