"""Tuning as a job: real worker, real servers started for each cell, killed in the middle and continued."""

from __future__ import annotations

import os
import signal
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
from refusals import refused
from tuned_server import profile

from vlmconsole.engines.profile import load_profiles, save_profile
from vlmconsole.jobs import sweep, tune
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.launch import create_run, start_worker
from vlmconsole.jobs.presets import Preset, load_preset, overlay
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import FrozenError, read_frozen
from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.measure.tune.settings import TuneSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes

SPEC: dict[str, Any] = {
    "server": "tuned",
    "concurrency": 2,
    "requests": 3,
    "warm_up": 1,
    "output_tokens": 4,
    "lag_limit_ms": 60_000.0,  # other programs share the machine that tests run on
    "grid": {"chunk": [400, 20]},
    "rule": {
        "baseline": {"chunk": 400},
        "consistent": {"finish_reason": "length", "output_tokens": 4},
        "throughput_floor": 0.5,
        "close_within": 0.1,
        "memory": "chunk",
    },
}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places(home=tmp_path / "home").ensure()
    save_profile(places.servers, profile())
    return places


def new(places: Places, spec: dict[str, Any], earlier: RunFolder | None = None) -> tuple[Context, TuneSettings]:
    preset = Preset("tune-test", "tune", "A test's tuning", spec)
    checked = TuneSettings.model_validate(spec)
    run = create_run(places, preset, checked, earlier)
    return Context(run, places, earlier), checked


def servers_of(run: RunFolder) -> list[psutil.Process]:
    return processes.family(None, run.path)


def kill_after(run: RunFolder, cells: int) -> None:
    """Start the run's worker, and kill it (it alone) as soon as so many cells are written."""
    worker = start_worker(run)
    deadline = time.monotonic() + 60
    while len(list(run.read_jsonl("cells.jsonl"))) < cells:
        assert worker.poll() is None, run.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


@pytest.mark.slow
def test_a_killed_tuning_goes_on_without_redoing_cells_and_saves_the_confirmed_winner(places: Places) -> None:
    first, _ = new(places, SPEC)
    kill_after(first.run, 1)
    before = list(first.run.read_jsonl("cells.jsonl"))
    assert [one["name"] for one in before] == ["chunk-400"]

    job, spec = new(places, SPEC, first.run)
    summary = tune.run(job, spec)
    assert not servers_of(first.run)
    assert not servers_of(job.run)
    cells = list(job.run.read_jsonl("cells.jsonl"))
    assert [one["name"] for one in cells] == ["chunk-400", "chunk-20", "confirm-chosen", "confirm-baseline"]
    assert cells[0] == {"from": first.run.name, **before[0]}  # not measured again
    rows = list(job.run.read_jsonl("requests.jsonl"))
    assert [row["cell"] for row in rows].count("chunk-400") == 3 + 1
    assert {one["state"] for one in cells} == {"valid"}
    assert cells[1]["memory"]["kind"] == "RAM"
    assert cells[1]["memory"]["peak_bytes"] > 2**20

    # The rule was frozen, the same, before the first cell of either attempt.
    ledger = Ledger(places.ledger)
    frozen = read_frozen(job.run, tune.RULE, ledger)
    assert frozen.sha256 == read_frozen(first.run, tune.RULE, ledger).sha256 == summary["rule_sha256"]
    assert frozen.value["rule"]["close_within"] == 0.1
    assert frozen.value["baseline"] == "chunk-400"
    assert summary["rule"]["first_frozen"] < summary["rule"]["t"]

    assert (summary["verdict"], summary["chosen"], summary["n"], summary["failures"]) == (
        "confirmed",
        "chunk-20",
        12,
        0,
    )
    assert len(summary["choice"]["steps"]) == 4
    assert summary["confirmation"]["change"]["ttft_p95"] < -0.5
    saved = load_profiles(places.servers)["tuned-tuned"]
    assert saved.launch is not None
    assert saved.launch.argv[-2:] == ("--chunk", "20")
    assert summary["profile"] == "tuned-tuned"
    assert job.run.name in saved.notes
    assert tomllib.loads(job.run.file("chosen.toml").read_text())["launch"]["argv"][-1] == "20"

    events = list(job.run.read_jsonl("events.jsonl"))
    told = [event for event in events if event["kind"] == "cell"]
    assert [event["done"] for event in told] == [2, 3, 4]
    assert told[0]["left_s"] > 0
    assert told[-1]["left_s"] == 0
    progress = [event for event in events if event["kind"] == "progress"]
    assert (progress[-1]["done"], progress[-1]["total"]) == (12, 12)


def test_another_rule_or_an_edited_one_takes_nothing_over(places: Places) -> None:
    first, spec = new(places, SPEC)
    tune._freeze(first, spec, profile())
    first.run.append_jsonl("cells.jsonl", {"name": "chunk-400", "state": "failed"})
    softer = {**SPEC, "rule": {**SPEC["rule"], "close_within": 0.5}}
    job, changed = new(places, softer, first.run)
    with refused("rule-differs", first.run.name, error=JobError):
        tune.run(job, changed)
    slower = profile().model_copy(update={"model": "another"})
    save_profile(places.servers, slower)
    job, spec = new(places, SPEC, first.run)
    with refused("rule-differs", first.run.name, error=JobError):
        tune.run(job, spec)
    save_profile(places.servers, profile())
    rule = first.run.file(tune.RULE)
    rule.write_bytes(rule.read_bytes().replace(b"0.1", b"0.9"))
    job, spec = new(places, SPEC, first.run)
    with refused("freeze-changed", tune.RULE, error=FrozenError):
        tune.run(job, spec)


