"""Small supervised trainings for tests: a dataset of a dozen pictures, and runs made and worked in this process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.launch import create_run, start_worker
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

RECIPE = """
name = "few"
title = "A few pictures"
seed = 5

[[splits]]
name = "train"
role = "train"
parts = [{ group = "regular", low = 0, high = 7, count = 10 }]

[[splits]]
name = "dev"
role = "dev"
parts = [{ group = "regular", low = 0, high = 7, count = 4 }]

[[splits]]
name = "test-regular"
role = "test"
parts = [{ group = "regular", low = 0, high = 7, count = 2 }]
"""


def lab(home: Path, recipe: str = RECIPE) -> Places:
    """A lab home whose data/few.toml is the recipe."""
    places = Places(home).ensure()
    (home / "few.toml").write_text(recipe, "utf-8")
    return places


def make(places: Places, earlier: RunFolder | None = None, **changes: Any) -> RunFolder:
    """A queued run: two epochs of three steps over ten pictures, unless changed."""
    settings = {"data": str(places.home / "few.toml"), "epochs": 2, "dev_epochs": [1, 2], "checkpoint_every": 1}
    sets = [f"{key}={json.dumps(value)}" for key, value in {**settings, **changes}.items()]
    preset = load_preset("sft-expand-tiny")
    return create_run(places, preset, overlay(preset, sets), earlier)


def work(places: Places, run: RunFolder, earlier: RunFolder | None = None) -> dict[str, Any]:
    """Run it here, as the worker would; returns its summary. Raises what the job raises."""
    from vlmconsole.jobs.sft import KIND, SftSpec

    summary = KIND.run(Context(run, places, earlier), SftSpec.model_validate(run.job()["spec"]))
    run.write_json("summary.json", summary)
    run.set_state("done")
    return summary


def weights(run: RunFolder, folder: str = "epoch-2") -> bytes:
    return run.file(f"{folder}/adapter_model.safetensors").read_bytes()


def ended(run: RunFolder, seconds: float = 1500) -> int:
    """Its exit code, worked by a real worker: patient on a busy machine, and nothing goes on when patience ends."""
    worker = start_worker(run, variables={"OMP_NUM_THREADS": "1"})
    try:
        return worker.wait(seconds)
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(30)
