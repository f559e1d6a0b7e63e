"""The streams and the size that this process was given: missing, full or absurd ones are put right at its start."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

MOST_COLUMNS, MOST_LINES = 1000, 500  # past this a size is no terminal's, and a table or a screen takes gigabytes
LEAST_COLUMNS = 40  # below this a table shows nothing


class OutputError(OSError):
    """Standard output took nothing, for another reason than that its reader went away."""


class _Out(io.FileIO):
    """Standard output, whose refusals can be told from those of the lab's disk."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


class _Err(io.FileIO):
    """Standard error: what it does not take is lost, and never stops the work that it tells of."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)


def open_missing() -> bool:
    """Give every standard descriptor that is closed /dev/null, before a file of the lab gets it; False: no output.

    Python leaves the stream of a closed descriptor None.
    """
    has_output = sys.stdout is not None
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # all below are open, so this one is the next
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - as long as the process
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return has_output


def tell_refusals_apart() -> None:
    """Put streams in the place of the process's own (never a test's) that say, or forgive, what they cannot write."""
    for name, kind in (("stdout", _Out), ("stderr", _Err)):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue
        stream.flush()
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False)),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapped)


def discard(stream: Any) -> None:
    """Send what a stream still holds, and all that follows, nowhere: Python must not complain of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def check_size() -> None:
    """Hold the environment's COLUMNS and LINES to what can be shown; no number, or none above 0, is as if unset."""
    for name, least, most in (("COLUMNS", LEAST_COLUMNS, MOST_COLUMNS), ("LINES", 1, MOST_LINES)):
        text = os.environ.get(name)
        if text is None:
            continue
        size = int(text.lstrip("0")[:6] or 0) if text.isascii() and text.isdigit() else 0
        if size:
            os.environ[name] = str(min(max(size, least), most))
        else:
            del os.environ[name]


def ask_terminal() -> None:
    """Have the console take its size from the terminal, and only up to the most, whatever the environment says."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return
    for name, size, most in (("COLUMNS", columns, MOST_COLUMNS), ("LINES", lines, MOST_LINES)):
        if size > most:
            os.environ[name] = str(most)
        elif size > 0:  # a line without a size leaves it to the environment
            os.environ.pop(name, None)
