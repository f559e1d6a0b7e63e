"""The queue's books: order, dependencies, states, attempts, many writers, migration, flows and adding."""

import multiprocessing
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folders import HELPERS
from refusals import mentions, refused

from vlmconsole.cli.jobs import _plan_lines
from vlmconsole.jobs.presets import Preset, PresetError, load_preset
from vlmconsole.queue import adding
from vlmconsole.queue.flows import FlowError, fill, read_flow
from vlmconsole.queue.model import NewJob, flow_state
from vlmconsole.queue.schema import QueueError, prepare
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.form import takes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "queue.sqlite")


@pytest.fixture(autouse=True)
def _kinds_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))


def new(name: str = "count", **more: Any) -> NewJob:
    return NewJob(name, "job_kinds:COUNT", name, {"steps": 3}, **more)


def named(store: Store, name: str = "run") -> str:
    """A run folder of that lab, there or not."""
    return str(store.lab.runs / name)


def order(store: Store) -> list[int]:
    return [job.id for job in store.waiting()]


def test_a_damaged_queue_says_so_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    path.write_bytes(b"this is no database at all" * 200)
    with refused("queue-damaged", str(path), "not a database", error=QueueError) as caught:
        Store(path)
    assert str(tmp_path / "runs") in caught.value.hint and f"Move {path} away" in caught.value.hint


def test_a_queue_that_cannot_be_written_is_not_called_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queue.sqlite"
    Store(path).close()
    real = sqlite3.connect  # root may write anything, so the file is opened for reading only
    monkeypatch.setattr(sqlite3, "connect", lambda name, **more: real(f"file:{name}?mode=ro", uri=True, **more))
    store = Store(path)
    with pytest.raises(QueueError, match="cannot be written") as caught:
        store.add(new())
    assert "busy" not in str(caught.value) and "writable" in caught.value.hint
    assert store.waiting() == []
    store.close()


def test_a_new_queue_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    begun = time.monotonic()
    with pytest.raises(QueueError, match="cannot be written"):
        Store(tmp_path / "file" / "queue.sqlite")
    assert time.monotonic() - begun < 5


def test_order_is_priority_then_age(store: Store) -> None:
    for priority in (0, 5, 0, 5):
        store.add(new(priority=priority))
    assert order(store) == [2, 4, 1, 3]


@pytest.mark.parametrize(("number", "place", "expected"), [
    (4, 1, [4, 1, 2, 3]), (1, 4, [2, 3, 4, 1]), (1, 99, [2, 3, 4, 1]), (3, 2, [1, 3, 2, 4]), (2, 2, [1, 2, 3, 4]),
])  # fmt: skip
def test_move(store: Store, number: int, place: int, expected: list[int]) -> None:
    for _ in range(4):
        store.add(new())
    store.move(number, place)
    assert order(store) == expected


def test_moving_across_priorities_takes_the_priority_of_the_place(store: Store) -> None:
    for priority in (9, 0, 0):
        store.add(new(priority=priority))
    store.move(3, 1)
    assert order(store) == [3, 1, 2] and store.get(3).priority == 9


def test_moving_between_two_a_hundred_times_keeps_the_order(store: Store) -> None:
    for _ in range(3):
        store.add(new())
    expected = [1, 2, 3]
    for _ in range(100):
        last = expected.pop()
        expected.insert(1, last)
        store.move(last, 2)
        assert order(store) == expected


def test_claim_happens_once_and_a_cancelled_job_is_not_claimed(store: Store) -> None:
    store.add(new())
    assert store.claim(1, ("cpu.0",), None, named(store)) and not store.claim(
        1, ("cpu.0",), None, named(store, "other")
    )
    assert store.get(1).state == "starting" and store.get(1).granted == ("cpu.0",) and store.get(1).run == named(store)
    store.add(new())
    assert store.cancel(2) == "cancelled" and not store.claim(2, (), None, named(store))
    with pytest.raises(QueueError, match="has ended already"):
        store.cancel(2)


