"""Model output, file names and server errors are text and nothing else, wherever they are shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chat_screen import answered, ask, console, until
from textual.app import App, ComposeResult

from vlmconsole.screens.prose.blocks import layout
from vlmconsole.screens.prose.markdown import markdown_blocks
from vlmconsole.screens.prose.prose import BlocksVisual, Prose
from vlmconsole.text.plain import inert

TEXTS = [pytest.param(text, id=name) for name, text in HOSTILE]


def lines(text: str, width: int = 60) -> list[str]:
    return [line.plain for line in layout(markdown_blocks(inert(text))[0], width)]


@pytest.mark.parametrize("text", TEXTS)
def test_laid_out_text_holds_no_control_no_action_and_fits(text: str) -> None:
    begun = time.process_time()
    made = layout(markdown_blocks(inert(text))[0], 60)
    assert time.process_time() - begun < 3
    for line in made:
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or 0x202A <= ord(char) <= 0x202E for char in line.plain)
        for span in line.spans:
            assert "@click" not in str(span.style) and "link" not in str(span.style)
    assert all(line.cell_length <= 60 for line in made)


def test_what_a_model_says_in_markup_is_read_as_it_was_written() -> None:
    assert lines("[/INST] [bold]x[/bold] $accent :skull:") == ["[/INST] [bold]x[/bold] $accent :skull:"]
    assert lines("see [this](https://evil.example/a)") == ["see this (https://evil.example/a)"]
    assert lines("![cat](http://e.example/c.png)") == ["[image: cat] (http://e.example/c.png)"]
    assert "<script>alert(1)</script>" in "".join(lines("a <script>alert(1)</script>"))


class Page(App[None]):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Prose(self.text)


async def test_no_cell_of_the_screen_carries_an_action_or_a_link() -> None:
    app = Page("\n\n".join(text for _, text in HOSTILE if len(text) < 500))
    async with app.run_test(size=(80, 200)):
        prose = app.query_one(Prose)
        segments = [segment for y in range(prose.size.height) for segment in prose.render_line(y)]
        assert segments
        for segment in segments:
            style = segment.style
            assert style is None or (not style.link and not any(key.startswith("@") for key in style.meta))
            assert "\x1b" not in segment.text


@pytest.mark.parametrize("place", ["answer", "error", "name"])
async def test_hostile_text_on_the_real_screen(tmp_path: Path, place: str) -> None:
    """All of it at once, through the server, the store and the list; the terminal sees our own sequences only."""
    text = "\n".join(item for name, item in HOSTILE if len(item) < 500 and name != "lone surrogate")
    say = Say(pieces=[text]) if place == "answer" else Say(status=500, error=text)
    if place == "name":
        say = Say()
    async with chat_server(say) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            title = App.title
            await ask(pilot, screen, text[:400] if place == "name" else "Hello")
            await until(lambda: answered(screen))
            await pilot.press("escape")
            await pilot.press("enter")  # the evidence, too
            await pilot.pause()
            for strip in pilot.app.screen._compositor.render_strips():
                for segment in strip:
                    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in segment.text), segment
            assert App.title == title
            assert pilot.app.is_running


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \n*_`#>-|[]()!<&;1.\\~\t\x1b\u202e漢"), max_size=200), st.integers(1, 70))
def test_any_text_lays_out_at_any_width(text: str, width: int) -> None:
    for line in layout(markdown_blocks(inert(text))[0], width):
        assert "\n" not in line.plain and "\x1b" not in line.plain


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \n*`#>-|[]1."), max_size=160), st.data())
def test_a_stream_ends_as_the_whole_text_would(text: str, data: st.DataObject) -> None:
    """However it is split, the last frame of a growing answer is the text parsed at once."""
    prose = Prose()
    at = 0
    while at < len(text):
        at = min(len(text), at + data.draw(st.integers(1, 40)))
        prose.grow(text[:at])
    prose.settle(text)
    whole = layout(markdown_blocks(inert(text))[0], 50)
    assert [line.plain for line in prose.render().lines(50)] == [line.plain for line in whole]


words = st.text(alphabet=st.sampled_from("abc  \n\n*_`#>-|[]1.漢"), max_size=300)


@settings(max_examples=150, deadline=None)
@given(words, st.integers(4, 30), st.data())
def test_lines_taken_over_while_an_answer_grows_are_those_of_a_whole_layout(
    text: str, width: int, data: st.DataObject
) -> None:
    stood, at = BlocksVisual([]), 0
    while at < len(text):
        at = min(len(text), at + data.draw(st.integers(1, 60)))
        blocks = markdown_blocks(inert(text[:at]))[0]
        stood = BlocksVisual(blocks, stood)
        whole = layout(blocks, width)
        assert [line.plain for line in stood.lines(width)] == [line.plain for line in whole]
        assert [line.markup for line in stood.lines(width)] == [line.markup for line in whole]
