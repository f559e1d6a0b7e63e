"""Keys in use, kept off disks and screens: whatever a server sent passes here before it is stored or shown.

A server may echo its key: in an error, a model's name, an answer, a header of its log; plain, or as some layer wrote it
(percent-encoded, JSON-escaped, base64, hex). :func:`remember` is told of every key that is read; nothing else is known
to be one, but what stands behind `Bearer` or looks like `sk-…`.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from typing import Any, TextIO
from urllib.parse import quote

MARK = "•••"
SHORTEST = 4  # characters; a shorter key would blank ordinary words
WHOLE_WORD = 8  # a key shorter than this counts only where it stands by itself
_LIKELY = re.compile(r"(?i)(bearer\s+)[^\s\"'•]+|\bsk-[A-Za-z0-9_*-]{6,}")
_known: dict[str, _Key] = {}


class _Key:
    """One key, and what it looks like after layers that encode it."""

    def __init__(self, key: str) -> None:
        plain, short = re.escape(key), len(key) < WHOLE_WORD
        self.plain = key
        self.forms = [key] if short else [key, *_encoded(key)]
        # Escapes in part only (`\u0041bc`, `%41bc`, `&#65;bc`): looked for where a text holds such signs at all.
        self.escaped = re.compile("".join(map(_any_escape, key)))
        self.alone = re.compile(rf"(?<![A-Za-z0-9]){plain}(?![A-Za-z0-9])") if short else None

    def hidden(self, text: str) -> str:
        if self.alone is not None:
            text = self.alone.sub(MARK, text)
        else:
            for form in self.forms:
                if form in text:
                    text = text.replace(form, MARK)
        if "\\" in text or "%" in text or "&" in text:
            text = self.escaped.sub(lambda match: MARK if match[0] != self.plain else match[0], text)
        return text


def _encoded(key: str) -> list[str]:
    data = key.encode()
    forms = {quote(key, safe=""), quote(key, safe="").lower(), data.hex(), data.hex().upper()}
    forms |= {"".join(each % ord(char) for char in key) for each in ("%%%02X", "%%%02x", "\\u%04x", "&#%d;", "&#x%x;")}
    for before in range(3):  # base64 of a longer text, e.g. "Bearer KEY": three ways for the key to fall into it
        whole = base64.b64encode(bytes(before) + data).decode()
        part = whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6]
        forms |= {part, part.translate(str.maketrans("+/", "-_"))}
    forms.discard(key)
    return sorted(forms, key=len, reverse=True)


def _any_escape(char: str) -> str:
    code = ord(char)
    either = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{code:02x}")
    return rf"(?:\\?{re.escape(char)}|\\u00{either}|%{either}|%25{either}|&#0*{code};|&#[xX]0*{either};)"


def remember(key: str) -> str:
    """Keep `key` off every disk and screen from now on, in this process; returns it."""
    if len(key) >= SHORTEST and key not in _known:
        _known[key] = _Key(key)
    return key


def without_keys(text: str) -> str:
    """Return the text with every known key replaced by •••, in whatever form. For answers and names: nothing is
    guessed.
    """
    for key in list(_known.values()):
        text = key.hidden(text)
    return text


def redact(text: str, *secrets: str | None) -> str:
    """As :func:`without_keys`, for errors: also without `secrets`, what stands behind `Bearer`, and `sk-…`."""
    for secret in secrets:
        if secret:
            remember(secret)
    return _LIKELY.sub(lambda match: f"{match[1] or ''}{MARK}", without_keys(text))


def redacted(value: Any) -> Any:
    """Return a JSON value without known keys, in its names too. The same object where there is none of them to hide."""
    if not _known:
        return value
    if isinstance(value, str):
        return without_keys(value)
    if isinstance(value, dict):
        return {redacted(name): redacted(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value


def redacted_bytes(data: bytes) -> bytes:
    """Return a text body as it came, without known keys; bytes that are no UTF-8 stay what they are."""
    if not _known:
        return data
    return without_keys(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class StreamRedactor:
    """For text that comes in pieces: what may be the beginning of a key is held back until more of it is there.

    A key of which only some signs are escaped is hidden where a piece holds all of it, or in the whole text.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the part of what came so far that can be shown now."""
        if not _known:
            return text
        text = without_keys(self._held + text)
        cut = len(text) - _overlap(text, (form for key in _known.values() for form in key.forms))
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return what was still held, at the end of the text."""
        rest, self._held = without_keys(self._held), ""
        return rest


def _overlap(text: str, forms: Iterable[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a form."""
    most = 0
    for form in forms:
        for length in range(min(len(form) - 1, len(text)), most, -1):
            if text.endswith(form[:length]):
                most = length
                break
    return most


class RedactedStream:
    """A text stream (a worker's standard output) through which no known key goes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(without_keys(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hide_in_output() -> None:
    """Let no known key through this process's standard output and error."""
    import sys

    with contextlib.suppress(AttributeError):
        if not isinstance(sys.stdout, RedactedStream):
            sys.stdout, sys.stderr = RedactedStream(sys.stdout), RedactedStream(sys.stderr)
