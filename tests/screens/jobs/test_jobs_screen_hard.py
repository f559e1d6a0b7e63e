"""The Jobs screen where it is hard: hostile texts, a damaged queue, ten thousand jobs, long logs, nothing in vain."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hostile import HOSTILE
from job_queue import held, lab
from jobs_console import full_fixture, jobs, places_fixture, ran_fixture, seen, settled, until  # noqa: F401

from vlmconsole.app import ConsoleApp
from vlmconsole.desks.queue import Desk
from vlmconsole.lab import Lab
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.widgets.dialogs import Reader


async def test_a_damaged_queue_is_told_in_the_tables_place_and_gone_when_mended(places: Places) -> None:
    places.queue.write_bytes(b"no database" * 500)
    async with jobs(places) as (pilot, screen):
        text = " ".join(seen(pilot).split())
        assert "Cannot read" in text and "is damaged" in text and places.queue.name in text
        assert "No jobs yet" not in text
        places.queue.unlink()
        screen.look()
        await settled(pilot)
        text = seen(pilot)
        assert "No jobs yet" in text and "is damaged" not in text


async def test_the_log_is_followed_searched_and_filtered(full: Places) -> None:
    run = RunFolder(Path(Store(full.queue).get(2).run or ""))
    with run.log.open("a") as file:
        file.writelines(f"line {number:06d}\n" for number in range(60_000))
    async with jobs(full) as (pilot, screen):
        view = screen.log_view
        assert view.page is not None
        assert view.page.start > 0, "only the end is read"
        assert "line 059999" in seen(pilot)
        await pilot.press("left_square_bracket", "slash", *"012345")
        await until(lambda: len(view.found) == 1)
        await settled(pilot)
        assert "line 012345" in seen(pilot)
        assert not view.lines.follow
        await pilot.press("escape", "ampersand")
        await until(lambda: view.only)
        await pilot.pause()
        assert len(view.lines.raws) == 1
        await pilot.press("ampersand")
        await until(lambda: not view.only)
        await pilot.press("f")
        await settled(pilot)
        await until(lambda: "line 059999" in seen(pilot))
        with run.log.open("a") as file:
            file.write("the very last\n")
        await until(lambda: "the very last" in seen(pilot))
        await pilot.press("g")
        await settled(pilot)
        await until(lambda: "a model [bold]not" in seen(pilot))


async def test_hostile_names_reasons_events_and_logs_are_text(places: Places) -> None:
    store = Store(places.queue)
    texts = [text.encode("utf-8", "replace").decode()[:20_000] for _, text in HOSTILE]
    texts += texts[: -len(texts) % 4]
    for name, reason, note, unit in zip(*[iter(texts)] * 4, strict=True):
        run = RunFolder.create(places.runs, kind="x", preset="x", spec={}, title="x", home=places.home)
        number = store.add(NewJob(name, "story_kind:STORY", unit, {name: reason}, note=note))
        store.claim(number, ("cpu.0",), None, str(run.path))
        store.finish(number, "failed", reason)
        run.events.note(note, "error")
        run.events.metric(name, 1.0, 1, unit)
        run.events.progress(1, 3, unit, note)
        run.log.write_bytes(b"\n".join(text.encode("utf-8", "surrogatepass") for _, text in HOSTILE))
        run.file("x[red].txt").write_text("x")
    async with jobs(places) as (pilot, screen):
        for row in screen.board.rows:
            await settled(pilot)
            shown = seen(pilot)
            assert "✗ failed" in shown
            odd = [char for char in shown if (ord(char) < 32 and char != "\n") or 0x202A <= ord(char) <= 0x202E]
            assert odd == [], row.job.id
            await pilot.press("j")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Reader)


@pytest.mark.slow
async def test_nothing_is_asked_while_hidden_and_nothing_drawn_while_nothing_changes(
    full: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    board = Desk.board

    def counted(desk: Desk, words: str = "", window: int = 200) -> object:
        nonlocal asked
        asked += 1
        return board(desk, words, window)

    monkeypatch.setattr(Desk, "board", counted)
    async with jobs(full) as (pilot, screen):
        await until(lambda: asked >= 2)
        drawn: list[int] = []
        monkeypatch.setattr(type(screen.table.rows), "line", lambda *_: drawn.append(1))
        before = asked
        await until(lambda: asked >= before + 2)
        assert drawn == []
        monkeypatch.undo()
        monkeypatch.setattr(Desk, "board", counted)
        await pilot.press("f1")
        await settled(pilot)
        hidden = asked
        await asyncio.sleep(1.6)
        assert asked == hidden
        await pilot.press("f3")
        await until(lambda: asked > hidden)


async def test_ten_thousand_jobs_are_a_window_that_grows(places: Places) -> None:
    store = Store(places.queue)
    with store.change():
        for number in range(10_000):
            store.add(NewJob(f"story-{number}", "story_kind:STORY", "t", {}))
    async with jobs(places) as (pilot, screen):
        assert (len(screen.board.rows), screen.board.more) == (200, 9800)
        await pilot.press("G")
        await until(lambda: len(screen.board.rows) == 400)
        await settled(pilot)
        assert screen.row is not None
        assert screen.row.job.id == 200


async def test_a_broken_queue_is_said_once_and_the_console_goes_on(places: Places) -> None:
    places.queue.write_bytes(b"this is no database" * 100)
    async with jobs(places) as (pilot, screen):
        await until(lambda: "is damaged" in seen(pilot))
        await pilot.press("question_mark")
        await pilot.pause()
        assert pilot.app.screen is not screen


async def test_what_announces_a_slow_screen_goes_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlmconsole.app.is_imported", lambda name: False)
    monkeypatch.setattr("vlmconsole.app.import_screen", lambda name: time.sleep(1.0))
    places = lab(tmp_path / "home")
    with held(places):
        app = ConsoleApp(Lab.open(places.home))
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("f3")
            await until(lambda: [said.message for said in app._notifications] == ["opening jobs…"])
            await until(lambda: app.current_mode == "jobs")
            await settled(pilot)
            assert not list(app._notifications)
