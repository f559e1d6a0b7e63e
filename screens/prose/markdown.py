"""Markdown to blocks, inert by construction: nothing it makes can be clicked, opened, fetched or obeyed.

Links become their text and their address, images their description, HTML its own source. Styles come from this
file only. The caller hands in inert text; what entities decode to is made inert again here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from textual.content import Content

from vlmconsole.screens.prose.blocks import (
    ACCENT,
    FAINT,
    MUTED,
    Block,
    CodeBlock,
    Prefixed,
    RuleBlock,
    TableBlock,
    TextBlock,
)
from vlmconsole.text.plain import inert

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

#: Above this many characters a message is shown as plain text, and above SHOWN it is cut on the screen (the
#: store and the export keep all of it): a parser must not freeze the console on a runaway answer.
PARSED, SHOWN = 60_000, 200_000


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])


def plain_blocks(text: str) -> list[Block]:
    """Inert text as it is, a block a line; cut on the screen beyond SHOWN characters."""
    blocks: list[Block] = [TextBlock(Content(line), tight=True) for line in text[:SHOWN].split("\n")]
    if len(text) > SHOWN:
        more = f"… {len(text) - SHOWN:,} more characters; export shows them"
        blocks.append(TextBlock(Content(more).stylize(MUTED)))
    return blocks


def markdown_blocks(text: str) -> tuple[list[Block], int, int]:
    """Parse inert Markdown. Returns blocks, how many of them are settled, and where those end in `text`.

    A settled block is followed by another top-level block, so that later text cannot change it (link reference
    definitions aside, which is why the end of a stream parses the whole once more).
    """
    if len(text) > PARSED or _pathological(text):
        return plain_blocks(text), 0, 0
    from markdown_it.tree import SyntaxTreeNode

    top = SyntaxTreeNode(_parser().parse(text)).children
    blocks: list[Block] = []
    settled_blocks = settled_line = 0
    for node in top:
        if node is top[-1] and node.map is not None:
            settled_blocks, settled_line = len(blocks), node.map[0]
        blocks.extend(_blocks(node))
    return blocks, settled_blocks, _offset(text, settled_line)


def _offset(text: str, line: int) -> int:
    """Where line number `line` begins in `text`, counting only the line ends that Markdown counts."""
    at = 0
    for _ in range(line):
        at = text.find("\n", at) + 1
        if at == 0:
            return 0
    return at


def _pathological(text: str) -> bool:
    """Openers without end make the parser slow without making the text better."""
    return any(text.count(mark) > 4000 for mark in ("[", "*", "_", "`", "<", "!["))


def _blocks(node: SyntaxTreeNode, tight: bool = False) -> list[Block]:
    kind = node.type
    if kind == "paragraph":
        return [TextBlock(_inline(node), tight)]
    if kind == "heading":
        style = f"bold {ACCENT}" if node.tag in ("h1", "h2") else "bold"
        return [TextBlock(_inline(node).stylize_before(style))]
    if kind in ("fence", "code_block"):
        return [CodeBlock(_code(inert(node.content).rstrip("\n"), node.info.strip() if kind == "fence" else ""))]
    if kind == "hr":
        return [RuleBlock()]
    if kind == "blockquote":
        bar = Content("▎ ").stylize(FAINT)
        inner = [block for child in node.children for block in _blocks(child)]
        return [Prefixed(block, bar, bar) for block in inner]
    if kind in ("bullet_list", "ordered_list"):
        return _list(node)
    if kind == "table":
        return [_table(node)]
    return [TextBlock(_styled(node.content.rstrip("\n"), ""))] if node.content else []


def _list(node: SyntaxTreeNode) -> list[Block]:
    made: list[Block] = []
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else 0
    for item in node.children:
        mark = f"{number}. " if node.type == "ordered_list" else "• "
        number += 1
        first, rest = Content(mark).stylize(MUTED), Content(" " * len(mark))
        loose = any(child.type == "paragraph" and not child.is_nested for child in item.children)
        inner = [block for child in item.children for block in _blocks(child, tight=not loose)]
        if not inner:
            inner = [TextBlock(Content(""), True)]
        for index, block in enumerate(inner):
            made.append(Prefixed(block, first if index == 0 else rest, rest, tight=True))
    return made


def _table(node: SyntaxTreeNode) -> Block:
    rows: list[tuple[Content, ...]] = []
    right: list[bool] = []
    for part in node.children:
        for row in part.children:
            cells = tuple(_inline(cell) for cell in row.children)
            if not rows:
                right = ["right" in str(cell.attrs.get("style", "")) for cell in row.children]
                cells = tuple(cell.stylize_before("bold") for cell in cells)
            rows.append(cells)
    return TableBlock(tuple(rows), tuple(right))


def _code(text: str, language: str) -> Content:
    """Code with quiet highlighting: keywords in the accent, comments and punctuation in greys."""
    word = language.split()[0].lower() if language else ""
    if not word or len(text) > 20_000:
        return Content(text)
    from vlmconsole.screens.prose.code import highlighted

    return highlighted(text, word)


def _inline(node: SyntaxTreeNode) -> Content:
    pieces: list[Content] = []
    for child in node.children:
        pieces.extend(_spans(child, ""))
    return Content("").join(pieces)


def _spans(node: SyntaxTreeNode, style: str) -> list[Content]:
    kind = node.type
    if kind == "text":
        return [_styled(node.content, style)]
    if kind in ("softbreak", "hardbreak"):
        return [Content("\n")]
    if kind == "code_inline":
        return [_styled(node.content, f"{style} {ACCENT}")]
    if kind == "image":
        return [
            _styled(f"[image: {node.content or 'no description'}] ({node.attrs.get('src', '')})", f"{style} {MUTED}")
        ]
    added = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}.get(kind, "")
    inner = [piece for child in node.children for piece in _spans(child, f"{style} {added}".strip())]
    if kind == "link":
        address = str(node.attrs.get("href", ""))
        if address and address != "".join(piece.plain for piece in inner):
            inner.append(_styled(f" ({address})", f"{style} {MUTED}"))
    if kind == "inline" or inner:
        return inner
    return [_styled(node.content, style)] if node.content else []


def _styled(text: str, style: str) -> Content:
    text, style = inert(text), style.strip()  # an entity may have decoded to a direction override
    return Content(text).stylize(style) if style else Content(text)
