"""Server-sent events out of bytes that may be split anywhere. Pure: no clock, no sockets.

Differs from a strict reader on purpose, because real servers do: events may lack their blank line, and the time of
an event is when its *data line* was complete, not when the blank line after it came.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_LINE = 8 * 1024 * 1024
"""Bytes of one line; a longer one is dropped and counted, so a hostile server cannot fill the memory."""
MAX_STRAY = 64 * 1024
"""Bytes kept of a body that is no event stream (an error page, a JSON body), enough to say what it is."""

_END = re.compile(rb"\r\n|\n|\r")  # never str.splitlines(): U+0085 and U+2028 are text, not line ends
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name ("message" when none was given), its data, and when its last data line was complete."""

    name: str
    data: str
    at: float


class EventSplitter:
    """Feed bytes with their arrival time; get the events that are complete.

    `stray` holds the start of lines that belong to no event stream; `dropped` counts lines over `MAX_LINE`.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.stray = bytearray()
        self._line = bytearray()
        self._too_long = False
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._at = 0.0

    def feed(self, data: bytes, at: float) -> list[Event]:
        """Events completed by these bytes, in order. at: seconds on the caller's clock."""
        events: list[Event] = []
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":  # the second half of a CRLF whose CR ended the line already
                data = data[1:]
        start = 0
        for end in _END.finditer(data):
            self._keep(data[start : end.start()])
            self._end_line(at, events)
            start = end.end()
        if data[start:]:
            self._keep(data[start:])
        elif data[-1:] == b"\r":
            self._after_cr = True
        return events

    def finish(self, at: float) -> list[Event]:
        """The event left at the end of the body, if its data is complete JSON or `[DONE]`; cut-off data is dropped."""
        events: list[Event] = []
        if self._line and not self._too_long:
            # `data: [DONE]` without a line end is complete; half a JSON object is not, and fails the check below.
            self._end_line(at, events)
        if self._data and is_whole("\n".join(self._data)):
            self._emit(events)
        self._data.clear()
        return events

    def _keep(self, piece: bytes) -> None:
        if self._too_long:
            return
        if len(self._line) + len(piece) > MAX_LINE:
            self._too_long = True
            self._line.clear()
            return
        self._line += piece

    def _end_line(self, at: float, events: list[Event]) -> None:
        if self._too_long:
            self._too_long = False
            self.dropped += 1
            return
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            self._emit(events)
            self._name = ""
            return
        field, colon, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            if self._data and is_whole("\n".join(self._data)):  # the blank line between two events was left out
                self._emit(events)
            self._data.append(text)
            self._at = at
        elif field == b"event":
            self._name = text
        elif field in (b"", b"id", b"retry") and colon:
            return  # a comment (keep-alive), or a field that a chat does not use
        elif len(self.stray) < MAX_STRAY:
            self.stray += line[: MAX_STRAY - len(self.stray)] + b"\n"

    def _emit(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(self._name or "message", "\n".join(self._data), self._at))
            self._data.clear()


def is_whole(data: str) -> bool:
    """True for `[DONE]` and for complete JSON."""
    if data.strip() == "[DONE]":
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
