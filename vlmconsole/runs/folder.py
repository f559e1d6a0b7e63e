"""A run folder is the bus: the worker writes it, every screen and command only reads it."""

import contextlib
import functools
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.events import EventWriter, append_line, finite, parse_line
from vlmconsole.system.privacy import users_mode
from vlmconsole.system.redaction import redacted
from vlmconsole.text.plain import one_line

LATEST = 1e11  # wall seconds: a later moment in a damaged file is none
OBJECTS = ("job.json", "state.json", "summary.json", "conditions.json")
SERVER = "serve"  # the kind of a run that is a server's
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")  # of `write_atomic`
FINAL = frozenset({"done", "failed", "cancelled", "lost"})
STATES = ("queued", "starting", "running", "done", "failed", "cancelled", "lost")


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Replace `path` by `data` so that readers see the old or the new file, never a part.

    Temporary file in the same folder, fsync, rename. Raises OSError, with the temporary removed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    payload = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if mode != 0o600:
            os.fchmod(descriptor, mode)  # our own umask would cut it
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_for_user(path: Path, data: bytes | str) -> None:
    """Write a file that the user asked for elsewhere, with the mode that their own umask gives. Raises OSError."""
    write_atomic(path, data, mode=users_mode())


def folder_for_user(path: Path) -> None:
    """Make a folder that the user asked for elsewhere, and what is missing above it, as `write_for_user` does."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        folder.chmod(users_mode(0o777))


def to_json(value: Any) -> str:
    """Indented JSON for files that people open; non-finite numbers become strings, and no key in use is in it."""
    return json.dumps(finite(redacted(value)), indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _bytes(value: Any) -> bytes:
    # A lone surrogate (a file name that is no UTF-8) must not stop a run from being written.
    return to_json(value).encode("utf-8", "backslashreplace")


class RunFolder:
    """One attempt of one job. Cheap to make: nothing is read until asked for."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.events = EventWriter(self.path / "events.jsonl")
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        parent: Path,
        *,
        kind: str,
        preset: str,
        spec: dict[str, Any],
        title: str,
        home: Path,
        name: str | None = None,
        **more: Any,
    ) -> "RunFolder":
        """Make `parent/YYYYmmdd-HHMMSS-<preset>-<4 hex>` holding `job.json` and state *queued*.

        `more` goes into job.json as it is: `earlier` (folder of the attempt this one continues),
        `attempt`, `environment`, `timing_sensitive` and the like.
        """
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = parent / (name or cls.new_name(parent, preset))
        path.mkdir(mode=0o700)
        run = cls(path)
        job = {"kind": kind, "preset": preset, "title": title, "spec": spec, "home": str(home), **more}
        run.write_json("job.json", {**job, "created": round(time.time(), 3)})
        run.set_state("queued", attempt=more.get("attempt", 1))
        return run

    @staticmethod
    def new_name(parent: Path, preset: str) -> str:
        """Return a name that no run in `parent` has. The queue books it before it makes the folder."""
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", preset).strip("-.")[:60] or "run"
        while True:
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}-{secrets.token_hex(2)}"
            if not (parent / name).exists():
                return name

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def file(self, name: str) -> Path:
        return self.path / name

    def job(self) -> dict[str, Any]:
        """`job.json`: kind, preset, title, spec, home, created… Empty when missing or unreadable."""
        value = self.read_json("job.json", {})
        return value if isinstance(value, dict) else {}

    def state(self) -> dict[str, Any]:
        """`state.json`: state, reason, pid, pid_started, started, ended, heartbeat, attempt."""
        value = self.read_json("state.json", {})
        return value if isinstance(value, dict) else {}

    def set_state(self, state: str | None, reason: str | None = None, **more: Any) -> dict[str, Any]:
        """Move to `state` (None keeps it) with a new reason and the fields `more`; returns the whole."""
        if state is not None and state not in STATES:
            raise ValueError(f"no such state: {state}")
        with self._lock:
            now = self.state()
            if state is not None:
                now.update(state=state, reason=reason)
            now.update(more)
            write_atomic(self.file("state.json"), _bytes(now))
        return now

    def write_json(self, name: str, value: Any) -> Path:
        """Write `name` atomically; returns its path."""
        path = self.file(name)
        write_atomic(path, _bytes(value))
        return path

    def read_json(self, name: str, default: Any = None) -> Any:
        """Return the JSON in `name`, or `default` when it is missing or unreadable."""
        try:
            if not self.file(name).is_file():  # a device or a pipe would never end
                return default
            return json.loads(self.file(name).read_text("utf-8", "replace"))
        except (OSError, ValueError, RecursionError):
            return default

    def unreadable(self) -> list[str]:
        """Return those of its own JSON files that are there and hold no object: damaged, or no file at all."""
        return [
            name for name in OBJECTS if os.path.lexists(self.file(name)) and not isinstance(self.read_json(name), dict)
        ]

    def append_jsonl(self, name: str, *values: Any) -> None:
        """Append lines to `name`, all in one write (a torn last line is closed first)."""
        append_line(self.file(name), *values)

    def read_jsonl(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of `name`, torn or bad lines left out; nothing when it is missing."""
        if not self.file(name).is_file():  # missing, or a device or pipe that would never end
            return
        try:
            file = self.file(name).open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:
                value = parse_line(line) if line.strip() else None
                if value is not None:
                    yield value


def list_runs(parent: Path) -> list[RunFolder]:
    """Return every run folder below `parent`, newest first by the instant that its job.json records.

    A name begins with the local time, which goes back where time zones differ, and in autumn. Within one instant the
    file's own time decides, so that `last` is the last.
    """
    dated: list[tuple[float, int, str]] = []
    try:
        names = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except FileNotFoundError:
        return []
    for name in names:
        with contextlib.suppress(OSError):
            job = (parent / name / "job.json").stat()
            dated.append((_begun(parent / name, job.st_mtime_ns, job.st_size), job.st_mtime_ns, name))
    return [RunFolder(parent / name) for *_, name in sorted(dated, reverse=True)]


@functools.lru_cache(16384)
def _begun(path: Path, changed: int, size: int) -> float:
    """When a run was made, wall seconds; the time of its job.json where that tells none. Read again when it changed."""
    created = RunFolder(path).job().get("created")
    if isinstance(created, int | float) and not isinstance(created, bool) and 0 < created < LATEST:
        return float(created)
    return changed / 1e9


class NoRunError(LabError):
    """No run is meant by that name, or several are; the message says which."""

    exit_status = 2


def find_run(parent: Path, name: str) -> RunFolder:
    """Return the run called `name`: a path, a full name, or an unambiguous part of one; `last` is the newest that is no
    server's.

    Raises NoRunError.
    """
    with contextlib.suppress(OSError):  # a name that is too long for one
        if (Path(name) / "job.json").exists():
            return RunFolder(Path(name).absolute())
    runs = list_runs(parent)
    if name == "last":
        for run in runs:
            if run.job().get("kind") != SERVER:
                return run
    matches = [run for run in runs if run.name == name] or [run for run in runs if name and name in run.name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = ", ".join(run.name for run in matches[:4])
        raise NoRunError(f"“{name}” fits {len(matches)} runs ({some}…): give more of the name")
    raise NoRunError(f"no run “{one_line(name, 200)}” in {parent}: `vlmconsole runs list` shows what there is")
