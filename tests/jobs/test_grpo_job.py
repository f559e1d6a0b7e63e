"""The grpo job: its evidence, its export, what stops it, and kill -9."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from refusals import mentions, refused

from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.recipe import load_recipe
from vlmconsole.data.splits import LeakError
from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.grpo import GrpoSpec, devices, run
from vlmconsole.jobs.grpo_evidence import unchanged
from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters.provenance import read_provenance, weights_sha256

RECIPE = """
title = "few"
seed = 77
[[splits]]
name = "train"
role = "train"
parts = [{ group = "regular", count = 8 }]
[[splits]]
name = "heldout"
role = "test"
parts = [{ group = "regular", count = 4 }]
"""
SETS = ["data=few", "steps=2", "questions=2", "answers=4", "max_new_tokens=20", "temperature=2.0", "lr=1e-3"]
SETS += ["checkpoint_every=1", "reload_check=2", "validation=3", "seed=1"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Places:
    places = Places(tmp_path_factory.mktemp("lab")).ensure()
    recipe = places.home / "few.toml"
    recipe.write_text(RECIPE)
    make_dataset(load_recipe(str(recipe)), places.datasets)
    return places


def new_run(lab: Places, *sets: str, earlier: RunFolder | None = None) -> RunFolder:
    preset = load_preset("grpo-3-tiny", lab)
    return create_run(lab, preset, overlay(preset, [*SETS, *sets]), earlier)


def here(lab: Places, folder: RunFolder, earlier: RunFolder | None = None) -> dict[str, Any]:
    """The job in this process, as the worker would call it."""
    return run(Context(folder, lab, earlier), GrpoSpec.model_validate(folder.job()["spec"]))


@pytest.fixture(scope="module")
def whole(lab: Places) -> RunFolder:
    folder = new_run(lab, "validate_every=2")
    folder.write_json("summary.json", here(lab, folder))
    return folder


def test_every_answer_has_its_evidence(whole: RunFolder) -> None:
    summary = whole.read_json("summary.json")
    answers, steps = list(whole.read_jsonl("rollouts.jsonl")), list(whole.read_jsonl("training.jsonl"))
    groups = list(whole.read_jsonl("groups.jsonl"))
    assert (len(steps), len(groups), len(answers), summary["answers"]) == (2, 4, 16, 16)
    for line in steps:
        own = [one for one in answers if one["step"] == line["step"]]
        assert line["reward_mean"] == pytest.approx(sum(one["reward"] for one in own) / 8)
        assert line["lengths"] == [len(one["token_ids"]) for one in own]
        assert {"loss", "grad_norm", "entropy", "clip_fraction", "zero_advantage", "lr", "seconds"} <= set(line)
    for one in answers:
        picture = whole.file(one["picture"]).read_bytes()
        assert picture.startswith(b"\x89PNG") and one["prompt"] and one["picture_sha256"][:16] in one["picture"]
        assert "red_circles" in one["truth"]
    assert {group["zero_advantage"] for group in groups} <= {True, False}
    assert any(line["grad_norm"] > 0 for line in steps)
    for group in groups:
        assert group["zero_advantage"] == (set(group["advantages"]) == {0.0})
    events = list(whole.read_jsonl("events.jsonl"))
    told = [event for event in events if event["kind"] == "rollout"]
    assert len(told) == 16 and {"uid", "picture", "truth", "answer", "reward", "advantage"} <= set(told[0])
    assert {"loss", "reward mean", "grad norm", "learning rate"} <= {e["name"] for e in events if e["kind"] == "metric"}
    (validation,) = whole.read_jsonl("validation.jsonl")
    assert validation["label"].startswith("not a baseline") and validation["n"] == 3
    assert whole.read_json("checkpoint.json")["resumable"] is True


def test_the_export_is_what_trained(whole: RunFolder) -> None:
    summary, moved = whole.read_json("summary.json"), whole.read_json("weights.json")
    assert summary["reload_same_answers"] == "2 of 2" and summary["vision_bit_identical"] is True
    assert moved["visual"]["numbers_changed"] == 0 and moved["language"]["tensors_changed"] > 0
    assert len(moved["tensors"]) == moved["visual"]["tensors"] + moved["language"]["tensors"]
    assert summary["model_sha256"] == weights_sha256(whole.file("model")) != summary["base_sha256"]
    origin = read_provenance(whole.file("model"))
    assert origin is not None and origin.kind == "grpo" and origin.resumable is False and origin.step == 2
    assert origin.base_sha256 == summary["base_sha256"] and set(origin.data) == {"few"}
    assert "cannot resume exactly" in whole.file("model/README.md").read_text("utf-8")
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {p.name for p in whole.file("model").iterdir()}


def until_checkpoint(folder: RunFolder, worker: "subprocess.Popen[bytes]", step: int) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end and worker.poll() is None:
        if folder.read_json("checkpoint.json", {}).get("step", 0) >= step and folder.file("checkpoint.pt").exists():
            return
        time.sleep(0.005)
    assert worker.poll() is None, folder.log.read_text()


def kill_in_the_middle(folder: RunFolder, step: int, wait: float = 0.0) -> None:
    worker = subprocess.Popen([sys.executable, "-m", "vlmconsole.jobs.worker", str(folder.path)])
    until_checkpoint(folder, worker, step)
    time.sleep(wait)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(30) == -signal.SIGKILL


def same(a: RunFolder, b: RunFolder) -> bool:
    return a.file("model/model.safetensors").read_bytes() == b.file("model/model.safetensors").read_bytes()


def said(folder: RunFolder) -> list[tuple[int, str, float]]:
    return [(one["step"], one["answer"], one["advantage"]) for one in folder.read_jsonl("rollouts.jsonl")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_taken_up_it_is_the_same_run(lab: Places, whole: RunFolder) -> None:
    killed = new_run(lab, "validate_every=2")
    kill_in_the_middle(killed, 1)
    assert not killed.file("model").exists()
    second = new_run(lab, "validate_every=2", earlier=killed)
    here(lab, second, killed)
    assert same(second, whole) and said(second) == said(whole)
    steps = [line["step"] for line in second.read_jsonl("training.jsonl")]
    assert steps == [1, 2] and len(list(second.read_jsonl("validation.jsonl"))) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random_moments_it_is_the_same_run(lab: Places) -> None:
    sets = ("steps=8", "checkpoint_every=2")
    straight = new_run(lab, *sets)
    here(lab, straight)
    draw = random.Random(int(os.environ.get("VLMCONSOLE_KILL_SEED", "0")))
    for _ in range(int(os.environ.get("VLMCONSOLE_KILLS", "6"))):
        killed = new_run(lab, *sets)
        kill_in_the_middle(killed, draw.choice([2, 4, 6]), draw.uniform(0, 0.8))
        second = new_run(lab, *sets, earlier=killed)
        here(lab, second, killed)
        assert same(second, straight) and said(second) == said(straight)


def test_a_request_to_stop_keeps_the_step(lab: Places) -> None:
    folder = new_run(lab, "steps=500", "checkpoint_every=500")
    stop = threading.Event()

    def ask() -> None:
        while not folder.file("training.jsonl").exists():
            time.sleep(0.01)
        stop.set()

    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(Stopped) as stopped:
        run(Context(folder, lab, None, None, stop), GrpoSpec.model_validate(folder.job()["spec"]))
    done = len(list(folder.read_jsonl("training.jsonl")))
    assert 1 <= done < 500 and stopped.value.summary is not None and stopped.value.summary["steps"] == done
    assert folder.read_json("checkpoint.json")["step"] == done and folder.file("checkpoint.pt").exists()


def test_what_must_stop_it_stops_it_with_its_reason(lab: Places, whole: RunFolder) -> None:
    lost = new_run(lab, "lr=1e30", "steps=3")
    with refused("step-diverged", "step 2", "checkpoint", error=JobError):
        here(lab, lost)
    assert lost.read_json("checkpoint.json")["step"] == 1

    with refused("picture-leaked", "few:heldout", error=LeakError):
        here(lab, new_run(lab, "train_split=heldout"))
    with refused("split-missing", "“tests”", "heldout", "train", error=JobError):
        here(lab, new_run(lab, "validation_split=tests"))

    changed = new_run(lab, "lr=2e-3", earlier=whole)
    with refused("conditions-differ", whole.name, "settings"):
        here(lab, changed, whole)
    torn = new_run(lab)
    for name in ("checkpoint.pt", "checkpoint.json"):
        torn.file(name).write_bytes(whole.file(name).read_bytes()[:-9] + b"012345678")
    with pytest.raises(LabError, match=r"damaged"):
        here(lab, new_run(lab, earlier=torn), torn)


def test_presets_are_the_labs_sizes() -> None:
    for name, steps in (("grpo-3", 3), ("grpo-30", 30), ("grpo-3-tiny", 3), ("grpo-30-tiny", 30)):
        preset = load_preset(name)
        spec = overlay(preset)
        assert isinstance(spec, GrpoSpec)
        assert (spec.steps, spec.questions, spec.answers, spec.temperature) == (steps, 4, 4, 1.0)
        if name.endswith("tiny"):
            assert spec.engine == "in-process" and not spec.base
        else:
            assert (spec.engine, spec.lr) == ("verl", 1e-6) and "not been run" in preset.notes
            assert devices(spec, Places(Path("/nowhere"))) == ["gpu"] == preset.queue["devices"]
            assert preset.queue["environment"] == "verl-0.6.1"


def test_the_learning_rate_is_blamed_only_where_there_were_gradients(tmp_path: Path) -> None:
    told = []
    for number, lines in enumerate(([(0.0, 1.0)], [(0.0, 1.0), (1e-9, 0.5)], [(0.0, 0.5)], [])):
        run = RunFolder.create(tmp_path, kind="grpo", preset=f"p{number}", spec={}, title="t", home=tmp_path)
        for norm, equal in lines:
            run.append_jsonl("training.jsonl", {"grad_norm": norm, "zero_advantage": equal})
        told.append(unchanged(run))
    assert "equal rewards" in told[0] and "learning rate" not in told[0]
    assert "learning rate" in told[1]
    assert mentions(told[2], "every gradient", "0") and mentions(told[3], "no gradient") and len(told) == 4


REWARDS = """
def name(prediction, truth, question):
    if prediction == "":
        raise ValueError("empty")
    return float("{" in prediction) if "Count" in question else 0.0