@pytest.mark.slow
def test_a_failed_cell_is_kept_and_a_stop_keeps_what_there_is(places: Places) -> None:
    grid = {"grid": {"pool": [95, 70], "chunk": [20]}}
    spec = {**SPEC, **grid, "rule": {**SPEC["rule"], "baseline": {"pool": 70, "chunk": 20}}}
    job, checked = new(places, spec)
    summary = tune.run(job, checked)
    failed = summary["cells"][0]
    assert (failed["name"], failed["state"]) == ("pool-95-chunk-20", "failed")
    assert "out of memory: the pool" in failed["why"]
    assert "out of memory" in job.run.file("server-pool-95-chunk-20.log").read_text()
    assert summary["chosen"] == "pool-70-chunk-20"
    assert (summary["confirmation"]["same_cell"], summary["verdict"]) == (True, "baseline kept")
    assert summary["profile"] is None and job.run.file("chosen.toml").exists()
    assert not [cell for cell in summary["cells"] if cell["name"].startswith("confirm")]  # noise is not measured

    stopping, checked = new(places, spec)
    stopping._stop.set()
    with pytest.raises(Stopped) as stopped:
        tune.run(stopping, checked)
    assert stopped.value.summary is not None
    assert stopped.value.summary["verdict"] == "not finished"
    hopeless, checked = new(
        places,
        {
            **spec,
            "grid": {"pool": [95], "chunk": [20]},
            "rule": {**SPEC["rule"], "baseline": {"pool": 95, "chunk": 20}},
        },
    )
    with refused("cells-unmeasured", "out of memory", error=JobError):
        tune.run(hopeless, checked)


def test_a_stopped_sweep_goes_on_with_the_cells_that_are_left(places: Places) -> None:
    cells = [{"name": name} for name in ("one", "two", "three")]
    spec = {"model": "reference", "requests": 2, "warm_up": 0, "output_tokens": 4, "cells": cells, "equal_work": True}
    with running(Schedule(role_ms=1, ttft_ms=5, itl_ms=1, tokens=4)) as reference:
        preset = Preset(
            "sweep-test", "sweep", "A test's sweep", {**spec, "base_url": reference.base_url, "lag_limit_ms": 60_000}
        )
        checked = overlay(preset)
        first = Context(create_run(places, preset, checked), places)
        told = first.run.events.emit

        def stop_after_one(kind: str, **fields: Any) -> None:
            told(kind, **fields)
            if kind == "mark" and "two" in fields["text"]:
                first._stop.set()

        first.run.events.emit = stop_after_one  # type: ignore[method-assign]
        with pytest.raises(Stopped):
            sweep.run(first, checked)  # type: ignore[arg-type]
        assert [(c["name"], c["state"]) for c in first.run.read_jsonl("cells.jsonl")] == [
            ("one", "valid"),
            ("two", "stopped"),
        ]
        second = Context(create_run(places, preset, checked, first.run), places, first.run)
        summary = sweep.run(second, checked)  # type: ignore[arg-type]
        assert [(c["name"], c["state"], c.get("from")) for c in summary["cells"]] == [
            ("one", "valid", first.run.name),
            ("two", "valid", None),
            ("three", "valid", None),
        ]
        assert sorted(row["cell"] for row in second.run.read_jsonl("requests.jsonl")) == sorted(
            ["one", "two", "three"] * 2
        )
        assert set(second.run.read_json("conditions.json")) == {"one", "two", "three"}

        other = overlay(preset, ["requests=1"])
        third = Context(create_run(places, preset, other, first.run), places, first.run)
        assert [c.get("from") for c in sweep.run(third, other)["cells"]] == [None] * 3  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 13 minutes beside a training that had both cores, most of it the server's prefill
def test_the_tiny_preset_tunes_real_mlx_vlm(places: Places) -> None:
    pytest.importorskip("mlx_vlm")
    preset = load_preset("tune-tiny")
    # Two of its four cells, and shorter ones: a busy machine takes a minute for a start and four for all 449 tokens.
    smaller = ["grid.max_num_seqs=[4]", "requests=4", "warm_up=2", "input_tokens=200", "lag_limit_ms=60000"]
    spec: Any = overlay(preset, smaller)
    job = Context(create_run(places, preset, spec), places)
    summary = tune.run(job, spec)
    assert summary["failures"] == 0
    kept = summary["verdict"] == "baseline kept"
    assert summary["n"] == 4 * (2 if kept else 4)
    assert summary["chosen"] in {one.name for one in spec.expand()}
    for one in summary["cells"]:
        assert one["read_back"] == one["parameters"]  # the server itself tells both
        assert one["summary"]["output_tokens"] == 32
        assert one["memory"]["peak_bytes"] > 50 * 2**20
    assert kept or summary["verdict"] in ("confirmed", "not confirmed")  # which of them is the machine's noise
    assert (summary["profile"] is not None) == (summary["verdict"] == "confirmed")
