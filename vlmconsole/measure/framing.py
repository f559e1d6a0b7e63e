"""Where one HTTP/1.1 response ends, told cheaply while it is read: it is parsed for real only afterwards."""

from __future__ import annotations

from enum import IntEnum

LAST_CHUNK = b"\r\n0\r\n\r\n"
MAX_HEAD = 64 * 1024


class Mode(IntEnum):
    HEAD, CHUNKED, LENGTH, UNTIL_CLOSE, GARBAGE = range(5)


class Framing:
    """Fed with each read, says when the response is whole. ``keep_alive``: whether the connection may serve another.

    Chunked bodies are recognised by their last bytes, which costs one comparison a read. A body made to
    look like its own end would be recognised too early; the later parse then calls that request cut.
    """

    __slots__ = ("_head", "_left", "_tail", "keep_alive", "mode", "status")

    def __init__(self) -> None:
        self.mode = Mode.HEAD
        self.status = 0
        self.keep_alive = True
        self._head = b""
        self._left = 0
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        """True when the response ended with ``data`` (or is no HTTP at all: ``mode`` is GARBAGE then)."""
        if self.mode is Mode.CHUNKED:
            if len(data) >= 7:
                self._tail = data
                return data.endswith(LAST_CHUNK)
            self._tail = self._tail[-7:] + data
            return self._tail.endswith(LAST_CHUNK)
        if self.mode is Mode.LENGTH:
            self._left -= len(data)
            return self._left <= 0
        if self.mode is Mode.UNTIL_CLOSE:
            return False
        self._head += data
        return self._read_head()

    def whole_when_closed(self) -> bool:
        """Whether the server's closing the connection is a proper end of this response."""
        return self.mode is Mode.UNTIL_CLOSE

    def _read_head(self) -> bool:
        head, found, rest = self._head.partition(b"\r\n\r\n")
        # Only the head has a limit: a short head may come in one large read with its body.
        if not self._head.startswith(b"HTTP/1."[: len(self._head)]) or len(head) > MAX_HEAD:
            self.mode, self.keep_alive = Mode.GARBAGE, False
            return True
        if not found:
            return False
        first, *lines = head.split(b"\r\n")
        words = first.split(None, 2)
        if len(words) < 2 or not words[1].isdigit():
            self.mode, self.keep_alive = Mode.GARBAGE, False
            return True
        self.status = int(words[1])
        if 100 <= self.status < 200:  # an interim response; the real one follows
            self._head = rest
            return self._read_head() if rest else False
        fields = {}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip().lower()
        connection = fields.get(b"connection", b"")
        old = words[0] == b"HTTP/1.0"
        self.keep_alive = b"close" not in connection and (not old or b"keep-alive" in connection)
        self._head = b""
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            self.mode = Mode.CHUNKED
            self._tail = found[2:]  # an empty body has its last chunk straight after the head
            return self.feed(rest) if rest else False
        length = fields.get(b"content-length", b"")
        if length.isdigit():
            self.mode, self._left = Mode.LENGTH, int(length)
            return self.feed(rest) if rest or not self._left else False
        if self.status in (204, 304):
            return True
        self.mode, self.keep_alive = Mode.UNTIL_CLOSE, False
        return False
