"""Flows that go on without a step, what is asked for only if it is there, and the plan of the whole lab."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import job_queue
import pytest
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.cli.jobs import _cells, _plan_lines
from vlmconsole.desks.queue import Desk
from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.gates.plan import load_plan
from vlmconsole.jobs.presets import Preset, load_preset
from vlmconsole.queue import adding, process
from vlmconsole.queue.adding import Planned
from vlmconsole.queue.flows import FlowError, fill, sources
from vlmconsole.queue.last_time import left_as_then
from vlmconsole.queue.model import flow_state
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.schedule import decide
from vlmconsole.queue.store import Store
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.queue.view import views
from vlmconsole.queue.wants import Devices, Want
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.times import duration

BROKEN = {
    "steps": [
        {"name": "a", "preset": "count", "set": {"mode": "job-error"}},
        {"name": "b", "preset": "count", "set": {"steps": "${a.steps}"}},
        {"name": "c", "preset": "count", "set": {"steps": 1}},
        {
            "name": "page",
            "preset": "report",
            "set": {"runs": [], "steps": {"a": "${a.run?}", "b": "${b.run?}", "c": "${c.run?}"}},
        },
    ]
}


@pytest.fixture
def lab(tmp_path: Path) -> Places:
    places = job_queue.lab(tmp_path / "home")
    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\n[spec]\nsteps = 3\n')
    return places


def work(places: Places) -> None:
    supervisor = Supervisor(places, Machine(DeviceLocks(places.home / "locks"), 2))
    deadline = time.monotonic() + 120
    while not supervisor.idle():
        assert time.monotonic() < deadline
        supervisor.tick()
        time.sleep(0.02)


def test_what_may_be_missing_is_left_out_and_what_is_there_is_filled_in(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="k", preset="p", spec={}, title="t", home=tmp_path)
    run.write_json("summary.json", {"best": 7})
    runs: dict[str, str | None] = {"a": str(run.path), "b": None}
    asked = {"list": ["${a.run?}", "${b.run?}", "x"], "a": "${a.best?}", "b": "${b.best?}", "text": "<${b.run?}>"}
    assert fill(asked, runs) == {"list": [str(run.path), "x"], "a": 7, "b": None, "text": "<>"}
    assert fill("${a.loss?}", runs) is None
    with refused("run-missing", "b", error=FlowError):
        fill({"list": ["${b.run}"]}, runs)


def test_an_optional_result_is_waited_for_however_its_step_ends_and_a_needed_one_only_done() -> None:
    assert sources({"x": ["${a.run?}", "${b.n}"]}) == {"a": "any", "b": "ok"}
    assert sources(["${a.run?}", "${a.n}"]) == sources(["${a.n}", "${a.run?}"]) == {"a": "ok"}
    assert sources("${a.run?} ${a.n}") == {"a": "ok"}


def test_any_end_does_not_wait_for_a_step_that_only_a_retry_could_start() -> None:
    wants = [
        Want(4, after=((3, "any"),)),  # stands before those it follows, as after a move
        Want(2, after=((1, "ok"),)),
        Want(3, after=((2, "ok"),)),
        Want(5, after=((3, "ok"),)),
        Want(6, after=((7, "any"),)),
    ]
    states = {1: "failed", 2: "queued", 3: "queued", 7: "running"}
    decision = decide(wants, [], states, Devices(4))
    assert [start.id for start in decision.starts] == [4]
    assert decision.why[2].startswith("after 1, which failed") and decision.why[6] == "after 7"
    assert decision.stuck == {2, 3, 5}
    assert not decide(wants, [], {**states, 1: "running"}, Devices(4)).starts  # the step may still run


def test_a_flow_that_goes_on_without_a_step_is_not_over() -> None:
    steps = [("failed", "a", "gone"), ("queued", "b", None), ("queued", "page", None)]
    assert flow_state(steps, 1) == ("running", None)
    assert flow_state(steps, 0) == ("failed", "step a: gone")
    assert flow_state([("lost", "a", None), ("failed", "b", None)], 0) == ("failed", "step b: failed")


@pytest.mark.slow
def test_a_step_that_breaks_is_named_in_the_report_which_is_made_again_after_a_retry(lab: Places) -> None:
    store = Store(lab.queue)
    flow = adding.add(store, adding.plan(Preset("f", "flow", "F", BROKEN), [], lab))
    a, b, c, page = store.steps(flow)
    work(lab)
    assert [job.state for job in store.steps(flow)] == ["failed", "queued", "done", "done"]
    assert store.get(flow).state == "failed" and mentions(store.get(flow).reason or "", "step a", "the picture is gone")
    first = RunFolder(Path(store.get(page.id).run or ""))
    assert first.read_json("summary.json")["absent"] == ["step b"]
    html = first.file("report.html").read_text("utf-8")
    assert mentions(html, "never ran", "step b", "the picture is gone")
    assert first.read_json("report.json")["absent"] == ["step b"]

    with store.change() as db:  # the cause is put right
        db.execute("UPDATE jobs SET spec='{\"steps\": 2}' WHERE id=?", (a.id,))
    store.again(flow)
    assert [job.state for job in store.steps(flow)] == ["queued", "queued", "done", "queued"]
    work(lab)
    assert [job.state for job in store.steps(flow)] == ["done"] * 4 and store.get(flow).state == "done"
    second = RunFolder(Path(store.get(page.id).run or ""))
    assert second.path != first.path and second.read_json("summary.json")["absent"] == []
    assert store.get(c.id).attempt == 1 and store.get(b.id).attempt == 1


def test_a_flow_tells_how_many_of_its_steps_are_over(lab: Places) -> None:
    store = Store(lab.queue)
    flow = adding.add(store, adding.plan(Preset("f", "flow", "F", BROKEN), [], lab))
    a, b, _c, _page = store.steps(flow)
    assert views(store, lab, [store.get(flow)])[0].progress is None
    store.claim(a.id, (), None, str(store.lab.runs / "nowhere"))
    store.finish(a.id, "failed", "gone")
    over = views(store, lab, [store.get(flow)])[0].progress
    assert over is not None and (over.done, over.total, over.unit) == (1, 4, "steps")
    desk = Desk(lab)
    row = next(row for row in desk.board().rows if row.job.id == flow)
    assert row.progress is not None and row.progress.share == 0.25 and row.progress.left(time.time()) is None
    assert b.state == "queued"


def test_a_flows_plan_adds_up_what_is_known_and_names_the_rest(lab: Places) -> None:
    head, *steps = adding.plan(Preset("f", "flow", "F", BROKEN), ["c.seconds=20"], lab)
    assert head.estimate is not None and head.estimate.seconds == pytest.approx(0.03 + 20 + 35)
    assert mentions(head.estimate.note, "no estimate", "b")
    assert any(mentions(line, "55 s", "no estimate") for line in _plan_lines(head))
    whole = replace(steps[0], job=replace(steps[0].job, kind="flow"))
    assert any("about 0.03 s" in line for line in _plan_lines(whole))


def planned(name: str, tmp_path: Path) -> dict[str, Planned]:
    places = Places(tmp_path).ensure()
    return {one.job.step or "": one for one in adding.plan(load_preset(name, places), [], places, refuse=False)}


@pytest.mark.parametrize("name", ["lab-tiny", "lab-3b"])
def test_the_whole_lab_is_planned_in_its_order_and_reported_whole(name: str, tmp_path: Path) -> None:
    steps = planned(name, tmp_path)
    after = {step: dict(one.after_steps) for step, one in steps.items()}
    report = steps["report"]
    shown: dict[str, Any] = report.job.spec["steps"]
    assert set(shown) == set(steps) - {"", "report"} and next(iter(shown)) == "smoke"
    assert set(after["report"].values()) == {"any"} and set(after["report"]) == set(shown)
    assert after["repair-1"] == {"sft": "ok", "freeze-1": "ok"}  # its gates are frozen before it trains
    assert after["repair-2"] == {"repair-1": "ok", "freeze-2": "ok"}
    assert after["judge-2"] == {"repair-1": "ok", "repair-2": "ok", "freeze-2": "ok"}
    # Before is the adapter that the round starts from; each round has its own pictures and a frozen plan of its own.
    first, second = steps["judge-1"].job.spec, steps["judge-2"].job.spec
    assert first["before_adapter"] == steps["repair-1"].job.spec["adapter"] == "${sft.adapter}"
    assert second["before_adapter"] == steps["repair-2"].job.spec["adapter"] == "${repair-1.adapter}"
    assert (first["plan"], second["plan"]) == ("${freeze-1.frozen}", "${freeze-2.frozen}")
    kinds = {steps[step].job.spec["plan"] for step in ("freeze-1", "freeze-2")}
    assert len(kinds) == 1 and len(load_plan(kinds.pop()).gates) == 15
    assert first["data"][0] == steps["repair-1"].job.spec["data"]
    assert second["data"][0] == steps["repair-2"].job.spec["data"]
    assert second["diagnostic"] == f"{second['data'][0]}:train"
    assert steps["judge-sft"].job.spec["plan"] == "${freeze-sft.frozen}"
    assert len(load_plan(steps["freeze-sft"].job.spec["plan"]).gates) == 7
    # Reinforcement learning is judged by one plan, frozen before the first of its two runs.
    assert after["grpo-3"] == {"freeze-grpo": "ok"} and len(load_plan(steps["freeze-grpo"].job.spec["plan"]).gates) == 5
    assert {steps[f"eval-grpo-{n}"].job.spec["plan"] for n in (3, 30)} == {"${freeze-grpo.frozen}"}
    assert steps["freeze-grpo"].job.spec["data"] == steps["eval-grpo-30"].job.spec["data"]
    # Every plan is bound to the base that its training starts from.
    bases = {steps[step].job.spec["base"] for step in steps if step.startswith("freeze-")}
    assert bases == {steps["sft"].job.spec["base"]} == {steps["grpo-3"].job.spec["base"]}
    # Both trainings start from the base.
    assert not steps["grpo-30"].job.spec.get("model") and after["grpo-30"] == {"grpo-3": "any"}
    assert all(one.job.options["retries"] == 1 for step, one in steps.items() if step)
    for timed in ("main", "tune"):
        assert "cpu:all" in steps[timed].job.devices


def test_one_supervisor_is_on_its_way_however_often_it_is_asked_for(
    lab: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    class Slow:
        """A supervisor that has not come to its lock yet."""

        pid = 4242
        ended: int | None = None

        def __init__(self, *_args: object, **_more: object) -> None:
            begun.append(self)

        def poll(self) -> int | None:
            return self.ended

    monkeypatch.setattr(process.subprocess, "Popen", Slow)
    process.ensure(lab), process.ensure(lab)
    assert len(begun) == 1
    begun[0].ended = 1  # it died at its start
    process.ensure(lab)
    assert len(begun) == 2


def test_a_flow_that_was_done_before_tells_what_it_still_takes(lab: Places) -> None:
    store = Store(lab.queue)
    three = {"steps": [{"name": name, "preset": "count", "set": {"steps": n}} for n, name in enumerate("abc", 1)]}
    first = adding.add(store, adding.plan(Preset("f", "flow", "F", three), [], lab))
    for begin, one in enumerate(store.steps(first)):  # 10 s each, the last 30 s after a wait of 70 s
        with store.change() as db:
            times = (100 + 10 * begin, 110 + 10 * begin) if begin < 2 else (190, 220)
            db.execute("UPDATE jobs SET state='done', started=?, ended=? WHERE id=?", (*times, one.id))
    then = store.steps(first)
    with store.change() as db:
        db.execute("UPDATE jobs SET state='done' WHERE id=?", (first,))
    again = adding.add(store, adding.plan(Preset("f", "flow", "F", three), [], lab))
    a, b, c = store.steps(again)
    assert left_as_then([a, b, c], then, 1000.0) is None, "nobody knows how long they wait"
    a = replace(a, state="running", started=1000.0)
    assert left_as_then([a, b, c], then, 1004.0) == 46.0
    assert left_as_then([a, b, c], then, 1099.0) == 40.0, "longer than last time: what follows still takes its own"
    beside = [replace(one, started=100.0, ended=130.0) for one in then]
    assert left_as_then([a, b, c], beside, 1004.0) == 30.0, "they ran beside each other, and two have yet to begin"
    assert left_as_then([replace(a, state="done"), b, replace(c, spec={"steps": 9})], then, 1000.0) is None
    assert left_as_then([a, b, c], [], 1000.0) is None
    assert left_as_then([a, b, c], [replace(one, ended=1e300) for one in then], 1000.0) is None, "a damaged record"

    store.claim(a.id, (), None, str(store.lab.runs / "nowhere"))
    one = views(store, lab, [store.get(again)])[0]
    left = one.progress.left(time.time()) if one.progress else None
    assert left is not None and 40.0 < left <= 50.0
    assert mentions(_cells(one)[3], "0 of 3", f"{duration(left)} left", "last time")


@pytest.mark.slow
def test_following_a_flow_the_second_time_says_what_is_left(lab: Places, capsys: pytest.CaptureFixture[str]) -> None:
    (lab.presets / "two.toml").write_text(
        'kind = "flow"\n[[spec.steps]]\nname = "a"\npreset = "count"\nset = {seconds = 0.5}\n'
        '[[spec.steps]]\nname = "b"\npreset = "count"\nset = {steps = "${a.steps}", seconds = 0.5}\n'
    )
    for words in ("0 of 2 steps\n", "left, as last time\n"):
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(lab.home), "run", "two"])
        said = capsys.readouterr().err
        assert ended.value.code == 0 and "a: running · 0 of 2 steps" in said and words in said
