"""Laid-out text: blocks that know how to fill a width, and nothing about Markdown or widgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from textual.content import Content

#: Greys and the accent, by the names the themes define (see theme.py).
MUTED, FAINT, ACCENT, CODE = "$muted", "$faint", "$accent", "on $surface"


class Block(Protocol):
    """Something that becomes lines. `tight` means: no blank line between it and a tight neighbour."""

    @property
    def tight(self) -> bool: ...

    def lines(self, width: int) -> list[Content]:
        """Lines no wider than `width` cells (at least 1)."""


@dataclass(frozen=True)
class TextBlock:
    """A paragraph or heading, wrapped at words."""

    content: Content
    tight: bool = False

    def lines(self, width: int) -> list[Content]:
        return self.content.wrap(max(1, width)) or [Content("")]


@dataclass(frozen=True)
class CodeBlock:
    """Code on its own ground: never re-flowed at words, long lines folded so that nothing is lost."""

    content: Content
    tight: bool = False

    def lines(self, width: int) -> list[Content]:
        inner = max(2, width - 4)
        folded = [part for line in self.content.split(allow_blank=True) for part in line.fold(inner)]
        return [
            Content.assemble(("▎ ", FAINT), line, " " * max(0, width - line.cell_length - 2)).stylize_before(CODE)
            for line in folded
        ]


@dataclass(frozen=True)
class RuleBlock:
    tight: bool = False

    def lines(self, width: int) -> list[Content]:
        return [Content("─" * max(1, width)).stylize(FAINT)]


@dataclass(frozen=True)
class Prefixed:
    """A block behind a mark: a bullet, a number, a quote bar. `rest` stands before every line but the first."""

    block: Block
    first: Content
    rest: Content
    tight: bool = False

    def lines(self, width: int) -> list[Content]:
        inner = self.block.lines(max(4, width - self.rest.cell_length))
        return [(self.first if index == 0 else self.rest) + line for index, line in enumerate(inner)]


@dataclass(frozen=True)
class TableBlock:
    """A table: the first row is the head; columns shrink to fit and cells wrap."""

    rows: tuple[tuple[Content, ...], ...]
    right: tuple[bool, ...]
    tight: bool = False

    def lines(self, width: int) -> list[Content]:
        columns = len(self.right)
        gap = 2
        if columns + gap * (columns - 1) > width:  # more columns than cells: rows as running text
            return [line for row in self.rows for line in Content(" │ ").join(row).wrap(max(1, width))]
        widths = [max((row[i].cell_length for row in self.rows), default=1) or 1 for i in range(columns)]
        room = max(columns, width - gap * (columns - 1))
        while sum(widths) > room and max(widths) > 1:
            widest = widths.index(max(widths))
            widths[widest] -= 1
        made: list[Content] = []
        for number, row in enumerate(self.rows):
            cells = [cell.wrap(size) or [Content("")] for cell, size in zip(row, widths, strict=True)]
            for y in range(max(len(cell) for cell in cells)):
                parts = [
                    _fit(cell[y] if y < len(cell) else Content(""), size, right)
                    for cell, size, right in zip(cells, widths, self.right, strict=True)
                ]
                made.append(Content(" " * gap).join(parts))
            if number == 0:
                made.append(Content("─" * (sum(widths) + gap * (columns - 1))).stylize(FAINT))
        return made


def _fit(cell: Content, size: int, right: bool) -> Content:
    missing = max(0, size - cell.cell_length)
    return cell.pad_left(missing) if right else cell.pad_right(missing)


def layout(blocks: list[Block], width: int) -> list[Content]:
    """Return all blocks as lines, a blank line between two unless both are tight."""
    return joined(blocks, [block.lines(width) for block in blocks])


def joined(blocks: list[Block], each: list[list[Content]]) -> list[Content]:
    """Return the lines of every block, as `layout` sets them."""
    made: list[Content] = []
    before: Block | None = None
    for block, lines in zip(blocks, each, strict=True):
        if before is not None and not (before.tight and block.tight):
            made.append(Content(""))
        made.extend(lines)
        before = block
    return made


def lines_after(block: Block, width: int, before: Block, lines: list[Content]) -> list[Content]:
    """`block.lines(width)`, made from the `lines` of what stood in its place `before`.

    A paragraph that grows keeps its lines but the last two: words are set one after another, so what follows moves
    nothing that stands. Without this a paragraph costs more with every piece that comes.
    """
    if block is before:
        return lines
    if not isinstance(block, TextBlock) or not isinstance(before, TextBlock) or len(lines) < 4:
        return block.lines(width)
    at, old, new = 0, before.content, block.content
    for line in lines[:-2]:
        at = old.plain.find(line.plain, at)
        if at < 0:
            return block.lines(width)
        at += len(line.plain)
    at += len(old.plain[at:]) - len(old.plain[at:].lstrip(" \n"))
    if not (old.plain.startswith(lines[-2].plain, at) and new.plain.startswith(old.plain[:at])):
        return block.lines(width)
    if _spans(old, at) != _spans(new, at):
        return block.lines(width)
    return [*lines[:-2], *new[at:].wrap(max(1, width))]


def _spans(content: Content, end: int) -> list[tuple[int, int, object]]:
    return [(span.start, min(span.end, end), span.style) for span in content.spans if span.start < end]
