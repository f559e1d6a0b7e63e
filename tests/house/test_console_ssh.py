"""The console over a real sshd, in tmux: a laptop's path pasted, the printed line really run, the picture answered."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from loopback_sshd import LACKING, Sshd
from test_chat_screen import picture
from test_console_tmux import Tmux

from vlmconsole.chats.store import ChatStore
from vlmconsole.queue.process import LOCKS_VARIABLE as LOCKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACKING) or shutil.which("tmux") is None, reason=LACKING or "tmux is not installed"),
]


async def by_scp(tmp_path: Path, home: Path, question: str, environment: str = "") -> tuple[Sshd, Tmux]:
    """The console over SSH in tmux: a laptop's path is pasted, the printed line run, and the picture asked about.

    Returns what is to be stopped, once the question is sent.
    """
    sshd, laptop = Sshd(tmp_path), tmp_path / "laptop"
    for folder in (laptop, tmp_path / "t"):
        folder.mkdir()
    tmux = Tmux(tmp_path / "t")
    sshd.start()
    try:
        far = f"{environment} {sys.executable} -m vlmconsole --home {home}".strip()
        command = f"ssh -tt -F {sshd.config} {Sshd.alias} {shlex.quote(far)}; sleep 60"
        # Wide: the line must come out whole, and a test's folders have long names.
        tmux.run("new-session", "-d", "-x", "250", "-y", "40", command)
        await tmux.shows("ready", 300)
        tmux.paste("/Users/me/Desktop/my\\ shot.png")
        seen = await tmux.shows("it is attached on arrival")
        line = next(row.strip() for row in seen.splitlines() if row.strip().startswith("scp "))
        words = shlex.split(re.split(r"\s{2,}", line)[0])
        assert words[:3] == ["scp", "-P", str(sshd.port)] and words[3] == "/Users/me/Desktop/my shot.png"
        words[3] = str(picture(laptop, "my shot.png"))  # the laptop is another folder of this machine
        options = ["-i", str(sshd.folder / "user"), "-o", f"UserKnownHostsFile={sshd.folder / 'known'}"]
        done = await asyncio.to_thread(
            subprocess.run, [words[0], *options, *words[1:]], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        await tmux.shows("my shot.png 448×448")
        tmux.keys(question, "Enter")
    except BaseException:
        tmux.run("kill-server")
        sshd.stop()
        raise
    return sshd, tmux


async def test_a_laptops_picture_comes_by_the_printed_line(tmp_path: Path) -> None:
    home = tmp_path / "lab"
    home.mkdir()
    async with chat_server(Say(["Two blue squares."])) as server:
        profile_file(home, server.port)
        sshd, tmux = await by_scp(tmp_path, home, "What is there?")
        try:
            await tmux.shows("Two blue squares.")
            assert '"image_url": {' in str(server.requests[0]).replace("'", '"')
        finally:
            tmux.run("kill-server")
            sshd.stop()


@pytest.mark.timeout(600)
async def test_the_bundled_model_answers_about_a_laptops_picture(tmp_path: Path) -> None:
    """Nothing but what is installed: its server is started by the console, and its sight of the picture is proven."""
    home, locks = tmp_path / "lab", tmp_path / "locks"
    home.mkdir()
    environment = f"env {LOCKS}={locks}"
    sshd, tmux = await by_scp(tmp_path, home, "How many red circles are there?", environment)
    try:
        seen = await tmux.shows("reported by server", 120)
        assert "✓ 64 image tokens" in seen
        answer = next(m for m in ChatStore(home / "chats.sqlite", home / "pictures").messages(1) if m.role != "user")
        assert answer.state == "done" and answer.text.strip()
    finally:
        tmux.run("kill-server")
        sshd.stop()
        stop = [sys.executable, "-m", "vlmconsole", "--home", str(home), "servers", "stop", "demo"]
        subprocess.run(stop, env={**os.environ, LOCKS: str(locks)}, timeout=120, check=True)
