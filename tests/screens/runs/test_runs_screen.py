"""The runs screen, driven by keys over recorded runs, failed ones and hostile ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import waiting
from judged import CONDITIONS, evaluated
from recorded_runs import BENCH, GRID, PROBE, failed_run, hostile_run, lab_with_runs
from refusals import mentions
from textual.pilot import Pilot
from textual.widgets import OptionList
from trained_runs import training

from vlmconsole.app import ConsoleApp
from vlmconsole.compare.runs import COMPARABLE_MEANS, compare_runs, compare_sides, side
from vlmconsole.desks.opened_run import Opener
from vlmconsole.desks.runs import Shelf
from vlmconsole.drawings.run import lines_of
from vlmconsole.errors import LabError
from vlmconsole.lab import Lab
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.runs.comparison import ComparisonSheet
from vlmconsole.screens.runs.evaluation_comparison import EvaluationSheet
from vlmconsole.screens.runs.screen import RunsScreen
from vlmconsole.screens.runs.sweep_comparison import SweepSheet
from vlmconsole.screens.runs.training_comparison import TrainingSheet
from vlmconsole.screens.widgets.dialogs import Choose, Reader

until = partial(waiting.until, seconds=20.0)
settled = partial(waiting.settled, people=("compare", "export"))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return lab_with_runs(tmp_path / "home")


@asynccontextmanager
async def runs(places: Places, size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[Pilot[None], RunsScreen]]:
    places.ensure()
    places.config.write_text('server = "none"\n')
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.press("f5")
        screen = app.screen
        assert isinstance(screen, RunsScreen)
        await settled(pilot)
        yield pilot, screen


async def press(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


def seen(pilot: Pilot[None]) -> str:
    width = pilot.app.size.width
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line)[:width] for line in lines)


async def test_a_lab_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    async with runs(Places(tmp_path / "empty")) as (pilot, _):
        assert "No runs yet" in seen(pilot) and "vlmconsole run main-experiment-tiny" in seen(pilot)


async def test_the_table_names_state_verdict_figure_and_seal(places: Places) -> None:
    failed_run(places)
    run = RunFolder(places.runs / BENCH)
    run.file("summary.json").write_text(run.file("summary.json").read_text() + " ")
    async with runs(places) as (pilot, screen):
        lines = {line.split()[1]: line for line in seen(pilot).splitlines()[3:9] if len(line.split()) > 2}
        assert "hit proven" in lines["cache-probe-text"] and "intact" in lines["cache-probe-text"]
        assert "CHANGED" in lines["bench"]
        assert lines["grid"].startswith("✗") and "failed" in lines["grid"]
        assert "1 failed" in seen(pilot)
        await press(pilot, "g")
        text = seen(pilot)
        assert "server exited" in text and "137" in text and "INVALID" in text and "lag p99 31 ms" in text
        assert screen.row is not None and screen.row.preset == "grid"
        await press(pilot, "question_mark")
        mark = next(line for line in seen(pilot).splitlines() if "Mark a run" in line)
        assert "run" in mark and "cell" in mark, "a key that does two things says both"


@pytest.mark.slow
async def test_every_figure_opens_to_its_conditions(places: Places) -> None:
    async with runs(places) as (pilot, screen):
        await press(pilot, "j", "j", "enter", "j", "j", "j", "j", "enter")
        sheet = pilot.app.screen
        assert isinstance(sheet, Reader)
        text = seen(pilot)
        assert "cb-grid-tiny · c4-b1" in text and "running limit B 1" in " ".join(text.split())
        await press(pilot, "escape")
        await press(pilot, "full_stop", "full_stop", "full_stop", "full_stop")
        at = next(y for y, line in enumerate(screen.figures._lines) if line.target and line.target.kind == "request")
        screen.figures.choose(at)
        await press(pilot, "enter")
        assert "raw request" in seen(pilot) or "request 0" in seen(pilot)


async def test_two_cells_that_differ_are_refused_by_name_and_shown_without_a_verdict(places: Places) -> None:
    async with runs(places) as (pilot, screen):
        await press(pilot, "j", "j", "enter", "j", "j", "j", "j", "space", "j", "j", "j", "space")
        assert screen.marks == ((GRID, "c4-b1"), (GRID, "c4-b4"))
        await press(pilot, "b")
        await until(lambda: isinstance(pilot.app.screen, ComparisonSheet))
        await settled(pilot)
        text = seen(pilot)
        assert "Not comparable: 1 condition" in text and "running limit B" in text
        assert "change" not in text and "throughput" not in text
        await press(pilot, "s")
        text = seen(pilot)
        assert "no verdict" in text and "throughput" in text and "change" not in text
        await press(pilot, "d")
        text = " ".join(seen(pilot).split())
        assert "Comparable; " in text and "running limit B (1 against 4)" in text and "change" in text
        assert "✓ Comparable" not in text  # no sign as if the change were good
        assert COMPARABLE_MEANS in text and "95 % interval" in text


@pytest.mark.slow
async def test_a_run_of_several_cells_asks_which_one(places: Places) -> None:
    async with runs(places) as (pilot, _):
        await press(pilot, "space", "j", "space", "b")
        await until(lambda: isinstance(pilot.app.screen, Choose))
        await pilot.pause()
        assert pilot.app.screen.query_one(OptionList).option_count == 6
        await pilot.press("enter")
        await until(lambda: isinstance(pilot.app.screen, ComparisonSheet))
        await settled(pilot)
        text = seen(pilot)
        assert f"{GRID}:c1-b1" in text and BENCH in text and "conditions differ" in text
        for label in ("input length", "image size", "actual output length"):
            assert label in text


async def test_two_sweeps_are_compared_whole_and_each_pair_opens(places: Places) -> None:
    again = "20261129-235400-cb-grid-tiny-cafe"
    shutil.copytree(places.runs / GRID, places.runs / again)
    run = RunFolder(places.runs / again)
    rows = list(run.read_jsonl("cells.jsonl"))
    run.file("cells.jsonl").unlink()
    for row in rows:
        run.append_jsonl("cells.jsonl", {**row, "conditions": {**row["conditions"], "model": "another"}})
    async with runs(places) as (pilot, screen):
        screen.marks = ((GRID, ""), (again, ""))
        await press(pilot, "b")
        await until(lambda: isinstance(pilot.app.screen, SweepSheet))
        await settled(pilot)
        text = seen(pilot)
        assert "0 of 6 cells" in text and "c2-b1" in text and "model" in text
        assert "→" not in text and "treat model as" in text
        await press(pilot, "d")
        text = seen(pilot)
        assert "✓ Comparable: 6 cells" in text and text.count("✓ TTFT p50") == 6 and "0.0 %" in text
        await press(pilot, "j", "enter")
        await until(lambda: isinstance(pilot.app.screen, ComparisonSheet))
        await settled(pilot)
        text = seen(pilot)
        assert f"{GRID}:c2-b1" in text and f"{again}:c2-b1" in text and "only model (" in text


async def test_two_trainings_are_compared_with_their_curves_and_a_training_with_nothing_else(places: Places) -> None:
    one, other = training(places.runs, "one"), training(places.runs, "two", seed=2, ends=0.3)
    async with runs(places) as (pilot, screen):
        screen.marks = ((one.name, ""), (other.name, ""))
        await press(pilot, "b")
        await until(lambda: isinstance(pilot.app.screen, TrainingSheet))
        await settled(pilot)
        assert "1 condition" in seen(pilot) and "treat seed as" in seen(pilot)
        await press(pilot, "d")
        text = seen(pilot)
        assert "seed (1 against 2)" in text and "0.955 → 0.1" in text and "no verdict" in text
        await press(pilot, "escape")
        screen.marks = ((one.name, ""), (BENCH, ""))
        await press(pilot, "c")
        await until(lambda: any("no figure" in note.message for note in pilot.app._notifications))


async def test_two_evaluations_are_paired_and_their_decoding_must_agree(places: Places) -> None:
    one, other = evaluated(places.home, 2, 4), evaluated(places.home, 2, 9)
    async with runs(places) as (pilot, screen):
        screen.marks = ((one.name, ""), (other.name, ""))
        await press(pilot, "b")
        await until(lambda: isinstance(pilot.app.screen, EvaluationSheet))
        await settled(pilot)
        text = seen(pilot)
        assert "score, hollow" in text and "15 won, 0 lost" in text and "McNemar" in text
        assert "+0.5000" in text and "say nothing of another training" in text
        await press(pilot, "escape")
        other.write_json("conditions.json", {"before": CONDITIONS, "after": {**CONDITIONS, "max_tokens": 8}})
        await press(pilot, "b")
        await until(lambda: isinstance(pilot.app.screen, EvaluationSheet))
        await settled(pilot)
        assert "1 condition" in seen(pilot) and "treat max tokens as" in seen(pilot)
        await press(pilot, "d")
        assert "15 won" in seen(pilot)


@pytest.mark.slow
async def test_a_run_without_figures_is_not_compared(places: Places) -> None:
    async with runs(places) as (pilot, _):
        await press(pilot, "space", "space", "c")
        await until(lambda: any("no figures" in note.message for note in pilot.app._notifications))


@pytest.mark.slow
async def test_the_filter_leaves_what_holds_every_word(places: Places) -> None:
    failed_run(places)
    async with runs(places) as (pilot, screen):
        await press(pilot, "slash", *"sweep", "space", *"done")
        assert [line.name for line in screen.board.lines] == [GRID]
        await press(pilot, "escape")
        assert len(screen.board.lines) == 4
        await press(pilot, "slash", *"hit", "space", *"proven", "enter", "enter")
        text = seen(pilot)
        assert "warm pairs" in text and "448 of 449 cached" in text and screen.row is not None
        assert screen.row.name == PROBE


@pytest.mark.slow
async def test_a_run_is_saved_as_a_report(places: Places) -> None:
    async with runs(places) as (pilot, _):
        await press(pilot, "e")
        await until(lambda: isinstance(pilot.app.screen, Choose))
        await pilot.pause()
        await pilot.press("down", "down", "enter")
        path = places.home / "reports" / f"{BENCH}.json"
        await until(path.exists)
        assert json.loads(path.read_text())["runs"][0]["run"] == BENCH


async def test_a_sweep_is_followed_while_it_runs(places: Places) -> None:
    recorded = RunFolder(places.runs / GRID)
    run = RunFolder.create(places.runs, kind="sweep", preset="live", spec={}, title="Live", home=places.home,
                           name="20261130-000000-live-0000")  # fmt: skip
    run.set_state("running", started=1_796_000_000.0)
    rows = list(recorded.read_jsonl("cells.jsonl"))
    async with runs(places) as (pilot, screen):
        assert "● running" in seen(pilot)
        for number, row in enumerate(rows[:3], start=1):
            run.append_jsonl("cells.jsonl", row)
            run.events.progress(8 * number, 48, "requests", row["name"])
            screen.look()
            await settled(pilot)
            assert screen.opened is not None and len(screen.opened.cells) == number
        text = seen(pilot)
        assert "24 of 48 requests" in text and "c4-b1" in text and "Throughput against TTFT" in text


@pytest.mark.parametrize(
    "size", [(80, 24), *(pytest.param(size, marks=pytest.mark.slow) for size in ((120, 40), (40, 10)))]
)
async def test_hostile_and_damaged_runs_are_shown_as_such(places: Places, size: tuple[int, int]) -> None:
    hostile_run(places)
    broken = places.runs / "20261129-235900-broken-0000"
    broken.mkdir()
    (broken / "job.json").write_text("{")
    (broken / "cells.jsonl").write_bytes(b'\xff\xfe{}\n[1]\n{"name": 3, "summary": []}\n')
    (broken / "summary.json").write_text("[" * 5000)
    async with runs(places, size) as (pilot, screen):
        assert screen.row is not None and screen.row.name == broken.name
        await press(pilot, "enter")
        assert mentions(screen.head._said.plain, "job.json", "state.json", "summary.json")
        await press(pilot, "escape", "j", "enter", *["pagedown"] * 12, "G", "enter")
        text = seen(pilot)
        assert not [char for char in text if ord(char) < 32 and char != "\n"] and "\x9b" not in text
        await press(pilot, "escape")
        assert pilot.app.is_running


def test_every_width_draws_every_run(places: Places) -> None:
    hostile_run(places)
    failed_run(places)
    opener = Opener(places)
    for line in Shelf(places).read().lines:
        opened = opener.read(RunFolder(line.path))
        for width in (20, 33, 58, 66, 118, 200):
            made = lines_of(opened, width)
            assert made and all("\n" not in one.plain and "\x1b" not in one.plain for one in made)


def test_the_shelf_reads_again_only_what_moved(places: Places) -> None:
    shelf, opener = Shelf(places), Opener(places)
    before = {line.name: line for line in shelf.read().lines}
    assert {line.seal for line in before.values()} == {"intact"}
    run = RunFolder(places.runs / GRID)
    opened = opener.read(run)
    assert opener.read(run) is opened
    run.append_jsonl("cells.jsonl", {"name": "new", "state": "failed", "why": "late"})
    assert len(opener.read(run).cells) == 7
    after = {line.name: line for line in shelf.read().lines}
    assert after[GRID].seal == "changed" and "cells.jsonl" in after[GRID].why and after[PROBE] == before[PROBE]


def test_cells_are_compared_by_name(places: Places) -> None:
    grid, bench = RunFolder(places.runs / GRID), RunFolder(places.runs / BENCH)
    comparison, rows = compare_sides(side(grid, "c4-b1"), side(grid, "c4-b4"), "running_limit")
    assert comparison.comparable and rows[0].change is not None
    with pytest.raises(LabError, match="has 6 cells") as refused:
        compare_runs(grid, bench)
    assert "c4-b1" in refused.value.hint
    with pytest.raises(LabError, match="no cell “c9”"):
        side(grid, "c9")
    dead = failed_run(places)
    assert "INVALID" in compare_sides(side(dead, "late"), side(grid, "c1-b1"))[0].sentence()
