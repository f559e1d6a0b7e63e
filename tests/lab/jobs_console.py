"""The Jobs screen under a pilot, on a real queue and on the folders of jobs that really ran."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import waiting
from job_queue import held, lab, run_all
from textual.pilot import Pilot

from vlmconsole.app import ConsoleApp
from vlmconsole.desks import forms
from vlmconsole.lab import Lab
from vlmconsole.queue.adding import add
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.screen import JobsScreen

until = waiting.until
settled = partial(waiting.settled, people=("new", "judge"))  # "new": a form is filled in


@pytest.fixture(name="ran", scope="session")
def ran_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab home in which one job was done and one failed, really."""
    home = tmp_path_factory.mktemp("ran")
    run_all(lab(home), [], ["mode=fails"])
    return home


@pytest.fixture(name="places")
def places_fixture(tmp_path: Path) -> Places:
    return lab(tmp_path)


@pytest.fixture(name="full")
def full_fixture(tmp_path: Path, ran: Path) -> Places:
    """A copy of that home for one test."""
    shutil.copytree(ran, tmp_path / "home")
    places = Places(tmp_path / "home")
    with Store(places.queue).change() as db:
        db.execute("UPDATE jobs SET run=replace(run, ?, ?)", (str(ran), str(places.home)))
    return places


@asynccontextmanager
async def jobs(places: Places, size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Pilot[None], JobsScreen]]:
    with held(places):
        app = ConsoleApp(Lab.open(places.home))
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.press("f3")
            screen = app.screen
            assert isinstance(screen, JobsScreen)
            await settled(pilot)
            yield pilot, screen


def seen(pilot: Pilot[None]) -> str:
    """Everything on the screen, as text."""
    width, height = pilot.app.size
    lines = pilot.app.screen._compositor.render_strips()
    assert len(lines) <= height
    return "\n".join("".join(segment.text for segment in line)[:width] for line in lines)


def queue(places: Places, number: int = 3, **spec: object) -> None:
    store = Store(places.queue)
    for _ in range(number):
        add(store, forms.planned("story", [f"{key}={value}" for key, value in spec.items()], places))
    store.close()
