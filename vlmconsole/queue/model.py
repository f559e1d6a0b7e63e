"""A job as the queue holds it."""

import contextlib
import functools
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vlmconsole.runs.places import Places

ACTIVE = ("starting", "running")
FINAL = ("done", "failed", "cancelled", "lost")
STATES = ("queued", *ACTIVE, *FINAL)
Mode = Literal["ok", "any"]


@dataclass(frozen=True)
class NewJob:
    """What to queue. `devices` are requests of `schedule.Want`; `options` is the preset's [queue] table."""

    preset: str
    kind: str
    title: str
    spec: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ("cpu",)
    server: str | None = None
    serves: str | None = None
    keep: bool = False
    hand_over: bool = False
    after: tuple[tuple[int, Mode], ...] = ()
    priority: int = 0
    flow: int | None = None
    step: str | None = None
    server_for: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Job:
    """One row. Times are wall seconds. `stop` is why it was asked to stop; `granted` the devices it holds."""

    id: int
    preset: str
    kind: str
    title: str
    spec: dict[str, Any]
    options: dict[str, Any]
    devices: tuple[str, ...]
    server: str | None
    serves: str | None
    keep: bool
    hand_over: bool
    flow: int | None
    step: str | None
    server_for: int | None
    priority: int
    position: float
    state: str
    reason: str | None
    note: str | None
    attempt: int
    failures: int
    not_before: float
    added: float
    started: float | None
    ended: float | None
    run: str | None
    pid: int | None
    pid_started: str | None
    granted: tuple[str, ...]
    guest_of: int | None
    stop: str | None
    after: tuple[tuple[int, Mode], ...] = ()
    damaged: str = ""  # a sentence where part of the row cannot be read; that part is then empty here

    @classmethod
    def from_row(cls, row: sqlite3.Row, after: tuple[tuple[int, Mode], ...], lab: Places) -> "Job":
        """Return the job of a row of `jobs` in that lab's queue. It never names a run folder outside the lab's own."""
        values, damage = read(dict(row), READERS)
        try:
            values["run"] = run_of(values["run"], lab, values["state"] in FINAL)
        except ValueError as error:
            values["run"], damage = None, damage or f"run: {error}"
        damaged = unreadable(damage, over=values["state"] in FINAL) if damage else ""
        return cls(**values, after=after, damaged=damaged)


class QueueLine(NamedTuple):
    """A queued job as far as the scheduler must know it. `options` is shared: not to be changed."""

    id: int
    devices: tuple[str, ...]
    server: str | None
    serves: str | None
    hand_over: bool
    options: dict[str, Any]
    not_before: float
    after: tuple[tuple[int, Mode], ...]
    failures: int = 0
    damaged: str = ""


@dataclass(frozen=True)
class Attempt:
    """An earlier attempt of a job, kept beside the present one."""

    number: int
    run: str | None
    state: str
    reason: str | None
    started: float | None
    ended: float | None

    @classmethod
    def from_row(cls, row: sqlite3.Row, lab: Places) -> "Attempt":
        """Return the attempt of a row; what cannot be read of it is left out, a run folder outside the lab's own
        too.
        """
        readers = {key: READERS[key] for key in ("state", "reason", "started", "ended")}
        values, _ = read(dict(row), readers)
        with contextlib.suppress(ValueError):
            return cls(**{**values, "run": run_of(values["run"], lab, True)})
        return cls(**{**values, "run": None})


@functools.lru_cache(1024)
def names(text: str) -> tuple[str, ...]:
    """Return a JSON list of names; remembered, as most jobs of a queue ask for the same. Raises ValueError,
    TypeError.
    """
    value = json.loads(text)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("no list of names")
    return tuple(value)


@functools.lru_cache(1024)
def options(text: str) -> dict[str, Any]:
    """Return a JSON table; remembered and shared, so not to be changed. Raises ValueError, TypeError."""
    return table(text)


def table(text: str) -> dict[str, Any]:
    """Return a JSON table. Raises ValueError, TypeError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no table")
    return value


def number(value: object) -> float:
    """Return a finite number: a time, a position. Raises ValueError."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return value


def whole(value: object) -> int:
    """Raises ValueError."""
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def process_id(value: object) -> int:
    """Return a pid that a worker can have had; 0 and -1 would mean many processes. Raises ValueError."""
    if whole(value) < 1:
        raise ValueError(f"{value!r} is no worker's pid")
    return whole(value)


