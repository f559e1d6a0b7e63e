"""Starting the client process, feeding it the plan, and following it until it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.measure.plan import Plan

Progress = Callable[[dict[str, Any]], None]
Watch = Callable[[], Mapping[str, float]]
WATCH_S = 1.0
TERM_GRACE_S = 10.0


class LoadError(LabError):
    """The cell could not be run at all."""


def run_client(
    plan: Plan,
    *,
    on_progress: Progress | None,
    on_turn: Callable[[], None],
    stopping: Callable[[], bool],
    watch: Watch | None,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Let a client process run ``plan``; returns its report and what ``watch`` saw, once a second.

    ``on_turn`` is called some ten times a second (to take in what has ended); it must be short. Raises LoadError when
    the client ended without having begun to measure.
    """
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryFile() as stderr:
        # -P: a folder named like one of our modules in the working directory must not be imported instead.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vlmconsole.measure.client"],
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
            asked, next_watch = False, time.monotonic()
            while follower.wait():
                on_turn()
                if stopping() and not asked:
                    asked = True
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
                if watch is not None and time.monotonic() >= next_watch:
                    next_watch = time.monotonic() + WATCH_S
                    for key, value in watch().items():
                        seen.setdefault(key, []).append(value)
            process.wait(TERM_GRACE_S)
        finally:
            _end(process)
        stderr.seek(0)
        return _report(plan, stderr.read().decode("utf-8", "replace")), seen


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


def _report(plan: Plan, stderr: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(Path(plan.report).read_text())
    except (OSError, ValueError):
        last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadError(f"The load client ended without its report: {last}") from None
    if report.get("error") and not report.get("phases"):
        raise LoadError(f"Nothing was measured: {report['error']}.")
    return report
