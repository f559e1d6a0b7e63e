"""Starting the client process, feeding it the plan, and following it until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.measure.client.plan import LoadPlan

Progress = Callable[[dict[str, Any]], None]
Watch = Callable[[], Mapping[str, float]]
WATCH_S = 1.0
WATCH_GRACE_S = 10.0  # longest wait for a last reading, which has deadlines of its own
TERM_GRACE_S = 10.0


class LoadError(LabError):
    """The cell could not be run at all."""


def run_client(
    plan: LoadPlan,
    *,
    on_progress: Progress | None,
    on_turn: Callable[[], None],
    stopping: Callable[[], bool],
    watch: Watch | None,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Let a client process run `plan`; returns its report and what `watch` saw, once a second, in its own thread.

    `on_turn` is called some ten times a second (to take in what has ended); it must be short. Raises LoadError when
    the client ended without having begun to measure.
    """
    watcher = _Watcher(watch)
    with tempfile.TemporaryFile() as stderr:
        # -P: a folder named like one of our modules in the working directory must not be imported instead.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vlmconsole.measure.client.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its report or its stderr says why
                process.stdin.write(plan.to_json().encode() + b"\n")
                process.stdin.flush()
            follower = _Follower(process.stdout.fileno(), on_progress)
            asked = False
            watcher.start()
            while follower.wait():
                on_turn()
                if stopping() and not asked:
                    asked = True
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
            process.wait(TERM_GRACE_S)
        finally:
            seen = watcher.finish()
            _end(process)
        stderr.seek(0)
        return _report(plan, stderr.read().decode("utf-8", "replace")), seen


class _Watcher(threading.Thread):
    """Asks the server for its own numbers; one that drips holds up neither the intake nor a stop."""

    def __init__(self, watch: Watch | None) -> None:
        super().__init__(name="watch", daemon=True)
        self._watch, self._over, self._lock = watch, threading.Event(), threading.Lock()
        self._seen: dict[str, list[float]] = {}

    def run(self) -> None:
        while self._watch is not None:
            values = self._watch()
            with self._lock:
                for key, value in values.items():
                    self._seen.setdefault(key, []).append(value)
            if self._over.wait(WATCH_S):
                return

    def finish(self) -> dict[str, list[float]]:
        """Return what was seen; nothing more is asked for."""
        self._over.set()
        if self.ident is not None:
            self.join(WATCH_GRACE_S)
        with self._lock:
            return {key: list(values) for key, values in self._seen.items()}


class _Follower:
    """The client's progress lines."""

    def __init__(self, descriptor: int, on_progress: Progress | None) -> None:
        self._descriptor, self._on_progress = descriptor, on_progress
        self._rest = b""

    def wait(self) -> bool:
        """Wait a tenth of a second, or for a line; False when the client closed its output."""
        ready, _, _ = select.select([self._descriptor], [], [], 0.1)
        if not ready:
            return True
        data = os.read(self._descriptor, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._on_progress is not None:
            self._on_progress(json.loads(lines[-1]))
        return bool(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _report(plan: LoadPlan, stderr: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(Path(plan.report).read_text())
    except (OSError, ValueError):
        last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(f"The load client ended without its report: {last}") from None
    if report.get("error") and not report.get("phases"):
        raise LoadError(f"Nothing was measured: {report['error']}.")
    return report
