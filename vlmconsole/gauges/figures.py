"""What a source of gauges hands over: figures with their age, and the marks that explain a jump in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from vlmconsole.errors import LabError


class SourceError(LabError):
    """A source has nothing to show now; the message says why in one line. It is asked again."""


@dataclass(frozen=True)
class Figure:
    """One figure as its source gave it, in SI units (s, bytes, tok/s; shares as 0–1).

    ``samples`` are single observations (one request's TTFT each) where the source has them; then now, p50 and p95
    come from them. ``p50`` and ``p95`` are the source's own estimates. ``age_s`` is how much older the figure is than
    the reading that carried it; ``stale`` says that the source knows it to be old. ``note`` is for people.
    """

    value: float | None
    total: float | None = None
    p50: float | None = None
    p95: float | None = None
    samples: tuple[float, ...] = ()
    age_s: float = 0.0
    stale: bool = False
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """Something that explains a jump in a curve: a cell changed, a cache was flushed, a server restarted."""

    at: float  # wall-clock seconds
    text: str


@dataclass(frozen=True)
class Batch:
    """One reading of one source ``at`` wall-clock seconds. ``missing`` says why there is none."""

    source: str
    at: float
    figures: Mapping[str, Figure] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    missing: str = ""
    hint: str = ""
    job: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The line of a recording; empty parts are left out."""
        whole = asdict(self)
        whole["figures"] = {
            key: {name: value for name, value in figure.items() if value not in (None, "", (), False, 0.0)}
            | {"value": figure["value"]}
            for key, figure in whole["figures"].items()
        }
        return {name: value for name, value in whole.items() if value not in (None, "", (), {})}

    @classmethod
    def from_json(cls, whole: Mapping[str, Any]) -> Batch:
        """The batch of a recorded line. Raises KeyError, TypeError or ValueError when it is none."""
        figures = {
            str(key): Figure(**{**figure, "samples": tuple(figure.get("samples", ()))})
            for key, figure in whole.get("figures", {}).items()
        }
        marks = tuple(Mark(float(mark["at"]), str(mark["text"])) for mark in whole.get("marks", ()))
        return cls(
            str(whole["source"]),
            float(whole["at"]),
            figures,
            marks,
            str(whole.get("missing", "")),
            str(whole.get("hint", "")),
            whole.get("job"),
        )


class Source(Protocol):
    """Something that can be asked about once a second. ``read`` may block: each source has a thread of its own."""

    @property
    def name(self) -> str:
        """``server``, ``own``, ``host``…: shown with every figure."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The figures it will have, so that a missing one still has its tile."""

    @property
    def slow(self) -> float:
        """Seconds between two readings at least; 0: every tick."""

    def read(self) -> Batch:
        """One reading. Raises SourceError when there is none."""

    def close(self) -> None:
        """Let go of connections and children."""


@runtime_checkable
class Remembering(Protocol):
    """A source that knows something of the time before it was first asked."""

    def past(self) -> list[Batch]:
        """What it knows, oldest first; asked for once, before the first reading. Never raises."""


def beginning(text: str) -> str:
    """How an unexpected answer begins, for a reason that people read: one line, nothing that a terminal obeys."""
    words = "".join(c if c.isprintable() else " " for c in " ".join(text[:200].split()))[:60]
    return f"“{words}…”" if words else "with nothing: it is empty"


#: figure → (title, unit). GPUs are numbered (`gpu0.memory`), another machine's carry its name (`gpu0@box.memory`).
TITLES: dict[str, tuple[str, str]] = {
    "own.ttft": ("TTFT", "s"),
    "own.tpot": ("per token", "s"),
    "own.throughput": ("throughput", "tok/s"),
    "own.in_flight": ("own in flight", ""),
    "own.lag": ("client lag", "s"),
    "server.ttft": ("server TTFT", "s"),
    "server.queue_time": ("server queue time", "s"),
    "server.tpot": ("server per token", "s"),
    "server.throughput": ("server throughput", "tok/s"),
    "server.running": ("running", ""),
    "server.queued": ("queued", ""),
    "server.kv": ("KV cache", "share"),
    "server.hit_rate": ("prefix cache hit", "share"),
    "host.cpu": ("CPU", "share"),
    "host.memory": ("RAM", "bytes"),
    "host.disk": ("disk", "bytes"),
    "host.unified": ("unified memory", "bytes"),
    "gpu.memory": ("GPU memory", "bytes"),
    "gpu.use": ("GPU use", "share"),
    "gpu.power": ("GPU power", "W"),
    "gpu.temperature": ("GPU temperature", "°C"),
}

_GPU = re.compile(r"gpu(\d+(?:\.mig\d+)?)(@.+)?\.(memory|use|power|temperature)")


def title_of(key: str) -> tuple[str, str]:
    """(title, unit) of a figure; the key itself and no unit for one that is not known."""
    gpu = _GPU.fullmatch(key)
    if gpu is None:
        return TITLES.get(key, (key, ""))
    title, unit = TITLES[f"gpu.{gpu[3]}"]
    return f"{title} {gpu[1]}{gpu[2] or ''}", unit
