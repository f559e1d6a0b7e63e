"""Keys that come in a burst, pastes with an Enter after them, and what keeps the screen busy: nothing gets lost."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from chat_server import Say, chat_server, profile_file
from examples import several
from refusals import mentions
from test_chat_screen import answered, ask, console, picture, until
from textual import events

from vlmconsole.data.example import Example
from vlmconsole.engines.profile import load_profiles
from vlmconsole.models.messages import to_request
from vlmconsole.runs.places import Places
from vlmconsole.screens import table
from vlmconsole.screens.chat import budget
from vlmconsole.screens.link import ServerLink
from vlmconsole.screens.widgets.dialogs import Form
from vlmconsole.screens.widgets.field import Field

BURST = ("a", "b", "backspace", "c", "ctrl+u", "d", "left", "e")  # in this order: "ed"


def burst(app: Any, keys: tuple[str, ...]) -> None:
    """Keys as a slow line delivers them: all at once, none waiting for the one before."""
    for key in keys:
        app.post_message(events.Key(key, "]" if key == "right_square_bracket" else key if len(key) == 1 else None))


def notice(screen: Any) -> str:
    return str(screen.query_one("#notice").render())


async def test_keys_of_a_burst_work_in_their_order(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            burst(pilot.app, BURST)
            await until(lambda: screen.composer.question.text == "ed")
            await pilot.press("escape", "slash")
            field = screen.conversations.query_one(Field)
            burst(pilot.app, BURST)
            await until(lambda: field.value == "ed")


async def test_a_letter_close_behind_esc_is_a_command_and_no_text(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            burst(pilot.app, ("h", "i", "escape", "s"))
            await until(lambda: isinstance(pilot.app.screen, Form))
            assert screen.composer.question.text == "hi"
            await pilot.press("escape", "i")
            burst(pilot.app, ("x", "escape", "right_square_bracket"))
            await until(lambda: screen.pane == 2)
            assert screen.composer.question.text == "hix" and screen.focused is screen.why


async def test_what_is_typed_after_a_paste_comes_after_it_and_soon(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            question = screen.composer.question
            for keys, wanted in ((("Q",), "hello pasteQ"), (("ctrl+u", "x", "y", "z", "backspace"), "xy")):
                question.load_text("")
                pilot.app.post_message(events.Paste("hello paste"))
                burst(pilot.app, keys)
                await until(lambda wanted=wanted: question.text == wanted)


async def test_blanks_of_every_kind_are_typed(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            for character in "a\u3000b\u00a0c\u202fd":
                pilot.app.post_message(events.Key("blank" if character.isspace() else character, character))
            await until(lambda: screen.composer.question.text == "a\u3000b\u00a0c\u202fd")


async def test_a_paste_and_the_enter_after_it_send_both(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port, processor={"max_pixels": 50176})
        async with console(tmp_path) as (pilot, screen):
            pilot.app.post_message(events.Paste(str(picture(tmp_path))))
            burst(pilot.app, ("h", "i", "enter", "o", "n"))
            await until(lambda: answered(screen))
            words, image = server.requests[0]["messages"][-1]["content"][::-1][:2]
            assert (words["text"], image["type"]) == ("hi", "image_url")
            await until(lambda: screen.composer.question.text == "on")  # typed after the Enter: the next question


async def test_a_typed_path_is_attached_and_nothing_sent_before_it_was_seen(tmp_path: Path) -> None:
    path = picture(tmp_path)
    async with chat_server() as server:
        profile_file(tmp_path, server.port, processor={"max_pixels": 50176})
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, f"What is in {path}?")
            await until(lambda: len(screen.attachments.pictures) == 1 and "Enter sends" in notice(screen))
            assert screen.composer.question.text == "What is in ?" and server.requests == []
            await pilot.press("enter")
            await until(lambda: answered(screen))
            assert len(server.requests[0]["messages"][-1]["content"]) == 2


async def test_words_that_look_like_a_path_are_sent_with_a_second_enter(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            for path, words in (
                ("/nowhere/at/all.png", "/nowhere/at/all.png"),
                ("/home/me/laptop.png", "/home/me/laptop.png what is it?"),
                ("pics/missing.png", "What is in pics/missing.png?"),
            ):
                await ask(pilot, screen, words)
                await until(lambda path=path: f"not found: {path}; Enter again" in notice(screen))
                assert all(words not in str(request) for request in server.requests)
                await pilot.press("enter")
                await until(lambda words=words: words in str(server.requests[-1:]) and answered(screen))
                assert notice(screen) == ""


async def test_what_kept_a_question_back_is_no_longer_said_when_it_is_over(tmp_path: Path) -> None:
    async with chat_server(Say(["a "] * 3000, gap=0.02)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "first")
            await until(lambda: bool(screen.asker.running))
            await ask(pilot, screen, "second")
            await until(lambda: "still answering" in notice(screen))
            await pilot.press("ctrl+c")
            await until(lambda: answered(screen))
            await until(lambda: notice(screen) == "")
            assert screen.composer.question.text == "second"


async def test_a_server_that_does_not_count_holds_neither_keys_nor_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            monkeypatch.setattr(ServerLink, "budget", never)
            monkeypatch.setattr(budget, "BUDGET_WAIT", 0.5)
            await ask(pilot, screen, "Hi")
            await pilot.press("escape", "question_mark")  # goes through the screen's own handlers
            assert type(pilot.app.screen).__name__ == "KeyHelp"
            await until(lambda: answered(screen))


async def test_what_cannot_fit_is_never_sent_however_often_enter_is_pressed(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port, context=4096)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "a word and another\n" * 40_000)
            await until(lambda: mentions(notice(screen), "tokens over", "context", "shorten"))
            for _ in range(3):
                await pilot.press("enter")
            await pilot.pause(0.3)
            assert server.requests == [] and "tokens over" in notice(screen)
            screen.composer.question.clear()
            await until(lambda: notice(screen) == "")
            await ask(pilot, screen, "word " * 2500)  # more than fits with an answer by the estimate alone
            await until(lambda: mentions(notice(screen), "Enter", "sends"))
            await pilot.press("enter")
            await until(lambda: answered(screen))
            assert len(server.requests) == 1


@pytest.mark.slow
async def test_a_long_question_that_waits_for_its_server_is_not_sent_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None:
        return None

    async with chat_server() as server:
        profile_file(tmp_path, server.port, context=4096)
        async with console(tmp_path) as (pilot, screen):
            monkeypatch.setattr(ServerLink, "budget", unknown)
            await ask(pilot, screen, "a word and another\n" * 40_000)
            await until(lambda: answered(screen))
            assert screen.conversation.answers()[-1].state == "failed" and server.requests == []


async def test_chips_that_the_line_does_not_hold_are_counted(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path, (80, 24)) as (pilot, screen):
            names = [f"{'a long name of a picture ' * 2}{number}.png" for number in range(4)]
            await screen.composer.attach([picture(tmp_path, name) for name in names])
            await pilot.pause()
            shown = [chip for chip in screen.query(".chip") if chip.display]
            last = shown[-1].region
            more = screen.query_one("#more-chips")
            assert str(more.render()) == f"+{4 - len(shown)} more" and last.right < more.region.x
            assert more.region.right <= 80
            await pilot.resize_terminal(240, 24)
            await until(lambda: not more.display and all(chip.display for chip in screen.query(".chip")))


@pytest.mark.slow
async def test_a_screen_that_imports_slowly_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_screen.py").write_text(
        "import time\nfrom textual.screen import Screen\ntime.sleep(1.5)\nclass Slow(Screen):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    real = table._entry
    slow = table.ScreenEntry(2, "gauges", "Gauges", "slow_screen:Slow", "")
    monkeypatch.setattr(table, "_entry", lambda name: slow if name == "gauges" else real(name))
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            begun = time.monotonic()
            burst(pilot.app, ("f2", "x", "f2", "y"))
            await until(lambda: screen.composer.question.text == "xy")
            assert time.monotonic() - begun < 1.4 and pilot.app.screen is screen
            await until(lambda: type(pilot.app.screen).__name__ == "Slow")
    sys.modules.pop("slow_screen")


def test_the_seconds_of_a_start_go_on_between_its_phases(tmp_path: Path) -> None:
    link = ServerLink(load_profiles(tmp_path)["demo"], Places(tmp_path), lambda: None)
    link._move(state="starting")
    link._progress("loading the weights", 3.2)
    assert link.view.long.endswith("loading the weights 3 s")
    link._since -= 40
    link.look()
    assert link.view.long.endswith("loading the weights 43 s")


async def test_keys_of_a_burst_land_in_order_in_dialogs_and_through_them(tmp_path: Path) -> None:
    """What Tab comes to is chosen as a whole, so that the first letter replaces it."""
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            burst(pilot.app, ("escape", "s", *"AAA", "tab", *"0.7", "enter", *"12", *["tab"] * 3, "end", *"B"))
            wanted = ["AAAB", "0.7", "12", "", ""]
            await until(lambda: [field.value for field in pilot.app.screen.query(Field)] == wanted)
            burst(pilot.app, ("escape", "slash", *"cat", "ctrl+u", *"dog", "escape", "i", *"hi", "escape", "n", *"!"))
            await until(lambda: screen.composer.question.text == "hi!")  # n is a key there, and what follows is typed
            assert pilot.app.screen is screen and screen.conversations.query_one(Field).value == "dog"


@pytest.mark.slow
async def test_keys_of_a_burst_land_in_the_filter_of_every_screen(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            for number in (3, 4, 5):
                await pilot.press(f"f{number}")
                await until(lambda seen=screen: pilot.app.screen is not seen and bool(pilot.app.screen.query(Field)))
                screen, field = pilot.app.screen, pilot.app.screen.query(Field).first()
                burst(pilot.app, ("slash", *"pictures", "backspace", *"d"))
                await until(lambda field=field: field.value == "pictured")
                burst(pilot.app, ("left", "x", "enter", "slash", "Y"))
                await until(lambda field=field: field.value == "Y")  # what a slash comes to is chosen as a whole


@pytest.mark.parametrize("example", several("chat", 5)[1:], ids=lambda example: example.id)
async def test_an_example_that_no_message_box_holds_is_asked_as_it_is(tmp_path: Path, example: Example) -> None:
    """Images within the text, earlier turns and a system prompt reach the server."""
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (_, screen):
            await until(lambda: not screen.asker.fault)
            await screen.ask_turns(example.messages(), example.id)
            await until(lambda: answered(screen))
            assert server.requests[0]["messages"] == to_request(example.messages())
            assert screen.conversation.chat.title == example.id
