"""How the jobs screen looks, at both sizes and in both themes, over recorded runs (`--snapshot-update`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import DATA
from job_queue import held, lab
from jobs_console import seen, until
from textual.pilot import Pilot

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places

pytestmark = pytest.mark.usefixtures("utc")

RECORDED = DATA / "jobs"
NOW = 1_796_000_000.0
BEGAN = NOW - 600  # of the recorded runs
FIRST = 38  # steps that the running job has told


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Places]:
    places = lab(tmp_path / "home")
    store = Store(places.queue)
    for name, title, devices in (
        ("sft-expand-tiny", "Supervised LoRA, counts 0 to 7", ("cpu",)),
        ("grpo-30-tiny", "GRPO, 30 steps from the base", ("cpu",)),
        ("stress-tiny", "Stress test of the fixed adapter", ("cpu",)),
        ("tune-grid", "Nine cells, then the winner again", ("gpu0",)),
        ("cache-probe", "Five cold and warm pairs", ("cpu",)),
    ):
        store.add(NewJob(name, "story_kind:STORY", title, {"steps": 60}, devices=devices))
    store.set_meta("devices", {"cpu_slots": 1, "gpus": ["gpu0"], "taken": {"gpu0": "held by pid 4242 python train.py"}})
    ran(places, store, 1, "done", "done", None)
    ran(places, store, 2, "failed", "failed", "the picture scene-0042.png is gone: put it back and retry")
    run = ran(places, store, 3, "done", "running", None)
    told = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    end = next(at for at, event in enumerate(told) if event["kind"] == "progress" and event["done"] == FIRST)
    shift = NOW - 1.5 - told[end]["t"]
    lines = [json.dumps({**event, "t": event["t"] + shift}) for event in told[:end]]
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    log = (run / "log.txt").read_bytes().split(b"\n")
    (run / "log.txt").write_bytes(b"\n".join(log[: FIRST + 1]) + b"\n")
    with store.change() as db:
        db.execute("UPDATE jobs SET started=? WHERE id=3", (NOW - 42,))
        db.execute("INSERT INTO after VALUES (5, 3, 'ok')")
    with held(places):
        yield places


def ran(places: Places, store: Store, number: int, recorded: str, state: str, reason: str | None) -> Path:
    """Put a recorded run under job `number`, and the job into `state`."""
    run = places.runs / f"20261129-1400{number:02}-{recorded}"
    shutil.copytree(RECORDED / recorded, run)
    store.claim(number, ("cpu.0",), None, str(run))
    if state == "running":
        store.running(number, 1, "1")
        (run / "summary.json").unlink()
    else:
        store.finish(number, state, reason)
    with store.change() as db:
        db.execute("UPDATE jobs SET started=?, ended=ended*0+? WHERE id=?", (BEGAN, BEGAN + 9 + number, number))
    return run


@pytest.fixture
def training(home: Places) -> Places:
    """Another running job, first in the table: a GRPO training that really ran, at its third step."""
    run = home.runs / "20261129-140009-grpo"
    shutil.copytree(RECORDED / "grpo", run)
    told = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    shift = NOW - 1.5 - told[-1]["t"]
    (run / "events.jsonl").write_text("".join(json.dumps({**e, "t": e["t"] + shift}) + "\n" for e in told))
    store = Store(home.queue)
    number = store.add(NewJob("grpo-30-tiny", "grpo", "GRPO, 30 steps from the base", {}, priority=9))
    store.claim(number, ("cpu.1",), None, str(run))
    store.running(number, 1, "1")
    with store.change() as db:
        db.execute("UPDATE jobs SET started=? WHERE id=?", (NOW - 61, number))
    return home


def app(places: Places, theme: str = "dark") -> ConsoleApp:
    places.config.write_text(f'server = "none"\ntheme = "{theme}"\n')
    return ConsoleApp(Lab.open(places.home), clock=lambda: NOW)


def after(*keys: str, shows: str = "") -> Callable[[Pilot[None]], Any]:
    """Open the screen, wait for its first look (until it `shows` that), then press `keys`, each settled."""

    async def run(pilot: Pilot[None]) -> None:
        await settle(pilot)
        for key in ("f3", *keys):
            await pilot.press(key)
            await settle(pilot)
            if key == "f3":
                await until(lambda: shows in seen(pilot))
        await pilot.pause(0.3)

    async def settle(pilot: Pilot[None]) -> None:
        await pilot.pause()
        some = [worker for worker in pilot.app.workers if worker.group not in ("new", "judge")]
        if some:
            await pilot.app.workers.wait_for_complete(some)
        await pilot.pause()

    return run


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_running_120(snap_compare: Any, home: Places, theme: str) -> None:
    assert snap_compare(app(home, theme), terminal_size=(120, 40), run_before=after())


def test_training_120(snap_compare: Any, training: Places) -> None:
    assert snap_compare(app(training), terminal_size=(120, 40), run_before=after(shows="truth 7/2"))


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_answers_80(snap_compare: Any, training: Places, theme: str) -> None:
    keys = ("right_square_bracket", "right_square_bracket", "comma", "comma")
    assert snap_compare(app(training, theme), terminal_size=(80, 24), run_before=after(*keys))


@pytest.mark.slow
def test_answers_large_120(snap_compare: Any, training: Places) -> None:
    keys = ("right_square_bracket", "right_square_bracket", "z", "comma", "comma")
    assert snap_compare(app(training, "light"), terminal_size=(120, 40), run_before=after(*keys))


@pytest.mark.slow
def test_one_answer_120(snap_compare: Any, training: Places) -> None:
    keys = ("right_square_bracket", "right_square_bracket", "comma", "comma", "enter")
    assert snap_compare(app(training), terminal_size=(120, 40), run_before=after(*keys))


@pytest.mark.slow
def test_failed_120(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(120, 40), run_before=after("G", "k"))


def test_queue_80(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after())


def test_failed_80(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after("G", "k", "right_square_bracket"))


def test_empty_80(snap_compare: Any, tmp_path: Path) -> None:
    places = lab(tmp_path / "home")
    with held(places):
        assert snap_compare(app(places), terminal_size=(80, 24), run_before=after())


@pytest.mark.slow
def test_curve_120(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(120, 40), run_before=after("right_square_bracket", "enter"))


@pytest.mark.slow
def test_cancel_80(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after("c"))
