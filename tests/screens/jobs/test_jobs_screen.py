"""The jobs screen, driven by keys on a real queue and on the folders of jobs that really ran."""

from __future__ import annotations

import asyncio

import pytest
from job_queue import held
from jobs_console import full_fixture, jobs, places_fixture, queue, ran_fixture, seen, settled, until  # noqa: F401
from textual.widgets import Input, OptionList

from vlmconsole.app import ConsoleApp
from vlmconsole.cli import main
from vlmconsole.desks import forms
from vlmconsole.lab import Lab
from vlmconsole.queue import process
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import UNATTENDED
from vlmconsole.runs.places import Places
from vlmconsole.screens import job_watch
from vlmconsole.screens.jobs.form import FormLine, JobForm
from vlmconsole.screens.jobs.screen import LOG, JobsScreen
from vlmconsole.screens.jobs.sheets import CurveSheet, PlanSheet, PresetList
from vlmconsole.screens.widgets.dialogs import Confirm, Reader


async def test_a_name_comes_before_a_title_when_a_preset_is_looked_for(places: Places) -> None:
    async with jobs(places) as (pilot, _):
        await pilot.press("n")
        await until(lambda: isinstance(pilot.app.screen, PresetList))
        await pilot.press(*"model")
        await pilot.pause()
        listing = pilot.app.screen.query_one(OptionList)
        assert listing.highlighted is not None
        assert str(listing.get_option_at_index(listing.highlighted).prompt).strip() == "model-tiny"
        await pilot.press("escape")


async def test_what_really_ran_is_shown_with_cause_curves_log_and_files(full: Places) -> None:
    async with jobs(full) as (pilot, screen):
        assert [row.job.state for row in screen.board.rows] == ["failed", "done"]
        text = seen(pilot)
        assert "✗ failed" in text
        assert "✗ the picture scene-0042.png" in text
        assert [curve.name for curve in screen.run_state.curves] == ["loss", "grad norm", "step time"]
        await pilot.press("j")
        await settled(pilot)
        text = seen(pilot)
        assert "✓ done" in text
        assert "40 of 40 steps" in text
        assert "rose three times" in text  # a warning of the run, as it stands in its events
        assert "summary.json" in text
        assert "loss 0.0946" in text
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Reader)
        assert "vlmconsole jobs logs -f 1" in seen(pilot) or pilot.app.screen.query("Prose")


async def test_on_a_narrow_screen_a_failure_shows_its_cause_and_the_logs_end_first(full: Places) -> None:
    async with jobs(full, (80, 24)) as (pilot, screen):
        await pilot.press("right_square_bracket")
        await settled(pilot)
        text = seen(pilot)
        assert text.index("scene-0042.png") < text.index("Last log lines") < text.index("20 of 40 steps")
        await pilot.press("right_square_bracket")
        await settled(pilot)
        assert "following" in seen(pilot)
        assert screen.pane == LOG


async def test_the_footer_is_true_and_curves_open_large(full: Places) -> None:
    async with jobs(full) as (pilot, screen):
        assert screen.check_action("retry", ())
        assert not screen.check_action("cancel", ())
        await pilot.press("j")
        await settled(pilot)
        assert screen.row is not None and screen.row.job.state == "done"
        assert not screen.check_action("retry", ()) and screen.check_action("clone", ())
        await pilot.press("k")
        await settled(pilot)
        await pilot.press("right_square_bracket", "j", "enter")
        await settled(pilot)
        assert isinstance(pilot.app.screen, CurveSheet)
        assert "grad norm" in seen(pilot) and "Zoom" not in seen(pilot)  # a key that does nothing is not offered
        await pilot.press("tab")
        await pilot.pause()
        assert "step time" in seen(pilot)
        await pilot.press("escape")
        assert pilot.app.screen is screen


async def test_keys_reorder_clone_drain_and_cancel_after_asking(places: Places) -> None:
    queue(places)
    async with jobs(places) as (pilot, screen):

        def order() -> list[int]:
            return [job.id for job in Store(places.queue).waiting()]

        await pilot.press("j", "J")
        await settled(pilot)
        assert order() == [1, 3, 2]
        assert screen.row is not None
        assert screen.row.job.id == 2, "the cursor stays on its job"
        await pilot.press("K", "K")
        await settled(pilot)
        assert order() == [2, 1, 3]
        await pilot.press("C")
        await settled(pilot)
        await until(lambda: screen.row is not None and screen.row.job.id == 4)
        await pilot.press("x")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Confirm)
        assert "nothing is lost" in seen(pilot)
        await pilot.press("enter")
        await settled(pilot)
        assert 4 in order(), "Enter is no"
        await pilot.press("x", "y")
        await settled(pilot)
        assert 4 not in order()
        await pilot.press("d")
        await settled(pilot)
        assert Store(places.queue).meta("drained") is True
        assert "drained" in seen(pilot)
        await pilot.press("d")
        await settled(pilot)
        assert Store(places.queue).meta("drained") is False


