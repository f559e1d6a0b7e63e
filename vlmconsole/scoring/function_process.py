"""A user's scoring function in a child process with a deadline: what it raises or hangs in ends here as a reason."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmconsole.scoring.function_prints import FunctionPrints, last_words

START_LIMIT = 60.0  # seconds for starting Python and for the imports of the file
CALL_LIMIT = 10.0  # seconds for one answer
LONGEST_REPLY = 2**20  # bytes


class FunctionFailure(Exception):
    """The function gave no value for this answer; the text says why."""


class FunctionProcess:
    """One function of one file, started at the first call, and again after it hung or died. Safe to call from threads.

    `sha256` (hex) is of the file's bytes: a file that was changed meanwhile is not run.
    """

    def __init__(self, file: Path, function: str, sha256: str) -> None:
        self.file, self.function, self.sha256 = file, function, sha256
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._prints = FunctionPrints(function)
        self._copied: threading.Thread | None = None

    def call(self, request: Mapping[str, Any], limit: float = CALL_LIMIT) -> Any:
        """Return the JSON value that the function gives for a request. Raises FunctionFailure, after `limit` s at
        most.
        """
        with self._lock:
            child = self._started()
            try:
                line = json.dumps(request, default=str).encode() + b"\n"
            except (ValueError, RecursionError) as error:
                raise FunctionFailure(f"it cannot be given this answer and truth: {error}") from None
            try:
                assert child.stdin is not None
                child.stdin.write(line)
                child.stdin.flush()
            except OSError:
                raise self._ended() from None
            return self._read(child, limit, f"it took longer than {limit:g} s")

    def close(self) -> None:
        """End the child process."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            _kill(child, self._copied)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return self._child
        self.close()
        command = [sys.executable, "-P", "-m", "vlmconsole.scoring.function_worker", str(self.file), self.function]
        # A session of its own, so that what the function starts ends with it. What it prints goes into a job's log,
        # up to a limit, and never onto the screen of a console.
        prints = subprocess.DEVNULL if os.isatty(2) else subprocess.PIPE
        child = subprocess.Popen(
            [*command, self.sha256],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=prints,
            start_new_session=True,
        )
        self._child, self._owner = child, os.getpid()
        self._copied = None if child.stderr is None else self._prints.follow(child.stderr)
        weakref.finalize(self, _kill, child, self._copied)
        self._read(child, START_LIMIT, f"its file took longer than {START_LIMIT:g} s to import")
        return child

    def _read(self, child: subprocess.Popen[bytes], limit: float, late: str) -> Any:
        assert child.stdout is not None
        until, data = time.monotonic() + limit, b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while not data.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    self.close()
                    raise FunctionFailure(late)
                piece = os.read(child.stdout.fileno(), 65536)
                data += piece
                if not piece:
                    raise self._ended()
                if len(data) > LONGEST_REPLY:
                    self.close()
                    raise FunctionFailure("its value is longer than a megabyte")
        try:
            reply = json.loads(data)
        except ValueError:
            self.close()
            raise FunctionFailure("its process gave no value") from None
        if "error" in reply:
            raise FunctionFailure(str(reply["error"]))
        return reply["value"]

    def _ended(self) -> FunctionFailure:
        child = self._child
        self.close()
        code = child.poll() if child is not None else None
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return FunctionFailure(f"its process ended ({how})")


def _kill(child: subprocess.Popen[bytes], copied: threading.Thread | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.wait()
    last_words(copied)
