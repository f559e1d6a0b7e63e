"""Hostile text becomes inert: nothing a terminal would obey survives, and nothing readable is lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.text.plain import inert, one_line

BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

HOSTILE = {
    "colour": ("\x1b[31mred\x1b[0m", "red"),
    "clear the screen": ("a\x1b[2J\x1b[Hb", "ab"),
    "terminal title, BEL": ("\x1b]0;pwned\x07text", "text"),
    "terminal title, ST": ("\x1b]2;pwned\x1b\\text", "text"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07text", "text"),
    "hyperlink": ("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"),
    "title without an end": ("\x1b]0;the answer is 7", "0;the answer is 7"),
    "device control": ("\x1bP+q544e\x1b\\text", "text"),
    "kitty picture": ("\x1b_Gf=24;AAAA\x1b\\text", "text"),
    "8-bit colour": ("\x9b31mred", "red"),
    "8-bit title": ("\x9d0;x\x9ctext", "text"),
    "full reset": ("\x1bctext", "text"),
    "character set": ("\x1b(0text", "text"),
    "bracketed paste end": ("\x1b[201~rm -rf", "rm -rf"),
    "mouse reports on": ("\x1b[?1000htext", "text"),
    "escape at the very end": ("text\x1b", "text"),
    "escape escape": ("\x1b\x1b[31mtext", "text"),
    "backspaces": ("secret\b\b\b\b\b\bpublic", "secretpublic"),
    "carriage return overwrites": ("wrong\rright", "wrong\nright"),
    "Windows line ends": ("a\r\nb", "a\nb"),
    "other line ends": ("a\x85b\u2028c\u2029d", "a\nb\nc\nd"),
    "bell and NUL": ("a\x07b\x00c", "abc"),
    "delete": ("a\x7fb", "ab"),
    "direction override": ("photo\u202egnp.exe", "photo‹U+202E›gnp.exe"),
    "isolates": ("\u2066x\u2069", "‹U+2066›x‹U+2069›"),
    "broken bytes of a file name": ("a\udcffb", "a�b"),
    "tab and newline stay": ("a\tb\nc", "a\tb\nc"),
    "rich markup is only text": (
        "[bold red]x[/] [/INST] [@click=app.quit]y",
        "[bold red]x[/] [/INST] [@click=app.quit]y",
    ),
    "CJK, emoji, marks stay": ("日本語 👩‍👩‍👧 é العربية\u200f", "日本語 👩‍👩‍👧 é العربية\u200f"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text(name: str) -> None:
    text, plain = HOSTILE[name]
    assert inert(text) == plain


wild = st.text(
    st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x9d[]0;m\x07\\\r\n\t\b\u202e\x85P_^X(c"))
) | st.text("\x1b[]0;m\x07\\a")


@given(wild)
def test_nothing_a_terminal_obeys_survives(text: str) -> None:
    plain = inert(text)
    assert not [c for c in plain if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert not BIDI & set(plain)
    plain.encode("utf-8")
    assert inert(plain) == plain


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters=sorted(BIDI))))
def test_plain_text_is_untouched(text: str) -> None:
    assert inert(text) == text
    assert one_line(text, 10_000) == text


@given(wild, st.integers(0, 60))
def test_one_line_is_one_printable_line_within_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= max(limit, 1)
    assert len(line.splitlines()) <= 1
    assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cs")]
    assert not BIDI & set(line)


def test_one_line_shows_what_it_escapes() -> None:
    assert one_line("a\nb\tc\x1b[31m\u202e\udcff\x9b") == "a\\nb\\tc\\x1b[31m\\u202e\\xff\\x9b"
    assert one_line("x" * 300) == "x" * 199 + "…"


def test_a_long_hostile_text_takes_linear_time() -> None:
    for piece, left in (("\x1b]0;", "0;"), ("\x9d0", "0"), ("\x1b[0", "0"), ("\x9b1", "1"), ("\x1bP", "")):
        assert inert(piece * 100_000) == left * 100_000
