"""Presets as forms, and the desk of the queue that the jobs screen works on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_queue import held, lab
from refusals import mentions

from vlmconsole.desks import forms
from vlmconsole.desks.forms import FormField
from vlmconsole.desks.queue import Desk, QueueRow, losses
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.runs.pace import Progress
from vlmconsole.runs.places import Places
from vlmconsole.text.times import duration

FLOW = """
kind = "flow"
title = "Two steps"
[[spec.steps]]
name = "first"
preset = "story"
[[spec.steps]]
name = "second"
preset = "story"
set = {adapter = "${first.run}", steps = 3}
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return lab(tmp_path)


@pytest.fixture
def desk(places: Places) -> Iterator[Desk]:
    with held(places):
        made = Desk(places)
        yield made
        made.close()


def fields(places: Places, name: str = "story") -> dict[str, FormField]:
    return {field.key: field for group in forms.form(name, places) for field in group.fields}


def test_a_form_has_every_setting_with_its_kind_help_limits_and_value(places: Places) -> None:
    found = fields(places)
    assert list(found) == ["steps", "pause", "rate", "mode", "verbose", "adapter", "sizes"]
    steps, rate, mode = found["steps"], found["rate"], found["mode"]
    assert (steps.kind, steps.value, steps.help, steps.allowed) == (
        "whole number", "40", "optimizer steps", "≥ 1, ≤ 100000",
    )  # fmt: skip
    assert (rate.kind, rate.value, rate.unit, rate.allowed) == ("number", "0.0002", "1/step", "> 0")
    assert (mode.kind, mode.choices) == ("choice", ("fine", "fails", "waits"))
    assert found["verbose"].kind == "yes or no"
    assert (found["adapter"].kind, found["adapter"].value) == ("text", "")
    assert (found["sizes"].kind, found["sizes"].value) == ("list", "[224, 448]")


def test_only_what_differs_is_set_and_a_text_stays_a_text(places: Places) -> None:
    groups = forms.form("story", places)
    values = {"steps": "7", "rate": "", "adapter": "12", "sizes": "[112]", "mode": "waits"}
    changes = forms.sets(groups, values)
    assert changes == ["steps=7", "mode=waits", 'adapter="12"', "sizes=[112]"]
    spec = forms.planned("story", changes, places)[0].job.spec
    assert (spec["steps"], spec["adapter"], spec["sizes"], spec["mode"]) == (7, "12", [112], "waits")
    line = forms.twin("story", changes, ["3:any"], 5)
    assert shlex.split(line) == [
        "vlmconsole", "jobs", "add", "story", "--set", "steps=7", "--set", "mode=waits", "--set", 'adapter="12"',
        "--set", "sizes=[112]", "--after", "3:any", "--priority", "5",
    ]  # fmt: skip


def test_what_is_wrong_is_said_at_its_key_with_what_it_may_be(places: Places) -> None:
    wrong = forms.problems("story", ["steps=0", "mode=odd", "pause=abc"], places)
    assert set(wrong) == {"steps", "mode", "pause"}
    assert mentions(wrong["steps"], "1")
    assert all(choice in wrong["mode"] for choice in ("fine", "fails", "waits"))
    assert forms.problems("story", ["steps=1"], places) == {}


def test_a_flows_form_has_a_group_for_each_step(places: Places) -> None:
    (places.presets / "both.toml").write_text(FLOW)
    groups = forms.form("both", places)
    assert [group.title.partition(":")[0] for group in groups] == ["first", "second"]
    assert all("Tells a story" in group.title for group in groups)
    assert fields(places, "both")["second.steps"].value == "3"
    changes = forms.sets(groups, {"first.steps": "9", "second.pause": "0.5"})
    assert changes == ["first.steps=9", "second.pause=0.5"]
    assert forms.problems("both", changes, places) == {}
    assert list(forms.problems("both", ["second.steps=0"], places)) == ["second.steps"]
    assert [one.job.spec.get("steps") for one in forms.planned("both", changes, places)[1:]] == [9, 3]


