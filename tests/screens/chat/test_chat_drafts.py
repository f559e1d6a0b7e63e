"""What is written and not sent is there again after a console that is gone, and only then."""

from __future__ import annotations

import sqlite3
import subprocess
from functools import partial
from pathlib import Path

import pytest
import waiting
from chat_server import Say, chat_server, profile_file
from test_chat_screen import answered, ask, console, picture
from textual.widgets import Static

from vlmconsole.chats.store import ChatStore
from vlmconsole.lab import Lab
from vlmconsole.vision.images import open_picture

until = partial(waiting.until, seconds=10.0, every=0.02)


def gone(home: Path) -> None:
    """Let the drafts be of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with sqlite3.connect(Lab.open(home).places.chats) as database:
        database.execute("UPDATE drafts SET writer_pid = ?", (ended.pid,))


def store(home: Path) -> ChatStore:
    places = Lab.open(home).places
    return ChatStore(places.chats, places.pictures)


async def test_words_and_picture_come_back_in_the_conversation_they_were_for(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."]), Say(["Four."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "How many?")
            await until(lambda: answered(screen))
            await screen.composer.attach([picture(tmp_path)])
            screen.composer.question.insert("and in\nthis one?")
        kept = store(tmp_path)
        assert kept.take_draft() is None, "it is of a process that lives"
        gone(tmp_path)
        other = kept.new_chat(title="newer")
        kept.add(other.id, "user", "newer")
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: screen.composer.question.text == "and in\nthis one?")
            assert [one.name for one in screen.attachments.pictures] == ["scene.png"]
            assert screen.conversation.chat is not None
            assert screen.conversation.chat.id != other.id and len(screen.transcript.messages) == 2
            await pilot.press("enter")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            assert len(screen.transcript.messages[-2].pictures) == 1
        gone(tmp_path)
        async with console(tmp_path) as (_, screen):
            await until(lambda: screen.furnished and screen.conversation.chat is not None)
            assert not screen.composer.written, "what was sent does not come back"


async def test_a_question_for_a_new_conversation_begins_one(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."])) as server:
        profile_file(tmp_path, server.port)
        kept = store(tmp_path)
        kept.add(kept.new_chat(title="old").id, "user", "old")
        kept.keep_draft("new one")
        gone(tmp_path)
        async with console(tmp_path) as (_, screen):
            await until(lambda: screen.composer.question.text == "new one")
            assert screen.conversation.chat is None


def test_one_draft_a_process_the_newest_lost_one_first(tmp_path: Path) -> None:
    clock = iter(float(second) for second in range(100))
    first = ChatStore(tmp_path / "c.sqlite", tmp_path / "pictures", clock=lambda: next(clock))
    first.keep_draft("one")
    first.keep_draft("two")
    assert first._run("SELECT text FROM drafts").fetchall()[0][0] == "two" and first.take_draft() is None
    first._run("UPDATE drafts SET writer_pid = 999999999")
    first.keep_draft("three", None, None, [open_picture(picture(tmp_path))])
    first._run("UPDATE drafts SET writer_pid = 999999999")
    taken = first.take_draft()
    assert taken is not None and (taken.text, taken.chat_id) == ("three", None)
    assert taken.pictures[0].load().sha256 == open_picture(picture(tmp_path)).sha256
    first.keep_draft("")
    left = first.take_draft()
    assert left is not None and left.text == "two"
    first.keep_draft("  ")
    assert first.take_draft() is None and not first._run("SELECT * FROM draft_pictures").fetchall()


def test_a_database_of_the_first_version_gets_room_for_drafts(tmp_path: Path) -> None:
    made = ChatStore(tmp_path / "c.sqlite", tmp_path / "pictures")
    chat = made.new_chat(title="old")
    made._run("DROP TABLE drafts")
    made._run("DROP TABLE draft_pictures")
    made._run("PRAGMA user_version=1")
    made.close()
    assert ChatStore(tmp_path / "c.sqlite", tmp_path / "pictures", read_only=True).chat(chat.id).title == "old"
    again = ChatStore(tmp_path / "c.sqlite", tmp_path / "pictures")
    again.keep_draft("kept", chat.id)
    assert again.chat(chat.id).title == "old"
    assert again._run("PRAGMA user_version").fetchone()[0] == 2


@pytest.mark.parametrize("facts", ["{}", "[", '{"size": "x"}'])
def test_a_damaged_draft_brings_what_is_sound(tmp_path: Path, facts: str) -> None:
    made = ChatStore(tmp_path / "c.sqlite", tmp_path / "pictures")
    made.keep_draft("words", None, None, [open_picture(picture(tmp_path))])
    made._run("UPDATE drafts SET writer_pid = 999999999, text = CAST(x'776f7264ff' AS BLOB)")
    made._run("UPDATE draft_pictures SET facts = ?", (facts,))
    taken = made.take_draft()
    assert taken is not None and taken.text == "word\ufffd" and taken.pictures == ()


async def test_what_comes_back_before_its_server_is_there_is_counted_once_it_is(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."])) as server:
        profile_file(tmp_path, server.port, processor={"max_pixels": 50176})
        store(tmp_path).keep_draft("How many?", None, None, [open_picture(picture(tmp_path))])
        gone(tmp_path)
        async with console(tmp_path) as (_, screen):
            await until(lambda: screen.budgeter.cost is not None and screen.budgeter.cost.visual == 64)
            await until(lambda: "64 tokens" in str(screen.query(".chip").first(Static).render()))


async def test_a_draft_that_is_taken_away_at_once_does_not_come_back(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."])) as server:
        profile_file(tmp_path, server.port)
        kept = store(tmp_path)
        kept.keep_draft("old words")
        gone(tmp_path)
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: screen.composer.question.text == "old words")
            await pilot.press("ctrl+g")
        assert kept._run("SELECT COUNT(*) FROM drafts").fetchone()[0] == 0


async def test_a_question_that_was_being_changed_is_changed_still_and_belongs_where_it_is_seen(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."]), Say(["Four."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "How many?")
            await until(lambda: answered(screen))
            await pilot.press("escape", "E")
            await until(lambda: screen.conversation.changing is not None)
            screen.composer.question.insert(" Now?")
        gone(tmp_path)
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: screen.composer.question.text == "How many? Now?")
            await until(lambda: screen.conversation.changing is not None)
            await pilot.press("enter")
            await until(lambda: answered(screen) and screen.conversation.answers()[-1].text == "Four.")
            assert [one.text for one in screen.transcript.messages] == ["How many? Now?", "Four."]
            screen.composer.question.insert("moves along")
            await pilot.press("escape", "n")
            await until(lambda: screen.conversation.chat is None)
        (row,) = store(tmp_path)._run("SELECT text, chat_id FROM drafts").fetchall()
        assert tuple(row) == ("moves along", None)
