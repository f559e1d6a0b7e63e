"""What a terminal sends, put right before Textual reads it: pastes, late answers, and Esc with a letter after it.

Textual (8.2.8) takes an escape sequence inside a bracketed paste for keys: the words come in another order, and a line
end after it would be Enter, which sends. An answer that it did not ask for is typed into the question. And Esc with a
letter close behind it is Alt and that letter to it, which types the letter and loses the Esc.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from textual._parser import ParseTimeout
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

from vlmconsole.text.plain import inert

START, END = "\x1b[200~", "\x1b[201~"
#: Answers to terminal.probe that came after its time; and what may be the beginning of one.
_ANSWER = re.compile(r"\x1b(?:_G[^\x1b]*\x1b\\|P>\|[^\x1b]*\x1b\\|\[\?[\d;]*c|\[6;\d+;\d+t)")
_BEGUN = re.compile(r"\x1b(?:(?:_G|P>)[^\x1b]{0,200}\x1b?|\[\?[\d;]*|\[6;[\d;]*)\Z")
#: After Esc: no beginning of a longer sequence, and not b or f, which Option with an arrow key sends on a Mac.
_PLAIN = re.compile(r"[^\x00-\x20\x7f\[OP_bf]")
_ESC_THEN_KEY = re.compile(rf"(?<=\x1b)(?={_PLAIN.pattern})")
_ALT_ENTER = "\x1b\r"


class PasteFilter:
    """Text as it comes from the terminal, in any pieces; a paste goes on whole, once its end has come."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, data: str) -> str:
        """Return what may be read now. Keys pass at once; a bare ESC is never held back."""
        rest, out = self._held + data, ""
        self._held = ""
        while True:
            before, start, after = rest.partition(START)
            if not start:
                rest = _keys(rest)
                kept = next((n for n in range(len(START) - 1, 2, -1) if rest.endswith(START[:n])), 0)
                if begun := _BEGUN.search(rest):
                    kept = max(kept, len(begun[0]))
                self._held = rest[len(rest) - kept :]
                return out + rest[: len(rest) - kept]
            inside, end, rest = after.partition(END)
            out += _keys(before)
            if not end:
                self._held = START + inside
                return out
            out += START + inert(inside) + END


def _keys(text: str) -> str:
    """Keys without answers; Alt+Enter is a new line, as in other chats."""
    return _ANSWER.sub("", text).replace(_ALT_ENTER, "\n") if "\x1b" in text else text


class InertPastes(XTermParser):
    """Textual's parser behind a PasteFilter."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = PasteFilter()
        self._escaped = False

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end of all input
            yield from super().feed(data)
            return
        for piece in filter(None, _ESC_THEN_KEY.split(self._pastes.feed(data))):
            if self._escaped and _PLAIN.match(piece):
                yield from self._esc_alone()
            yield from super().feed(piece)
            self._escaped = piece.endswith("\x1b")

    def _esc_alone(self) -> Iterator[Message]:
        """Let an Esc that waits for more be a key now, as its time would."""
        if self._timeout_time is None:
            return
        self._timeout_time = None
        self._awaiting = self._gen.throw(ParseTimeout())
        while self._tokens:
            yield self._tokens.popleft()


def tolerant(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
    """Return a maker of decoders that show a byte of another encoding as \ufffd instead of failing."""
    return partial(codecs.getincrementaldecoder(encoding), "replace")


def tame_pastes() -> None:
    """Have the terminal's driver read through InertPastes, and bytes that are not UTF-8 (a Latin-1 line, a name pasted
    from an old disk) without an end of the console."""
    linux_driver.XTermParser = InertPastes  # type: ignore[attr-defined]
    linux_driver.getincrementaldecoder = tolerant  # type: ignore[assignment, attr-defined]