def test_the_catalogue_lists_every_preset_and_a_broken_one_hides_none(places: Places) -> None:
    names = {entry.name: entry for entry in forms.catalogue(places)[0]}
    assert names["story"].group == "Tells a story"
    assert "model-tiny" in names
    (places.presets / "broken.toml").write_text("kind = ")
    entries, wrong = forms.catalogue(places)
    assert "model-tiny" in {entry.name for entry in entries}
    assert "broken.toml" in wrong


@pytest.mark.slow
def test_every_shipped_preset_makes_a_form_that_is_right_as_it_stands(places: Places) -> None:
    for entry in forms.catalogue(places)[0]:
        assert forms.sets(forms.form(entry.name, places), {}) == []
        assert forms.problems(entry.name, [], places) == {}


def story(desk: Desk, places: Places, **spec: object) -> int:
    return desk.add(forms.planned("story", [f"{key}={value}" for key, value in spec.items()], places))


def test_a_board_is_the_same_while_nothing_changes(desk: Desk, places: Places) -> None:
    one = story(desk, places)
    first = desk.board()
    assert [row.job.id for row in first.rows] == [one]
    assert desk.board() is first
    with Store(places.queue).change() as db:
        db.execute("UPDATE jobs SET note='x'")
    assert desk.board() is not first


def test_a_board_shows_a_window_and_says_how_many_more_there_are(desk: Desk) -> None:
    store = Store(desk.places.queue)
    with store.change():
        for number in range(900):
            store.add(NewJob(f"preset-{number}", "story_kind:STORY", f"job {number}", {"steps": 3}))
    board = desk.board(window=50)
    assert (len(board.rows), board.more, board.count("queued")) == (50, 850, 900)
    assert [row.job.preset for row in desk.board("preset-77 queued", 50).rows][:2] == ["preset-77", "preset-770"]
    assert len(desk.board("100%_", 50).rows) == 0
    far = desk.board(window=900).rows[-1]
    assert "are ahead" in far.why


def test_moving_drain_clone_and_cancel_do_what_the_commands_do(desk: Desk, places: Places) -> None:
    one, two, three = (story(desk, places) for _ in range(3))
    assert desk.move(three, -1) == 2
    assert [row.job.id for row in desk.board().rows] == [one, three, two]
    assert desk.move(one, -5) == 1
    desk.drain(True)
    assert desk.board().drained
    assert "drained" in desk.board().rows[0].why
    desk.drain(False)
    copy = desk.clone(two)
    assert desk.board().rows[-1].job.spec == desk.particulars(two).job.spec
    assert desk.cancel(copy) == "cancelled"
    with pytest.raises(QueueError, match="only waiting"):
        desk.move(copy, 1)
    desk.retry(copy)
    assert [old.state for old in desk.particulars(copy).attempts] == ["cancelled"]


def test_what_is_lost_is_said_before_a_cancel(desk: Desk, places: Places) -> None:
    one = story(desk, places)
    desk.add(forms.planned("story", [], places), after=[(one, "ok")])
    row = desk.board().rows[0]
    said = losses(row, desk.particulars(one).waiters, time.time())
    assert mentions(said, "nothing", "job 2")
    store = Store(places.queue)
    store.claim(one, ("cpu.0",), None, str(places.runs / "x"))
    store.running(one, 1, "1")
    job = store.get(one)
    assert "1:30" in losses(QueueRow(job, ""), (), (job.started or 0) + 90)
    flow = replace(job, kind="flow", state="running")
    said = losses(QueueRow(flow, "", Progress(0.0, 4, 29, "steps", "", None)), (), 0.0)
    assert mentions(said, "4 of its 29 steps", "not done")


def test_notices_are_of_jobs_that_ended_since(desk: Desk, places: Places) -> None:
    one = story(desk, places)
    known, ended = desk.ended(None)
    assert ended == []
    two = story(desk, places)
    desk.cancel(one)
    desk.cancel(two)
    known, ended = desk.ended(known)
    assert {job.id for job in ended} == {one, two}
    assert desk.ended(known)[1] == []


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0:00"), (7.4, "0:07"), (723, "12:03"), (11100, "3:05:00"), (187200, "2 d 4 h")]
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said
