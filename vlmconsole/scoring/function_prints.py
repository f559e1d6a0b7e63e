"""What a user's function prints, passed on up to a limit: it runs for every answer, and logs are kept."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import IO

PRINTED = 2**16  # bytes that one function may print, over all its processes
_WAIT = 1.0  # seconds for the last words of a process that ended


class FunctionPrints:
    """Copies what processes print to stderr, up to `PRINTED` bytes in all; one line says that the rest is left out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._left = PRINTED
        self._lock = threading.Lock()

    def follow(self, stream: IO[bytes]) -> threading.Thread:
        """Copy a stream to its end, which closes it, in a thread of its own. The process is never held up."""
        thread = threading.Thread(target=self._copy, args=(stream,), daemon=True)
        thread.start()
        return thread

    def _copy(self, stream: IO[bytes]) -> None:
        with stream:
            while piece := os.read(stream.fileno(), 65536):
                with self._lock:
                    shown = piece[: self._left]
                    if self._left and len(piece) >= self._left:
                        shown += f"\n{self.name}: what it prints beyond {PRINTED // 1024} KiB is left out\n".encode()
                    self._left = max(0, self._left - len(piece))
                    _write(shown)


def last_words(thread: threading.Thread | None) -> None:
    """Wait a moment for what a process that ended has printed."""
    if thread is not None:
        thread.join(_WAIT)


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):  # the reader of stderr went away: the function still runs
        while data:
            data = data[os.write(2, data) :]
