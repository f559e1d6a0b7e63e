"""Whatever a row of the queue holds, it is read without an error, says its damage, and leads nowhere else."""

import json
import sqlite3
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import mentions

from vlmconsole.queue.model import FINAL, READERS, STATES, Job, NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views
from vlmconsole.runs.places import Places

LAB = Places(Path("/nowhere/lab"))  # nothing of it is there: these functions only look
GOOD = "/nowhere/lab/runs/20261130-120000-count-0000"
HOSTILE = ["", ".", "..", "/", "~", "/etc", "../../../etc", "\0", f"{GOOD}\0", "runs/x", "/nowhere/lab/runs"]
HOSTILE += ["/nowhere/lab/runs/", "/nowhere/lab/runs/..", "/nowhere/lab/runs/../../etc", "/nowhere/lab/runs/a/b"]
HOSTILE += ["/nowhere/lab/runsx/a", "/nowhere/lab/runs/" + "x" * 5000, "/nowhere/lab/runs/\ud800", "/x" * 4000]
pieces = st.sampled_from(["/", "..", ".", "runs", "nowhere", "lab", "\0", "~", "a", "\ud800", "x" * 300])
paths = st.lists(pieces, max_size=8).map("/".join) | st.lists(pieces, max_size=8).map("".join) | st.text(max_size=40)
values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=12) | st.binary(max_size=4)
values |= st.sampled_from(["[]", "{}", "[7]", '["cpu"]', '{"retries": "x"}', "NaN", "[" * 5000, "queued", "weird"])


@given(st.sampled_from(HOSTILE) | paths | paths.map(lambda tail: f"/nowhere/lab/runs/{tail}"))
@example(GOOD)
@settings(max_examples=150, deadline=None)
def test_a_job_never_names_a_run_folder_outside_its_lab(named: str) -> None:
    job = job_of(run=named)
    if job.run is None:
        assert "run: " in job.damaged and "run folder" in job.damaged and len(job.damaged) < 400
        return
    path = Path(job.run)
    assert path.parent == LAB.runs and path.name not in ("", ".", "..") and "\0" not in job.run and not job.damaged


def test_which_run_folders_are_refused_and_which_are_not(tmp_path: Path) -> None:
    assert job_of(run=GOOD).run == GOOD and job_of(run=None).run is None and not job_of(run=None).damaged
    for named in HOSTILE:
        assert job_of(run=named).run is None and not LAB.is_run(Path(named)), named
    lab = Places(tmp_path / "lab").ensure()
    (lab.runs / "link").symlink_to(tmp_path)
    (lab.runs / "real").mkdir()
    (tmp_path / "alias").symlink_to(lab.home)  # the same home by another name is the same lab
    assert not lab.is_run(lab.runs / "link") and lab.is_run(lab.runs / "real") and lab.is_run(lab.runs / "not-yet")
    assert lab.is_run(tmp_path / "alias" / "runs" / "real") and not lab.is_run(tmp_path / "alias" / "runs" / "link")


def test_a_lab_home_that_was_moved_keeps_its_finished_runs_and_nobody_elses_work(tmp_path: Path) -> None:
    lab = Places(tmp_path / "new").ensure()
    (lab.runs / "20261130-120000-count-0000").mkdir()
    was = "/old/place/runs/20261130-120000-count-0000"
    moved = job_of(lab, run=was, state="done")
    assert moved.run == str(lab.runs / "20261130-120000-count-0000") and not moved.damaged
    for state in ("starting", "running", "queued"):  # its worker may work for the home that this one was copied from
        assert job_of(lab, run=was, state=state).run is None
    for lost in (
        "/old/place/runs/not-there",
        "/old/place/other/20261130-120000-count-0000",
        "/old/runs/..",
        "/old/runs/",
    ):
        assert job_of(lab, run=lost, state="done").run is None
    (lab.runs / "link").symlink_to(tmp_path)
    assert job_of(lab, run="/old/place/runs/link", state="done").run is None


