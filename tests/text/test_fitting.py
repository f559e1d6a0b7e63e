"""Texts cut and filled by cells, not by characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vlmconsole.text.fitting import fitted, whole_words, wrapped

TEXTS = st.text(st.sampled_from("ab 写é·,́…"), max_size=40)


@given(TEXTS, st.integers(0, 30), st.booleans())
def test_exactly_as_wide_as_its_room(text: str, width: int, right: bool) -> None:
    assert cell_len(fitted(text, width, right=right)) == width


@given(TEXTS, st.integers(1, 30))
def test_words_are_cut_to_fit(text: str, width: int) -> None:
    assert cell_len(whole_words(text, width)) <= width


@given(TEXTS, st.integers(2, 30))
def test_wrapping_loses_no_letter_and_keeps_to_the_width(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_words_stay_whole_and_an_indent_stays() -> None:
    assert wrapped("  a warm cache answers", 10) == ["  a warm", "cache", "answers"]
    assert wrapped("one\ntwo", 10) == ["one", "two"]
    assert wrapped("", 10) == [""]
