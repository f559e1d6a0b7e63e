"""A mark for each terminal that a console draws on, so that the next start sees when one was killed there.

A killed console (SIGKILL, out of memory) leaves mouse reports, the alternate screen, bracketed paste and a hidden
cursor behind, and a shell repairs at most the line editing. Those modes cannot be asked for safely, and taking them
back on a healthy terminal would move its cursor: so each console leaves a mark, locked while it lives, gone at its end.
A mark without a lock is a console that did not end by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path


class TerminalMark:
    """The mark of standard input's terminal in `folder`; without a terminal, or a writable folder, it does nothing."""

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        self._path: Path | None = None
        try:
            self._path = folder / os.ttyname(sys.stdin.fileno()).strip("/").replace("/", "-")
        except (OSError, ValueError, AttributeError):
            return

    def take(self) -> bool:
        """Mark the terminal as drawn on; returns whether a console of this same session was killed on it."""
        if self._path is None:
            return False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another console lives there (stopped, in the background): the mark is its
            self._close()
            return False
        session = _session()
        killed = os.pread(self._file, 200, 0) == session
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, session, 0)
        return killed

    def clear(self) -> None:
        """The terminal has its modes back."""
        if self._file is not None and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _session() -> bytes:
    """Names this terminal's session: the same `/dev/pts/3` in a window opened later is another, healthy terminal."""
    leader = os.getsid(0)
    try:
        # The start in clock ticks is field 22; the name before it may hold spaces and brackets.
        began = Path(f"/proc/{leader}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # no /proc here: the leader's number must do
        began = ""
    return f"{leader} {began}".encode()
