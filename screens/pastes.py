"""A terminal's paste, made inert before Textual reads it.

Textual (8.2.8) takes an escape sequence inside a bracketed paste for keys: the words come in another order, and a
line end after it would be Enter, which sends.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

from vlmconsole.runs.plain import inert

START, END = "\x1b[200~", "\x1b[201~"


class PasteFilter:
    """Text as it comes from the terminal, in any pieces; a paste goes on whole, once its end has come."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, data: str) -> str:
        """What may be read now. Keys pass at once; a bare ESC is never held back."""
        rest, out = self._held + data, ""
        self._held = ""
        while True:
            before, start, after = rest.partition(START)
            if not start:
                kept = next((n for n in range(len(START) - 1, 2, -1) if rest.endswith(START[:n])), 0)
                self._held = rest[len(rest) - kept :]
                return out + rest[: len(rest) - kept]
            inside, end, rest = after.partition(END)
            out += before
            if not end:
                self._held = START + inside
                return out
            out += START + inert(inside) + END


class InertPastes(XTermParser):
    """Textual's parser behind a PasteFilter."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = PasteFilter()

    def feed(self, data: str) -> Iterable[Message]:
        passed = self._pastes.feed(data)
        # An empty text would mean the end of all input.
        return super().feed(passed) if passed or not data else ()


def tame_pastes() -> None:
    """Have the terminal's driver read through InertPastes."""
    linux_driver.XTermParser = InertPastes  # type: ignore[attr-defined]
