"""Finished requests on their way out of the client: raw reads with their times, appended to one file.

Parsing would hold up the reading loop by milliseconds a request; one `marshal` and one `write` take
some tens of microseconds, and keep memory bounded. The file is read back by the same interpreter right
after the run (`marshal` is not a format to keep), and a torn last record is left out.
"""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vlmconsole.measure.client.stamps import Ancillary

_HEAD = struct.Struct("<Qq?")  # bytes of the record, number of the request, whether it is only a part of its reads

#: how an exchange ended, as the sockets saw it; what the bytes say comes later
WHOLE = "whole"
REFUSED, UNREACHABLE, RESET, CLOSED = "refused", "unreachable", "reset", "closed early"
STALLED, TIMEOUT, GARBAGE, CANCELLED = "stalled", "timeout", "garbage", "cancelled"
TOO_LARGE = "too large"

Reads = list[tuple[int, Ancillary, bytes]]


class Raw(NamedTuple):
    """One request as it came off the wire. Times: ns of the monotonic clock; None: it did not come to that.

    `zero` is the phase's clock start; `wall_offset` the wall minus the monotonic clock, sampled at most half
    a second before the end; `served` how many requests this connection had answered before.
    """

    number: int
    phase: str
    zero: int
    wall_offset: int
    connection: int | None
    served: int
    scheduled: int | None
    sent: int | None
    send_done: int | None
    end: int
    outcome: str
    detail: str
    reads: Reads


class SpillError(Exception):
    """The spill file cannot be written; the message is for people."""


class SpillWriter:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def add(self, raw: Raw) -> None:
        """Append one record. Raises SpillError (a full disk)."""
        self._write(marshal.dumps(tuple(raw)), raw.number, part=False)

    def add_part(self, number: int, reads: Reads) -> None:
        """Append the reads so far of a request that goes on, so that a long answer takes no memory meanwhile."""
        self._write(marshal.dumps(reads), number, part=True)

    def _write(self, payload: bytes, number: int, *, part: bool) -> None:
        data = _HEAD.pack(len(payload), number, part) + payload
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:  # its own type: an OSError in the loop means that a connection broke
            raise SpillError(f"what was read cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        os.close(self._descriptor)


class SpillReader:
    """Reads a spill file while it grows: each call of :meth:`read` gives the records that are complete by then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._parts: dict[int, list[tuple[int, int]]] = {}  # request → (offset, bytes) of its parts

    def read(self) -> Iterator[Raw]:
        """Yield the next records, in the order in which the requests ended. Stopping early loses none."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._at)
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, number, part = _HEAD.unpack(head)
                begin = self._at + _HEAD.size
                if begin + length > size:
                    return
                self._at = begin + length
                if part:
                    self._parts.setdefault(number, []).append((begin, length))
                    file.seek(self._at)
                    continue
                raw = Raw(*marshal.loads(file.read(length)))
                for at, bytes_of_part in reversed(self._parts.pop(number, [])):
                    file.seek(at)
                    raw.reads[:0] = marshal.loads(file.read(bytes_of_part))
                file.seek(self._at)
                yield raw
