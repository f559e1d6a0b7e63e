"""What a run has told so far: curves, notes, progress, answers and its worker's load, gathered as they come.

Most of it stands in the run's events; an evaluation's answers and a sweep's cells are in files of their own.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace, Progress
from vlmconsole.text.numbers import number

POINTS = 2_000  # of one curve; past it every second one is left out
CURVES = 64  # names of curves kept; a job that makes up a new name each step must not fill the memory
NOTES = 200
ROLLOUTS = 600  # answers with their pictures that are kept, the newest
TRAILS = 2_000  # pictures whose earlier outcomes are remembered
SIDES = ("before", "after")
ROUND = 2 * 1024 * 1024  # bytes of events taken in by one `read`


@dataclass(frozen=True)
class Curve:
    """One metric. `points` are (step, or seconds since the first event; value); each stands for `thinned`."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]
    last: float
    steps: bool  # whether x is a step
    thinned: int = 1


@dataclass(frozen=True)
class RunNote:
    t: float
    text: str
    level: str


@dataclass(frozen=True)
class RolloutProgress:
    """One answer to one picture while training. `picture` is a path inside the run ("" for none); `advantage` is
    None where there is none (development pictures); `trail` says of the same picture at earlier steps whether it was
    right (mean reward 1), oldest first.
    """

    step: float
    epoch: float | None
    uid: str
    picture: str
    truth: str
    answer: str
    reward: float
    advantage: float | None
    right: bool
    label: str
    trail: tuple[bool, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()  # of a reward, by name


@dataclass(frozen=True)
class Tally:
    """Answers of one side of an evaluation to one group of pictures, so far; `reward` is their sum."""

    side: str
    group: str
    n: int
    right: int
    reward: float
    failed: int  # requests that brought no answer


@dataclass(frozen=True)
class CellProgress:
    """One cell of a sweep as it finished. TTFT in seconds, throughput in tokens a second; None: not measured."""

    name: str
    state: str
    why: str
    ttft_p50: float | None
    ttft_p95: float | None
    throughput: float | None


@dataclass(frozen=True)
class RunState:
    """A moment of a story, safe to hand to another thread. CPU is per cent of one core, memory bytes."""

    curves: tuple[Curve, ...] = ()
    notes: tuple[RunNote, ...] = ()
    progress: Progress | None = None
    cpu: Curve | None = None
    memory: Curve | None = None
    bad: int = 0  # lines of the events that could not be read
    rollouts: tuple[RolloutProgress, ...] = ()
    tallies: tuple[Tally, ...] = ()
    cells: tuple[CellProgress, ...] = ()
    now: str = ""  # what a sweep is at, by its last mark
    left_s: float | None = None  # what a sweep itself expects still to take, seconds, at `left_at` (wall)
    left_at: float = 0.0

    def curve(self, name: str) -> Curve | None:
        """Return the curve of that name."""
        return next((curve for curve in self.curves if curve.name == name), None)


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
        self._notes: deque[RunNote] = deque(maxlen=NOTES)
        self._rollouts: deque[RolloutProgress] = deque(maxlen=ROLLOUTS)
        self._trails: OrderedDict[str, list[tuple[float, float, int]]] = OrderedDict()
        self._sides = {side: EventTail(run.file(f"{side}.jsonl")) for side in SIDES}
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._cells_tail = EventTail(run.file("cells.jsonl"))
        self._cells: list[CellProgress] = []
        self._mark, self._left_at = "", 0.0
        self._left: float | None = None
        self._began: float | None = None
        self._told = RunState()

    def read(self) -> RunState:
        """Take in what was added, at most ROUND bytes a call, and tell the whole. The same object when nothing was."""
        events = self._tail.read(ROUND)
        more = self._read_answers() + self._read_cells()
        if events or more or self._tail.bad != self._told.bad:
            for event in events:
                self._take(event)
            self._told = RunState(
                tuple(curve.curve() for curve in self._curves.values()),
                tuple(self._notes),
                self._pace.now,
                self._cpu.curve() if self._cpu.points else None,
                self._memory.curve() if self._memory.points else None,
                self._tail.bad,
                tuple(self._rollouts),
                tuple(self._tallies.values()),
                tuple(self._cells),
                self._mark,
                self._left,
                self._left_at,
            )
        return self._told

    def _read_answers(self) -> int:
        """An evaluation's samples, side by side; how many were new."""
        new = 0
        for side, tail in self._sides.items():
            for line in tail.read(ROUND):
                group = str(line.get("group", ""))[:40]
                had = self._tallies.get((side, group), Tally(side, group, 0, 0, 0.0, 0))
                self._tallies[side, group] = Tally(
                    side,
                    group,
                    had.n + 1,
                    had.right + (line.get("all_correct") is True),
                    had.reward + (number(line.get("reward")) or 0.0),
                    had.failed + (line.get("http_ok") is False),
                )
                new += 1
        return new

    def _read_cells(self) -> int:
        lines = self._cells_tail.read(ROUND)
        self._cells += [_cell(line) for line in lines]
        return len(lines)

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
            self._notes.append(RunNote(t, str(event.get("text", "")), str(event.get("level", "info"))))
        elif kind == "sample":
            for growing, key in ((self._cpu, "cpu_percent"), (self._memory, "rss_bytes")):
                value = number(event.get(key))
                if value is not None:
                    growing.add(t - self._began, value)
        elif kind == "rollout":
            self._answer(event)
        elif kind == "mark":
            self._mark = str(event.get("text", ""))[:200]
        elif kind == "cell":
            self._left, self._left_at = number(event.get("left_s")), t
        else:
            self._pace.add(event)

    def _answer(self, event: Mapping[str, Any]) -> None:
        step, reward = number(event.get("step")), number(event.get("reward"))
        if step is None or reward is None:
            return
        uid, right = str(event.get("uid") or event.get("picture") or "")[:200], event.get("right")
        trail = self._trails.setdefault(uid, [])
        self._trails.move_to_end(uid)
        while len(self._trails) > TRAILS:
            self._trails.popitem(last=False)
        before = tuple(total >= n for then, total, n in trail if then != step)
        if trail and trail[-1][0] == step:  # one of several answers to it
            trail[-1] = (step, trail[-1][1] + reward, trail[-1][2] + 1)
        else:
            trail.append((step, reward, 1))
            del trail[:-12]
        self._rollouts.append(
            RolloutProgress(
                step,
                number(event.get("epoch")),
                uid,
                _inside(event.get("picture")),
                _said(event.get("truth")),
                _said(event.get("answer")),
                reward,
                number(event.get("advantage")),
                right if isinstance(right, bool) else reward >= 1.0,
                str(event.get("label") or "")[:80],
                before,
                _parts(event.get("parts")),
            )
        )


def _said(value: object) -> str:
    """A truth or an answer as text, cut where no screen could show more."""
    return (value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False))[:4000]


def _parts(value: object) -> tuple[tuple[str, float], ...]:
    items = value.items() if isinstance(value, dict) else ()
    return tuple((str(name)[:80], part) for name, item in items if (part := number(item)) is not None)


def _inside(value: object) -> str:
    """A picture's path inside the run, "" for anything that leads out of it."""
    path = PurePosixPath(value) if isinstance(value, str) else PurePosixPath()
    return str(path) if path.parts and not path.is_absolute() and ".." not in path.parts else ""


def _cell(line: Mapping[str, Any]) -> CellProgress:
    summary = line.get("summary")
    figures = summary if isinstance(summary, dict) else {}
    ttft = figures.get("ttft_s")
    spread = ttft if isinstance(ttft, dict) else {}
    return CellProgress(
        str(line.get("name", ""))[:80],
        str(line.get("state", "?"))[:20],
        str(line.get("why") or ""),
        number(spread.get("p50")),
        number(spread.get("p95")),
        number(figures.get("throughput_tok_s")),
    )
