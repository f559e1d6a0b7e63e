"""The console in a real tmux: painted, typed into, answered, ended by its terminal, healed by the next start."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from test_chat_screen import picture

from vlmconsole.chats.store import ChatStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


class Tmux:
    """One private tmux server with one window."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]

    def run(self, *words: str) -> str:
        return subprocess.run([*self._base, *words], capture_output=True, text=True, timeout=20).stdout

    def open(self, home: Path, columns: int, rows: int) -> None:
        command = f"{sys.executable} -m vlmconsole --home {home}; echo ended; stty -a | grep -c -- -icanon; sleep 60"
        self.run("new-session", "-d", "-x", str(columns), "-y", str(rows), command)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def paste(self, text: str) -> None:
        self.run("set-buffer", text)
        self.run("paste-buffer", "-p")

    async def shows(self, text: str, seconds: float = 60.0) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = self.screen()
            if text in seen:
                return seen
            await asyncio.sleep(0.1)
        raise AssertionError(f"{text!r} never came; last seen:\n{self.screen()}")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    (tmp_path / "t").mkdir()
    made = Tmux(tmp_path / "t")
    yield made
    made.run("kill-server")


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_pasted_path_is_asked_about_in_tmux(tmp_path: Path, tmux: Tmux, size: tuple[int, int]) -> None:
    home = tmp_path / "home"
    async with chat_server(Say(["Three red circles."])) as server:
        profile_file(home, server.port)
        tmux.open(home, *size)
        await tmux.shows("ready")
        tmux.paste(f"'{picture(tmp_path, 'my scene.png')}'")
        await tmux.shows("my scene.png 448×448")
        tmux.keys("How many?", "Enter")
        seen = await tmux.shows("Three red circles.")
        assert "▀" in seen or size == (80, 24)
        await tmux.shows("TTFT")
        tmux.keys("Escape")
        await tmux.shows("i write")
        tmux.keys("q")
        await tmux.shows("ended")
        await asyncio.sleep(0.5)
        assert tmux.screen().split()[:2] == ["ended", "0"]  # the terminal's own line editing is back


async def test_a_closed_terminal_ends_the_console_and_keeps_the_answer(tmp_path: Path, tmux: Tmux) -> None:
    home = tmp_path / "home"
    async with chat_server(Say(["word "] * 500, gap=0.05)) as server:
        profile_file(home, server.port)
        tmux.open(home, 120, 40)
        await tmux.shows("ready")
        tmux.keys("Go on", "Enter")
        await tmux.shows("word word")
        tmux.run("kill-server")
        for _ in range(200):
            await asyncio.sleep(0.1)
            message = ChatStore(home / "chats.sqlite", home / "pictures").messages(1)[-1]
            if message.state != "streaming":
                break
        assert message.state == "interrupted"
        assert message.text.startswith("word word")
        await asyncio.sleep(0.5)
        assert str(home) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


async def test_resize_storms_do_no_harm(tmp_path: Path, tmux: Tmux) -> None:
    home = tmp_path / "home"
    async with chat_server(Say(["Still here."])) as server:
        profile_file(home, server.port)
        tmux.open(home, 120, 40)
        await tmux.shows("ready")
        for number in range(30):
            tmux.run("resize-window", "-x", str(40 + number * 4), "-y", str(10 + number))
        tmux.run("resize-window", "-x", "100", "-y", "30")
        tmux.keys("Hello", "Enter")
        await tmux.shows("Still here.")
