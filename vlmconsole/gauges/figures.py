"""What a source of gauges hands over: figures with their age, and the marks that explain a jump in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from vlmconsole.errors import LabError

_MOST = 1e30  # above any figure; NaN and infinities are no numbers here
_LAST_SECOND = 253_000_000_000  # in the year 9987


class SourceError(LabError):
    """A source has nothing to show now; the message says why in one line. It is asked again."""


@dataclass(frozen=True)
class Figure:
    """One figure as its source gave it, in SI units (s, bytes, tok/s; shares as 0–1).

    `samples` are single observations (one request's TTFT each) where the source has them; then now, p50 and p95
    come from them. `p50` and `p95` are the source's own estimates. `age_s` is how much older the figure is than
    the reading that carried it; `stale` says that the source knows it to be old. `note` is for people.
    `subject` names whose figure it is where that may change (the server or run that was measured, a server's
    address): figures of two subjects never share a curve.
    """

    value: float | None
    total: float | None = None
    p50: float | None = None
    p95: float | None = None
    samples: tuple[float, ...] = ()
    age_s: float = 0.0
    stale: bool = False
    note: str = ""
    subject: str = ""


@dataclass(frozen=True)
class Mark:
    """Something that explains a jump in a curve: a cell changed, a cache was flushed, a server restarted."""

    at: float  # wall-clock seconds
    text: str


@dataclass(frozen=True)
class Batch:
    """One reading of one source `at` wall-clock seconds. `missing` says why there is none."""

    source: str
    at: float
    figures: Mapping[str, Figure] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    missing: str = ""
    hint: str = ""
    job: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line of a recording; empty parts are left out."""
        whole = asdict(self)
        whole["figures"] = {
            key: {name: value for name, value in figure.items() if value not in (None, "", (), False, 0.0)}
            | {"value": figure["value"]}
            for key, figure in whole["figures"].items()
        }
        return {name: value for name, value in whole.items() if value not in (None, "", (), {})}

    @classmethod
    def from_json(cls, whole: Mapping[str, Any]) -> Batch:
        """Return the batch of a recorded line. Raises KeyError, TypeError or ValueError when it is none.

        A recording is a file that anybody may have written: every type is looked at.
        """
        marks = tuple(Mark(_moment(mark["at"]), _text(mark["text"])) for mark in _list(whole.get("marks", [])))
        return cls(
            _text(whole["source"]),
            _moment(whole["at"]),
            {_text(key): _figure(figure) for key, figure in _table(whole.get("figures", {})).items()},
            marks,
            _text(whole.get("missing", "")),
            _text(whole.get("hint", "")),
            _job(whole.get("job")),
        )


def _figure(value: Any) -> Figure:
    """A recorded figure. Raises TypeError for a name that no figure has, and ValueError for a wrong value."""
    read: dict[str, Any] = {}
    for name, entry in _table(value).items():
        if name == "samples":
            read[name] = tuple(_number(sample) for sample in _list(entry))
        elif name == "stale":
            read[name] = entry is True
        elif name in ("note", "subject"):
            read[name] = _text(entry)
        else:
            read[name] = None if entry is None and name != "age_s" else _number(entry)
    return Figure(**read)


def _job(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    for name in ("progress", "conditions", "spec"):
        inner = value.get(name)
        if inner is not None:
            _table(inner)
    for name in ("done", "total"):
        entry = (value.get("progress") or {}).get(name)
        if entry is not None:
            _number(entry)
    return _table(value)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is not a table")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.60} is not a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not text")
    return value


def _number(value: Any) -> float:
    """A number that arithmetic and a format can meet. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"{value!r:.60} is not a number")
    return value


def _moment(value: Any) -> float:
    """Wall-clock seconds that a calendar can show. Raises ValueError."""
    if not 0 <= _number(value) < _LAST_SECOND:
        raise ValueError(f"{value!r:.60} is not a time")
    return float(value)


class GaugeSource(Protocol):
    """Something that can be asked about once a second. `read` may block: each source has a thread of its own."""

    @property
    def name(self) -> str:
        """`server`, `own`, `host`…: shown with every figure."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The figures it will have, so that a missing one still has its tile."""

    @property
    def slow(self) -> float:
        """Seconds between two readings at least; 0: every tick."""

    def read(self) -> Batch:
        """Return one reading. Raises SourceError when there is none."""

    def close(self) -> None:
        """Let go of connections and children."""


@runtime_checkable
class Remembering(Protocol):
    """A source that knows something of the time before it was first asked."""

    def past(self) -> list[Batch]:
        """Return what it knows, oldest first; asked for once, before the first reading. Never raises."""


#: figure → (title, unit). GPUs are numbered (`gpu0.memory`), another machine's carry its name (`gpu0@box.memory`).
TITLES: dict[str, tuple[str, str]] = {
    "own.ttft": ("client TTFT", "s"),
    "own.tpot": ("client per token", "s"),
    "own.throughput": ("client throughput", "tok/s"),
    "own.in_flight": ("in flight", ""),
    "own.lag": ("client lag", "s"),
    "server.ttft": ("server TTFT", "s"),
    "server.queue_time": ("server queue time", "s"),
    "server.tpot": ("server per token", "s"),
    "server.throughput": ("server throughput", "tok/s"),
    "server.running": ("running", ""),
    "server.queued": ("queued", ""),
    "server.kv": ("KV cache", "share"),
    "server.kv_cached": ("KV cached", "share"),
    "server.hit_rate": ("prefix cache hits", "share"),
    "host.cpu": ("CPU", "share"),
    "host.memory": ("RAM", "bytes"),
    "host.disk": ("disk", "bytes"),
    "host.unified": ("unified memory", "bytes"),
    "gpu.memory": ("GPU memory", "bytes"),
    "gpu.use": ("GPU use", "share"),
    "gpu.power": ("GPU power", "W"),
    "gpu.temperature": ("GPU temperature", "°C"),
}

#: What people read for a source, where its name in keys and recordings is another.
LABELS = {"own": "client"}

_GPU = re.compile(r"gpu(\d+(?:\.mig\d+)?)(@.+)?\.(memory|use|power|temperature)")


def title_of(key: str) -> tuple[str, str]:
    """(title, unit) of a figure; the key itself and no unit for one that is not known."""
    gpu = _GPU.fullmatch(key)
    if gpu is None:
        return TITLES.get(key, (key, ""))
    title, unit = TITLES[f"gpu.{gpu[3]}"]
    return f"{title} {gpu[1]}{gpu[2] or ''}", unit
