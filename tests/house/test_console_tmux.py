"""The console in a real tmux: painted, typed into, answered, ended by its terminal, healed by the next start."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
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
        # Without the COLUMNS that a readline loaded here set behind Python's back: they would outdo the window's size.
        done = subprocess.run([*self._base, *words], capture_output=True, text=True, timeout=20, env=dict(os.environ))
        return done.stdout

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

    def console(self) -> psutil.Process:
        """The console that the pane's shell started."""
        shell = psutil.Process(int(self.run("list-panes", "-F", "#{pane_pid}")))
        return next(child for child in shell.children(recursive=True) if "vlmconsole" in child.cmdline())

    def modes(self) -> str:
        """What the pane's program has switched, as tmux keeps it."""
        return self.run(
            "display", "-p", "alternate #{alternate_on}, mouse #{mouse_all_flag}, cursor #{cursor_flag}"
        ).strip()

    async def shows(self, text: str, seconds: float = 150.0) -> str:
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


async def test_the_screen_is_drawn_where_errors_go_to_a_file(tmp_path: Path, tmux: Tmux) -> None:
    home = tmp_path / "home"
    async with chat_server() as server:
        profile_file(home, server.port)
        console = f"{sys.executable} -m vlmconsole --home {home} 2>{tmp_path / 'log'}; echo ended; sleep 60"
        tmux.run("new-session", "-d", "-x", "80", "-y", "24", console)
        await tmux.shows("ready")
        tmux.keys("Escape", "q")  # in one burst, as tmux hands them on
        await tmux.shows("ended")
        assert (tmp_path / "log").read_text() == ""


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


async def test_a_closed_terminal_ends_a_console_that_a_living_program_started(tmp_path: Path, tmux: Tmux) -> None:
    """`make run` is one: the kernel tells the session's leader alone, and make waits for its child before it ends."""
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"run:\n\t@{sys.executable} -m vlmconsole --home {tmp_path} $(ARGS)\n")
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        tmux.run("new-session", "-d", "-x", "80", "-y", "24", f"exec make -f {makefile} run")
        await tmux.shows("ready")
        console = tmux.console()
        tmux.run("kill-server")
        await asyncio.to_thread(console.wait, 20)


async def test_the_start_after_a_kill_gives_the_terminal_its_modes_back(tmp_path: Path, tmux: Tmux) -> None:
    """SIGKILL in mid-answer. The next start cannot even open the conversations, yet it leaves a clean terminal."""
    home, go = tmp_path / "home", tmp_path / "go"
    console = f"{sys.executable} -m vlmconsole --home {home}"
    wait = f"until [ -e {go} ]; do sleep 0.1; done"
    # A shell that edits lines repairs those after a kill, and only those: hence `stty sane`.
    await_in = f"{console}; stty sane; echo killed; {wait}; {console}; stty -a | grep -c -- -icanon; cat -v"
    async with chat_server(Say(["word "] * 500, gap=0.05)) as server:
        profile_file(home, server.port)
        tmux.run("new-session", "-d", "-x", "120", "-y", "40", f"bash -c '{await_in}'")
        await tmux.shows("ready")
        assert tmux.modes() == "alternate 1, mouse 1, cursor 0"
        tmux.keys("Go on", "Enter")
        await tmux.shows("word word")
        tmux.console().kill()
        await asyncio.sleep(1)
        assert tmux.modes() == "alternate 1, mouse 1, cursor 0"  # what a killed program leaves behind
        for name in ("chats.sqlite", "chats.sqlite-wal", "chats.sqlite-shm"):
            (home / name).write_bytes(b"no database " * 100)
        go.touch()
        await tmux.shows("chats.sqlite")
        assert tmux.modes() == "alternate 0, mouse 0, cursor 1"
        assert "killed" not in tmux.screen()  # that was written to the screen which is gone
        tmux.paste("a paste")
        seen = await tmux.shows("a paste")
        assert "200~" not in seen  # bracketed paste is off
        assert list((home / "state" / "terminals").iterdir()) == []


async def test_the_start_after_a_kill_goes_on_where_it_was(tmp_path: Path, tmux: Tmux) -> None:
    home = tmp_path / "home"
    console = f"{sys.executable} -m vlmconsole --home {home}"
    async with chat_server(Say(["word "] * 500, gap=0.05)) as server:
        profile_file(home, server.port)
        command = f"{console}; {console}; echo goodbye; stty -a | grep -c -- -icanon; sleep 60"
        tmux.run("new-session", "-d", "-x", "120", "-y", "40", f"bash -c '{command}'")
        await tmux.shows("ready")
        tmux.keys("Go on", "Enter")
        await tmux.shows("word word")
        tmux.console().kill()
        await tmux.shows("interrupted")
        tmux.keys("Escape")
        await tmux.shows("i write")
        tmux.keys("q")
        await tmux.shows("goodbye")
        await asyncio.sleep(0.5)
        assert tmux.modes() == "alternate 0, mouse 0, cursor 1"
        assert tmux.screen().split()[-2:] == ["goodbye", "0"]


async def test_what_is_not_sent_is_there_again_after_a_closed_terminal_and_after_a_kill(
    tmp_path: Path, tmux: Tmux
) -> None:
    home = tmp_path / "home"
    async with chat_server() as server:
        profile_file(home, server.port)
        tmux.open(home, 120, 40)
        await tmux.shows("ready")
        tmux.keys("half a ques")
        await tmux.shows("half a ques")
        console = tmux.console()
        tmux.run("kill-server")
        await asyncio.to_thread(console.wait, 20)
        tmux.open(home, 120, 40)
        await tmux.shows("half a ques")
        tmux.paste(f"'{picture(tmp_path, 'seen.png')}'")
        await tmux.shows("seen.png 448×448")
        tmux.keys("tion")
        await tmux.shows("half a question")
        await asyncio.sleep(3)  # a killed console loses what was typed in its last moment
        console = tmux.console()
        console.kill()
        tmux.run("kill-server")
        await asyncio.to_thread(console.wait, 20)
        await asyncio.sleep(1)  # until the server has left its socket
        tmux.open(home, 120, 40)
        await tmux.shows("half a question")
        await tmux.shows("seen.png 448×448")


async def test_bytes_that_are_no_utf8_are_shown_as_such_and_two_enters_ask_once(tmp_path: Path, tmux: Tmux) -> None:
    home = tmp_path / "home"
    async with chat_server(Say(["Once."], gap=0.5), Say(["Twice."])) as server:
        profile_file(home, server.port)
        tmux.open(home, 80, 24)
        await tmux.shows("ready")
        tmux.run("send-keys", "-H", "e9")
        tmux.keys("t")
        await tmux.shows("\ufffdt")
        tmux.run("send-keys", "-H", "c3")
        tmux.run("send-keys", "-H", "41")
        tmux.keys("end")
        await tmux.shows("end")
        tmux.keys("Enter", "Enter", "Enter")
        await tmux.shows("Once.")
        await asyncio.sleep(2)
        assert len(server.requests) == 1 and "Twice" not in tmux.screen()


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
