"""The whole lab in one command, from nothing to its report, at a size for tests; killed twice on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.ledger.chain import Ledger
from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, Job
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

PARTS = {
    "sft-mini": '{ group = "regular", low = 0, high = 3, every = 2 }',
    "repair-1-mini": '{ group = "regular", low = 0, high = 5, every = 1 }, { replay = "sft-mini:train", count = 4 }',
    "repair-2-mini": '{ group = "high", low = 8, high = 9, every = 8 }, { replay = "repair-1-mini:train", count = 8 }',
    "stress-mini": '{ group = "high", low = 8, high = 8, count = 1 }',
    "grpo-mini": '{ group = "regular", low = 0, high = 3, count = 1 }',
}
RECIPE = """
name = "{name}"
title = "a round of the small lab"
seed = {seed}
[[splits]]
name = "train"
role = "train"
parts = [{train}]
[[splits]]
name = "dev"
role = "dev"
parts = [{{ group = "regular", low = 0, high = 3, count = 6 }}]
[[splits]]
name = "test-regular"
role = "test"
parts = [{{ group = "regular", low = 0, high = 3, count = 8 }}]
[[splits]]
name = "test-naming"
role = "test"
parts = [{{ group = "naming", count = 8 }}]
"""
PLAN = """
title = "two gates of the small lab"
whose = "the tests' own"
before = "what the round starts from"
trained = [0, 5]
pictures = "synthetic shapes"
resamples = 99
conditions = { temperature = 0.0, max_tokens = 64 }
[data]
recipes = ["sft-mini", "repair-1-mini", "repair-2-mini"]
[selection]
split = "dev"
metric = "mean reward"
tie = "the earlier epoch"
[selection.epochs]
sft-mini = [1, 2]
repair-1-mini = [1, 2]
repair-2-mini = [1, 2]
[generations]
evaluation = 32
development = 12
training_diagnostic = 8
[seeds]
training = [1]
[[groups]]
name = "regular"
split = "test-regular"
n = 8
scorer = "counting"
[[groups]]
name = "naming"
split = "test-naming"
n = 8
scorer = "naming"
base_at_least = 0.0
[[gates]]
group = "regular"
metric = "all_correct"
at_least = 0.99
[[gates]]
group = "naming"
metric = "partial_drop"
at_most = 5.0
"""


def changes(folder: Path) -> list[str]:
    """Settings that make every step small; the flow itself, its order and what is passed on stay as shipped."""
    for number, (name, train) in enumerate(PARTS.items()):
        (folder / f"{name}.toml").write_text(RECIPE.format(name=name, seed=70 + number, train=train))
    (folder / "mini.toml").write_text(PLAN)
    start, end = PLAN.index("[data]"), PLAN.index("[seeds]")
    alone = '[data]\nrecipes = ["stress-mini", "grpo-mini"]\n[generations]\nevaluation = 32\n'
    (folder / "stress.toml").write_text(PLAN[:start] + alone + PLAN[end:])
    found = ["main.requests=2", "main.warm_up=1", "tune.requests=2", "tune.warm_up=1", "tune.grid.max_num_seqs=[4]"]
    found += ["cache-text.pairs=2", "cache-picture.pairs=2", "base.limit=4"]
    # Three steps each: in the first two every answer to a question earns the same, so that no step has a gradient.
    found += ["grpo-30.steps=3", "grpo-30.validate_every=0"]
    for step, name in (("sft", "sft-mini"), ("repair-1", "repair-1-mini"), ("repair-2", "repair-2-mini")):
        found += [f"{step}.data={folder / name}.toml", f"{step}.epochs=2", f"{step}.dev_epochs=[1, 2]"]
        found += [f"{step}.checkpoint_every=2"]
    for step, name in (("judge-sft", "sft-mini"), ("judge-1", "repair-1-mini"), ("judge-2", "repair-2-mini")):
        found += [f"{step}.data=['{name}']", f"{step}.diagnostic={name}:train"]
    found += ["stress.data=['stress-mini']", "eval-grpo-3.data=['grpo-mini']", "eval-grpo-30.data=['grpo-mini']"]
    made = {
        "sft": "sft-mini",
        "1": "repair-1-mini",
        "2": "repair-2-mini",
        "stress": "stress-mini",
        "grpo": "grpo-mini",
    }
    for step, name in made.items():
        plan = folder / ("stress.toml" if step in ("stress", "grpo") else "mini.toml")
        found += [f"freeze-{step}.plan={plan}", f"freeze-{step}.data=['{folder / name}.toml']"]
    found.append(f"freeze-sft.limits=['{folder / 'mini.toml'}']")
    return found


class Running:
    """`vlmconsole run lab-tiny` in its own process, and what the queue says of it."""

    def __init__(self, home: Path, sets: list[str], environment: dict[str, str]) -> None:
        words = [sys.executable, "-m", "vlmconsole", "--home", str(home), "--json", "run", "lab-tiny"]
        words += [word for one in sets for word in ("--set", one)]
        self.places = Places(home).ensure()
        self.out, self.said = home / "out.json", home / "said.txt"
        with self.out.open("wb") as out, self.said.open("wb") as said:
            self.process = subprocess.Popen(words, stdout=out, stderr=said, env=environment, cwd=home)

    def steps(self) -> dict[str, Job]:
        store = Store(self.places.queue)
        try:
            return {job.step: job for job in store.listing(True) if job.step}
        finally:
            store.close()

    def until(self, ready: Callable[[], Any], seconds: float = 2400) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := ready():
                return value
            assert self.process.poll() is None, self.said.read_text()[-3000:]
            time.sleep(0.2)
        raise AssertionError(f"not within {seconds} s: {self.said.read_text()[-3000:]}")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, process.LOCKS_VARIABLE: str(tmp_path / "locks"), process.SLOTS_VARIABLE: "2"}
    made = Running(home, changes(tmp_path), {**environment, process.IDLE_VARIABLE: "1"})
    yield made
    if made.process.poll() is None:
        made.process.send_signal(signal.SIGINT)
        made.process.wait(120)
    deadline = time.monotonic() + 120
    while process.running(made.places) is not None and time.monotonic() < deadline:
        time.sleep(0.2)


def assert_whole(places: Places, steps: dict[str, Job], broken: str) -> None:
    """Every step is done, `broken` in its second attempt; nothing made twice; sides, audits, seals, report right."""
    assert {name: (job.state, job.reason) for name, job in steps.items()} == dict.fromkeys(steps, ("done", None))
    runs = {name: RunFolder(Path(job.run or "")) for name, job in steps.items()}
    assert {name for name, job in steps.items() if job.attempt > 1} == {broken} and steps[broken].attempt == 2
    # Nothing was learnt or answered twice: each step of the training once, each picture once on each side.
    told = {name: runs[name].read_json("summary.json") for name in runs}
    for name in ("sft", "repair-1", "repair-2"):
        trained = [row["step"] for row in runs[name].read_jsonl("training.jsonl")]
        assert trained == list(range(1, told[name]["steps"] + 1)) and len(trained) >= 16
    for name in ("judge-sft", "stress", "judge-1", "judge-2", "eval-grpo-3", "eval-grpo-30"):
        for side in ("before", "after"):
            ids = Counter(row["id"] for row in runs[name].read_jsonl(f"{side}.jsonl"))
            assert len(ids) == 16 and set(ids.values()) == {1}
        assert told[name]["verdict"] in ("PASS", "FAIL")
    # Before is what the round started from, and each round goes on from the one before it.
    for judged, start, trained_by in (("judge-1", "sft", "repair-1"), ("judge-2", "repair-1", "repair-2")):
        assert told[judged]["before"]["adapter_sha256"] == told[start]["adapter_sha256"]
        assert told[judged]["after"]["adapter_sha256"] == told[trained_by]["adapter_sha256"]
        assert told[trained_by]["parent_sha256"] == told[start]["adapter_sha256"]
    # Each is judged by the plan that was frozen before its training began, and by no other.
    by = {"judge-sft": "sft", "stress": "stress", "judge-1": "1", "judge-2": "2"}
    for judged, frozen in {**by, "eval-grpo-3": "grpo", "eval-grpo-30": "grpo"}.items():
        assert told[judged]["plan_sha256"] == told[f"freeze-{frozen}"]["frozen"]
        assert told[f"freeze-{frozen}"]["base_sha256"] == told[judged]["before"]["model_sha256"]
    for name in ("audit-sft", "audit-stress", "audit-1", "audit-2", "audit-grpo-3", "audit-grpo-30"):
        findings = {one["name"]: one for one in runs[name].read_json("audit.json")["findings"]}
        assert findings["plan before training"]["state"] == "ok"
        assert "first training step" in findings["plan before training"]["text"]
        assert told[name]["wrong"] == 0, runs[name].read_json("audit.json")
        assert told[name]["replay"] == "the same"
    ledger = Ledger(places.ledger)
    assert {ledger.verify(run).status for run in runs.values()} == {"intact"}

    page = runs["report"].file("report.html").read_text("utf-8")
    flat = json.loads(runs["report"].file("report.json").read_text("utf-8"))
    asked = runs["report"].job()["spec"]["steps"]
    assert [one["path"] for one in flat["runs"]] == list(asked.values()) and set(asked) == set(steps) - {"report"}
    assert told["report"]["absent"] == [] and all(run.name in page for name, run in runs.items() if name != "report")
    assert "may be claimed" in page.lower()


def test_from_nothing_to_the_report_through_two_kills(running: Running) -> None:
    def training() -> Job | None:
        job = running.steps().get("sft")
        there = job is not None and job.pid and job.run and RunFolder(Path(job.run)).file("checkpoint.json").exists()
        return job if there and job is not None and job.state == "running" else None

    os.kill(running.until(training).pid, signal.SIGKILL)
    running.until(lambda: running.steps()["sft"].attempt == 2)
    supervisor = running.until(lambda: (process.running(running.places) or {}).get("pid"))
    os.kill(supervisor, signal.SIGKILL)
    running.until(lambda: running.process.poll() is not None or running.steps()["report"].state in FINAL)
    assert running.process.wait(60) == 0, running.said.read_text()[-3000:]

    assert_whole(running.places, running.steps(), broken="sft")
    assert json.loads(running.out.read_text())["state"] == "done"
