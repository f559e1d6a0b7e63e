"""While somebody types, a streaming answer is painted more rarely; nothing of it is lost."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vlmconsole.chats.store import ChatStore
from vlmconsole.lab import LabSettings
from vlmconsole.screens.chat.turn import ChatTurn


class Streaming:
    """A link whose server sends a piece every five milliseconds for a second."""

    def __init__(self) -> None:
        self.profile, self.settings = SimpleNamespace(name="fast", model="m"), None

    async def ask(self, _messages: Any, *, on_delta: Any, on_sent: Any, **_: Any) -> Any:
        on_sent(0.0)
        for number in range(200):
            await asyncio.sleep(0.005)
            on_delta(SimpleNamespace(kind="text", at=0.1, text=f"{number} "))
        raise RuntimeError("cut")


async def paints(folder: Path, since_key: float) -> tuple[int, str]:
    folder.mkdir()
    store = ChatStore(folder / "chats.sqlite3", folder / "pictures")
    chat = store.new_chat()
    store.add(chat.id, "user", "Tell me")
    message = store.add(chat.id, "assistant", "", state="streaming")
    shown: list[str] = []
    link: Any = Streaming()
    turn = ChatTurn(
        link,
        store,
        chat,
        message,
        LabSettings(max_tokens=1000),
        show=lambda text, _: shown.append(text),
        since_key=lambda: since_key,
    )
    finished = await turn.run()
    return len(shown), finished.text


async def test_an_answer_gives_way_to_typing_and_loses_nothing(tmp_path: Path) -> None:
    resting, whole = await paints(tmp_path / "resting", 10.0)
    typing, same = await paints(tmp_path / "typing", 0.0)
    assert same == whole == "".join(f"{number} " for number in range(200))
    assert 1 <= typing < resting / 2
