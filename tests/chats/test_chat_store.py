"""Conversations on disk: order, search, undo, what a killed writer leaves, exports."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from refusals import mentions, refused

from vlmconsole.chats import schema
from vlmconsole.chats.export import export_chat
from vlmconsole.chats.history import turns
from vlmconsole.chats.records import ChatStoreError
from vlmconsole.chats.store import UNDO_WINDOW, ChatStore
from vlmconsole.vision.images import Picture, PictureError, open_picture


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def store(folder: Path, clock: Clock | None = None) -> ChatStore:
    return ChatStore(folder / "chats.sqlite", folder / "pictures", clock=clock or Clock())


def picture(name: str = "scene.png", colour: int = 9) -> Picture:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (colour, 2, 3)).save(out, "PNG")
    return open_picture(out.getvalue(), name=name)


def test_pictures_come_back_byte_for_byte(tmp_path: Path) -> None:
    chats = store(tmp_path)
    chat = chats.new_chat(title="one")
    sent = picture("Bildschirmfoto\u202f1.png")
    chats.add(chat.id, "user", "What is it?", pictures=[sent, sent])
    kept = store(tmp_path).messages(chat.id)[0].pictures
    assert [item.load().data for item in kept] == [sent.data, sent.data]
    assert kept[0].load().pixel_sha256 == sent.pixel_sha256
    assert len(list((tmp_path / "pictures").iterdir())) == 1
    kept[0].path.write_bytes(b"other")
    with pytest.raises(PictureError, match="changed"):
        kept[0].load()


def test_search_looks_in_titles_and_messages_and_takes_signs_literally(tmp_path: Path) -> None:
    chats = store(tmp_path)
    first, second = chats.new_chat(title="Receipt 100%"), chats.new_chat(title="Sign")
    chats.add(second.id, "user", "a_b and [brackets]")
    assert [chat.id for chat in chats.chats()] == [second.id, first.id]
    assert [chat.id for chat in chats.chats("100%")] == [first.id]
    assert [chat.id for chat in chats.chats("A_B")] == [second.id]
    assert chats.chats("axb") == []


def test_deleted_conversations_come_back_until_they_are_purged(tmp_path: Path) -> None:
    clock = Clock()
    chats = store(tmp_path, clock)
    chat = chats.new_chat(title="gone")
    chats.add(chat.id, "user", "x", pictures=[picture()])
    chats.delete(chat.id)
    assert chats.chats() == []
    assert chats.purge() == 0
    chats.restore(chat.id)
    assert [item.id for item in chats.chats()] == [chat.id]
    chats.delete(chat.id)
    clock.now += UNDO_WINDOW + 10
    assert chats.purge() == 1
    assert list((tmp_path / "pictures").iterdir()) == []


def test_a_killed_writer_leaves_an_interrupted_answer_with_its_text(tmp_path: Path) -> None:
    code = (
        "import sys,time\nfrom pathlib import Path\nfrom vlmconsole.chats.store import ChatStore\n"
        "s=ChatStore(Path(sys.argv[1])/'chats.sqlite',Path(sys.argv[1])/'pictures')\n"
        "c=s.new_chat(title='t'); m=s.add(c.id,'assistant','',state='streaming')\n"
        "s.progress(m.id,'half an answer'); print('ready',flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    chats = store(tmp_path)
    assert chats.messages(1)[0].state == "streaming"  # its writer lives: not ours to close
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    message = store(tmp_path).messages(1)[0]
    assert (message.state, message.text) == ("interrupted", "half an answer")


def test_an_export_says_its_conditions_and_is_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        chats = store(tmp_path)
        chat = chats.new_chat(title="<b>bold</b> *x* [y](z)", server="demo")
        chats.add(chat.id, "user", "What?", pictures=[picture()])
        answer = chats.add(chat.id, "assistant", "", state="streaming", server="demo")
        conditions = {"model": "tiny", "engine": "mlx-vlm", "engine_version": "0.7.10", "temperature": 0.9, "seed": 7}
        seen = [
            {"state": "equal", "expected": 64, "observed": 64},
            {"state": "not verifiable", "expected": 8, "why": "no usage was sent"},
        ]
        facts = {"conditions": {**conditions, "max_tokens": 1}, "request": {"top_p": 0.5}, "vision": seen}
        chats.finish(answer.id, text="So.", reasoning="", state="done", error="", answer=facts)
        text = export_chat(chats, chat.id, tmp_path / "out").markdown.read_text()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text.startswith(r"# \<b\>bold\</b\> \*x\* \[y\](z)" + "\n")
    assert mentions(text, "tiny", "mlx-vlm 0.7.10", "temperature 0.9", "top-p 0.5", "seed 7", "max tokens 1")
    assert mentions(text, "64 image tokens", "64 expected ✓")
    assert mentions(text, "not verifiable", "8 expected", "no usage was sent")
    assert "## You · 1970-01-12 19:16:42+05:30" in text


def test_superseded_messages_are_kept_and_exported_but_not_shown(tmp_path: Path) -> None:
    chats = store(tmp_path)
    chat = chats.new_chat(title="Edit / me?")
    asked = chats.add(chat.id, "user", "first", pictures=[picture("a](b).png")])
    chats.add(chat.id, "assistant", "old", server="demo")
    chats.supersede(chat.id, asked.id)
    chats.add(chat.id, "user", "second")
    cut = chats.add(chat.id, "assistant", "", state="streaming", server="demo")
    chats.finish(cut.id, text="new", state="cut", error="closed")
    assert [message.text for message in chats.messages(chat.id)] == ["second", "new"]
    made = export_chat(chats, chat.id, tmp_path / "out")
    data = json.loads(made.json.read_text())
    assert [message["superseded"] for message in data["messages"]] == [True, True, False, False]
    assert "cut off: closed" in made.markdown.read_text()
    assert len(made.pictures) == 1
    assert export_chat(chats, chat.id, tmp_path / "out").folder != made.folder


def test_the_next_question_goes_with_what_gave_something(tmp_path: Path) -> None:
    chats = store(tmp_path)
    chat = chats.new_chat()
    for role, text, server in (
        ("user", "q1", ""),
        ("assistant", "", "a"),
        ("user", "q2", ""),
        ("assistant", "from a", "a"),
        ("assistant", "from b", "b"),
        ("user", "q3", ""),
    ):
        chats.add(chat.id, role, text, server=server)  # type: ignore[arg-type]
    assert [message.text for message in turns(chats.messages(chat.id), "b")] == ["q2", "from b", "q3"]
    assert [message.text for message in turns(chats.messages(chat.id), "c")] == ["q2", "from a", "q3"]


def test_damaged_and_newer_files_are_said_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "chats.sqlite").write_bytes(b"this is no database, not at all, really not" * 40)
    with refused("database-damaged", "chats.sqlite", error=ChatStoreError):
        store(tmp_path)
    newer = tmp_path / "newer"
    newer.mkdir()
    database = sqlite3.connect(newer / "chats.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    with refused("database-newer", "99", error=ChatStoreError):
        store(newer)


def test_two_consoles_write_at_once(tmp_path: Path) -> None:
    one, two = store(tmp_path), store(tmp_path)
    chat = one.new_chat(title="shared")
    begun = time.monotonic()
    for number in range(50):
        (one if number % 2 else two).add(chat.id, "user", str(number))
    assert [message.text for message in two.messages(chat.id)] == [str(number) for number in range(50)]
    assert time.monotonic() - begun < 10


@pytest.fixture
def locked() -> Iterator[Path]:
    """A home with one conversation that this process may read and not write (root becomes nobody meanwhile)."""
    home = Path(tempfile.mkdtemp())
    held = store(home)
    held.new_chat(title="kept")
    held.close()
    (home / "chats.sqlite").chmod(0o444)
    home.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield home
    if root:
        os.seteuid(0)
    home.chmod(0o755)
    shutil.rmtree(home)


def test_a_read_only_database_is_said_to_be_one_and_can_be_read(locked: Path) -> None:
    with refused("database-read-only", "permission", error=ChatStoreError):
        store(locked)
    reading = ChatStore(locked / "chats.sqlite", locked / "pictures", read_only=True)
    assert [chat.title for chat in reading.chats()] == ["kept"]
    with pytest.raises(ChatStoreError, match="readonly"):
        reading.new_chat()


def test_the_console_says_in_one_line_that_the_conversations_are_damaged(tmp_path: Path) -> None:
    from vlmconsole.app import run_console

    (tmp_path / "chats.sqlite").write_bytes(b"no database at all, " * 400)
    with refused("database-damaged", "chats.sqlite", error=ChatStoreError):
        run_console(tmp_path)


def test_only_a_damaged_file_is_advised_to_be_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"no database" * 500)
    with refused("database-damaged", "Move", "bad.sqlite", error=ChatStoreError):
        schema.connect(tmp_path / "bad.sqlite")

    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(schema, "_migrate", full)
    with refused("disk-full", "Make room", error=ChatStoreError) as no_room:
        schema.connect(tmp_path / "good.sqlite")
    assert "away" not in no_room.value.hint
