"""How the chat looks, cell by cell, at both sizes and in both themes.

After a wanted change: `pytest tests/screens/chat/test_snapshots.py --snapshot-update`, and look at what changed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Say, profile_file
from PIL import Image, ImageDraw
from textual.pilot import Pilot

from vlmconsole.app import ConsoleApp
from vlmconsole.chats.store import ChatStore
from vlmconsole.lab import Lab
from vlmconsole.screens.table import SCREENS
from vlmconsole.vision.images import open_picture

NOW = 1_796_000_000.0
MARKDOWN = """Here is what I see:

| shape | colour | count |
|---|---|--:|
| circle | red | 3 |

1. The **largest** is a square.
2. It is `blue`.

```python
def count() -> int:
    return 3  # 漢字 [/INST]
```"""


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    # The tabs of screens that come later are no change of the chat.
    monkeypatch.setattr("vlmconsole.screens.paned.SCREENS", SCREENS[:1])
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def port() -> Iterator[int]:
    """A chat server in a thread of its own: the snapshot runs its own event loop."""
    loop, server = asyncio.new_event_loop(), ChatServer([Say()])
    ready = threading.Event()

    async def listen() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await listening.serve_forever()

    async def until_told(told: asyncio.Event) -> None:
        listening = asyncio.create_task(listen())
        await told.wait()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, listening, return_exceptions=True)

    told = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(until_told(told),), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server.port
    loop.call_soon_threadsafe(told.set)
    thread.join(10)
    loop.close()


def kept(home: Path) -> None:
    """A lab home with two conversations, one of them cut off."""
    clock = iter(NOW - 86400 * 3 + step for step in range(10**6))
    store = ChatStore(home / "chats.sqlite", home / "pictures", clock=lambda: next(clock))
    image = Image.new("RGB", (448, 448), (244, 242, 236))
    draw = ImageDraw.Draw(image)
    draw.ellipse((60, 60, 200, 200), fill=(214, 48, 49))
    draw.rectangle((250, 240, 390, 380), fill=(41, 98, 255))
    path = home / "scene-0042.png"
    image.save(path)
    picture = open_picture(path)
    evidence: dict[str, Any] = {
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 105, "completion_tokens": 22, "cached_tokens": None},
        "timing": {"ttft_s": 0.31, "tpot_s": 0.0124, "e2e_s": 0.57, "output_tokens_per_s": 38.6},
        "vision": [{"sha256": picture.sha256, "expected": 64, "observed": 64, "state": "equal"}],
        "conditions": {"route": "tunnel"},
        "client": {"lag_p99_ms": 0.4},
        "settings": {"running limit B": 4, "context": 4096, "prefix cache": False},
    }
    cut = store.new_chat(title="Receipt, blurred [bold]", server="demo")
    store.add(cut.id, "user", "How many lines?")
    half = store.add(cut.id, "assistant", "", state="streaming", server="demo")
    store.finish(half.id, text="There are twelve li", state="cut", error="demo closed the connection without [DONE]")
    chat = store.new_chat(title="Count the red circles", server="demo")
    store.add(chat.id, "user", "Count the red circles.", pictures=[picture])
    answer = store.add(chat.id, "assistant", "", state="streaming", server="demo")
    store.finish(answer.id, text=MARKDOWN, state="done", answer=evidence)


def app(home: Path, port: int, *, full: bool = True, theme: str = "dark") -> ConsoleApp:
    home.mkdir(mode=0o700, exist_ok=True)
    profile_file(home, port, processor={"max_pixels": 50176}, context=4096)
    (home / "config.toml").write_text(f'server = "toy"\ntheme = "{theme}"\n')
    if full:
        kept(home)
    return ConsoleApp(Lab.open(home), clock=lambda: NOW)


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Wait until the server is ready and the pictures are drawn, then press `keys`."""

    async def run(pilot: Pilot[None]) -> None:
        console = pilot.app
        assert isinstance(console, ConsoleApp)
        for _ in range(600):
            if console.link is not None and console.link.view.state == "ready":
                break
            await asyncio.sleep(0.02)
        await pilot.app.workers.wait_for_complete()
        await pilot.press(*keys)
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()

    return run


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_chat_120(snap_compare: Any, tmp_path: Path, port: int, theme: str) -> None:
    console = app(tmp_path / "home", port, theme=theme)
    assert snap_compare(console, terminal_size=(120, 40), run_before=after("escape", "k"))


def test_chat_80(snap_compare: Any, tmp_path: Path, port: int) -> None:
    assert snap_compare(app(tmp_path / "home", port), terminal_size=(80, 24), run_before=after())


def test_why_80(snap_compare: Any, tmp_path: Path, port: int) -> None:
    keys = after("escape", "right_square_bracket")
    assert snap_compare(app(tmp_path / "home", port), terminal_size=(80, 24), run_before=keys)


def test_cut_off_answer(snap_compare: Any, tmp_path: Path, port: int) -> None:
    keys = after("escape", "left_square_bracket", "down", "enter")
    assert snap_compare(app(tmp_path / "home", port), terminal_size=(120, 40), run_before=keys)


def test_welcome(snap_compare: Any, tmp_path: Path, port: int) -> None:
    assert snap_compare(app(tmp_path / "home", port, full=False), terminal_size=(80, 24), run_before=after())


def test_no_colour(snap_compare: Any, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every meaning is still there without colour: signs and words carry it."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert os.environ["NO_COLOR"]
    assert snap_compare(app(tmp_path / "home", port), terminal_size=(120, 40), run_before=after())
