"""How the runs screen looks, at both sizes and in both themes, over recorded runs (`--snapshot-update`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import failed_run, lab_with_runs
from textual.pilot import Pilot

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.runs.places import Places

NOW = 1_796_000_000.0
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("utc")]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = lab_with_runs(tmp_path / "home")
    failed_run(places)
    return places


def app(places: Places, theme: str = "dark") -> ConsoleApp:
    places.ensure().config.write_text(f'server = "none"\ntheme = "{theme}"\n')
    return ConsoleApp(Lab.open(places.home), clock=lambda: NOW)


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Open the screen, wait for its first look, then press `keys`, each settled."""

    async def settle(pilot: Pilot[None]) -> None:
        await pilot.pause()
        some = [worker for worker in pilot.app.workers if worker.group not in ("compare", "export")]
        if some:
            await pilot.app.workers.wait_for_complete(some)
        await pilot.pause()

    async def run(pilot: Pilot[None]) -> None:
        await settle(pilot)
        for key in ("f5", *keys):
            await pilot.press(key)
            await settle(pilot)
        await pilot.pause(0.3)
        await settle(pilot)

    return run


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_grid_120(snap_compare: Any, places: Places, theme: str) -> None:
    assert snap_compare(app(places, theme), terminal_size=(120, 40), run_before=after("G"))


def test_failed_80(snap_compare: Any, places: Places) -> None:
    assert snap_compare(app(places), terminal_size=(80, 24), run_before=after("enter"))


def test_runs_80(snap_compare: Any, places: Places) -> None:
    assert snap_compare(app(places), terminal_size=(80, 24), run_before=after())


def test_queueing_80(snap_compare: Any, places: Places) -> None:
    keys = ("G", "enter", *["full_stop"] * 4, *["pagedown"] * 1)
    assert snap_compare(app(places), terminal_size=(80, 24), run_before=after(*keys))


def test_refused_120(snap_compare: Any, places: Places) -> None:
    keys = ("G", "enter", *["j"] * 4, "space", *["j"] * 3, "space", "c")
    assert snap_compare(app(places), terminal_size=(120, 40), run_before=after(*keys))


def test_empty_80(snap_compare: Any, tmp_path: Path) -> None:
    assert snap_compare(app(Places(tmp_path / "empty")), terminal_size=(80, 24), run_before=after())
