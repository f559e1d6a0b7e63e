"""Pictures in a real xterm on a display of its own: looked at as a person would, by the pixels of the window."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from chat_server import chat_server, profile_file
from PIL import Image

NEEDED = ("Xvfb", "xterm", "xdotool", "import", "xclip")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"one of {', '.join(NEEDED)} is not installed"),
]
RED, BLUE = (220, 0, 0), (0, 0, 220)
Box = tuple[int, int, int, int]


class Desktop:
    """A display with one xterm on it, whose program is the console."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends: list[subprocess.Popen[bytes]] = []
        read, write = os.pipe()
        self._start(["Xvfb", "-displayfd", str(write), "-screen", "0", "1100x800x24"], (write,))
        os.close(write)
        with os.fdopen(read) as told:
            number = told.readline().strip()
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "LC_ALL")}
        self._environment = {**kept, "DISPLAY": f":{number}", "VLMCONSOLE_DEVICE_LOCKS": str(folder / "locks")}

    def _start(self, words: list[str], fds: tuple[int, ...] = (), environment: dict[str, str] | None = None) -> None:
        quiet = subprocess.DEVNULL
        self._ends.append(subprocess.Popen(words, env=environment, pass_fds=fds, stdout=quiet, stderr=quiet))

    def open(self, home: Path) -> None:
        console = [sys.executable, "-m", "vlmconsole", "--home", str(home)]
        size = ["-geometry", "130x40+0+0", "-fa", "Monospace", "-fs", "9", "-b", "0", "-w", "0"]
        self._start(["xterm", "-ti", "vt340", *size, "-e", *console], environment=self._environment)

    def keys(self, *names: str) -> None:
        self._run("xdotool", "key", "--delay", "60", *names)

    def type(self, text: str) -> None:
        self._run("xdotool", "type", "--delay", "20", "--", text)

    def copy(self, file: Path) -> None:
        words = ["xclip", "-quiet", "-selection", "clipboard", "-t", "image/png", "-i", str(file)]
        self._start(words, environment=self._environment)

    def seen(self) -> Image.Image:
        return Image.open(io.BytesIO(self._run("import", "-window", "root", "png:-"))).convert("RGB")

    def _run(self, *words: str) -> bytes:
        return subprocess.run(words, env=self._environment, stdout=subprocess.PIPE, timeout=60, check=True).stdout

    def end(self) -> None:
        for program in reversed(self._ends):
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(timeout=20)


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    made = Desktop(tmp_path)
    yield made
    made.end()


def box(image: Image.Image, colour: tuple[int, int, int]) -> Box | None:
    """Where pixels of a colour stand (within what 16 colours and per cents of sixels make of it)."""
    planes = [
        plane.point([255 * (abs(value - wanted) < 12) for value in range(256)])
        for plane, wanted in zip(image.split(), colour, strict=True)
    ]
    mask = planes[0]
    for plane in planes[1:]:
        mask = Image.composite(plane, Image.new("L", image.size), mask)
    return mask.getbbox()


async def sees(desktop: Desktop, true: Callable[[Image.Image], bool], what: str) -> Image.Image:
    end = time.monotonic() + 150
    while time.monotonic() < end:
        image = desktop.seen()
        if true(image):
            await asyncio.sleep(0.5)
            return desktop.seen()
        await asyncio.sleep(0.3)
    desktop.seen().save(desktop.folder / "last-seen.png")
    raise AssertionError(f"never seen: {what}; the last look is {desktop.folder / 'last-seen.png'}")


def whole(image: Image.Image) -> bool:
    """Red above blue, as large as each other, one right under the other: the picture as it is."""
    red, blue = box(image, RED), box(image, BLUE)
    if red is None or blue is None:
        return False
    high, low = red[3] - red[1], blue[3] - blue[1]
    return red[0] == blue[0] and red[2] == blue[2] and abs(red[3] - blue[1]) <= 4 and abs(high - low) <= 2 and high > 60


async def test_a_picture_is_drawn_scrolled_covered_and_gone(tmp_path: Path, desktop: Desktop) -> None:
    home, file = tmp_path / "home", tmp_path / "flag.png"
    flag = Image.new("RGB", (400, 400), RED)
    flag.paste(BLUE, (0, 200, 400, 400))
    flag.save(file)
    async with chat_server() as server:
        profile_file(home, server.port)
        desktop.copy(file)
        desktop.open(home)
        await sees(desktop, lambda image: image.crop((0, 0, 400, 14)).getextrema()[0][0] == 0, "the first line")
        await asyncio.sleep(5)  # what is typed before the console reads is dropped
        desktop.type("/paste")
        desktop.keys("Return")
        desktop.type("What is it?")
        desktop.keys("Return")
        first = await sees(desktop, whole, "the picture from the clipboard, drawn whole")
        place = box(first, RED)
        assert place is not None and place[0] > 100  # in the pane of the messages, not where the cursor was
        desktop.keys("F3")
        await sees(desktop, lambda image: box(image, RED) is None, "another screen without the picture")
        desktop.keys("F1")
        assert box(await sees(desktop, whole, "the picture again"), RED) == place
        desktop.keys("ctrl+p")
        await sees(desktop, lambda image: box(image, RED) is None, "the palette without the picture")
        desktop.keys("Escape")
        assert box(await sees(desktop, whole, "the picture after the palette"), RED) == place
        for number in range(3):  # each question and answer scrolls it up
            desktop.type(f"More {number}")
            desktop.keys("Return")
            await asyncio.sleep(3)

        def half(image: Image.Image) -> bool:
            red, blue = box(image, RED), box(image, BLUE)
            return red is None and blue is not None and blue[2] - blue[0] == place[2] - place[0]

        for number in range(8):
            if half(desktop.seen()):
                break
            desktop.type(f"Again {number}")
            desktop.keys("Return")
            await asyncio.sleep(3)
        await sees(desktop, half, "its lower half alone, the upper one scrolled away")
        desktop.keys("Escape", "n")
        await sees(desktop, lambda image: box(image, BLUE) is None, "a new conversation without the picture")