def text(value: object) -> str:
    """Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def state_of(value: object) -> str:
    """Return one of the states there are. Raises ValueError."""
    if value not in STATES:
        raise ValueError(f"{value!r} is no state")
    return str(value)


def run_of(value: object, lab: Places, over: bool = False) -> str | None:
    """Return the run folder that a row names (None: it names none). Raises ValueError for one that is not of this lab.

    A lab home that was moved or copied keeps its finished runs (`over`): the folder of that name which is there now is
    meant. What has not ended stays where it was begun: its worker may be at work for the home of that place.
    """
    if value is None:
        return None
    if isinstance(value, str) and value and "/" not in value and not _is_utf8(str(lab.runs)):  # see `stored_run`
        value = str(lab.runs / value)
    if over and isinstance(value, str) and Path(value).parent.name == lab.runs.name:
        here = lab.runs / Path(value).name
        if lab.is_run(here) and (here == Path(value) or here.is_dir()):
            return str(here)
    if not isinstance(value, str) or not lab.is_run(Path(value)):
        shown = repr(value)
        raise ValueError(f"{shown if len(shown) <= 200 else shown[:199] + '…'} is no run folder of this lab")
    return value


def stored_run(run: str | None) -> str | None:
    """Return a run folder as it is written into a row: its name alone where the path of its lab home is not UTF-8."""
    return run if _is_utf8(run or "") else Path(run or "").name


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class ColumnReader:
    """How one column is read: `empty` stands for what cannot be, and NULL is allowed where that is None."""

    read: Callable[[Any], Any]
    empty: Any = None

    def __call__(self, value: Any) -> Any:
        return None if value is None and self.empty is None else self.read(value)


READERS: Mapping[str, ColumnReader] = {
    "preset": ColumnReader(text, "?"),
    "kind": ColumnReader(text, "?"),
    "title": ColumnReader(text, "?"),
    "spec": ColumnReader(table, {}),
    "options": ColumnReader(table, {}),
    "devices": ColumnReader(names, ()),
    "server": ColumnReader(text),
    "serves": ColumnReader(text),
    "keep": ColumnReader(bool, False),
    "hand_over": ColumnReader(bool, False),
    "flow": ColumnReader(whole),
    "step": ColumnReader(text),
    "server_for": ColumnReader(whole),
    "priority": ColumnReader(whole, 0),
    "position": ColumnReader(number, 0.0),
    "state": ColumnReader(state_of, "lost"),
    "reason": ColumnReader(text),
    "note": ColumnReader(text),
    "attempt": ColumnReader(whole, 1),
    "failures": ColumnReader(whole, 0),
    "not_before": ColumnReader(number, 0.0),
    "added": ColumnReader(number, 0.0),
    "started": ColumnReader(number),
    "ended": ColumnReader(number),
    "pid": ColumnReader(process_id),
    "pid_started": ColumnReader(text),
    "granted": ColumnReader(names, ()),
    "guest_of": ColumnReader(whole),
    "stop": ColumnReader(text),
}
# A line's options are shared with other lines of the same text.
LINE_READERS: Mapping[str, ColumnReader] = {
    key: ColumnReader(options, {}) if key == "options" else READERS[key]
    for key in ("devices", "server", "serves", "hand_over", "options", "not_before", "failures")
}


def read(values: dict[str, Any], readers: Mapping[str, ColumnReader]) -> tuple[dict[str, Any], str]:
    """Return a row as its columns' readers take it, and what is wrong with the first bad one ("" for nothing).

    One bad row must not hide all the others: what cannot be read is empty.
    """
    damage = ""
    for key, reader in readers.items():
        try:
            values[key] = reader(values[key])
        except (ValueError, TypeError, RecursionError) as error:
            values[key], damage = reader.empty, damage or f"{key}: {error}"
    return values, damage


def limit(options: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """Return a number of the [queue] table; `default` where it is missing, or none after all (a damaged row)."""
    value = options.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default


def backoff(options: Mapping[str, Any], failures: int) -> float:
    """Seconds before the next attempt of a job that had failed `failures` times in a row before this time."""
    return limit(options, "backoff_s", 30.0) * 2.0 ** min(max(failures, 0), 20)


def unreadable(what: str, over: bool = False) -> str:
    """Return the sentence for a row of the queue that cannot be used; `over`: of a job that has ended."""
    return f"its record in the queue is damaged ({what})" + ("" if over else ": cancel it and add it anew")


def flow_state(steps: list[tuple[str, str, str | None]], open_steps: int = 0) -> tuple[str, str | None]:
    """State and reason of a flow from its steps' (state, name, reason): the worst that has happened, once none runs.

    open_steps: how many of its queued steps do not wait for one that ended badly, so that it goes on without that.
    """
    states = [state for state, _, _ in steps]
    if any(state in ACTIVE for state in states):
        return "running", None
    bad = [word for word in ("failed", "lost", "cancelled") if word in states]
    if bad and open_steps:
        return "running", None
    for state, name, reason in steps:
        if bad and state == bad[0]:
            # Steps that still wait for it are waiting for a retry: the flow as a whole has come to a stop.
            return state, f"step {name}: {reason or state}"
    if all(state == "done" for state in states):
        return "done", None
    return ("running" if "done" in states else "queued"), None
