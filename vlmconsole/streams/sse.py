"""Server-sent events out of bytes that may be split anywhere. Pure: no clock, no sockets.

Differs from a strict reader on purpose, because real servers do: events may lack their blank line, and the time of
an event is when its *data line* was complete, not when the blank line after it came. Every byte is looked at a fixed
number of times, and what is held is bounded, whatever comes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_EVENT = 2 * 1024 * 1024
"""Bytes of one line, and characters of one event; a longer one is dropped and counted. Parsed JSON takes up to 25 times
its length, so this is what keeps a hostile server under 300 MB."""
LINE_COST = 64
"""What a line of an event weighs besides its characters: an event of a million empty lines is a large one."""

_END = re.compile(rb"\r\n|\n|\r")  # never str.splitlines(): U+0085 and U+2028 are text, not line ends
_BOM = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"[a-z][a-z_-]*:(?!\s*[{\[])")  # of some server's own, to be ignored; with JSON it is hurt data
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)')  # a string, or the beginning of one that has no end
BLANK = " \t\r\n\0\ufeff"
"""What may stand around an event without being part of it: some servers end theirs with NUL, some begin with a BOM."""
DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name ("message" when none was given), its data, and when its last data line was complete."""

    name: str
    data: str
    at: float


class EventSplitter:
    """Feed bytes with their arrival time; get the events that are complete.

    `stray` holds the start of lines that belong to no event stream, `strays` counts them; `dropped` counts lines and
    events over `MAX_EVENT`, `garbled` data lines that are not UTF-8, `lines` every line.
    """

    def __init__(self) -> None:
        self.dropped = self.strays = self.garbled = self.lines = 0
        self.stray = bytearray()
        self._line = bytearray()
        self._too_long = False
        self._after_cr = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._depth: int | None = None  # open brackets of the lines in _data; None: not counted yet
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
        """Return the event left at the end of the body: whole or cut off, its reader has to tell."""
        events: list[Event] = []
        if self._too_long or self._line:
            strays = self.strays
            self._end_line(at, events)
            self.strays = strays  # a line without its end is what a cut leaves
        self._emit(events)
        return events

    def _keep(self, piece: bytes) -> None:
        if self._too_long:
            return
        if len(self._line) + len(piece) > MAX_EVENT:
            self._too_long = True
            self._line = bytearray()
            return
        self._line += piece

    def _end_line(self, at: float, events: list[Event]) -> None:
        self.lines += 1
        if self._too_long:
            self._too_long = False
            self.dropped += 1
            return
        line = bytes(self._line)
        self._line.clear()
        if not line or not (bare := _bare(line)):
            self._emit(events)
            self._name = ""
        elif not self._field(line, at, events) and not self._field(bare, at, events):
            self._stray(line)

    def _field(self, line: bytes, at: float, events: list[Event]) -> bool:
        """Take a line of an event stream; False for a line of something else."""
        field, colon, value = line.partition(b":")
        if field == b"data":
            self._data_line(self._text(value.removeprefix(b" ")), at, events)
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        else:  # a comment (keep-alive), or a field that a chat does not use
            return field in (b"id", b"retry") or (not field and bool(colon))
        return True

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.garbled += 1
            return value.decode("utf-8", "replace")

    def _data_line(self, text: str, at: float, events: list[Event]) -> None:
        # A blank line between two events was left out, or the first of them was cut off in its middle.
        if self._data and (self._is_whole() or begins_event(text)):
            self._emit(events)
        self._size += len(text) + LINE_COST
        if self._size > MAX_EVENT:
            self.dropped += 1
            self._forget()
            return
        self._data.append(text)
        self._at = at

    def _is_whole(self) -> bool:
        """Whether every bracket that the data opened is closed. Each line is counted once, when another follows it."""
        last = self._data[-1]
        if self._depth is None:
            if self._data[0].lstrip(BLANK)[:1] not in ("{", "["):
                return False
            self._depth = 0
        self._depth += depth(last)
        return self._depth <= 0

    def _stray(self, line: bytes) -> None:
        if not _FIELD.match(line):
            self.strays += 1
        if len(self.stray) < MAX_EVENT:
            self.stray += line[: MAX_EVENT - len(self.stray)] + b"\n"

    def _emit(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(self._name or "message", "\n".join(self._data), self._at))
        self._forget()

    def _forget(self) -> None:
        self._data.clear()
        self._size, self._depth = 0, None


def depth(text: str) -> int:
    """Brackets opened less brackets closed, outside of strings."""
    bare = _STRING.sub("", text)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def begins_event(text: str) -> bool:
    """True for a line that is an event of its own, whatever stands before it: `[DONE]`, an answer's chunk, an error."""
    text = text.strip(BLANK)
    if text == DONE:
        return True
    if not text.startswith("{"):
        return False
    value = _loads(text)
    return isinstance(value, dict) and not value.keys().isdisjoint(("choices", "error", "object"))


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one event's data held: JSON values in their order, how many pieces were unreadable, whether `[DONE]`."""

    values: list[Any]
    lost: int = 0
    done: bool = False


MAX_TRIES = 16
"""How often reading is taken up again in the middle of one event."""
_DECODER = json.JSONDecoder(strict=False)  # a raw line end or tab in a string is text that can be read
_AGAIN = re.compile(r'data:\s*(?=[{\[])|(?=\{"(?:id|object|choices|error)")')


def pieces(data: str) -> Pieces:
    """Read an event's data: one JSON object nearly always, but some servers glue several together or cut one off."""
    value = _loads(data)
    if value is not _BROKEN:
        return Pieces([value])
    values: list[Any] = []
    lost = at = tries = 0
    while True:
        at = _skip(data, at)
        if at == len(data):
            return Pieces(values, lost)
        if data.startswith(DONE, at):
            return Pieces(values, lost, done=True)
        try:
            value, at = _DECODER.raw_decode(data, at)
            values.append(value)
            continue
        except (ValueError, RecursionError):
            lost, tries = lost + 1, tries + 1
        again = _AGAIN.search(data, at + 1) if tries < MAX_TRIES else None
        if again is None:
            return Pieces(values, lost)
        at = again.end()


def _skip(data: str, at: int) -> int:
    """Past blanks, and past a `data:` whose line end is missing."""
    while at < len(data):
        if data[at] in BLANK:
            at += 1
        elif data.startswith("data:", at):
            at += 5
        else:
            break
    return at


_BROKEN = object()


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text.strip(BLANK))
    except (ValueError, RecursionError):
        return _BROKEN


def _bare(line: bytes) -> bytes:
    """A line without a BOM, blanks or NULs before it, which only careless joining puts there."""
    return line.removeprefix(_BOM).lstrip(b" \t\0").removeprefix(_BOM)
