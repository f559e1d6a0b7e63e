"""The model job through its worker: killed, taken up by a new attempt, and the same weights as without."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

SETS = ["seed=3", "threads=1", "batch=3", "eyes_steps=6", "language_steps=6", "count_share=1", "warm_up=2"]
SETS += [
    "question_steps=2",
    "question_batch=3",
    "question_counts=1",
    "question_turns=2",
    "refresh=1",
]
SETS += ["checkpoint_every=2", "measure=16"]


def start(run: RunFolder) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "vlmconsole.jobs.worker", str(run.path)])


def weights(run: RunFolder) -> bytes:
    return run.file("model/model.safetensors").read_bytes()


def test_preset_is_the_recipe() -> None:
    """The shipped preset says what the code's own recipe says, so neither can drift."""
    from vlmconsole.toy.lessons import LessonRecipe

    spec = overlay(load_preset("model-tiny"), []).model_dump()
    assert {key: spec[key] for key in vars(LessonRecipe())} == vars(LessonRecipe())


def test_every_phase_has_its_share_of_the_time() -> None:
    from vlmconsole.jobs import model
    from vlmconsole.toy.lessons import LessonRecipe, phase_steps

    spec = model.ModelSpec()
    took = model.phases(spec)
    assert [*took] == [*phase_steps(LessonRecipe()), model.MEASURING] and model.TOOK.keys() == phase_steps(
        LessonRecipe()
    ).keys()
    assert 60 < sum(took.values()) / 60 < 75  # one run on two cores took 67 minutes
    assert sum(model.phases(spec.model_copy(update={"threads": 1})).values()) == 2 * sum(took.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_taken_up(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.ensure()
    preset = load_preset("model-tiny", places)
    spec = overlay(preset, SETS)
    whole = create_run(places, preset, spec)
    assert start(whole).wait(400) == 0
    summary = whole.read_json("summary.json")
    assert 0 <= summary["naming"] <= 1 and summary["bytes"] < 6_000_000
    assert "| n |" in whole.file("model/README.md").read_text("utf-8")
    told = [event for event in whole.read_jsonl("events.jsonl") if event["kind"] == "progress"]
    assert [event["phase"] for event in told if event["unit"] == "part"] == ["measuring"] * 4
    shares = [event["overall"] for event in told]
    assert len(told) > 12 and shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1

    killed = create_run(places, preset, spec)
    worker = start(killed)
    until = time.monotonic() + 200
    while not killed.file("checkpoint.pt").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(30)
    assert killed.file("checkpoint.pt").exists() and not killed.file("summary.json").exists()
    second = create_run(places, preset, spec, killed)
    assert start(second).wait(400) == 0
    assert weights(second) == weights(whole)
