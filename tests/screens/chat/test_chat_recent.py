"""A conversation longer than its server's context: what is sent of it is chosen, seen and kept with the answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chat_server import ChatServer, chat_server, profile_file
from refusals import mentions
from test_chat_screen import answered, ask, console, picture, until
from textual.pilot import Pilot
from textual.widgets import Static

from vlmconsole.chats.history import turns
from vlmconsole.chats.store import ChatStore
from vlmconsole.screens.chat.screen import ChatScreen
from vlmconsole.vision.images import open_picture


def long_chat(home: Path, questions: int) -> None:
    store = ChatStore(home / "chats.sqlite", home / "pictures")
    chat = store.new_chat(title="long")
    for number in range(questions):
        seen = [open_picture(picture(home).read_bytes(), name="a.png")] if number == 0 else []
        store.add(chat.id, "user", f"question {number} " + "word " * 60, pictures=seen)
        store.add(chat.id, "assistant", f"answer {number}")
    store.close()


@asynccontextmanager
async def nothing_before(home: Path) -> AsyncIterator[tuple[ChatServer, Pilot[None], ChatScreen]]:
    """A conversation of three questions of which none goes with the next one."""
    long_chat(home, 3)
    async with chat_server() as server:
        profile_file(home, server.port)
        async with console(home) as (pilot, screen):
            await until(lambda: len(screen.transcript.messages) == 6)
            await ask(pilot, screen, "/recent 0")
            await until(lambda: mentions(notice(screen), "no earlier turns"))
            yield server, pilot, screen


def notice(screen: Any) -> str:
    return str(screen.query_one("#notice").render())


def budget(screen: Any) -> str:
    return str(screen.query_one("#budget").render())


def why(screen: Any) -> str:
    return "\n".join(line.plain for line in screen.query_one("#why-rows", Static).visual.lines(60))


def said(request: dict[str, Any]) -> list[str]:
    texts = []
    for message in request["messages"]:
        content = message["content"]
        texts.append(content if isinstance(content, str) else " ".join(part.get("text", "") for part in content))
    return [text.split(" word")[0] for text in texts]


async def test_the_newest_turns_go_on_where_all_would_not_fit(tmp_path: Path) -> None:
    long_chat(tmp_path, 80)
    async with chat_server() as server:
        profile_file(tmp_path, server.port, context=4096)
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: len(screen.transcript.messages) == 160)
            await ask(pilot, screen, "And now?")
            await until(lambda: mentions(notice(screen), "Ctrl+R", "newest"))
            assert server.requests == []
            await pilot.press("ctrl+r")
            await until(lambda: mentions(notice(screen), "questions", "/recent all"), seconds=20.0)
            assert screen.composer.question.text == "And now?", "what is being written stays"
            await pilot.press("enter")
            await until(lambda: server.requests != [] and answered(screen), seconds=20.0)
            sent = said(server.requests[0])
            assert sent[-1] == "And now?" and sent[-2] == "answer 79" and sent[0].startswith("question ")
            kept = (len(sent) - 1) // 2
            assert 5 < kept < 60, "as many as leave a quarter of the context free"
            evidence = screen.conversation.answers()[-1].answer
            assert evidence is not None and evidence["questions_left_out"] == 80 - kept
            await until(lambda: f"{80 - kept} earlier questions" in why(screen))
            # It stays so after a restart, and everything can go again.
            await ask(pilot, screen, "/recent 2")
            await until(lambda: "2 of 81 questions" in notice(screen))
            await pilot.press("x")
            await until(lambda: "2 of 81 questions" in budget(screen))
            screen.composer.question.clear()
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: len(screen.transcript.messages) == 162)
            await ask(pilot, screen, "Still there?")
            await until(lambda: len(server.requests) == 2 and answered(screen), seconds=20.0)
            assert said(server.requests[1])[0].startswith("question 79")
            await ask(pilot, screen, "/recent all")
            await until(lambda: mentions(notice(screen), "whole conversation"))
            await ask(pilot, screen, "/recent many")
            await until(lambda: mentions(notice(screen), "/recent N", "/recent all", "many"))
            await ask(pilot, screen, "/recent 0")
            await until(lambda: mentions(notice(screen), "no earlier turns"))
            await ask(pilot, screen, "Alone?")
            await until(lambda: len(server.requests) == 3 and answered(screen), seconds=20.0)
            assert said(server.requests[2]) == ["Alone?"]


async def test_what_is_written_counts_in_what_fits(tmp_path: Path) -> None:
    long_chat(tmp_path, 60)
    async with chat_server() as server:
        profile_file(tmp_path, server.port, context=4096)
        async with console(tmp_path) as (pilot, screen):
            await until(lambda: len(screen.transcript.messages) == 120)
            await pilot.press("ctrl+r")
            await until(lambda: "of 60 questions" in notice(screen), seconds=20.0)
            alone = screen.conversation.sampling.since
            screen.composer.question.insert("word " * 2000)
            await pilot.press("ctrl+r")
            await until(lambda: screen.conversation.sampling.since > alone, seconds=20.0)
            await until(lambda: "of 60 questions" in notice(screen))
            await pilot.press("ctrl+g")
            assert screen.composer.question.text == ""
            await pilot.press("ctrl+z")
            await until(lambda: screen.composer.question.text == "word " * 2000)


async def test_what_is_asked_again_goes_whatever_is_left_out_before_it(tmp_path: Path) -> None:
    async with nothing_before(tmp_path) as (server, pilot, screen):
        await pilot.press("escape", "r")
        await until(lambda: len(server.requests) == 1 and answered(screen), seconds=20.0)
        assert said(server.requests[0]) == ["question 2"]
        evidence = screen.conversation.answers()[-1].answer
        assert evidence is not None and evidence["questions_left_out"] == 2
        await pilot.press("k", "k", "r")  # an older one, from before what is sent
        await until(lambda: len(server.requests) == 2 and answered(screen), seconds=20.0)
        assert said(server.requests[1])[-1].startswith("question ") and len(said(server.requests[1])) == 1


async def test_a_new_conversation_has_nothing_to_leave_out(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "/recent")
            await until(lambda: mentions(notice(screen), "no earlier questions", "yet"))


def test_turns_begin_where_they_are_told_to(tmp_path: Path) -> None:
    long_chat(tmp_path, 3)
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    messages = store.messages(1)
    assert len(turns(messages)) == 6
    assert [item.text.split(" word")[0] for item in turns(messages, since=messages[4].id)] == ["question 2", "answer 2"]
    assert turns(messages, since=messages[-1].id + 1) == []
    store.close()


async def test_what_was_counted_for_one_conversation_is_not_said_of_the_next(tmp_path: Path) -> None:
    async with nothing_before(tmp_path) as (_, pilot, screen):
        await pilot.press("x")
        await until(lambda: "last 0 of 3 questions" in budget(screen))
        shown: list[str] = []
        await screen.action_new()
        shown.append(budget(screen))
        await until(lambda: shown.append(budget(screen)) or "context" in shown[-1])
        assert not any("questions" in one for one in shown)
