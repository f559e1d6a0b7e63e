"""A job as the queue holds it."""

import functools
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

ACTIVE = ("starting", "running")
FINAL = ("done", "failed", "cancelled", "lost")
Mode = Literal["ok", "any"]


@dataclass(frozen=True)
class NewJob:
    """What to queue. ``devices`` are requests of `schedule.Want`; ``options`` is the preset's [queue] table."""

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
    """One row. Times are wall seconds. ``stop`` is why it was asked to stop; ``granted`` the devices it holds."""

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
    def from_row(cls, row: sqlite3.Row, after: tuple[tuple[int, Mode], ...] = ()) -> "Job":
        values = dict(zip(row.keys(), row, strict=True))
        damaged = ""
        readers: tuple[tuple[str, Callable[[Any], Any], Any], ...] = (
            ("spec", table, {}),
            ("options", table, {}),
            ("devices", names, ()),
            ("granted", names, ()),
            ("not_before", moment, 0.0),
            ("added", moment, 0.0),
        )
        for key, read, empty in readers:
            try:
                values[key] = read(values[key])
            except (ValueError, TypeError) as error:  # one bad row must not hide all the others
                values[key], damaged = empty, unreadable(f"{key}: {error}")
        for key in ("keep", "hand_over"):
            values[key] = bool(values[key])
        return cls(**values, after=after, damaged=damaged)


class QueueLine(NamedTuple):
    """A queued job as far as the scheduler must know it. ``options`` is shared: not to be changed."""

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


@functools.lru_cache(1024)
def names(text: str) -> tuple[str, ...]:
    """A JSON list of names; remembered, as most jobs of a queue ask for the same. Raises ValueError, TypeError."""
    value = json.loads(text)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("no list of names")
    return tuple(value)


@functools.lru_cache(1024)
def options(text: str) -> dict[str, Any]:
    """A JSON table; remembered and shared, so not to be changed. Raises ValueError, TypeError."""
    return table(text)


def table(text: str) -> dict[str, Any]:
    """A JSON table. Raises ValueError, TypeError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("no table")
    return value


def moment(value: object) -> float:
    """A time as a row holds it. Raises ValueError."""
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no time")
    return value


def limit(options: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """A number of the [queue] table; ``default`` where it is missing, or none after all (a damaged row)."""
    value = options.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else default


def backoff(options: Mapping[str, Any], failures: int) -> float:
    """Seconds before the next attempt of a job that had failed ``failures`` times in a row before this time."""
    return limit(options, "backoff_s", 30.0) * 2.0 ** min(max(failures, 0), 20)


def unreadable(what: str) -> str:
    """The sentence for a row of the queue that cannot be used."""
    return f"its record in the queue is damaged ({what}): cancel it and add it anew"


def flow_state(steps: list[tuple[str, str, str | None]], open_steps: int = 0) -> tuple[str, str | None]:
    """State and reason of a flow from its steps' (state, name, reason): the worst that has happened, once none runs.

    open_steps: how many of its queued steps do not wait for one that ended badly, so that it goes on without that.
    """
    states = [state for state, _, _ in steps]
    if any(state in ACTIVE for state in states):
        return "running", None
    bad = [one for one in ("failed", "lost", "cancelled") if one in states]
    if bad and open_steps:
        return "running", None
    for state, name, reason in steps:
        if bad and state == bad[0]:
            # Steps that still wait for it are waiting for a retry: the flow as a whole has come to a stop.
            return state, f"step {name}: {reason or state}"
    if all(state == "done" for state in states):
        return "done", None
    return ("running" if "done" in states else "queued"), None
