"""The chat screen, driven by keys against a real server on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import waiting
from chat_server import Say, chat_server, profile_file
from PIL import Image
from refusals import mentions
from textual.pilot import Pilot
from textual.widgets import Static

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.screens.chat.columns import RowsVisual
from vlmconsole.screens.chat.screen import ChatScreen

until = partial(waiting.until, seconds=10.0, every=0.02)


@asynccontextmanager
async def console(home: Path, size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Pilot[None], ChatScreen]]:
    app = ConsoleApp(Lab.open(home))
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.link is not None and app.link.view.state in ("ready", "failed"))
        screen = app.screen
        assert isinstance(screen, ChatScreen)
        yield pilot, screen


async def ask(pilot: Pilot[None], screen: ChatScreen, text: str) -> None:
    screen.composer.question.insert(text)
    await pilot.press("enter")


def picture(folder: Path, name: str = "scene.png") -> Path:
    path = folder / name
    Image.new("RGB", (448, 448), (240, 240, 230)).save(path)
    return path


def answered(screen: ChatScreen) -> bool:
    answers = screen.conversation.answers()
    return bool(answers) and not screen.asker.running and answers[-1].state != "streaming"


async def test_a_pasted_picture_is_asked_about_and_the_answer_is_kept(tmp_path: Path) -> None:
    async with chat_server(Say(["Three ", "**red** ", "circles."])) as server:
        profile_file(tmp_path, server.port, processor={"max_pixels": 50176})
        async with console(tmp_path) as (pilot, screen):
            screen.composer.question.post_message(_paste(str(picture(tmp_path))))
            await until(lambda: len(screen.attachments.pictures) == 1)
            await ask(pilot, screen, "How many?")
            await until(lambda: answered(screen))
            answer = screen.conversation.answers()[-1]
            assert (answer.text, answer.state) == ("Three **red** circles.", "done")
            assert answer.answer is not None
            assert answer.answer["usage"]["completion_tokens"] == 3
            assert answer.answer["vision"][0]["expected"] == 64
            assert answer.answer["client"]["lag_samples"] >= 0
            assert screen.attachments.pictures == []
            content = server.requests[0]["messages"][0]["content"]
            assert content[0]["image_url"]["url"].startswith("data:image/png;base64,")
        async with console(tmp_path) as (_, screen):
            await until(lambda: len(screen.transcript.messages) == 2)
            assert screen.transcript.messages[1].text == "Three **red** circles."


def _paste(text: str):  # type: ignore[no-untyped-def]
    from vlmconsole.screens.chat.question import QuestionArea

    return QuestionArea.Pasted(text)


async def test_a_cut_line_keeps_what_came_and_the_next_question_works(tmp_path: Path) -> None:
    async with chat_server(Say(["Half an "], cut=True), Say(["Whole."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "First?")
            await until(lambda: answered(screen))
            assert screen.conversation.answers()[0].state == "cut"
            assert screen.conversation.answers()[0].text == "Half an "
            await ask(pilot, screen, "Second?")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            assert screen.conversation.answers()[1].text == "Whole."


async def test_x_stops_the_answer_and_closes_the_socket(tmp_path: Path) -> None:
    async with chat_server(Say(["word "] * 400, gap=0.02), Say(["Next."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Go on for ever")
            await until(lambda: bool(screen.asker.running) and "word" in screen.asker.running[0].text)
            await pilot.press("escape", "x")
            await until(lambda: answered(screen))
            assert screen.conversation.answers()[0].state == "stopped"
            assert screen.conversation.answers()[0].text.startswith("word ")
            await until(lambda: server.closed_early == 1)


async def test_the_ttft_stands_from_the_first_piece_on(tmp_path: Path) -> None:
    def foot() -> str:
        return str(list(screen.query(".foot"))[-1].render())  # type: ignore[attr-defined]

    def rows() -> list[str]:
        visual = screen.query_one("#why-rows", Static).visual
        assert isinstance(visual, RowsVisual)
        return [line.plain for line in visual.lines(40)]

    async with chat_server(Say(["word "] * 400, gap=0.3)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Slowly")
            await until(lambda: bool(screen.conversation.answers()) and "first token" in foot())
            assert not any("TTFT" in row for row in rows())
            await until(lambda: "● answering · TTFT" in foot())
            assert screen.conversation.answers()[-1].state == "streaming"
            await until(lambda: any("TTFT" in row for row in rows()))
            live = screen.asker.running[0].ttft_s
            await pilot.press("ctrl+c")
            await until(lambda: answered(screen))
            answer = screen.conversation.answers()[-1].answer
            assert answer is not None and live == pytest.approx(answer["timing"]["ttft_s"])
            assert screen.asker.begun == {}


@pytest.mark.parametrize("status, error", [(400, "too long [/INST] \x1b[31m"), (500, "broken")])
async def test_a_servers_error_is_shown_and_nothing_crashes(tmp_path: Path, status: int, error: str) -> None:
    async with chat_server(Say(status=status, error=error)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Hello")
            await until(lambda: answered(screen))
            assert screen.conversation.answers()[0].state == "failed"
            assert "\x1b" not in screen.conversation.answers()[0].error


async def test_a_dead_server_is_said_in_the_status_line(tmp_path: Path) -> None:
    profile_file(tmp_path, 9)
    async with console(tmp_path) as (_, screen):
        assert screen.console.link is not None
        assert screen.console.link.view.state == "failed"


async def test_an_unknown_server_is_said_as_the_commands_say_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('server = "nope"\n')
    app = ConsoleApp(Lab.open(tmp_path))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = app.screen
        assert isinstance(screen, ChatScreen)

        def notice() -> str:
            return str(screen.query_one("#notice").render())

        await until(lambda: mentions(notice(), "server profile", "'nope'", "Known"))
        assert "nope · failed" in str(screen.query_one("#status").render())
        await ask(pilot, screen, "Hello")
        await until(lambda: mentions(notice(), "server profile", "'nope'"))
        await pilot.pause(0.1)
        assert mentions(notice(), "server profile", "'nope'")
        assert screen.composer.question.text == "Hello"


async def test_the_question_has_a_row_however_small_the_terminal(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await screen.composer.attach([picture(tmp_path)])
            screen.composer.hints.notice("something went wrong " * 8, "$error")
            for size in ((20, 5), (80, 11), (12, 2), (20, 3), (40, 8), (20, 1), (80, 12), (120, 40)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                question = screen.composer.question.region
                assert question.height >= 1 and question.width >= 4, size
                assert screen.region.contains_region(question), (size, question)
            await pilot.resize_terminal(20, 2)
            await pilot.press(*"how many", "enter")
            await until(lambda: answered(screen))
            assert any("how many" in str(request["messages"]) for request in server.requests)


async def test_two_enters_and_two_r_in_one_burst_ask_once(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."], gap=0.3), Say(["Four."], gap=0.3), Say(["Five."])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            screen.composer.question.insert("How many?")
            await pilot.press("enter", "enter", "enter")
            await until(lambda: answered(screen))
            assert [one.text for one in screen.transcript.messages] == ["How many?", "Three."]
            await pilot.press("escape", "r", "r")
            await until(lambda: answered(screen) and screen.conversation.answers()[-1].text == "Four.")
            assert len(server.requests) == 2


async def test_an_answer_says_whether_it_waits_for_its_server_or_for_the_model(tmp_path: Path) -> None:
    async with chat_server(Say(["Three."], gap=1.0)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "How many?")
            await until(lambda: bool(screen.asker.running))
            foot = screen.query(".message.assistant .foot").first(Static)
            link = screen.console.link
            assert link is not None and "first token" in str(foot.render())
            link._move(state="starting", note="")
            await until(lambda: "to start" in str(foot.render()))
            link._progress("job 2 waits for cpu, in use by another vlmconsole (pid 5, another lab home)", 2.0)
            await until(lambda: mentions(str(foot.render()), "waiting", "cpu", "pid 5"))
            assert mentions(str(foot.render()), "F3", "queue"), "and the way out"
            link._progress("loading the model", 3.0)
            await until(lambda: "to start" in str(foot.render()))
            link._move(state="ready", note="")
            await until(lambda: answered(screen))
