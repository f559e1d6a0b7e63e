"""What the load client is told to do: one cell as phases of prepared requests, and when each is due.

The plan goes to the client's standard input, so that a key in a header never lies on a disk. Request
bodies lie in one file and are mapped: a body is a list of `(offset, length)` segments, so a picture
that many requests share exists once, and memory stays bounded however many requests there are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

WARM_UP, MEASURED = "warm-up", "measured"

Segments = list[tuple[int, int]]


@dataclass(frozen=True)
class LoadPhase:
    """Requests of one kind. Closed loop: `concurrency` always in flight. Open loop: each at its due time.

    `due_s` holds seconds after the phase's clock start, one per request; None means closed loop.
    `requests` holds `(index, body segments)`; after `until_s` seconds none of them is sent any more.
    """

    name: str
    requests: list[tuple[int, Segments]]
    concurrency: int
    due_s: list[float] | None = None
    until_s: float | None = None


@dataclass(frozen=True)
class LoadPlan:
    """One cell for the client process. Times in seconds; `spill` and `report` are paths it writes."""

    host: str
    port: int
    path: str
    bodies: str
    spill: str
    report: str
    phases: list[LoadPhase]
    headers: list[tuple[str, str]] = field(default_factory=list)
    tls: bool = False
    listener: int | None = None  # inode of the socket that must take every connection; None: any
    request_id: str = "r"
    connect_timeout_s: float = 10.0
    stall_timeout_s: float = 120.0  # no byte for so long: the request is given up as stalled
    total_timeout_s: float = 900.0
    largest_answer: int = 16 * 1024 * 1024  # bytes of one answer with its head; more: it is given up as too large
    most_reads: int = 200_000  # of one answer
    kernel_stamps: bool = True
    tick_s: float = 0.02  # period of the lag probe

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LoadPlan:
        """Read back what :meth:`to_json` wrote. Raises ValueError or TypeError on anything else."""
        value: dict[str, Any] = json.loads(text)
        value["phases"] = [LoadPhase(**phase) for phase in value["phases"]]
        return cls(**value)


class BodyFile:
    """Gathers request bodies into one file; equal segments (a shared picture) are stored once."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: PTH123, SIM115 - closed by close()
        self._at = 0
        self._known: dict[bytes, tuple[int, int]] = {}  # SHA-256 of a shared part → where it is

    def add(self, parts: list[bytes], shared: frozenset[int] | set[int] = frozenset()) -> Segments:
        """Store a body made of `parts`; the parts numbered in `shared` are looked up before they are stored."""
        segments: Segments = []
        for number, part in enumerate(parts):
            digest = hashlib.sha256(part).digest() if number in shared else b""
            place = self._known.get(digest)
            if place is None:
                place = (self._at, len(part))
                self._file.write(part)
                self._at += len(part)
                if number in shared:
                    self._known[digest] = place
            segments.append(place)
        return segments

    def close(self) -> None:
        self._file.close()
