"""Text in a given number of a terminal's cells: 写 takes two, é with a combining accent one."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells, set_cell_size

_WORDS = re.compile(r"\s*\S+")  # with the blanks before it


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells, cut with `…` or filled with blanks; `right`: to the right."""
    missing = width - cell_len(text)
    if missing < 0:
        return set_cell_size(text, max(0, width - 1)) + "…"[:width]
    return " " * missing + text if right else text + " " * missing


def whole_words(text: str, width: int) -> str:
    """`text` in at most `width` cells, cut between two words where it is too long."""
    if cell_len(text) <= width:
        return text
    cut = set_cell_size(text, max(0, width - 1)).rstrip()
    words = cut.rpartition(" ")[0] if " " in cut and not text[len(cut) :].startswith(" ") else cut
    return f"{words.rstrip(' ,;:·(')}…"[:width]


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` (2 or more) cells, broken between words; a longer word is cut."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in _WORDS.findall(paragraph):
            if line and cell_len(line + word) > width:
                lines.append(line)
                line, word = "", word.lstrip()
            if cell_len(word) > width:
                *full, word = chop_cells(word, width)
                lines += full
            line += word
        lines.append(line)
    return lines
