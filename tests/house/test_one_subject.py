"""Head and body of a screen are of one run, job, entry or server at every moment, also while the next one is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import waiting
from jobs_console import full_fixture as full_fixture
from jobs_console import jobs
from jobs_console import ran_fixture as ran_fixture
from judged import plan, right, small_dataset, write_run
from recorded_runs import lab_with_runs
from textual.pilot import Pilot
from textual.widget import Widget

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.runs.places import Places
from vlmconsole.screens.gates.screen import GatesScreen
from vlmconsole.screens.runs.screen import RunsScreen
from vlmconsole.screens.servers.screen import ServersScreen

until = partial(waiting.until, seconds=20.0, every=0.02)
settled = partial(waiting.settled, people=())


@contextmanager
def held_looks(screen: Any) -> Iterator[threading.Event]:
    """The screen's thread stands still, as on a slow disk; set the event to let it go on."""
    go = threading.Event()
    screen._thread.submit(go.wait, 20)
    try:
        yield go
    finally:
        go.set()


def text_in(widget: Widget) -> str:
    region = widget.region
    strips = widget.screen._compositor.render_strips()
    return "\n".join(strip.text[region.x : region.right] for strip in strips[region.y : region.bottom])


async def test_runs_never_shows_two_runs_at_once(tmp_path: Path) -> None:
    places = lab_with_runs(tmp_path / "home")
    places.ensure()
    places.config.write_text('server = "none"\n')
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f5")
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await settled(pilot)
        before = text_in(screen.figures)
        assert before.strip()
        with held_looks(screen) as go:
            await pilot.press("j")
            await pilot.pause()
            row = screen.row
            assert row is not None and row.name in text_in(screen.query_one("#run-side"))
            assert not text_in(screen.figures).strip()
            assert screen.opened is None
            go.set()
        await settled(pilot)
        await until(lambda: screen.opened is not None and screen.opened.name == row.name)
        assert text_in(screen.figures).strip() and text_in(screen.figures) != before


async def test_jobs_never_shows_another_jobs_log(full: Places) -> None:
    async with jobs(full) as (pilot, screen):
        assert screen.row is not None
        before = text_in(screen.log_view)
        first = screen.row.job.preset, screen.row.job.id
        with held_looks(screen) as go:
            await pilot.press("j")
            await pilot.pause()
            assert (screen.row.job.preset, screen.row.job.id) != first
            assert screen.log_view.page is None and text_in(screen.log_view.lines) != before
            go.set()
        await until(lambda: screen.log_view.page is not None)


async def test_gates_acts_on_and_shows_the_chosen_run_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    places = Places(home).ensure()
    places.config.write_text('server = "none"\n')
    small_dataset(home)
    names = [write_run(home, plan(), right(3), right(8)).name for _ in range(2)]
    app = ConsoleApp(Lab.open(home))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f4")
        screen = app.screen
        assert isinstance(screen, GatesScreen)
        await until(lambda: screen.opened is not None)
        first = screen.opened.entry.name  # type: ignore[union-attr]
        with held_looks(screen) as go:
            await pilot.press("j")
            await pilot.pause()
            assert screen.opened is None
            assert first not in text_in(screen.query_one("#gate-side"))
            assert "May" not in text_in(screen.claims)
            go.set()
        await until(lambda: screen.opened is not None)
        assert screen.opened is not None and screen.opened.entry.name in set(names) - {first}


async def test_servers_never_shows_another_servers_settings(tmp_path: Path) -> None:
    places = Places(tmp_path / "home").ensure()
    places.config.write_text('server = "none"\n')
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f6")
        screen = app.screen
        assert isinstance(screen, ServersScreen)
        await until(lambda: screen.line is not None and screen.line.profile.name in text_in(screen.sheet))
        first, before = screen.line.profile.name, text_in(screen.sheet)  # type: ignore[union-attr]
        with held_looks(screen) as go:
            await move_down(pilot)
            line = screen.line
            assert line is not None and line.profile.name != first
            assert text_in(screen.sheet).split() == [line.profile.name, "checking", "…"], before
            go.set()
        await until(lambda: line.profile.name in text_in(screen.sheet))


async def move_down(pilot: Pilot[None]) -> None:
    await pilot.press("j")
    await pilot.pause()