def test_a_running_job_is_asked_to_stop_and_a_retry_keeps_the_old_attempt(store: Store) -> None:
    store.add(new())
    store.claim(1, ("cpu.0",), None, named(store, "one"))
    store.running(1, 42, "token")
    assert store.cancel(1, "because") == "running" and store.get(1).stop == "because"
    with pytest.raises(QueueError, match=r"job 1 is stopping \(because\)"):
        store.again(1)
    store.finish(1, "failed", "no reason")
    store.again(1)
    job = store.get(1)
    assert (job.state, job.attempt, job.run, job.stop, job.pid) == ("queued", 2, None, None, None)
    old = store.attempts(1)[0]
    assert (old.number, old.run, old.state, old.reason) == (1, named(store, "one"), "failed", "no reason")


def test_dependencies_must_exist(store: Store) -> None:
    with pytest.raises(QueueError, match="no job 7"):
        store.add(new(after=((7, "ok"),)))
    with pytest.raises(QueueError, match="no job 1"):
        store.add(new(after=((1, "ok"),)))  # itself
    assert order(store) == []
    assert store.add(new()) == 1 and store.add(new(after=((1, "any"),))) == 2
    assert store.get(2).after == ((1, "any"),)


def test_a_clone_has_the_same_settings_and_no_history(store: Store) -> None:
    store.add(new(priority=3, devices=("gpu",)))
    store.cancel(1)
    copy = store.get(store.clone(1))
    assert (copy.id, copy.spec, copy.devices, copy.priority, copy.state) == (2, {"steps": 3}, ("gpu",), 3, "queued")


def _add_many(path: str, count: int, gate: Any) -> None:
    store = Store(Path(path))
    gate.wait()
    for number in range(count):
        store.add(new(f"p{multiprocessing.current_process().pid}-{number}"))


