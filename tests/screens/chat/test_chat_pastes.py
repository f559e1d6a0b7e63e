"""Pastes as a terminal sends them, through the parser that the console reads with."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events

from vlmconsole.screens.terminal.pastes import END, START, InertPastes, PasteFilter


def test_a_coloured_paste_is_one_paste_and_no_key() -> None:
    parser = InertPastes()
    got = list(parser.feed(f"a{START}one \x1b[31mtwo\x1b[0m three\r\nfour{END}b"))
    assert [type(event) for event in got] == [events.Key, events.Paste, events.Key]
    assert [event.text for event in got if isinstance(event, events.Paste)] == ["one two three\nfour"]


def keys(*pieces: str) -> list[str]:
    """Names of the keys that Textual gets from text that comes in these pieces, each at once after the other."""
    parser = InertPastes()
    got = [event for piece in pieces for event in parser.feed(piece)]
    return [event.key if isinstance(event, events.Key) else type(event).__name__ for event in got]


@pytest.mark.parametrize(
    ("pieces", "got"),
    [
        (("\x1bj",), ["escape", "j"]),  # as tmux sends an Esc and a letter that come close together
        (("\x1b", "j"), ["escape", "j"]),
        (("ab\x1bqc",), ["a", "b", "escape", "q", "c"]),
        (("\x1b2",), ["escape", "2"]),  # a Mac's "™" to Textual
        (("\x1b]",), ["escape", "right_square_bracket"]),
        (("\x1b\x1bj",), ["escape", "escape", "j"]),
        (("\x1b\r",), ["ctrl+j"]),  # Alt+Enter, a new line
        (("\x1b[A", "\x1bOP", "\x1b[1;5C"), ["up", "f1", "ctrl+right"]),
        (("\x1b", "[A"), ["up"]),
        (("\x1bb", "\x1bf"), ["ctrl+left", "ctrl+right"]),  # Option with an arrow on a Mac
    ],
)
def test_esc_and_a_key_close_behind_it_are_both_keys(pieces: tuple[str, ...], got: list[str]) -> None:
    assert keys(*pieces) == got


def test_an_esc_whose_time_is_over_is_not_taken_twice() -> None:
    parser = InertPastes()
    assert list(parser.feed("\x1b")) == []
    parser._timeout_time = 0.0
    assert [event.key for event in parser.tick() if isinstance(event, events.Key)] == ["escape"]
    assert [event.key for event in parser.feed("j") if isinstance(event, events.Key)] == ["j"]


LATE = "\x1b_Gi=31;OK\x1b\\\x1bP>|XTerm(379)\x1b\\\x1b[6;17;8t\x1b[?63;1;2;4;28c"


@given(st.lists(st.integers(4, len(LATE)), max_size=4))
def test_late_answers_of_the_terminal_are_no_typing(cuts: list[int]) -> None:
    """However they are cut, but not within the Esc that begins one: that is a key to everybody."""
    whole = f"a{LATE}b"
    starts = [at for at, letter in enumerate(whole) if letter == "\x1b"]
    places = sorted({0, len(whole), *(cut for cut in cuts if not any(0 < cut - at < 4 for at in starts))})
    assert keys(*(whole[low:high] for low, high in itertools.pairwise(places))) == ["a", "b"]


def test_answers_that_textual_asked_for_reach_it() -> None:
    assert keys("\x1b[?2026;2$y", "\x1b[6;5~", "\x1b[?20", "26;2$y") == [
        "TerminalSupportsSynchronizedOutput",
        "ctrl+pagedown",
        "TerminalSupportsSynchronizedOutput",
    ]


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
