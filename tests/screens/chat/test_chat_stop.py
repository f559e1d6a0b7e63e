"""Esc never destroys what is written or waits; stopping an answer has keys of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import waiting
from chat_server import Say, chat_server, profile_file
from test_chat_screen import answered, ask, console, picture
from textual.widgets import Static

until = partial(waiting.until, seconds=10.0, every=0.02)


async def test_escape_leaves_the_composer_and_the_answer_goes_on(tmp_path: Path) -> None:
    async with chat_server(Say(["word "] * 4000, gap=0.02)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Go on for ever")
            await until(lambda: bool(screen.asker.running) and "word" in screen.asker.running[0].text)
            screen.composer.question.insert("a thought meanwhile")
            await pilot.press("escape")
            assert not screen.typing and screen.asker.running
            await pilot.press("escape", "escape", "question_mark")  # README: "Esc, then ?"
            await until(lambda: len(pilot.app.screen_stack) == 2)
            await pilot.press("escape")
            assert screen.asker.running and screen.composer.question.text == "a thought meanwhile"
            await pilot.press("i", "ctrl+c")
            await until(lambda: answered(screen))
            answer = screen.conversation.answers()[0]
            assert answer.state == "stopped" and answer.text.startswith("word ")
            assert screen.composer.question.text == "a thought meanwhile"
            await until(lambda: server.closed_early == 1)


async def test_the_footer_shows_what_stops_only_while_an_answer_comes(tmp_path: Path) -> None:
    def stops() -> set[str]:
        bindings = screen.active_bindings
        reading = {"x"} if "x" in bindings and bindings["x"].binding.description == "stop" else set()
        return reading | ({"ctrl+c"} if "Ctrl+C" in str(screen.query_one("#notice", Static).render()) else set())

    async with chat_server(Say(["word "] * 4000, gap=0.02)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            assert stops() == set()
            await ask(pilot, screen, "Go on")
            await until(lambda: bool(screen.asker.running))
            assert stops() == {"ctrl+c"}
            await pilot.press("escape")
            assert "x" in stops()
            await pilot.press("x")
            await until(lambda: answered(screen))
            assert stops() == set()


async def test_ctrl_c_copies_what_is_selected_and_stops_nothing(tmp_path: Path) -> None:
    async with chat_server(Say(["word "] * 4000, gap=0.02)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Go on")
            await until(lambda: bool(screen.asker.running))
            screen.composer.question.insert("copy me")
            screen.composer.question.select_all()
            await pilot.press("ctrl+c")
            assert screen.asker.running and pilot.app.clipboard == "copy me"
            await pilot.press("escape", "x")
            await until(lambda: answered(screen))


async def test_a_question_that_never_reached_its_server_comes_back_when_stopped(tmp_path: Path) -> None:
    """The server starts for ever: whoever gives up has the question and its image in the composer again."""
    async with chat_server(Say(["late"])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            link = screen.console.link
            assert link is not None
            await screen.composer.attach([picture(tmp_path)])
            await until(lambda: len(screen.attachments.pictures) == 1)
            original = link.ask

            async def never_sent(*_args, **_more):  # type: ignore[no-untyped-def]
                await waiting.until(lambda: False, seconds=60)

            link.ask = never_sent  # type: ignore[method-assign]
            await ask(pilot, screen, "What is it?")
            await until(lambda: bool(screen.asker.running))
            screen.composer.question.insert("and then")
            await pilot.press("escape", "x")
            await until(lambda: not screen.asker.running and bool(screen.attachments.pictures))
            assert screen.composer.question.text == "What is it?and then"
            assert screen.transcript.messages == [] and len(server.requests) == 0
            link.ask = original  # type: ignore[method-assign]
            screen.composer.question.load_text("What is it?")
            await pilot.press("i", "enter")
            await until(lambda: answered(screen))
            assert screen.conversation.answers()[-1].text == "late"


async def test_changing_a_question_loses_neither_the_draft_nor_the_change(tmp_path: Path) -> None:
    async with chat_server(Say(["One."]), Say(["Two."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            question = screen.composer.question
            await ask(pilot, screen, "First?")
            await until(lambda: answered(screen))
            question.insert("a draft")
            await pilot.press("escape", "E")
            await until(lambda: screen.conversation.changing is not None)
            assert question.text == "First?"
            await pilot.press("!")
            await pilot.press("escape")  # leaves; nothing is lost
            assert (question.text, screen.conversation.changing is not None, screen.typing) == ("First?!", True, False)
            await pilot.press("escape")  # cancels: the draft is back, the change one Ctrl+Z away
            await until(lambda: screen.conversation.changing is None)
            assert question.text == "a draft"
            await pilot.press("E")
            await until(lambda: screen.conversation.changing is not None)
            await pilot.press("enter")
            await until(lambda: len(server.requests) == 2 and answered(screen))
            assert screen.conversation.answers()[-1].text == "Two."
            assert question.text == "a draft"
