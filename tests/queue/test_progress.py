"""How far the whole job is, where it has several phases: one bar that never starts again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from folders import HELPERS
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_nouns, mentions

from vlmconsole.cli.follow import Follower, progress_line
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.data import DRAWN, EXAMINED, course
from vlmconsole.queue import process
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views
from vlmconsole.runs.events import EventTail, EventWriter
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace, Progress
from vlmconsole.runs.places import Places


def told(path: Path, work: Callable[[EventWriter], None]) -> list[dict[str, object]]:
    path.unlink(missing_ok=True)
    work(EventWriter(path))
    return [event for event in EventTail(path).read() if event["kind"] == "progress"]


def test_a_job_of_phases_tells_how_far_the_whole_is_and_an_older_reader_understands_it(tmp_path: Path) -> None:
    def work(events: EventWriter) -> None:
        events.course({"making": 10.0, "examining": 0.0, "training": 30.0})
        for phase, done, total in (("making", 5, 10), ("making", 10, 10), ("examining", 3, 10), ("training", 0, 8)):
            events.phase(phase)
            events.progress(done, total, "pictures")
        events.progress(4, 8, note="half")
        events.phase("cleaning up")
        events.progress(1, 3)

    events = told(tmp_path / "events.jsonl", work)
    assert [event["overall"] for event in events] == [0.125, 0.25, 0.25, 0.25, 0.625, 0.625]
    assert [event["phase"] for event in events][-2:] == ["training", "cleaning up"]
    assert (events[4]["done"], events[4]["total"], events[4]["unit"], events[4]["note"]) == (4, 8, "step", "half")
    plain = told(tmp_path / "events.jsonl", lambda events: events.progress(1, 4))
    assert set(plain[0]) == {"t", "kind", "done", "total", "unit"}  # as it always was


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6), max_size=4),
    st.lists(st.tuples(st.sampled_from("abcdx"), st.integers(-3, 30), st.sampled_from([None, 0, 10, 20])), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_the_share_of_the_whole_never_falls(phases: dict[str, float], steps: list[tuple[str, int, int | None]]) -> None:
    written: list[dict[str, object]] = []
    events = EventWriter(Path("/nowhere"))
    events.emit = lambda kind, **fields: written.append(fields)  # type: ignore[method-assign]
    events.course(phases)
    for phase, done, total in steps:
        events.phase(phase)
        events.progress(done, total)
    shares = [float(str(one["overall"])) for one in written if "overall" in one]
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)


def event(t: float, done: float, total: float, phase: str, overall: float) -> dict[str, object]:
    return {
        "t": t,
        "kind": "progress",
        "done": done,
        "total": total,
        "phase": phase,
        "overall": overall,
        "unit": "step",
    }


def test_the_time_left_is_the_whole_jobs_and_each_phase_has_its_own_speed() -> None:
    pace = Pace(began=0.0)
    for t in range(21):
        pace.add(event(100.0 + t, t, 40, "making", t / 200))
    now = pace.now
    assert now is not None and now.share == 0.1 and now.rate == 1.0
    assert now.left(120.0) == pytest.approx(180) and now.left(130.0) == pytest.approx(170)
    pace.add(event(121.0, 0, 50, "training", 0.1))
    assert pace.now is not None and pace.now.left(121.0) is None  # nothing is known of its speed yet
    pace.add(event(125.0, 1, 50, "training", 0.12))
    assert pace.now is not None and pace.now.left(125.0) is None  # the first steps are slow
    pace.add(event(141.0, 10, 50, "training", 0.3))
    now = pace.now
    assert now is not None and now.share == 0.3 and now.rate == 0.5 and now.left(141.0) == pytest.approx(70)
    assert now.counted() == "training: 10 of 50 steps"
    assert progress_line(now).startswith("30 % · training: 10 of 50 steps")
    assert progress_line(Progress(0.0, 3, None, "part", "", None)) == "3 parts"


def test_what_is_followed_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(tmp_path, kind="k", preset="p", spec={}, title="t", home=tmp_path)
    run.events.metric("in_flight", 0)
    run.events.metric("client_lag_s", 0.0, unit="s")
    run.events.metric("seconds per step", 1.23456, unit="s")
    run.events.progress(0, 2, "request")
    Follower(run, "t").poll()
    told = " ".join(capsys.readouterr().err.split())
    check_nouns(told, "0 of 2 requests", "in flight 0", "client lag 0 ms", "seconds per step 1.23 s")


def test_what_a_job_plans_holds_its_data_and_what_they_replay_from(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    run = RunFolder.create(places.runs, kind="k", preset="p", spec={}, title="t", home=places.home)
    course(Context(run, places), ["repair-1-tiny", "no such data"], {"training": 7.0}, examines=True)
    phases = run.events._course
    assert list(phases)[-2:] == ["examining repair-1-tiny", "training"] and phases["training"] == 7.0
    assert "making repair-1-tiny" in phases and "making sft-expand-tiny" in phases
    n = phases["making repair-1-tiny"] / DRAWN
    assert n == pytest.approx(phases["examining repair-1-tiny"] / EXAMINED) and n > 100


def test_the_queue_and_the_terminal_show_the_whole_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = Places(tmp_path).ensure()
    store = Store(places.queue)
    run = RunFolder.create(places.runs, kind="k", preset="p", spec={}, title="t", home=places.home)
    number = store.add(NewJob("p", "k", "t", {}))
    store.claim(number, ("cpu.0",), None, str(run.path))
    store.running(number, 1, "1")
    lines = [event(100.0 + t, 10 * t, 100, "training", 0.5 + t / 100) for t in range(6)]
    run.file("events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    value = views(store, places, [store.get(number)])[0].to_json()["progress"]
    assert (value["done"], value["total"], value["phase"], value["share"]) == (50, 100, "training", 0.55)
    assert value["left_s"] is None  # its last word is long ago
    follower = Follower(run, "a job")
    follower._said = -1e9
    follower.poll()
    assert capsys.readouterr().err == "55 % · training: 50 of 100 steps\n"
    follower._said = -1e9
    follower.poll()
    assert capsys.readouterr().err == ""  # the same line again tells nothing


def test_between_two_phases_no_time_is_left_and_no_finished_phase_is_shown() -> None:
    pace = Pace()
    for t in range(5):
        pace.add(event(100.0 + t, 56 * t, 224, "examining grpo-tiny", 0.23 * t))
    now = pace.now
    assert now is not None and now.left(104.0) is None and mentions(progress_line(now), "92 %", "examining grpo-tiny")
    pace.add(event(105.0, 0, 1, "training", 0.92) | {"note": "loading the model"})
    assert pace.now is not None and "examining" not in progress_line(pace.now)
    check_nouns(progress_line(pace.now), "92 %", "training", "0 of 1 step", "loading the model")


def test_run_exits_0_where_the_gates_failed_and_says_who_gives_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    preset = tmp_path / "judged.toml"
    preset.write_text('kind = "job_kinds:JUDGED"\n')
    words = [sys.executable, "-m", "vlmconsole", "--home", str(tmp_path / "home"), "run", str(preset)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    supervisor = process.running(Places(tmp_path / "home"))
    if supervisor is not None:  # it would wait a while for more
        os.kill(int(supervisor["pid"]), signal.SIGTERM)
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "home" / "runs").iterdir()).name
    last = done.stdout.rstrip().splitlines()[-1]
    check_nouns(last, "FAIL", f"`vlmconsole gates check {run}`", "0 PASS", "1 FAIL", "3 CANNOT JUDGE")


def test_a_sweep_with_a_cell_set_aside_says_how_many_and_why(tmp_path: Path) -> None:
    from vlmconsole.cli.run import _invalid

    cells = [{"name": "C1", "state": "valid"}, {"name": "C4", "state": "invalid", "why": "the client was late"}]
    check_nouns(_invalid({"cells": cells, "valid": False}), "1 of 2 cells", "C4: the client was late")
    assert _invalid({"invalid_because": "late"}) == "late"
    assert _invalid([]) == _invalid({"cells": 3}) and mentions(_invalid([]), "no cell")