async def test_retry_makes_a_new_attempt(full: Places) -> None:
    async with jobs(full) as (pilot, screen):
        await pilot.press("r")
        await settled(pilot)
        await until(lambda: Store(full.queue).get(2).attempt == 2)
        await until(lambda: "attempt 1: failed" in seen(pilot))
        assert screen.row is not None
        assert screen.row.job.state == "queued"


async def test_a_new_job_from_preset_by_form_and_plan(places: Places) -> None:
    async with jobs(places) as (pilot, screen):
        assert "No jobs yet" in seen(pilot)
        assert "vlmconsole jobs add sft-expand-tiny" in seen(pilot)
        await pilot.press("n")
        await until(lambda: isinstance(pilot.app.screen, PresetList))
        await pilot.press(*"story")
        await pilot.pause()
        await pilot.press("enter")
        await until(lambda: isinstance(pilot.app.screen, JobForm))
        form = pilot.app.screen
        await until(lambda: "about 0 s" in seen(pilot))
        assert "optimizer steps" in seen(pilot)
        await pilot.press(*["backspace"] * 3, "0")
        await until(lambda: "equal to 1" in seen(pilot))
        await pilot.press("enter")
        await asyncio.sleep(0.5)
        assert pilot.app.screen is form, "what is wrong cannot be queued"
        await pilot.press(*["backspace"] * 3, "7", "tab", "tab", "tab", "right")
        await pilot.press("enter")
        await until(lambda: isinstance(pilot.app.screen, PlanSheet))
        await pilot.pause()
        assert "vlmconsole jobs add story --set steps=7 --set mode=fails" in seen(pilot)
        await pilot.press("escape")
        await until(lambda: isinstance(pilot.app.screen, JobForm))
        await settled(pilot)
        kept = {line.field.key: line.value for line in pilot.app.screen.query(FormLine)}
        assert (kept["steps"], kept["mode"]) == ("7", "fails")
        await pilot.press("enter")
        await until(lambda: isinstance(pilot.app.screen, PlanSheet))
        await pilot.press("enter")
        await until(lambda: pilot.app.screen is screen)
        await settled(pilot)
        job = Store(places.queue).get(1)
        assert (job.spec["steps"], job.spec["mode"], job.state) == (7, "fails", "queued")


async def test_the_queue_is_filtered_while_one_types(places: Places) -> None:
    store = Store(places.queue)
    for name in ("sft-tiny", "grpo-tiny", "bench"):
        store.add(NewJob(name, "story_kind:STORY", name, {}))
    async with jobs(places) as (pilot, screen):
        await pilot.press("slash", *"tiny")
        await settled(pilot)
        await until(lambda: [row.job.preset for row in screen.board.rows] == ["sft-tiny", "grpo-tiny"])
        await pilot.press("escape")
        await settled(pilot)
        await until(lambda: len(screen.board.rows) == 3)


async def test_the_end_of_a_job_is_told_on_any_screen(places: Places) -> None:
    queue(places, 1)
    with held(places):
        app = ConsoleApp(Lab.open(places.home))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await settled(pilot)
            await asyncio.sleep(0.5)
            store = Store(places.queue)
            store.finish(1, "failed", "[bold]out of memory[/bold]")
            await until(lambda: "✗ job 1 story: failed" in seen(pilot))
            assert "[bold]out of memory[/bold]" in seen(pilot)
            assert app.focused is None or not isinstance(app.focused, Input)


@pytest.mark.slow
async def test_a_job_queued_here_is_run_by_a_real_supervisor_to_its_end(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMCONSOLE_DEVICE_LOCKS", str(places.home / "locks"))
    monkeypatch.setenv("VLMCONSOLE_SUPERVISOR_IDLE", "1")
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("f3")
        screen = app.screen
        assert isinstance(screen, JobsScreen)
        await settled(pilot)
        planned = forms.planned("story", ["steps=50", "pause=0.05"], places)
        await screen.in_thread(lambda desk: desk.add(planned))
        await until(lambda: screen.row is not None and screen.row.job.state == "running")
        await until(lambda: screen.row is not None and screen.row.progress is not None)
        await until(lambda: "✓ job 1 story: done" in seen(pilot))
        await until(lambda: screen.row is not None and screen.row.job.state == "done")
        assert screen.run_state.curves
    await until(lambda: process.running(places) is None)


async def test_a_queue_that_nobody_works_on_says_so_and_the_console_starts_its_supervisor(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[Places] = []
    monkeypatch.setattr(process, "ensure", begun.append)
    monkeypatch.setattr(job_watch, "ATTEND", 0.2)
    store = Store(places.queue)
    store.set_meta("drained", True)
    store.add(NewJob("story", "k", "t", {}))
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f3")
        await until(lambda: "1 queued" in seen(pilot))
        await pilot.pause(0.5)
        assert begun == [] and UNATTENDED not in seen(pilot)  # a drained queue needs nobody
        store.set_meta("drained", False)
        await until(lambda: bool(begun) and UNATTENDED in seen(pilot))
    with pytest.raises(SystemExit) as end:
        main(["--home", str(places.home), "jobs", "list"])
    assert not end.value.code
    told = " ".join(capsys.readouterr().out.split())
    assert UNATTENDED in told and "jobs wait" in told
