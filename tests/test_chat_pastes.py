"""Pastes as a terminal sends them, through the parser that the console reads with."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from textual import events
from vlmconsole.screens.pastes import END, START, InertPastes, PasteFilter


def test_a_coloured_paste_is_one_paste_and_no_key() -> None:
    parser = InertPastes()
    got = list(parser.feed(f"a{START}one \x1b[31mtwo\x1b[0m three\r\nfour{END}b"))
    assert [type(event) for event in got] == [events.Key, events.Paste, events.Key]
    assert [event.text for event in got if isinstance(event, events.Paste)] == ["one two three\nfour"]


def test_an_escape_key_is_not_held_back() -> None:
    pastes = PasteFilter()
    assert [pastes.feed(piece) for piece in ("\x1b", "\x1b[", "\x1b[A")] == ["\x1b", "\x1b[", "\x1b[A"]


@given(st.lists(st.integers(0, 60), max_size=6))
def test_it_does_not_matter_how_the_paste_is_cut(cuts: list[int]) -> None:
    """Cuts inside the first two characters of the opening mark cannot be told from a pressed Escape: left out."""
    whole = f"k{START}x \x1b[1my\x1b[0m z{END}l"
    places = sorted({0, len(whole), *(cut for cut in cuts if 4 <= cut < len(whole))})
    pastes = PasteFilter()
    said = "".join(pastes.feed(whole[low:high]) for low, high in itertools.pairwise(places))
    assert said == f"k{START}x y z{END}l"
