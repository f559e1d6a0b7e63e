"""Quiet syntax highlighting: one accent, the rest greys. Imported only when a fenced block names a language."""

from __future__ import annotations

from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, _TokenType
from pygments.util import ClassNotFound
from textual.content import Content, Span

_STYLES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "$faint italic"),
    (Keyword, "$accent"),
    (String, "$muted"),
    (Number, "bold"),
    (Name.Function, "bold"),
    (Name.Class, "bold"),
    (Operator, "$muted"),
    (Punctuation, "$muted"),
)


def highlighted(text: str, language: str) -> Content:
    """`text` with spans by token; unknown languages come back plain."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return Content(text)
    spans: list[Span] = []
    at = 0
    for token, piece in lex(text, lexer):
        style = next((style for kind, style in _STYLES if token in kind), "")
        if style:
            spans.append(Span(at, at + len(piece), style))
        at += len(piece)
    return Content(text, spans=spans) if at == len(text) else Content(text)
