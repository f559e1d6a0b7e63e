"""A store that takes nothing any more: what was written and what was answered stay, and are kept when it does again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import waiting
from chat_server import Say, chat_server, profile_file
from test_chat_screen import answered, ask, console, picture

from vlmconsole.chats.records import ChatStoreError
from vlmconsole.screens.chat import ask as chat_ask
from vlmconsole.screens.chat import turn

until = partial(waiting.until, seconds=10.0, every=0.02)


def full(*_: object, **__: object) -> None:
    raise ChatStoreError("the conversations cannot be used: database or disk is full")


async def test_a_question_that_cannot_be_stored_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat_server(Say(["Three."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await screen.composer.attach([picture(tmp_path)])

            with monkeypatch.context() as patched:
                patched.setattr(screen.conversation.store, "add", full)
                await ask(pilot, screen, "How many?")
                await until(lambda: screen.composer.question.text == "How many?")
                await pilot.pause(0.3)
                assert "disk is full" in str(screen.query_one("#notice").render())
            assert screen.composer.question.text == "How many?" and len(screen.attachments.pictures) == 1
            assert not server.requests
            await pilot.press("enter")
            await until(lambda: answered(screen))
            with monkeypatch.context() as patched:  # and what stands stays: the answer, and the title
                patched.setattr(screen.conversation.store, "add", full)
                patched.setattr(screen.conversation.store, "set_chat", full)
                await pilot.press("escape", "r")
                await until(lambda: any("disk is full" in one.message for one in pilot.app._notifications))
                pilot.app.clear_notifications()
                await pilot.press("R", "x", "enter")
                await until(lambda: any("disk is full" in one.message for one in pilot.app._notifications))
            answer = screen.conversation.answers()[-1]
            assert answer.text == "Three." and not answer.superseded
            assert len(screen.conversation.store.chats()) == 1 and len(screen.transcript.messages[0].pictures) == 1


async def test_an_answer_that_cannot_be_kept_is_shown_and_kept_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_ask, "KEEP_AGAIN", 0.1)
    monkeypatch.setattr(turn, "SAVE", 0.05)
    async with chat_server(Say(["Three ", "circles."], gap=0.2)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            with monkeypatch.context() as patched:
                patched.setattr(screen.conversation.store, "progress", full)
                patched.setattr(screen.conversation.store, "finish", full)
                await ask(pilot, screen, "How many?")
                await until(lambda: answered(screen))
                assert [one.text for one in screen.conversation.answers()] == ["Three circles."]
                assert any("cannot be saved" in one.message for one in pilot.app._notifications)
                (kept,) = (one for one in screen.conversation.store.messages(1) if one.role == "assistant")
                assert kept.state == "streaming"
            await until(lambda: screen.conversation.store.messages(1)[-1].state == "done")
            assert screen.conversation.store.messages(1)[-1].text == "Three circles."