@given(st.dictionaries(st.sampled_from(sorted([*READERS, "run"])), values, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_row_is_read_and_what_is_wrong_is_named(columns: dict[str, Any]) -> None:
    job = job_of(**columns)
    hints = get_type_hints(Job)
    for key in ("priority", "attempt", "failures"):
        assert type(getattr(job, key)) is int, key
    for key in ("added", "not_before", "position"):
        assert isinstance(getattr(job, key), int | float) and hints[key] is float
    assert job.state in STATES and (job.pid is None or job.pid > 0)
    assert isinstance(job.spec, dict) and isinstance(job.options, dict)
    assert all(isinstance(name, str) for name in (*job.devices, *job.granted))
    if job.damaged:
        assert any(f"({key}: " in job.damaged for key in columns), job.damaged
        assert ("cancel it" in job.damaged) == (job.state not in FINAL)


def job_of(lab: Places = LAB, **columns: Any) -> Job:
    """The job that a row with these columns, and sound ones else, is read as."""
    row: dict[str, Any] = dict.fromkeys(READERS) | {"run": GOOD, "id": 1}
    row |= {"preset": "p", "kind": "k", "title": "t", "spec": "{}", "options": "{}", "devices": "[]", "granted": "[]"}
    row |= {"priority": 0, "position": 1.0, "attempt": 1, "failures": 0, "not_before": 0, "added": 1.0, "keep": 0}
    return Job.from_row({**row, "hand_over": 0, "state": "running", **columns}, (), lab)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "queue.sqlite")


def write(store: Store, number: int, **columns: Any) -> None:
    """Write into a row what no version of this program would."""
    with sqlite3.connect(store.path) as db:
        for name, value in columns.items():
            db.execute(f"UPDATE jobs SET {name}=? WHERE id=?", (value, number))
    db.close()


def test_a_job_in_a_state_that_is_none_is_seen_and_mended(store: Store, tmp_path: Path) -> None:
    places = Places(tmp_path)
    alone, begun, behind = [store.add(NewJob("p", "k", "t", {})) for _ in range(3)]
    write(store, alone, state="weird")
    write(store, begun, state=7, run=str(places.runs / "there"))
    with store.change() as db:
        db.execute("INSERT INTO after VALUES (?,?,'ok')", (behind, alone))
    shown = {one.job.id: one for one in views(store, places, store.listing())}
    assert set(shown) == {alone, begun, behind} and shown[alone].job.state == "lost"
    assert mentions(shown[alone].why, "damaged", "state: 'weird'") and "cancel it" not in shown[alone].why
    store.mend()
    assert (store.get(alone).state, store.get(begun).state) == ("lost", "running")
    assert "state: 'weird'" in (store.get(alone).reason or "")
    store.again(alone)
    assert store.states([alone]) == {alone: "queued"} and not store.get(alone).damaged


def test_a_line_for_the_scheduler_names_the_column_that_is_bad(store: Store) -> None:
    for column, value in (("not_before", "abc"), ("devices", "[7]"), ("options", "{torn"), ("failures", "many")):
        number = store.add(NewJob("p", "k", "t", {}))
        write(store, number, **{column: value})
        line = store.lines()[-1]
        assert line.id == number and f"({column}: " in line.damaged and line.devices == ()
        assert f"({column}: " in store.get(number).damaged  # one check, wherever it is read


def test_earlier_attempts_lead_nowhere_else_either(store: Store) -> None:
    number = store.add(NewJob("p", "k", "t", {}))
    with store.change() as db:
        for count, run in enumerate(("/etc", json.dumps(7), str(store.lab.runs / "a"), None, b"\xff")):
            db.execute("INSERT INTO attempts VALUES (?,?,?,'failed',NULL,NULL,NULL)", (number, count, run))
    assert [one.run for one in store.attempts(number)] == [None, None, str(store.lab.runs / "a"), None, None]
