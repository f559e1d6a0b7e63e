"""The training view: what a story tells of answers, scores and cells, and how the Jobs screen shows it."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from job_queue import lab
from jobs_console import jobs, seen, settled, until
from refusals import check_nouns, mentions

from vlmconsole.desks.queue import Desk, QueueRow
from vlmconsole.jobs.evaluate import KIND as EVALUATE
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.events import EventWriter
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.live_view import RunState, RunStory
from vlmconsole.runs.pace import Progress
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.detail import how_far
from vlmconsole.screens.jobs.rows import state_sign
from vlmconsole.screens.jobs.screen import ANSWERS, LOG
from vlmconsole.screens.jobs.training_answers import headline, shown_at, steps_of, tile_text
from vlmconsole.screens.jobs.training_course import course, stall
from vlmconsole.screens.jobs.training_sheet import AnswerSheet
from vlmconsole.screens.pictures.picture import PictureView

RECORDED = DATA / "jobs"
SWEEP = DATA / "runs" / "cb-grid-tiny"


@pytest.fixture(scope="module")
def grpo() -> RunState:
    return RunStory(RunFolder(RECORDED / "grpo")).read()


def running(home: Path, kind: str, recorded: Path, **queue: object) -> tuple[Places, Path]:
    """A lab home with one running job that has told what was recorded, its last word just now."""
    places = lab(home)
    store = Store(places.queue)
    number = store.add(NewJob(f"{kind}-tiny", kind, "", {}, dict(queue)))
    run = places.runs / "20261130-000000-run"
    shutil.copytree(recorded, run)
    path = run / "events.jsonl"
    if path.exists():
        told = [json.loads(line) for line in path.read_text().splitlines()]
        shift = time.time() - told[-1]["t"]
        path.write_text("".join(json.dumps({**event, "t": event["t"] + shift}) + "\n" for event in told))
    store.claim(number, ("cpu.0",), None, str(run))
    store.running(number, 1, "1")
    return places, run


def row_of(places: Places) -> QueueRow:
    return QueueRow(Store(places.queue).get(1), "")


# -- what is told --------------------------------------------------------------------------------------------


def test_a_recorded_grpo_run_tells_its_groups_with_reward_and_advantage(grpo: RunState) -> None:
    assert steps_of(grpo.rollouts) == [1, 2, 3]
    first = shown_at(grpo.rollouts, 1)
    assert [len(group.answers) for group in first] == [4, 4, 4, 4]
    assert [group.pointless for group in first] == [False, True, True, True]
    assert [group.right for group in first] == [False, True, False, False]
    text = str(tile_text(first[0]))
    assert text.splitlines()[0] == "truth 0/0"
    assert "✓ 0/0 +0.5 ×3" in text and '✗ {"red…' in text and "−1.5" in text
    assert "✗ 3/2 .5 0.0 ×4" in str(tile_text(shown_at(grpo.rollouts, 3)[0]))
    head = str(headline(first, [1, 2, 3], 1)).replace("\u00a0", " ")
    assert "step 1 · 7/16 right" in head and "3/4 no advantage" in head and head.endswith(" · . 2 later")
    assert str(headline(first, [0, 1, 2], 1)).endswith("·\u00a0,\u00a01\u00a0before ·\u00a0.\u00a01\u00a0later")


def test_a_picture_turns_right_and_wrong_from_pass_to_pass(tmp_path: Path) -> None:
    events = EventWriter(tmp_path / "events.jsonl")
    for epoch, rights in ((2, {"a": False, "b": True}), (4, {"a": True, "b": False})):
        for uid, right in rights.items():
            events.emit(
                "rollout", step=epoch * 192, epoch=epoch, uid=uid, picture=f"pictures/{uid}.png", truth="{}",
                answer="{}", reward=1.0 if right else 0.5, advantage=None, right=right,
                label="development, not a baseline",
            )  # fmt: skip
    told = RunStory(RunFolder(tmp_path)).read()
    a, b = shown_at(told.rollouts, 768)
    assert (a.turned, b.turned) == (1, -1)
    assert str(tile_text(a)).endswith("was ✗") and str(tile_text(b)).endswith("was ✓")
    head = str(headline([a, b], [384, 768], 768)).replace("\u00a0", " ")
    check_nouns(head, "epoch 4", "1/2 right", "1 now right", "1 now wrong", "not a baseline")


def test_no_picture_is_read_outside_its_run(tmp_path: Path) -> None:
    events = EventWriter(tmp_path / "events.jsonl")
    for picture in ("../../etc/passwd", "/etc/passwd", None, 7, "pictures/good.png"):
        events.emit("rollout", step=1, uid=str(picture), picture=picture, truth="", answer="", reward=0, advantage=0)
    told = RunStory(RunFolder(tmp_path)).read()
    assert [one.picture for one in told.rollouts] == ["", "", "", "", "pictures/good.png"]


FIELDS = st.sampled_from(["step", "uid", "picture", "truth", "answer", "reward", "advantage", "right"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


@given(st.dictionaries(FIELDS, VALUES))
def test_no_event_of_a_foreign_hand_breaks_a_story(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("foreign")
    EventWriter(folder / "events.jsonl").emit("rollout", **fields)
    told = RunStory(RunFolder(folder)).read()
    for one in told.rollouts:
        assert str(tile_text(shown_at(told.rollouts, one.step)[0])).startswith("truth")


def test_an_evaluations_score_runs_along_with_its_answers(tmp_path: Path) -> None:
    places, run = running(tmp_path / "home", "evaluate", RECORDED / "evaluate")
    kept = (run / "after.jsonl").read_bytes()
    (run / "after.jsonl").unlink()
    story = RunStory(RunFolder(run))
    text = str(course(row_of(places), story.read(), time.time()))
    assert "after" not in text
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "all-correct before", "so far 40.5 % of 42", "regular 25.0 % of 12", "variants 35.0 % of 20",
        "naming 70.0 % of 10",
    ]  # fmt: skip
    (run / "after.jsonl").write_bytes(kept + b'{"group": "regular", "all_corr')
    text = " ".join(str(course(row_of(places), story.read(), time.time())).split())
    assert "so far 40.5 % of 42 100.0 % of 20" in text, "a torn last line waits for its rest"


def test_cells_are_told_as_they_finish(tmp_path: Path) -> None:
    places, run = running(tmp_path / "home", "sweep", SWEEP)
    with (run / "cells.jsonl").open("a") as file:
        file.write(json.dumps({"name": "c9-b9", "state": "failed", "why": "the server ended with code 137"}) + "\n")
    text = str(course(row_of(places), RunStory(RunFolder(run)).read(), time.time()))
    lines = text.splitlines()
    cells = len((SWEEP / "cells.jsonl").read_text().splitlines())
    assert sum(line.startswith("✓") for line in lines) == cells
    assert any(line.split()[:6] == ["✓", "c1-b1", "0.255", "s", "0.346", "s"] for line in lines)
    assert any(line.startswith("✗ c9-b9") and "137" in line for line in lines)
    assert lines[-1].startswith("● cell ")


def test_development_scores_say_what_they_are_not(grpo: RunState, tmp_path: Path) -> None:
    places, _ = running(tmp_path / "home", "grpo", RECORDED / "grpo")
    events = EventWriter(tmp_path / "events.jsonl")
    for step, value in ((10, 0.484), (20, 0.516)):
        events.metric("validation reward (not a baseline)", value, step=step)
    told = RunStory(RunFolder(tmp_path)).read()
    text = str(course(row_of(places), told, time.time()))
    head, *steps = text.splitlines()
    assert "not a baseline" in head and steps == ["  step 10   reward 0.484", "  step 20   reward 0.516"]
    check_nouns(str(course(row_of(places), grpo, time.time())), "zero advantage", "100 %", "92 %")


# -- when nothing moves --------------------------------------------------------------------------------------


def test_a_stall_is_told_against_a_usual_step_and_the_limit(tmp_path: Path) -> None:
    places, _ = running(tmp_path / "home", "sft", RECORDED / "grpo", no_progress_s=600)
    row = row_of(places)
    now = 10_000.0
    moving = Progress(now - 59, 10, 100, "steps", "", 0.5)
    assert not stall(row, moving, now)
    text = str(stall(row, replace(moving, t=now - 130), now))
    assert text.startswith("! ") and mentions(text, "no progress", "2:10", "2 s", "10:00")
    assert not stall(row, replace(moving, t=now - 130, rate=1 / 30), now), "slow steps may take their time"
    done = QueueRow(replace(row.job, state="done"), "")
    assert not stall(done, replace(moving, t=now - 1000), now)
    server = QueueRow(replace(row.job, serves="demo"), "")
    assert not stall(server, replace(moving, t=now - 1000), now)


def test_a_done_job_shows_no_unfinished_bar(tmp_path: Path) -> None:
    places, _ = running(tmp_path / "home", "sft", RECORDED / "grpo")
    row = row_of(places)
    part = Progress(10.0, 1184, 1184, "pictures", "", None, phase="making sft-expand-tiny", overall=0.94)
    assert "94 %" in str(how_far(row, RunState(progress=part)))
    done = replace(row, job=replace(row.job, state="done"))
    assert str(how_far(done, RunState(progress=part))) == ""
    assert "100 %" in str(how_far(done, RunState(progress=replace(part, overall=None))))
    failed = replace(row, job=replace(row.job, state="failed"))
    assert "94 %" in str(how_far(failed, RunState(progress=part))), "how far it came"


# -- on the screen -------------------------------------------------------------------------------------------


async def test_the_screen_attaches_to_a_running_training_with_curves_answers_and_log(tmp_path: Path) -> None:
    places, run = running(tmp_path / "home", "grpo", RECORDED / "grpo")
    async with jobs(places) as (pilot, screen):
        await until(lambda: "truth 7/2" in seen(pilot))  # its answers are read after its curves
        text = seen(pilot)
        for part in ("loss", "reward mean", "reward spread", "grad norm", "learning rate"):
            assert part in text
        assert "step 3 · 0/16 right · 4/4 no advantage" in text
        assert "truth 7/2" in text and "✗ 3/2 .5 0.0 ×4" in text
        assert mentions(text, "validation", "step 10", "not a baseline")
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert screen.pane == ANSWERS
        await pilot.press("comma", "comma", "j")
        await settled(pilot)
        assert "step 1 · 7/16 right" in seen(pilot)
        assert screen.answers.chosen is not None and screen.answers.cursor == 1
        await pilot.press("k", "enter")
        await settled(pilot)
        assert isinstance(pilot.app.screen, AnswerSheet)
        await pilot.pause(0.1)
        await settled(pilot)
        text = seen(pilot)
        assert "advantage −1.50" in text and '{"red_circles": 0,, "blue_squares": 0}' in text
        assert pilot.app.screen.query(PictureView)
        await pilot.press("escape", "right_square_bracket")
        assert screen.pane == LOG
        # A step that comes meanwhile: an earlier one that was chosen stays, the last one follows.
        EventWriter(run / "events.jsonl").emit(
            "rollout", step=4, uid="new", picture="pictures/gone.png", truth="{}", answer="x", reward=0.0, advantage=0.0
        )
        await screen.look_now()
        assert "step 1 · 7/16 right" in seen(pilot)
        for _ in range(3):
            screen.answers.turn(1)
        screen.show_answers()
        await settled(pilot)
        await pilot.pause(0.1)
        await settled(pilot)
        assert "step 4 · 0/1 right" in seen(pilot)
        assert "gone.png is" in seen(pilot), "a picture that is gone is said, not hidden"


async def test_without_answers_there_is_no_pane_for_them(tmp_path: Path) -> None:
    places, _ = running(tmp_path / "home", "evaluate", RECORDED / "evaluate")
    async with jobs(places, (80, 24)) as (pilot, screen):
        assert "Answers" not in seen(pilot)
        await pilot.press("right_square_bracket")
        await settled(pilot)
        assert "40.5 % of 42" in seen(pilot)
        await pilot.press("right_square_bracket")
        assert screen.pane == LOG


async def test_a_done_job_is_not_simply_well_when_its_gates_were_not(tmp_path: Path) -> None:
    places, run = running(tmp_path / "home", "evaluate", RECORDED / "evaluate")
    (run / "summary.json").write_text(json.dumps({"verdict": "FAIL"}))
    Store(places.queue).finish(1, "done", None)
    async with jobs(places) as (pilot, _):
        text = seen(pilot)
        assert "✗ done" in text and "✓ done" not in text
        assert "FAIL · took" in text and "verdict FAIL" in text


@pytest.mark.parametrize(
    ("verdict", "sign"),
    [("FAIL", "✗"), ("CANNOT JUDGE", "?"), ("PASS", "✓"), ("hit proven", "✓"), (7, "✓"), (None, "✓")],
)
def test_only_a_verdict_of_gates_changes_the_sign_of_a_done_job(tmp_path: Path, verdict: object, sign: str) -> None:
    places, run = running(tmp_path / "home", "evaluate", RECORDED / "evaluate")
    (run / "summary.json").write_text(json.dumps({"verdict": verdict}))
    desk = Desk(places)
    assert desk.board().rows[0].verdict == "", "what still runs is not judged"
    Store(places.queue).finish(1, "done", None)
    row = Desk(places).board().rows[0]
    assert str(state_sign(row.job, row.verdict)) == f"{sign} done"


@pytest.mark.parametrize("kind", ["bench", "sweep"])
@pytest.mark.parametrize(("valid", "sign"), [(False, "✗"), (True, "✓")])
def test_a_measurement_that_counts_for_nothing_is_invalid(tmp_path: Path, kind: str, valid: bool, sign: str) -> None:
    places, run = running(tmp_path / "home", kind, RECORDED / "evaluate")
    (run / "summary.json").write_text(json.dumps({"valid": valid, "invalid_because": "no request counts"}))
    Store(places.queue).finish(1, "done", None)
    row = Desk(places).board().rows[0]
    assert (row.verdict, str(state_sign(row.job, row.verdict))) == ("" if valid else "INVALID", f"{sign} done")


async def test_a_flow_has_its_steps_beneath_it_in_their_order(tmp_path: Path) -> None:
    places = lab(tmp_path)
    store = Store(places.queue)
    store.set_meta("devices", {"cpu_slots": 2, "gpus": [], "taken": {}})
    flow = store.add(NewJob("rounds", "flow", "Two rounds", {"steps": ["train", "judge", "report"]}, devices=()))
    steps = []
    for name, after in (("train", ()), ("judge", ((2, "ok"),)), ("report", ((3, "any"),))):
        steps.append(store.add(NewJob("story", "story_kind:STORY", "", {}, flow=flow, step=name, after=after)))
    alone = store.add(NewJob("story", "story_kind:STORY", "", {}))
    store.claim(steps[0], ("cpu.0",), None, str(places.runs / "none"))
    store.finish(steps[0], "done", None)
    store.claim(steps[1], ("cpu.0",), None, str(places.runs / "none"))
    store.claim(alone, ("cpu.1",), None, str(places.runs / "none"))
    store.close()
    async with jobs(places) as (pilot, screen):
        assert [row.job.id for row in screen.board.rows] == [alone, flow, *steps]
        text = seen(pilot)
        assert "1 of 3 steps" in text and "↳ judge: story" in text
        waiting = next(row for row in screen.board.rows if row.job.id == steps[2])
        assert waiting.why, "a step says itself why it waits"


async def test_the_first_line_tells_a_missing_server_and_the_last_a_windows_keys(tmp_path: Path) -> None:
    places = lab(tmp_path)
    places.config.write_text('server = "nowhere"\n')
    store = Store(places.queue)
    store.add(NewJob("story", "story_kind:STORY", "", {}))
    store.close()
    async with jobs(places) as (pilot, _):
        assert "nowhere · failed ✗" in seen(pilot).splitlines()[0]
        assert "n new" in seen(pilot).splitlines()[-1]
        await pilot.press("x")
        await settled(pilot)
        last = "".join(str(part.text) for part in pilot.app.screen_stack[0]._compositor.render_strips()[-1])
        assert "y yes" in last and "n new" not in last
        await pilot.press("escape", "question_mark")
        await settled(pilot)
        text = seen(pilot)
        assert "In the message box" not in text and "While not typing" in text


def test_an_evaluation_names_what_it_needs_where_it_loads_the_models_itself() -> None:
    local = EVALUATE.spec(data=["sft-expand-tiny"], paired=False)
    assert EVALUATE.needed(local) == ("torch", "transformers", "peft")
    assert EVALUATE.needed(EVALUATE.spec(data=["sft-expand-tiny"], paired=False, backend="server", server="demo")) == ()