def _claim_all(path: str, results: Any) -> None:
    store, won = Store(Path(path)), []
    for job in store.waiting():
        if store.claim(job.id, (), None, named(store)):
            won.append(job.id)
    results.put(won)


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_eight_processes_add_at_once(tmp_path: Path, count: int) -> None:
    """Also opens the database for the first time from eight sides at once."""
    path, context = tmp_path / "queue.sqlite", multiprocessing.get_context("spawn")
    gate = context.Barrier(8)
    workers = [context.Process(target=_add_many, args=(str(path), count, gate)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
    assert [worker.exitcode for worker in workers] == [0] * 8
    jobs = Store(path).waiting()
    assert [job.id for job in jobs] == list(range(1, 8 * count + 1))
    assert len({job.preset for job in jobs}) == 8 * count
    for worker in workers:  # each process's own order is kept
        mine = [int(job.preset.split("-")[1]) for job in jobs if job.preset.startswith(f"p{worker.pid}-")]
        assert mine == list(range(count))


def test_four_processes_claim_each_job_once(tmp_path: Path) -> None:
    path, context = tmp_path / "queue.sqlite", multiprocessing.get_context("spawn")
    store = Store(path)
    with store.change():
        for _ in range(60):
            store.add(new())
    results = context.Queue()
    workers = [context.Process(target=_claim_all, args=(str(path), results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    won = [number for _ in workers for number in results.get(timeout=60)]
    for worker in workers:
        worker.join(30)
    assert sorted(won) == list(range(1, 61))


def test_an_older_database_is_brought_up_and_a_newer_one_refused(tmp_path: Path) -> None:
    first = ("CREATE TABLE a (x); INSERT INTO a VALUES (1);",)
    both = (*first, "ALTER TABLE a ADD COLUMN y DEFAULT 7;\nCREATE INDEX i ON a(x);")
    connection = sqlite3.connect(tmp_path / "q.sqlite", isolation_level=None)
    prepare(connection, first)
    prepare(connection, both)
    prepare(connection, both)
    assert connection.execute("SELECT x, y FROM a").fetchall() == [(1, 7)]
    with refused("queue-newer", "newer vlmconsole", error=QueueError):
        prepare(connection, first)


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "q.sqlite", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        prepare(connection, ("CREATE TABLE a (x);\nINSERT INTO no_such VALUES (1);",))
    assert connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone() == (0,)


def test_every_waiting_job_has_a_sentence(store: Store, tmp_path: Path) -> None:
    for devices in (("cpu",), ("gpu:3",), ("cpu",)):
        store.add(new(devices=devices))
    store.add(new(options={"environment": "verl-0.6.1"}))
    store.set_meta("devices", {"cpu_slots": 1, "gpus": [], "taken": {}})
    shown = views(store, Places(tmp_path), store.listing())
    now, gpus, cpu, environment = (one.why for one in shown)
    assert now == "starts now" and mentions(gpus, "3 GPU", "none") and mentions(cpu, "waiting", "cpu", "job 1")
    assert mentions(environment, "verl-0.6.1", "not built", "`vlmconsole env make verl-0.6.1`")
    store.set_meta("drained", True)
    assert all("drained" in one.why for one in views(store, Places(tmp_path), store.listing()))


def test_a_flow_none_of_whose_steps_is_at_work_says_why(store: Store, tmp_path: Path) -> None:
    flow = store.add(replace(new(devices=()), kind="flow"))
    first = store.add(new(devices=("gpu",), flow=flow, step="train"))
    second = store.add(new(flow=flow, step="judge", after=((first, "ok"),)))
    store.set_meta("devices", {"cpu_slots": 1, "gpus": [], "taken": {}})

    def why() -> str:
        return views(store, Places(tmp_path), [store.get(flow)])[0].why

    assert why().startswith("train: ") and mentions(why(), "1 GPU", "none")
    store.claim(first, ("gpu0",), None, named(store))
    assert why() == ""
    store.finish(first, "done")
    assert why() == "judge: starts now" and store.get(flow).state == "running"
    store.cancel(second)
    assert why().startswith("step judge: cancelled")


def test_a_clock_that_jumps_makes_no_job_wait_for_a_day(store: Store, tmp_path: Path) -> None:
    options = {"retries": 1, "backoff_s": 30.0}
    for _ in range(3):
        store.add(new(options=options))
    for number, ahead in ((1, 20.0), (2, 86_400.0), (3, -5.0)):  # the second was written before the clock was set back
        store.finish(number, "failed", "x")
        store.again(number, time.time() + ahead, by_hand=False)
    store.set_meta("devices", {"cpu_slots": 4, "gpus": [], "taken": {}})
    waits, back, over = (one.why for one in views(store, Places(tmp_path), store.listing()))
    assert waits.startswith("tries again in") and (back, over) == ("starts now", "starts now")


# --- presets, settings and flows ---
def preset(spec: dict[str, Any] | None = None, queue: dict[str, Any] | None = None) -> Preset:
    return Preset("count", "job_kinds:COUNT", "Counts", spec or {}, queue=queue or {})


def test_a_plan_warns_of_modules_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "find_spec", lambda name: None if name == "torch" else object())
    places = Places(tmp_path).ensure()
    preset = load_preset("model-tiny", places)
    (one,) = adding.plan(preset, [], places)
    assert mentions(one.warning, "torch", "pip install 'vlmconsole[train]'")
    assert one.to_json()["warning"] == one.warning and "  warning: " + one.warning in _plan_lines(one)
    assert one.warning in str(takes([one]))
    # A job in an environment of its own runs in another Python.
    (other,) = adding.plan(replace(preset, queue={"environment": "mlx"}), [], places)
    assert other.warning == ""


def test_a_plan_says_what_would_be_queued(tmp_path: Path) -> None:
    (one,) = adding.plan(preset({"steps": 4}, {"devices": ["cpu:2"], "retries": 1}), ["seconds=0.5"], Places(tmp_path))
    assert one.job.devices == ("cpu:2",) and one.job.spec["steps"] == 4 and one.job.options["retries"] == 1
    assert one.estimate is not None and one.estimate.seconds == 2.0 and one.to_json()["estimate"]["note"] == "by hand"


def test_wrong_settings_name_the_key(tmp_path: Path) -> None:
    for sets, queue, expected in (
        (["stepz=1"], {}, "did you mean “steps”"),
        (["steps"], {}, "key=value"),
        (["steps.a=1"], {}, "has no keys"),
        ([], {"retrys": 1}, "did you mean “retries”"),
        ([], {"wall_clock_s": 0}, "“wall_clock_s” is 0"),
    ):
        with pytest.raises(PresetError, match=expected):
            adding.plan(preset({"steps": 4}, queue), sets, Places(tmp_path))


FLOW = {
    "steps": [
        {"name": "train", "preset": "count"},
        {"name": "eval", "preset": "count", "set": {"steps": "${train.steps}"}},
        {"name": "report", "preset": "count", "after": ["eval:any"]},
    ]
}


@pytest.fixture
def lab(tmp_path: Path) -> Places:
    places = Places(tmp_path).ensure()
    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\n[spec]\nsteps = 4\n')
    return places


def test_a_flow_is_queued_passed_on_cancelled_and_resumed_as_one(lab: Places) -> None:
    store = Store(lab.queue)
    planned = adding.plan(Preset("both", "flow", "Both", FLOW), ["train.steps=9"], lab)
    flow = adding.add(store, planned)
    train, evaluate, report = store.steps(flow)
    assert train.spec["steps"] == 9 and evaluate.spec["steps"] == "${train.steps}"
    assert evaluate.after == ((train.id, "ok"),) and report.after == ((evaluate.id, "any"),)
    assert order(store) == [train.id, evaluate.id, report.id]  # the flow itself is no work
    store.claim(train.id, (), None, named(store))
    assert store.get(flow).state == "running"
    assert store.cancel(flow) == "running"  # until the running step has stopped
    assert [step.state for step in store.steps(flow)] == ["starting", "cancelled", "cancelled"]
    store.finish(train.id, "cancelled", "stopped on request")
    assert store.get(flow).state == "cancelled"
    store.again(flow)
    assert [step.state for step in store.steps(flow)] == ["queued"] * 3 and store.get(flow).state == "queued"
    for step in (train, evaluate, report):
        store.claim(step.id, (), None, named(store))
        store.finish(step.id, "done")
    assert store.get(flow).state == "done" and store.get(flow).ended is not None


def test_results_are_filled_in_with_their_own_type(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="k", preset="p", spec={}, title="t", home=tmp_path)
    run.write_json("summary.json", {"steps": 7, "best": {"adapter": "/a"}})
    runs: dict[str, str | None] = {"train": str(run.path), "later": None}
    asked = {"n": "${train.steps}", "x": ["at ${train.best.adapter}/f"], "r": "${train.run}", "k": 1}
    assert fill(asked, runs) == {"n": 7, "x": ["at /a/f"], "r": str(run.path), "k": 1}
    with pytest.raises(FlowError, match="has no “loss”"):
        fill("${train.loss}", runs)
    with pytest.raises(FlowError, match="has no run"):
        fill("${later.x}", runs)


def test_a_flow_that_cannot_work_is_refused_when_queued(lab: Places) -> None:
    with refused("flow-invalid", "step a", "b", error=FlowError):
        read_flow("f", {"steps": [{"name": "a", "preset": "count", "after": ["b"]}]})
    with refused("flow-invalid", "two steps", "a", error=FlowError):
        read_flow("f", {"steps": [{"name": "a", "preset": "x"}, {"name": "a", "preset": "x"}]})
    wrong = {"steps": [{"name": "a", "preset": "count", "set": {"stepz": "1"}}]}
    with refused("setting-invalid", "“stepz”", "“steps”", error=PresetError):
        adding.plan(Preset("f", "flow", "F", wrong), [], lab)


def test_the_state_of_a_flow() -> None:
    def state(*states: str) -> str:
        return flow_state([(one, str(index), None) for index, one in enumerate(states)])[0]

    assert state("done", "queued") == "running" and state("queued", "queued") == "queued"
    assert state("failed", "running") == "running" and state("failed", "queued", "cancelled") == "failed"
    assert state("done", "cancelled") == "cancelled" and state("done", "done") == "done"


def test_a_screenful_of_ten_thousand_jobs(store: Store, tmp_path: Path) -> None:
    """A bound far above what was measured, against a slip to minutes; the figures stand in the docs."""
    with store.change():
        for _ in range(10_000):
            store.add(new())
    begun = time.monotonic()
    assert len(views(store, Places(tmp_path), store.listing(limit=50))) == 50
    assert time.monotonic() - begun < 20
