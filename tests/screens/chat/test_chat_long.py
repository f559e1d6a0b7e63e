"""Conversations of thousands of messages: kept once, opened and answered like short ones."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import waiting
from chat_server import Say, chat_server, profile_file
from test_chat_screen import answered, ask, console, picture

from vlmconsole.chats.export import export_chat
from vlmconsole.chats.store import ChatStore
from vlmconsole.screens.chat.message import MessageView
from vlmconsole.screens.chat.transcript import MOST

until = partial(waiting.until, seconds=20.0, every=0.02)


def long_chat(home: Path, messages: int, *, squared: bool = False) -> ChatStore:
    """A conversation as this version keeps it; `squared`: as earlier ones did, each answer with all before it."""
    store = ChatStore(home / "chats.sqlite", home / "pictures")
    chat = store.new_chat(title="long", server="toy")
    before: list[dict[str, str]] = []
    with store.together():
        for number in range(messages // 2):
            asked = store.add(chat.id, "user", f"question {number} " + "word " * 20)
            message = store.add(chat.id, "assistant", "", state="streaming", server="toy")
            before.append({"role": "user", "content": asked.text})
            request = {"messages": before} if squared else {"message_ids": [asked.id]}
            facts = {"timing": {"ttft_s": 0.1}, "usage": {"completion_tokens": 3}, "request": request}
            store.finish(message.id, text=f"answer {number} " + "word " * 20, state="done", answer=facts)
            before.append({"role": "assistant", "content": "answer"})
    return store


async def test_an_answer_refers_to_what_was_sent_and_the_evidence_shows_it_whole(tmp_path: Path) -> None:
    async with chat_server(Say(["One."]), Say(["Two."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            screen.conversation.set(system="Be brief.")
            await screen.composer.attach([picture(tmp_path)])
            await until(lambda: len(screen.attachments.pictures) == 1)
            await ask(pilot, screen, "First?")
            await until(lambda: answered(screen))
            await ask(pilot, screen, "Second?")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            answer = screen.conversation.answers()[-1]
            assert answer.answer is not None and "messages" not in answer.answer["request"]
            whole = screen.conversation.store.request(answer.id)
            assert whole is not None
            roles = [(message["role"], message["content"]) for message in whole["messages"]]
            assert roles[0] == ("system", "Be brief.") and roles[2:] == [("assistant", "One."), ("user", "Second?")]
            assert roles[1][1][0]["image_url"]["url"].startswith("sha256:") and roles[1][1][1]["text"] == "First?"
            # The hash is of the very bytes that were sent.
            sent = {hashlib.sha256(body).hexdigest(): json.loads(body) for body in server.bodies}
            assert [message["role"] for message in sent[whole["body_sha256"]]["messages"]] == [
                role for role, _ in roles
            ]
            assert screen.conversation.chat is not None
            exported = export_chat(screen.conversation.store, screen.conversation.chat.id, tmp_path / "exports")
            kept = json.loads(next(exported.folder.glob("*.json")).read_text())
            ids = {message["id"] for message in kept["messages"]}
            assert set(kept["messages"][-1]["answer"]["request"]["message_ids"]) <= ids


def test_a_long_conversation_is_kept_in_a_line_and_read_without_its_evidence(tmp_path: Path) -> None:
    store = long_chat(tmp_path, 2000)
    (chat,) = store.chats()
    assert store.database.stat().st_size + store.database.with_name("chats.sqlite-wal").stat().st_size < 8_000_000
    light = store.messages(chat.id, evidence=10)
    assert len(light) == 2000 and sum(message.answer is not None for message in light) == 5
    assert [message.answer for message in store.messages(chat.id, evidence=0) if message.answer] == []
    full = store.messages(chat.id)
    assert sum(message.answer is not None for message in full) == 1000
    assert [(m.id, m.text, m.state) for m in light] == [(m.id, m.text, m.state) for m in full]
    store.close()


async def test_the_square_of_earlier_versions_is_read_lean_and_told_whole(tmp_path: Path) -> None:
    store = long_chat(tmp_path, 1200, squared=True)
    (chat,) = store.chats()
    last = store.messages(chat.id, evidence=1)[-1]
    assert last.answer is not None and "messages" not in last.answer["request"] and not last.damaged
    whole = store.request(last.id)
    assert whole is not None and len(whole["messages"]) == 1199
    store.close()


async def test_a_long_conversation_scrolls_to_its_beginning_and_is_answered(tmp_path: Path) -> None:
    async with chat_server(Say(["At once."])) as server:
        server.context = 200_000
        profile_file(tmp_path, server.port, context=200_000)
        long_chat(tmp_path, 2000).close()
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: len(screen.transcript.messages) == 2000)
            assert len(screen.query(MessageView)) <= MOST
            await pilot.press("escape", *["k"] * 40)
            chosen = screen.transcript.selected
            assert chosen is not None and chosen.id == 2000 - 40
            answer = screen.transcript.chosen_answer
            assert answer is not None and answer.answer is not None
            await pilot.press("i")
            await ask(pilot, screen, "And now?")
            await until(lambda: bool(server.requests) and answered(screen))
            assert len(server.requests[-1]["messages"]) == 2001
