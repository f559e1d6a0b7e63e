"""What a run has told so far: curves, notes, progress and its worker's load, gathered from its events as they come."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace, Progress, number

POINTS = 2_000  # of one curve; past it every second one is left out
CURVES = 64  # names of curves kept; a job that makes up a new name each step must not fill the memory
NOTES = 200
ROUND = 2 * 1024 * 1024  # bytes of events taken in by one `read`


@dataclass(frozen=True)
class Curve:
    """One metric. ``points`` are (step, or seconds since the first event; value); each stands for ``thinned``."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]
    last: float
    steps: bool  # whether x is a step
    thinned: int = 1


@dataclass(frozen=True)
class Note:
    t: float
    text: str
    level: str


@dataclass(frozen=True)
class Told:
    """A moment of a story, safe to hand to another thread. CPU is per cent of one core, memory bytes."""

    curves: tuple[Curve, ...] = ()
    notes: tuple[Note, ...] = ()
    progress: Progress | None = None
    cpu: Curve | None = None
    memory: Curve | None = None
    bad: int = 0  # lines of the events that could not be read


class _Growing:
    def __init__(self, name: str, unit: str, steps: bool) -> None:
        self.name, self.unit, self.steps = name, unit, steps
        self.points: list[tuple[float, float]] = []
        self.every, self.seen, self.last = 1, 0, 0.0

    def add(self, x: float, value: float) -> None:
        self.last = value
        if self.seen % self.every == 0:
            self.points.append((x, value))
            if len(self.points) >= POINTS:
                self.points = self.points[::2]
                self.every *= 2
        self.seen += 1

    def curve(self) -> Curve:
        points = tuple(self.points)
        return Curve(self.name, self.unit, points, self.last, self.steps, self.every)


class RunStory:
    """Follows one run. Not for several threads: `read` in one, hand its answer on."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._tail = EventTail(run.file("events.jsonl"))
        self._pace = Pace()
        self._curves: dict[str, _Growing] = {}
        self._cpu, self._memory = _Growing("cpu", "%", False), _Growing("memory", "B", False)
        self._notes: deque[Note] = deque(maxlen=NOTES)
        self._began: float | None = None
        self._told = Told()

    def read(self) -> Told:
        """Take in what was added, at most ROUND bytes a call, and tell the whole. The same object when nothing was."""
        events = self._tail.read(ROUND)
        if events or self._tail.bad != self._told.bad:
            for event in events:
                self._take(event)
            self._told = Told(
                tuple(curve.curve() for curve in self._curves.values()),
                tuple(self._notes),
                self._pace.now,
                self._cpu.curve() if self._cpu.points else None,
                self._memory.curve() if self._memory.points else None,
                self._tail.bad,
            )
        return self._told

    def _take(self, event: Mapping[str, Any]) -> None:
        t = number(event.get("t")) or 0.0
        if self._began is None:
            self._began = t
        kind = event.get("kind")
        if kind == "metric":
            value, step = number(event.get("value")), number(event.get("step"))
            name = str(event.get("name", ""))[:80]
            if value is None or (name not in self._curves and len(self._curves) >= CURVES):
                return  # NaN and the like have no place on a curve; the log has them
            curve = self._curves.setdefault(name, _Growing(name, str(event.get("unit") or "")[:20], step is not None))
            curve.add(step if step is not None else t - self._began, value)
        elif kind == "note":
            self._notes.append(Note(t, str(event.get("text", "")), str(event.get("level", "info"))))
        elif kind == "sample":
            for growing, key in ((self._cpu, "cpu_percent"), (self._memory, "rss_bytes")):
                value = number(event.get(key))
                if value is not None:
                    growing.add(t - self._began, value)
        else:
            self._pace.add(event)
