"""Events of a run: one JSON object a line, append-only, written by the worker, tailed by everyone else."""

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmconsole.system.redaction import redacted

READ_LIMIT = 4 * 1024 * 1024  # bytes one read may take in, so that a huge file is never taken whole


def json_line(value: Any) -> bytes:
    """Return one line of strict JSON. Non-finite numbers become the strings "NaN", "Infinity", "-Infinity".

    No key in use is in it, whoever repeated it.
    """
    value = redacted(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, default=str)
    # A lone surrogate (a file name that is no UTF-8) must not stop a run from being written.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def append_line(path: Path, *values: Any) -> None:
    """Append JSON lines, all of them in a single write, after closing a line that a crash left torn."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + b"".join(json_line(value) for value in values)
        # A short write happens when the disk fills: write the rest, which then raises ENOSPC.
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


class EventWriter:
    """Appends events to `path`, safe from several threads. Each has `t` (wall seconds) and `kind`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._course: dict[str, float] = {}
        self._phase = ""
        self._overall = 0.0

    def course(self, phases: Mapping[str, float]) -> None:
        """The phases of the whole job in their order, each with the seconds that it is expected to take.

        From then on progress tells, beside how far its phase is, how far the whole job is. The seconds matter by their
        proportions only; a phase of 0 is one that is not needed.
        """
        self._course, self._overall = dict(phases), 0.0

    def phase(self, name: str) -> None:
        """What follows belongs to that phase; one that is not in the course takes no share of the whole."""
        self._phase = name

    def emit(self, kind: str, **fields: Any) -> None:
        """Any event. Raises OSError when the disk is full: the worker turns that into the job's reason."""
        with self._lock:
            append_line(self.path, {"t": round(time.time(), 3), "kind": kind, **fields})

    def progress(self, done: float, total: float | None, unit: str = "step", note: str | None = None) -> None:
        """How far the job is: `done` of `total` units (None when the end is not known), of its present phase where
        it has several; `overall` is then the share of the whole, 0 to 1, which never falls.
        """
        more: dict[str, Any] = {"note": note} if note else {}
        if self._phase:
            more["phase"] = self._phase
        if self._course:
            more["overall"] = self._whole(done / total if total else 0.0)
        self.emit("progress", done=done, total=total, unit=unit, **more)

    def _whole(self, share: float) -> float:
        before, width, whole = 0.0, 0.0, sum(self._course.values())
        for name, seconds in self._course.items():
            if name == self._phase:
                width = seconds
                break
            before += seconds
        if width and whole:
            self._overall = max(self._overall, min(1.0, (before + width * min(1.0, max(0.0, share))) / whole))
        return round(self._overall, 4)

    def metric(self, name: str, value: float, step: int | None = None, unit: str | None = None) -> None:
        """One point of a curve, e.g. `loss` at step 12; `unit` as people write it (`s`, `tok/s`)."""
        more: dict[str, Any] = {}
        if step is not None:
            more["step"] = step
        if unit is not None:
            more["unit"] = unit
        self.emit("metric", name=name, value=float(value), **more)

    def note(self, text: str, level: str = "info") -> None:
        """A sentence for people; `level` is info, warning or error."""
        self.emit("note", text=text, level=level)


class EventTail:
    """Reads what was added since the last call, by offset.

    A torn last line waits for its rest; a bad line is skipped and counted in `bad`; a file that
    became shorter is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.bad = 0

    def read(self, limit: int = READ_LIMIT) -> list[dict[str, Any]]:
        """New events, at most about `limit` bytes of them; an empty list when there are none."""
        if not self.path.is_file():  # missing, or a device or pipe that would never end
            return []
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                data = file.read(limit)
                if len(data) == limit and b"\n" not in data:  # one line longer than the limit
                    data += file.readline()
        except FileNotFoundError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        events = []
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            event = parse_line(line)
            if event is None:
                self.bad += 1
            else:
                events.append(event)
        return events


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None when it is torn or is no object."""
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
