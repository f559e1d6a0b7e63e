"""Pictures of pixels: what is asked of a terminal, what it is sent, and what Textual may cut away of it."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from vlmconsole.screens.pictures import graphics, kitty
from vlmconsole.screens.pictures.graphics import GraphicsView, PixelStrip, fit_pixels
from vlmconsole.screens.pictures.sixel import Sixels
from vlmconsole.screens.terminal import terminal
from vlmconsole.screens.terminal.terminal import understood
from vlmconsole.vision.images import open_picture

KITTY = b"\x1b_Gi=31;OK\x1b\\"


def picture(width: int = 40, height: int = 24) -> Image.Image:
    """Four plain corners, and a corner of noise that needs a palette."""
    image = Image.new("RGB", (width, height), "white")
    image.paste((220, 40, 40), (0, 0, width // 2, height // 2))
    image.paste((40, 80, 220), (width // 2, height // 2, width, height))
    return image


def painted(sixels: str) -> Image.Image:
    """What a terminal paints that gives a pixel the colour its number has when it is drawn, and never another."""
    head = re.fullmatch(r'\x1bP0;1;0q"1;1;(\d+);(\d+)(.*)\x1b\\', sixels, re.DOTALL)
    assert head is not None
    image = Image.new("RGB", (int(head[1]), int(head[2])), "black")
    colours: dict[int, tuple[int, int, int]] = {}
    left = top = number = 0
    drawn = False
    for found in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([$-])|([?-~])", head[3]):
        if found[2] is not None:
            assert not drawn, "xterm paints what stands before a later definition in that colour"
            colours[int(found[1])] = tuple(round(int(found[at]) * 2.55) for at in (2, 3, 4))  # type: ignore[assignment]
        elif found[1] is not None:
            number = int(found[1])
        elif found[7] is not None:
            left, top = 0, top + 6 * (found[7] == "-")
        else:
            drawn = True
            bits = ord(found[6] or found[8]) - 63
            more = int(found[5] or 1)
            for column, row in itertools.product(range(left, left + more), range(6)):
                if bits >> row & 1:
                    image.putpixel((column, top + row), colours[number])
            left += more
    return image


def test_sixels_are_the_picture_and_every_colour_is_defined_before_the_first_pixel() -> None:
    sixels = Sixels(picture(40, 23))
    for box in ((0, 0, 40, 23), (3, 7, 31, 20), (0, 22, 1, 23)):
        got = painted(sixels.part(*box))
        assert got.size == (box[2] - box[0], box[3] - box[1])
        wanted = picture(40, 23).crop(box)
        far = [
            max(abs(a - b) for a, b in zip(one, other, strict=True))
            for one, other in zip(got.get_flattened_data(), wanted.get_flattened_data(), strict=True)
        ]
        assert max(far) <= 3  # per cent, not bytes
    assert sixels.part(50, 0, 60, 10) == ""


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 50), st.integers(1, 30), st.integers(0, 9))
def test_sixels_of_any_size_hold_every_pixel(width: int, height: int, seed: int) -> None:
    noise = Image.frombytes("RGB", (width, height), Random(seed).randbytes(width * height * 3))
    got = painted(Sixels(noise).part(0, 0, width, height))
    assert got.size == noise.size and (0, 0, 0) not in got.get_flattened_data()


@pytest.mark.parametrize(
    ("reply", "drawing"),
    [
        (KITTY + b"\x1bP>|kitty(0.41.1)\x1b\\\x1b[6;20;10t\x1b[?62;c", "kitty"),
        (KITTY + b"\x1bP>|kitty(0.26.5)\x1b\\\x1b[?62;c", "halfcell"),  # no text that stands for cells yet
        (KITTY + b"\x1bP>|ghostty 1.2.0\x1b\\\x1b[?62;22;c", "kitty"),
        (KITTY + b"\x1bP>|WezTerm 20240203-110809\x1b\\\x1b[?65;4;6;18;22c", "sixel"),
        (KITTY + b"\x1b[?62;c", "halfcell"),
        (b"\x1bP>|XTerm(379)\x1b\\\x1b[?63;1;2;4;6;9;15;16;22;28c", "sixel"),
        (b"\x1b[?64;1;2;6;9;15c", "halfcell"),
        (b"\x1b[?14;1c", "halfcell"),
        (b"", "halfcell"),
        (b"garbage \x1b[?4", "halfcell"),
    ],
)
def test_answers_to_the_probe(reply: bytes, drawing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_told_cell", None)
    assert understood(reply) == drawing
    assert terminal._told_cell == ((10, 20) if b"6;20;10t" in reply else None)


ASK = """
import sys, time
from vlmconsole.screens.terminal.terminal import drawing_for
print("drawing", drawing_for("auto", {"TERM": "xterm-256color"}), flush=True)
print("read", repr(sys.stdin.readline()), flush=True)
"""


@pytest.mark.parametrize(("wait", "drawing"), [(0.0, "sixel"), (9.0, "halfcell")])
def test_a_real_terminal_is_asked_once_and_its_answer_is_no_typing(wait: float, drawing: str) -> None:
    """A pseudo-terminal that answers at once, and one that never does: the program goes on and reads only typing."""
    ours, theirs = pty.openpty()
    asked = subprocess.Popen([sys.executable, "-c", ASK], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said, answered, typed, end = b"", False, 0, time.monotonic() + 60
    while not re.search(rb"read .*\n", said) and time.monotonic() < end:
        try:
            said += os.read(ours, 4096)
        except OSError:
            break
        if b"\x1b[c" in said and not answered:
            answered = True
            if not wait:
                os.write(ours, b"\x1b[?63;1;4c")
        if re.search(rb"drawing \w+\s", said) and not typed:
            typed = os.write(ours, b"typed\n")
    asked.wait(timeout=30)
    os.close(ours)
    assert f"drawing {drawing}".encode() in said
    assert b"read 'typed\\n'" in said


def told(strip: Strip) -> str:
    return strip.render(Console(color_system="truecolor"))


class Shown(App[None]):
    def __init__(self, drawing: str, path: Path) -> None:
        super().__init__()
        self._path, self._drawing = path, drawing

    def compose(self) -> ComposeResult:
        yield GraphicsView(open_picture(self._path), 20, 10, self._drawing)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    picture(200, 200).save(tmp_path / "four.png")
    return tmp_path / "four.png"


async def test_one_image_for_what_is_in_sight_and_nothing_where_something_lies_over_it(file: Path) -> None:
    async with Shown("sixel", file).run_test() as pilot:
        view = pilot.app.query_one(GraphicsView)
        await pilot.app.workers.wait_for_complete()
        assert view.cells == (20, 10)  # 200 pixels on cells of 10×20
        lines = view.render_lines(Region(0, 2, 20, 8))
        assert len(lines) == 8 and all(isinstance(line, PixelStrip) and line.cell_length == 20 for line in lines)
        drawn = [told(line) for line in lines]
        assert ['"1;1;200;160' in line for line in drawn] == [True, *[False] * 7]
        assert drawn[1:] == ["\x1b[20C"] * 7
        # A notice over the right half from its third line on: the first two lines are whole, then the left is enough.
        lines = view.render_lines(Region(0, 0, 20, 10))
        cut = [told(line) if at < 2 else told(line.divide([12, 20])[0]) for at, line in enumerate(lines)]
        assert '"1;1;200;200' in cut[0] and cut[2] == "\x1b[12C"
        # Only those lines are painted anew when it goes: their image starts there.
        lines = view.render_lines(Region(0, 0, 20, 10))
        again = [told(lines[at].crop(0, 20)) for at in range(4, 10)]
        assert '"1;1;200;120' in again[0] and again[1:] == ["\x1b[20C"] * 5
        assert told(lines[0].divide([12, 20])[1]).count("\x1bP") == 1  # the right part alone: its own pixels
        assert [told(Strip(strip)) for strip in (lines[3],)] == [told(Strip(list(lines[3])))]


async def test_kittys_picture_is_sent_once_and_its_cells_are_text(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kitty, "_there", type(kitty._there)())
    async with Shown("kitty", file).run_test() as pilot:
        view = pilot.app.query_one(GraphicsView)
        await pilot.app.workers.wait_for_complete()
        lines = [told(line) for line in view.render_lines(Region(0, 0, 20, 10))]
        assert ["a=T,U=1,q=2,f=100" in line for line in lines] == [True, *[False] * 9]
        sent = "".join(re.findall(r"\x1b_G[^;]*;([^\x1b]*)\x1b\\", lines[0]))
        import base64

        assert Image.open(io.BytesIO(base64.b64decode(sent))).size == (200, 200)
        assert all(line.count(kitty.CELL) == 20 for line in lines)
        right = told(view.render_lines(Region(0, 3, 20, 1))[0].divide([12, 20])[1])
        assert right.count(kitty.CELL) == 8 and kitty.CELL + kitty.MARKS[3] + kitty.MARKS[12] in right
    made = [kitty.KittyImage(picture(), (4, 2), f"p{at}") for at in range(kitty.KEPT + 1)]
    assert "a=d,d=I" not in "".join(one.sent() for one in made[: kitty.KEPT - 1])
    last = "".join(one.sent() for one in made[kitty.KEPT - 1 :])
    assert last.count("a=d,d=I") == 2  # the oldest two make room, the app's own among them
    assert "a=T" in made[0].sent()  # and is sent again when it is looked at again


def test_marks_are_the_protocols_first_and_last() -> None:
    assert len(kitty.MARKS) == 297 == len(set(kitty.MARKS))
    assert [hex(ord(kitty.MARKS[at])) for at in (0, 1, 5, 296)] == ["0x305", "0x30d", "0x33d", "0x1d244"]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 150), st.integers(1, 50))
def test_a_picture_keeps_its_shape_and_its_room(width: int, height: int, columns: int, rows: int) -> None:
    pixels, cells = fit_pixels((width, height), columns, rows, (8, 17))
    assert 1 <= cells[0] <= columns and 1 <= cells[1] <= rows
    assert pixels[0] <= cells[0] * 8 and pixels[1] <= cells[1] * 17
    scale = min(columns * 8 / width, rows * 17 / height)
    assert abs(pixels[0] - width * scale) <= 1 and abs(pixels[1] - height * scale) <= 1


async def test_under_a_dialog_and_with_its_file_gone_it_is_plain(file: Path) -> None:
    from textual.screen import ModalScreen

    async with Shown("sixel", file).run_test() as pilot:
        view = pilot.app.query_one(GraphicsView)
        await pilot.app.workers.wait_for_complete()
        await pilot.app.push_screen(ModalScreen())
        assert not any(isinstance(line, PixelStrip) for line in view.render_lines(Region(0, 0, 20, 10)))
        await pilot.app.pop_screen()
        assert any(isinstance(line, PixelStrip) for line in view.render_lines(Region(0, 0, 20, 10)))
        measured = threading.Event()
        monkey = pytest.MonkeyPatch()
        monkey.setattr(graphics, "cell_pixels", lambda: measured.set() or (5, 10))
        try:  # another font size: made anew in its own cells
            view.render_lines(Region(0, 0, 20, 10))
            await pilot.pause()
            await pilot.app.workers.wait_for_complete()
            lines = view.render_lines(Region(0, 0, 20, 10))
            assert '"1;1;100;100' in told(lines[0])
        finally:
            monkey.undo()
