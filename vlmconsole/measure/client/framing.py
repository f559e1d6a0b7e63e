"""Where one HTTP/1.1 response ends, told while it is read by a real parser (llhttp, a quarter of a microsecond a read).

Trailers, extensions, a last size of `000` and bare line feeds end a body as they should; an endless head, interim
responses without end and what is no HTTP end it as garbage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

import httptools

from vlmconsole.text.sizes import size

MAX_HEAD = 64 * 1024
MAX_INTERIM = 32  # `100 Continue` and the like before the response itself
# What llhttp itself waits on for ever: a last chunk whose lines end in bare line feeds.
_BARE_END = re.compile(rb"\n0+[ \t]*(?:;[^\n]*)?\r?\n\r?\n$")
_TAIL = 256


class Mode(IntEnum):
    HEAD, CHUNKED, LENGTH, UNTIL_CLOSE, GARBAGE = range(5)


class _Response:
    """llhttp's callbacks. It knows its parser until :meth:`Framing.release`."""

    __slots__ = ("at_size", "fields", "interim", "keep_alive", "mode", "parser", "take", "whole")

    def __init__(self, on_body: Callable[[bytes], None] | None) -> None:
        self.parser: httptools.HttpResponseParser | None = None
        self.mode = Mode.HEAD
        self.keep_alive = True
        self.whole = self.at_size = False
        self.interim = 0
        self.fields: dict[str, str] = {}
        self.take = on_body

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.mode is Mode.HEAD:  # else a trailer
            self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        status = self.parser.get_status_code()
        if self.whole or 100 <= status < 200:
            return
        self.keep_alive = self.parser.should_keep_alive()
        if "chunked" in self.fields.get("transfer-encoding", "").lower():
            self.mode = Mode.CHUNKED
        elif "content-length" in self.fields:
            self.mode = Mode.LENGTH
        elif status not in (204, 304):
            self.mode = Mode.UNTIL_CLOSE

    def on_chunk_header(self) -> None:
        self.at_size = True

    def on_body(self, data: bytes) -> None:
        self.at_size = False
        if self.take is not None:
            self.take(data)

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if 100 <= self.parser.get_status_code() < 200:
            self.interim += 1
            self.fields.clear()
        else:
            self.whole = True


class Framing:
    """Fed with each read, says when the response is whole. `on_body` gets the body's bytes without its framing."""

    __slots__ = ("_fed", "_parser", "_response", "_tail", "broken")

    def __init__(self, on_body: Callable[[bytes], None] | None = None) -> None:
        self._response = _Response(on_body)
        self._parser = httptools.HttpResponseParser(self._response)
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True,
            lenient_optional_lf_after_cr=True,
            lenient_optional_crlf_after_chunk=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._response.parser = self._parser
        self._fed = 0
        self._tail = b""
        self.broken = ""
        """Why it is garbage, in the parser's words."""

    @property
    def mode(self) -> Mode:
        return self._response.mode

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request."""
        return self._response.keep_alive

    @property
    def status(self) -> int:
        """The status, 0 before it is known."""
        return int(self._parser.get_status_code()) if self._parser is not None else 0

    @property
    def head(self) -> dict[str, str]:
        """The fields of the head, names in small letters."""
        return self._response.fields

    def feed(self, data: bytes) -> bool:
        """True when the response ended with `data` (or is no HTTP at all: `mode` is GARBAGE then)."""
        response = self._response
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not response.whole:
                return self._garbage(str(error))
            response.keep_alive = False  # more than the answer came
        if response.whole:
            return True
        if response.mode is Mode.HEAD:
            self._fed += len(data)
            if self._fed > MAX_HEAD:
                return self._garbage(f"a head of more than {size(MAX_HEAD)}")
            if response.interim > MAX_INTERIM:
                return self._garbage(f"more than {MAX_INTERIM} interim responses")
        if response.mode is Mode.LENGTH:
            return False
        self._tail = data[-_TAIL:] if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]
        if response.at_size and response.mode is Mode.CHUNKED and _BARE_END.search(self._tail):
            response.whole = True
        return response.whole

    def whole_when_closed(self) -> bool:
        """Return whether the server's closing the connection is a proper end of this response."""
        return self._response.mode is Mode.UNTIL_CLOSE

    def release(self) -> None:
        """Part with the parser, which knows us: where garbage is not collected, only this frees them."""
        self._response.parser = None

    def _garbage(self, why: str) -> bool:
        self.broken = why
        self._response.mode, self._response.keep_alive = Mode.GARBAGE, False
        return True