def short(prediction, truth, most=400):
    return float(len(prediction) <= most)
"""


def test_rewards_of_ones_own_are_kept_by_part_and_fail_an_answer_alone(lab: Places, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(REWARDS)
    parts = f'[{{scorer="{file}:name", weight=3}}, {{scorer="{file}:short", options={{most=5}}}}, ""]'
    folder = new_run(lab, f"reward={parts}", "max_new_tokens=12", "temperature=3.0")
    summary = here(lab, folder)
    kept = folder.read_json("reward.json")
    assert kept["names"] == ["python:mine.py:name", "python:mine.py:short", "own"]
    copies = {source["copy"] for source in kept["sources"].values()}
    assert len(copies) == 1 and folder.file(copies.pop()).read_text() == REWARDS
    answers = list(folder.read_jsonl("rollouts.jsonl"))
    for line in answers:
        assert set(line["parts"]) == set(kept["names"])
        named, short, own = (line["parts"][name] for name in kept["names"])
        failed = line["answer"] == ""
        assert line["reward"] == pytest.approx(0 if failed else (3 * named + short + own) / 5)
        assert not failed or ("ValueError" in line["reason"] and line["valid"] is False)
    failures = list(folder.read_jsonl("reward-failures.jsonl"))
    assert sum(line["n"] for line in failures) == sum(line["answer"] == "" for line in answers)
    assert summary.get("reward_failures", 0) == sum(line["n"] for line in failures)
    assert set(summary["reward_parts_last"]) == set(kept["names"])
    last = list(folder.read_jsonl("training.jsonl"))[-1]
    assert summary["reward_parts_last"] == last["reward_parts"]
    identity = folder.read_json("conditions.json")["settings"]["reward"]
    assert all("source" in part["scorer"] for part in identity[:2])
    rollouts = [event for event in folder.read_jsonl("events.jsonl") if event.get("kind") == "rollout"]
    assert rollouts and all(set(event["parts"]) == set(kept["names"]) for event in rollouts)


def test_without_a_reward_nothing_of_it_is_written(whole: RunFolder) -> None:
    assert not whole.file("reward.json").exists()
    assert not any("parts" in line for line in whole.read_jsonl("rollouts.jsonl"))
    assert "reward" not in whole.read_json("conditions.json")["settings"]
