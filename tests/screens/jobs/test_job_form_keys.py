"""The job form under keys and wheel: the field one types into is always in sight, and nothing typed is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import waiting
from job_queue import lab
from jobs_console import jobs
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from vlmconsole.desks import forms
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.form import FormLine, JobForm, Switch

until = partial(waiting.until, seconds=10.0, every=0.02)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return lab(tmp_path)


async def opened(pilot: Pilot[None], places: Places, preset: str) -> JobForm:
    """The form of a preset, larger than the screen, with the focus on its first field."""
    form = JobForm(preset, preset, forms.form(preset, places), places)
    pilot.app.push_screen(form)
    await until(lambda: pilot.app.screen is form and form.focused is not None)
    await pilot.pause()
    assert form.query_one(VerticalScroll).max_scroll_y > 0
    return form


def in_sight(form: JobForm) -> bool:
    field = form.focused
    assert isinstance(field, Widget)
    view = form.query_one(VerticalScroll)
    return view.region.contains_region(field.region)


def key_of(form: JobForm) -> str:
    assert form.focused is not None
    return next(part.field.key for part in form.focused.ancestors if isinstance(part, FormLine))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sft-expand-tiny", "sft-seeds-tiny")]


@pytest.mark.parametrize("preset", ["eval-sft-tiny", *SLOW])
async def test_arrows_move_through_every_field_and_keep_it_in_sight(places: Places, preset: str) -> None:
    async with jobs(places, size=(80, 24)) as (pilot, _):
        form = await opened(pilot, places, preset)
        keys = [line.field.key for line in form.query(FormLine)]
        for key in keys:
            await until(lambda key=key: (key_of(form), in_sight(form)) == (key, True))  # type: ignore[misc]
            await pilot.press("down")
        for key in (keys[0], *reversed(keys[1:])):  # round the end, and back up
            await until(lambda key=key: (key_of(form), in_sight(form)) == (key, True))  # type: ignore[misc]
            await pilot.press("up")


async def test_typing_after_the_wheel_goes_to_a_field_in_sight(places: Places) -> None:
    async with jobs(places, size=(80, 24)) as (pilot, _):
        form = await opened(pilot, places, "sft-expand-tiny")
        await pilot.press(*["down"] * 3)
        await pilot.pause()
        key = key_of(form)
        for scroll in ("scroll_end", "scroll_home"):
            getattr(form.query_one(VerticalScroll), scroll)(animate=False)
            await pilot.pause()
            await pilot.press("6")
            await until(lambda: (key_of(form), in_sight(form)) == (key, True))
        assert isinstance(form.focused, Input) and form.focused.value.endswith("66")


async def test_pages_move_the_focus_with_the_view(places: Places) -> None:
    async with jobs(places, size=(80, 24)) as (pilot, _):
        form = await opened(pilot, places, "sft-expand-tiny")
        first = key_of(form)
        await pilot.press("pagedown")
        await until(lambda: key_of(form) != first and in_sight(form))
        await pilot.press("pageup")
        await until(lambda: key_of(form) in (first, "adapter") and in_sight(form))  # the view may have shrunk meanwhile


async def test_letters_on_a_choice_choose_and_others_are_refused_aloud(places: Places) -> None:
    async with jobs(places, size=(80, 24)) as (pilot, _):
        form = JobForm("story", "story", forms.form("story", places), places)
        pilot.app.push_screen(form)
        await until(lambda: pilot.app.screen is form and form.focused is not None)
        switch = next(widget for widget in form.query(Switch) if widget.name == "mode")
        # Asked for again while it is not so: the form may still be giving the focus to its first field.
        await until(lambda: switch.focus() is form.focused)
        await pilot.press("w")
        assert switch.value == "waits"
        await pilot.press("f")
        assert switch.value == "fine"
        await pilot.press("f")
        assert switch.value == "fails"
        await pilot.press("7")
        await pilot.pause()
        assert switch.value == "fails"
        assert "fine, fails, waits" in str(form.query_one("#form-help").render())
