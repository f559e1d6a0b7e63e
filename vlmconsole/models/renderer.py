"""A chat template's own process, from outside: started when first needed, ended when it does not come back."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from vlmconsole.models import render_child

SECONDS = 2.0
"""Processor time of one call; a conversation of 5,000 messages takes a tenth of a second."""
PATIENCE_S = 30.0
"""On the clock, start included: only a machine that does nothing for us makes it that long."""
MEMORY = 512 * 1024**2
MOST = 8 * 1024**2
"""Characters of one rendering."""
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_TIME", "TZ", "SYSTEMROOT")


class RenderError(Exception):
    """What the template said, or what became of its process, in a phrase."""


class Renderer:
    """One template. Calls may come from several threads; one that ran out of time or memory is not tried again."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._worker: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._lost = ""
        self._buffer = b""

    def render(
        self, conversations: Sequence[tuple[Sequence[Mapping[str, Any]], bool]], variables: Mapping[str, Any]
    ) -> list[str]:
        """Return the text of each (messages, whether the next answer is begun). Raises RenderError."""
        asked = {
            "conversations": [{"messages": list(m), "add_generation_prompt": begun} for m, begun in conversations],
            "variables": dict(variables),
        }
        with self._lock:
            if self._lost:
                raise RenderError(self._lost)
            if self._worker is None:
                self._start()
            texts: list[str] = self._exchange(asked)
            return texts

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            worker, self._worker, self._buffer = self._worker, None, b""
        if worker is not None:
            _end(worker)

    def _start(self) -> None:
        try:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", render_child.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={key: os.environ[key] for key in _KEPT if key in os.environ} | {"PYTHONUTF8": "1"},
                start_new_session=True,
            )
        except OSError as error:  # no memory, no file descriptor: the next call may have them
            raise RenderError(f"its process could not be started: {error.strerror or error}") from None
        weakref.finalize(self, _end, self._worker)
        self._exchange({"template": self._template, "memory": MEMORY, "seconds": SECONDS, "most": MOST})

    def _exchange(self, value: dict[str, Any]) -> Any:
        worker = self._worker
        assert worker is not None and worker.stdin is not None
        until = time.monotonic() + PATIENCE_S
        try:
            _send(worker.stdin.fileno(), json.dumps(value).encode() + b"\n", until)
            answer = json.loads(self._line(until))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            status = _end(worker)
            self._worker, self._buffer = None, b""
            if status == -signal.SIGPROF or isinstance(error, TimeoutError):
                self._lost = f"it did not come to an end within {SECONDS:.0f} s of processor time"
            raise RenderError(self._lost or f"its process ended with {status}") from None
        if "error" in answer:
            if answer.get("fatal"):
                self._lost = str(answer["error"])
                _end(worker)
                self._worker, self._buffer = None, b""
            raise RenderError(str(answer["error"]))
        return answer["texts"]

    def _line(self, until: float) -> bytes:
        assert self._worker is not None and self._worker.stdout is not None
        source = self._worker.stdout.fileno()
        parts = [self._buffer]
        while b"\n" not in parts[-1]:
            if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            data = os.read(source, 1 << 20)
            if not data:
                raise EOFError
            parts.append(data)
        line, _, self._buffer = b"".join(parts).partition(b"\n")
        return line


def _send(descriptor: int, data: bytes, until: float) -> None:
    """Write all of it, however long the other side takes to read. Raises TimeoutError."""
    os.set_blocking(descriptor, False)
    at = 0
    while at < len(data):
        if not select.select([], [descriptor], [], max(0.0, until - time.monotonic()))[1]:
            raise TimeoutError
        with contextlib.suppress(BlockingIOError):
            at += os.write(descriptor, data[at : at + (1 << 16)])


def _end(worker: subprocess.Popen[bytes]) -> int:
    """Close the pipes, kill what is left, and return the exit status."""
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(0.2)  # it ends by itself when its input does, or by its own clock
    if worker.poll() is None:
        worker.kill()
    return worker.wait()
