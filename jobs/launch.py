"""Starting a worker: its own session and process group, its output in the run's log."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vlmconsole.jobs.presets import Preset
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes


def create_run(
    places: Places, preset: Preset, spec: BaseModel, earlier: RunFolder | None = None, **more: Any
) -> RunFolder:
    """Return a new run folder for `preset` with its validated `spec`; `earlier` is the attempt that it continues."""
    if earlier is not None:
        more |= {"earlier": str(earlier.path), "attempt": int(earlier.state().get("attempt") or 1) + 1}
    return RunFolder.create(
        places.runs,
        kind=preset.kind,
        preset=preset.name,
        spec=spec.model_dump(mode="json"),
        title=preset.title,
        home=places.home,
        **more,
    )


def start_worker(
    run: RunFolder,
    interpreter: str | Path | None = None,
    *,
    keep_open: Sequence[int] = (),
    variables: Mapping[str, str | None] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `python -m vlmconsole.jobs.worker` on `run`; returns the process (its pid leads a new session).

    `-P` keeps the current folder off the import path, so that a user's own `vlmconsole/` or `json.py` cannot be
    imported by accident. `variables` are laid over our own (None takes one away). `keep_open` are descriptors that
    the worker inherits and holds for its life: the locks of its devices. Raises OSError when the interpreter cannot be
    started.
    """
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        processes.RUN_MARK: str(run.path),
    }
    for name, value in (variables or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    command = [str(interpreter or sys.executable), "-P", "-m", "vlmconsole.jobs.worker", str(run.path)]
    # The log catches what goes wrong before the worker can catch it itself, e.g. a missing package.
    log = os.open(run.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
            pass_fds=tuple(keep_open),
        )
    finally:
        os.close(log)


def log_tail(run: RunFolder, lines: int = 20, reach: int = 64 * 1024) -> list[str]:
    """Return the last `lines` of the log, reading at most `reach` bytes; `\\r` progress bars keep their last state."""
    try:
        with run.log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - reach))
            text = file.read(reach).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    lines_found = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in lines_found if line.strip()][-lines:]
