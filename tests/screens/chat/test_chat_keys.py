"""What the keys of the chat screen do, driven on a real server; long conversations; the SSH inbox."""

from __future__ import annotations

import io
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from PIL import Image
from refusals import check_nouns, mentions
from test_chat_screen import answered, ask, console, picture, until
from textual.widgets import Input, Static

from vlmconsole.chats.records import StoredMessage
from vlmconsole.chats.store import ChatStore
from vlmconsole.screens.chat.ask import ANSWERING
from vlmconsole.screens.chat.composer import CHANGING, COMMANDS
from vlmconsole.screens.chat.message import MessageView, foot
from vlmconsole.screens.chat.question import QuestionArea
from vlmconsole.screens.keys import KEYS, with_keys
from vlmconsole.vision.images import open_picture


async def test_letters_are_text_while_typing_and_keys_outside(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await pilot.press("n", "q", "1", "left_square_bracket", "question_mark")
            assert screen.composer.question.text == "nq1[?"
            await pilot.press("escape", "question_mark")
            assert type(pilot.app.screen).__name__ == "KeyHelp"
            await pilot.press("escape", "i")
            assert isinstance(screen.focused, QuestionArea)
            await pilot.press("ctrl+j", "a")
            assert screen.composer.question.text == "nq1[?\na"


@pytest.mark.parametrize(("key", "name"), [("f3", "JobsScreen"), ("f6", "ServersScreen")])
async def test_the_screens_keys_work_while_writing(tmp_path: Path, key: str, name: str) -> None:
    """F6 and F7 are a text area's own: it selected the line, and F6 showed nothing."""
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await pilot.press("a")
            assert isinstance(screen.focused, QuestionArea)
            await pilot.press(key)
            await until(lambda: type(pilot.app.screen).__name__ == name)


def test_no_key_is_one_that_tmux_or_a_terminal_eats() -> None:
    keys = {name for key in KEYS for name in key.keys.split(",")}
    assert not keys & {"ctrl+b", "ctrl+a", "ctrl+space", "ctrl+enter", "ctrl+s", "ctrl+q", "ctrl+z", "ctrl+m"}
    assert len({(name, key.place, key.screen) for key in KEYS for name in key.keys.split(",")}) == sum(
        len(key.keys.split(",")) for key in KEYS
    )


async def test_again_and_change_put_the_old_aside(tmp_path: Path) -> None:
    async with chat_server(Say(["one"]), Say(["two"]), Say(["three"])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Q1")
            await until(lambda: answered(screen))
            await pilot.press("escape", "r")
            await until(lambda: answered(screen) and screen.conversation.answers()[-1].text == "two")
            assert [message.text for message in screen.transcript.messages] == ["Q1", "two"]
            await pilot.press("E")
            await until(lambda: screen.composer.question.text == "Q1")
            await pilot.press("exclamation_mark")
            await pilot.pause(0.4)  # the budget is counted a moment after the last key
            assert str(screen.query_one("#notice").render()) == CHANGING
            await pilot.press("enter")
            await until(lambda: answered(screen) and screen.conversation.answers()[-1].text == "three")
            assert [message.text for message in screen.transcript.messages] == ["Q1!", "three"]
            assert str(screen.query_one("#notice").render()) == ""
            assert len(server.requests[-1]["messages"]) == 1
            assert screen.conversation.chat is not None
            assert len(screen.conversation.store.messages(screen.conversation.chat.id, superseded=True)) == 5


async def test_delete_asks_and_undo_brings_back(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Keep me")
            await until(lambda: answered(screen))
            await pilot.press("escape", "d", "enter")
            assert len(screen.conversation.store.chats()) == 1
            await pilot.press("d", "y")
            await until(lambda: screen.conversation.store.chats() == [])
            await pilot.press("u")
            await until(lambda: len(screen.conversation.store.chats()) == 1 and len(screen.transcript.messages) == 2)
            assert any(mentions(one.message, "“Keep me”") for one in pilot.app._notifications)


async def test_what_is_pressed_while_an_answer_comes_is_answered_too(tmp_path: Path) -> None:
    async with chat_server(Say(["late"], gap=5.0)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Hi")
            await until(lambda: bool(screen.asker.running) and len(server.requests) == 1)
            screen.leave_composer()
            await pilot.press("E")
            await until(lambda: with_keys(ANSWERING) in [one.message for one in pilot.app._notifications])
            assert screen.conversation.changing is None
            await pilot.press("x")
            await until(lambda: answered(screen))
            check_nouns(foot(screen.conversation.answers()[-1], begun=False).plain, "■", "before", "first token")


def test_what_stopped_in_mid_answer_says_what_is_kept() -> None:
    message = StoredMessage(1, 1, "assistant", "half", "", 0.0, "stopped", "", "demo", None, False, ())
    check_nouns(foot(message, begun=True).plain, "■", "stopped", "partial answer")
    cut = foot(replace(message, state="cut", text="", error="reset by peer"), begun=False).plain
    check_nouns(cut, "✂", "connection", "before the first token", "reset by peer")


async def test_a_second_server_that_failed_is_not_given_the_settings_of_the_first(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Hi")
            await until(lambda: answered(screen))
            screen.why.show_settings({"running limit": 4}, "demo")
            answer = replace(screen.conversation.answers()[-1], state="failed", answer=None)
            for name, shown in (("demo", True), ("other", False)):
                screen.why.show(replace(answer, server=name), 1, 1)
                rows = screen.why.query_one("#why-rows", Static).visual.rows
                assert any(getattr(row, "label", "") == "running limit" for row in rows) is shown


async def test_copy_writes_a_file_and_export_a_folder(tmp_path: Path) -> None:
    async with chat_server(Say(["copied words"])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Hi")
            await until(lambda: answered(screen))
            await pilot.press("escape", "y", "e")
            await pilot.pause()
            assert (tmp_path / "copied.txt").read_text() == "copied words"
            assert pilot.app.clipboard == "copied words"
            assert len(list((tmp_path / "exports").glob("*/chat.json"))) == 1


async def test_the_same_question_to_a_second_server(tmp_path: Path) -> None:
    async with chat_server(Say(["from one"])) as one, chat_server(Say(["from two"])) as two:
        profile_file(tmp_path, one.port, "one")
        profile_file(tmp_path, two.port, "two")
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Both of you")
            await until(lambda: answered(screen))
            await screen.asker.answer(screen.console.link_to("two"))
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            answers = [(answer.server, answer.text) for answer in screen.conversation.answers()]
            assert answers == [("one", "from one"), ("two", "from two")]
            assert [m["role"] for m in two.requests[0]["messages"]] == ["user"]


async def test_a_picture_that_cannot_be_sent_is_said_and_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, f"/image {tmp_path / 'broken.png'}")
            await until(lambda: "broken.png" in str(screen.query_one("#notice").render()))
            assert screen.attachments.pictures == [] and server.requests == []
            await ask(pilot, screen, f"/image '{picture(tmp_path, 'my scene.png')}'")
            await until(lambda: len(screen.attachments.pictures) == 1)
            await pilot.press("backspace")
            await until(lambda: screen.attachments.pictures == [])


async def test_a_question_too_long_for_the_context_is_offered_a_smaller_picture(tmp_path: Path) -> None:
    async with chat_server() as server:
        server.context = 700
        profile_file(tmp_path, server.port, context=700, processor={"max_pixels": 12845056})
        async with console(tmp_path) as (pilot, screen):
            await screen.composer.attach([picture(tmp_path)])
            screen.attachments.pictures[0] = screen.attachments.pictures[0].resized_to(1400, 1400)
            await ask(pilot, screen, "Count")
            await until(lambda: "Ctrl+T" in str(screen.query_one("#notice").render()))
            assert server.requests == []
            await pilot.press("ctrl+t")
            await until(lambda: screen.attachments.pictures[0].size[0] < 700)
            await pilot.press("enter")
            await until(lambda: answered(screen))
            assert 256 <= server.requests[0]["max_tokens"] < 700, (
                "the usual ceiling, lowered to what the context leaves"
            )


@pytest.mark.slow
async def test_a_laptops_path_over_ssh_waits_for_scp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 50000 10.0.0.9 2222")
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (_, screen):
            screen.composer.question.post_message(QuestionArea.Pasted("/Users/me/Desktop/my\\ shot.png"))
            line = "scp -P 2222 '/Users/me/Desktop/my shot.png'"
            await until(lambda: line in str(screen.query_one("#notice").render()))
            Image.new("RGB", (60, 50)).save(tmp_path / "inbox" / "my shot.png")
            await until(lambda: len(screen.attachments.pictures) == 1)
            assert screen.attachments.pictures[0].name == "my shot.png"


@pytest.mark.parametrize("typed", ["/new", "/imge x.png"])
async def test_a_command_that_is_not_there_is_said_and_not_sent(tmp_path: Path, typed: str) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, typed)
            await until(lambda: mentions(str(screen.query_one("#notice").render()), typed.split()[0], COMMANDS))
            assert screen.composer.question.text == typed
            assert server.requests == []


@pytest.mark.parametrize("typed", ["/ 2 = ?", "/home/x.txt shows what?", "/tmp is what?", "1 /new"])
async def test_a_slash_that_is_no_command_is_asked(tmp_path: Path, typed: str) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, typed)
            await until(lambda: answered(screen))
            assert server.requests[0]["messages"][0]["content"] == typed


async def test_a_paste_with_colours_is_its_words_in_order(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            screen.composer.question.post_message(QuestionArea.Pasted("one \x1b[31mtwo\x1b[0m three\r\nfour"))
            await until(lambda: bool(screen.composer.question.text))
            await pilot.pause()
            assert screen.composer.question.text == "one two three\nfour"


async def test_the_filter_narrows_the_list(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    for title in ("Receipt", "Street sign"):
        store.new_chat(title=title)
    profile_file(tmp_path, 9)
    async with console(tmp_path) as (pilot, screen):
        await pilot.press("escape", "slash", *"sign", "enter")
        await pilot.pause()
        assert screen.query_one("#filter", Input).value == "sign"
        assert [chat.title for chat in screen.conversation.store.chats("sign")] == ["Street sign"]


@pytest.mark.slow
async def test_five_hundred_messages_with_a_hundred_pictures(tmp_path: Path) -> None:
    """Only a window is mounted, going up loads the rest, and memory does not grow with the conversation."""
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    chat = store.new_chat(title="long")
    for number in range(500):
        pictures = []
        if number % 5 == 0:
            out = io.BytesIO()
            Image.new("RGB", (448, 448), (number % 256, 90, 30)).save(out, "PNG")
            pictures = [open_picture(out.getvalue(), name=f"{number}.png")]
        store.add(chat.id, "assistant" if number % 2 else "user", f"message **{number}** of many", pictures=pictures)
    profile_file(tmp_path, 9)
    async with console(tmp_path) as (pilot, screen):
        await until(lambda: len(screen.transcript.messages) == 500)
        assert len(screen.query(MessageView)) <= 64
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await pilot.press("escape")
        for _ in range(12):
            await pilot.press(*(["k"] * 10))
            assert len(screen.query(MessageView)) <= 80
        assert screen.transcript.selected is not None
        assert screen.transcript.selected.text.startswith("message **379**")
        view = screen.transcript.view_of(screen.transcript.selected.id)
        assert view is not None and view.has_class("-chosen")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < 120, f"{grown:.0f} MiB more after reading 120 messages back"
