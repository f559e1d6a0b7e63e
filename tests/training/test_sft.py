"""Supervised LoRA on the bundled model: what is taught, what stays frozen, what is left behind, and exact resume."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sft_runs
import torch
from refusals import check_nouns, refused
from sft_runs import ended, lab, make, weights, work

from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.example import Example, read_examples
from vlmconsole.data.recipe import load_recipe
from vlmconsole.data.rows import read_rows
from vlmconsole.data.splits import LeakError
from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import JobError
from vlmconsole.jobs.launch import start_worker
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import read_frozen
from vlmconsole.models.weights import read_arrays, to_bytes
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training import curriculum, sft
from vlmconsole.training.adapters.provenance import read_provenance, weights_sha256
from vlmconsole.training.adapters.store import AdapterError
from vlmconsole.training.bases import base_folder
from vlmconsole.training.checkpoint import CheckpointError
from vlmconsole.training.model import encode, load


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Places, RunFolder]:
    """A lab with one whole training in it."""
    places = lab(tmp_path_factory.mktemp("lab"))
    run = make(places)
    work(places, run)
    return places, run


def rows(places: Places, split: str = "train") -> list[Example]:
    return list(read_examples(places.datasets / "few" / f"{split}.parquet"))


def test_a_run_leaves_all_of_its_evidence(done: tuple[Places, RunFolder]) -> None:
    places, run = done
    summary = run.read_json("summary.json")
    frozen = read_frozen(run, "selection.json", Ledger(places.ledger)).value
    lines = list(run.read_jsonl("training.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, 7)) and lines[-1]["epoch"] == 2
    assert frozen["epochs"] == [1, 2] and frozen["n"] == 4
    assert frozen["scorers"] == ["counting/1"] and len(frozen["scoring_sha256"]) == 64
    assert run.file("selection.json").stat().st_mtime_ns < run.file("training.jsonl").stat().st_mtime_ns

    for epoch in (1, 2):
        samples = list(run.read_jsonl(f"dev-epoch{epoch}.jsonl"))
        assert [sample["id"] for sample in samples] == frozen["uids"]
        assert sum(s["reward"] for s in samples) / 4 == summary["dev"][str(epoch)]
        assert {s["label"] for s in samples} == {"not a baseline"}
    chosen = f"epoch-{summary['epoch']}"
    assert weights(run, chosen) == weights(run, "adapter")
    assert weights_sha256(run.file("adapter")) == summary["adapter_sha256"]
    origin = read_provenance(run.file("adapter"))
    assert origin is not None and origin.run == run.name and origin.resumable is False and origin.kind == "sft"

    changed = run.read_json("weights.json")
    assert changed["changed"] == len(changed["tensors"]) == 56 and changed["unchanged"] == 0
    numbers = [sum(one[key] for one in changed["tensors"]) for key in ("numbers_changed", "numbers")]
    assert 0.9 * numbers[1] < numbers[0] <= numbers[1]
    assert summary["numbers_changed"] == f"{numbers[0]:,} of {numbers[1]:,}"
    assert changed["visual_tensors_trained"] == changed["visual_tensors_changed"] == 0
    assert changed["frozen_before"] == changed["frozen_after"]
    mask = run.read_json("mask.json")
    assert mask["wrong"] == mask["visual_tokens_supervised"] == 0 and len(mask["each"]) == mask["rows"] == 10
    assert mask["each"][0]["visual_tokens"] == 64

    events = list(run.read_jsonl("events.jsonl"))
    shown = [event for event in events if event["kind"] == "rollout"]
    assert len(shown) == 8 and all(run.file(event["picture"]).is_file() for event in shown)
    curves = {event["name"] for event in events if event["kind"] == "metric"}
    assert {"loss", "grad norm", "weight change", "development mean reward", "development all-correct"} <= curves
    told = next(event for event in events if event["kind"] == "weights")["change_l2"]
    assert len(told) == 56 and all(length > 0 for length in told.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_taken_up_in_this_process_ends_in_the_same_weights(done: tuple[Places, RunFolder]) -> None:
    places, whole = done
    base = load(base_folder(""))
    model = sft.adapted(base, sft.SftTraining(rate=2e-3, seed=1))
    plan, settings = curriculum.Curriculum(10, 2, 4, 1, 1), sft.SftTraining(rate=2e-3, seed=1)
    first = sft.Course(base, model, rows(places), plan, settings)
    list(first.steps(2))
    state = first.state()
    kept = {name: value.clone() for name, value in state["adapter"].items()}
    list(first.steps(3))  # goes on, so that what is taken up must be brought back
    other = load(base_folder(""))
    second = sft.Course(other, sft.adapted(other, replace(settings, seed=9)), rows(places), plan, settings)
    second.take_up({**state, "adapter": kept})
    # The optimizer's state was shared with the first course: only a checkpoint on disk holds it apart.
    assert second.done == 2
    losses = [line["loss"] for line in whole.read_jsonl("training.jsonl")]
    assert next(second.steps(3)).loss == losses[2]


@pytest.mark.slow
def test_accumulation_changes_memory_and_nothing_else(done: tuple[Places, RunFolder]) -> None:
    places, _ = done
    ends = []
    for batch, accumulation in ((4, 1), (1, 4)):
        base = load(base_folder(""))
        settings = sft.SftTraining(rate=1e-3, seed=3)
        plan = curriculum.Curriculum(10, 1, batch, accumulation, 3)
        course = sft.Course(base, sft.adapted(base, settings), rows(places), plan, settings)
        ends.append((list(course.steps(2)), course.state()["adapter"]))
    (one, a), (four, b) = ends
    assert [s.loss for s in one] == pytest.approx([s.loss for s in four], rel=1e-4)
    assert [s.supervised for s in one] == [s.supervised for s in four]
    assert all(torch.allclose(a[name], b[name], atol=2e-4) for name in a)


@pytest.mark.slow
def test_a_bfloat16_base_has_a_float32_adapter(done: tuple[Places, RunFolder]) -> None:
    places, _ = done
    base = load(base_folder(""), dtype="bfloat16")
    settings = sft.SftTraining(gradient_checkpointing=True)
    model = sft.adapted(base, settings)
    before = sft.frozen_sha256(model)
    course = sft.Course(base, model, rows(places)[:4], curriculum.Curriculum(4, 1, 4, 1, 0), settings)
    step = next(course.steps(1))
    assert 0 < step.loss < 10 and step.grad_norm > 0
    kinds = {p.dtype for name, p in model.named_parameters() if not p.requires_grad}
    assert kinds == {torch.bfloat16} and {t.dtype for t in course.state()["adapter"].values()} == {torch.float32}
    moments = [v for s in course.state()["optimizer"]["state"].values() for v in s.values()]
    assert {value.dtype for value in moments} == {torch.float32}
    assert sft.frozen_sha256(model) == before
    next(iter(sft.taught(model).values())).data.fill_(float("nan"))
    with pytest.raises(sft.DivergedError, match="holds NaN"):
        course.state()


@pytest.mark.slow
def test_mask_audit_sees_a_mask_over_the_prompt(
    done: tuple[Places, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    places, _ = done
    loaded, row = load(base_folder("")), rows(places)[0]
    assert [one.wrong for one in curriculum.audit_mask(loaded, [row], lambda: False)] == [""]

    def over_the_prompt(*words: object, **more: object) -> dict[str, torch.Tensor]:
        inputs = encode(*words, **more)  # type: ignore[arg-type]
        inputs["labels"] = inputs["input_ids"].clone()
        return inputs

    monkeypatch.setattr(curriculum, "encode", over_the_prompt)
    run = make(places)
    with refused("mask-wrong", "10 of 10", error=JobError):
        work(places, run)
    assert not run.file("training.jsonl").exists() and run.read_json("mask.json")["visual_tokens_supervised"] == 640


def kill_at(run: RunFolder, step: int, earlier: RunFolder | None = None, timeout: float = 600) -> None:
    """Start the worker and kill it -9 once training.jsonl shows `step`."""
    worker = start_worker(run, variables={"OMP_NUM_THREADS": "1"})
    until = time.monotonic() + timeout
    try:
        while time.monotonic() < until and worker.poll() is None:
            if sum(1 for _ in run.read_jsonl("training.jsonl")) >= step:
                break
            time.sleep(0.005)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)
    assert sum(1 for _ in run.read_jsonl("training.jsonl")) >= step and not run.file("summary.json").exists()


@pytest.mark.timeout(500)
@pytest.mark.slow
def test_killed_and_taken_up_ends_in_the_same_weights(done: tuple[Places, RunFolder]) -> None:
    """One kill -9 of a real worker at its first step; the second attempt runs here."""
    places, whole = done
    killed = make(places)
    kill_at(killed, 1)
    sealed = {path.name: path.read_bytes() for path in killed.path.iterdir() if path.is_file()}
    second = make(places, earlier=killed)
    summary = work(places, second, killed)
    assert weights(second) == weights(whole) and weights(second, "epoch-1") == weights(whole, "epoch-1")
    assert summary["adapter_sha256"] == whole.read_json("summary.json")["adapter_sha256"]
    assert {path.name: path.read_bytes() for path in killed.path.iterdir() if path.is_file()} == sealed
    strip = [[line | {"seconds": 0} for line in run.read_jsonl("training.jsonl")] for run in (second, whole)]
    assert strip[0] == strip[1]


def damaged(done: tuple[Places, RunFolder], how: str) -> RunFolder:
    """An earlier attempt whose checkpoint was made by the whole run, then damaged."""
    places, whole = done
    run = make(places)
    for name in ("checkpoint.pt", "checkpoint.json", "training.jsonl"):
        run.file(name).write_bytes(whole.file(name).read_bytes())
    data = bytearray(run.file("checkpoint.pt").read_bytes())
    if how == "a flipped bit":
        data[len(data) // 2] ^= 1
    elif how == "cut off":
        data = data[: len(data) // 2]
    run.file("checkpoint.pt").write_bytes(bytes(data))
    return run


@pytest.mark.parametrize("how", ["a flipped bit", pytest.param("cut off", marks=pytest.mark.slow)])
def test_a_corrupt_checkpoint_stops_with_its_reason(done: tuple[Places, RunFolder], how: str) -> None:
    places, whole = done
    left = damaged(done, how)
    before = left.file("checkpoint.pt").read_bytes()
    (left.path / "start").mkdir()
    for path in whole.file("start").iterdir():
        (left.path / "start" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError, match="is damaged"):
        work(places, make(places, earlier=left), left)
    assert left.file("checkpoint.pt").read_bytes() == before


@pytest.mark.slow
def test_a_checkpoint_of_other_settings_is_not_taken_up(done: tuple[Places, RunFolder]) -> None:
    places, whole = done
    with refused("checkpoint-differs", "spec", error=JobError):
        work(places, make(places, earlier=whole, lr=1e-3), whole)


def test_a_starting_adapter_must_fit(done: tuple[Places, RunFolder], tmp_path: Path) -> None:
    places, run = done
    for file in run.file("adapter").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with refused("adapter-differs", "rank 8", "alpha 16", "4", error=AdapterError):
        work(places, make(places, adapter=str(tmp_path), rank=4))
    arrays = read_arrays(tmp_path / "adapter_model.safetensors")
    name = next(name for name in arrays if name.endswith("q_proj.lora_A.weight"))
    kind, values = arrays[name]
    (tmp_path / "adapter_model.safetensors").write_bytes(to_bytes({**arrays, name: (kind, values[:, :64].copy())}))
    with pytest.raises(AdapterError, match="q_proj"):
        work(places, make(places, adapter=str(tmp_path)))


@pytest.mark.slow
def test_a_leaked_test_picture_stops_the_job(tmp_path: Path) -> None:
    places = lab(tmp_path / "lab")
    folder = make_dataset(load_recipe(str(tmp_path / "lab" / "few.toml")), places.datasets)
    leaked = next(read_rows(folder / "test-regular.parquet"))
    (tmp_path / "leaked.png").write_bytes(leaked.picture)
    line = {"image": "leaked.png", "answer": json.loads(leaked.truth)}
    (tmp_path / "own.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    own = sft_runs.RECIPE.replace('"few"', '"own"').replace("seed = 5", "seed = 6")
    (tmp_path / "own.toml").write_text(
        own.replace('{ group = "regular", low = 0, high = 7, count = 10 }', '{ file = "own.jsonl" }'), "utf-8"
    )
    run = make(places, data=str(tmp_path / "own.toml"))
    with refused("picture-leaked", "few:test-regular", error=LeakError):
        work(places, run)
    assert not run.file("training.jsonl").exists()

    # The same by force, into a dataset that was made: the examination before training finds it.
    other = next(read_rows(folder / "train.parquet"))
    manifest = (folder / "manifest.json").read_text("utf-8")
    (folder / "manifest.json").write_text(manifest.replace(other.sha256, leaked.sha256), "utf-8")
    data = (folder / "train.parquet").read_bytes()
    assert data.count(other.picture) == 1
    swapped = data.replace(other.picture, leaked.picture[: len(other.picture)].ljust(len(other.picture), b"\0"))
    (folder / "train.parquet").write_bytes(swapped)
    with refused("dataset-unfit", "few", "isolation", error=JobError):
        work(places, make(places))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_at_random_steps(tmp_path: Path) -> None:
    """Kills -9 of real workers at steps drawn by chance, up to five one after the other on the same training.

    VLMCONSOLE_KILLS says how many, VLMCONSOLE_KILL_SEED which steps.
    """
    places = lab(tmp_path)
    changes = {"epochs": 6, "dev_epochs": [2, 4, 6], "checkpoint_every": 2}
    whole = make(places, **changes)
    assert ended(whole) == 0, whole.state()
    kills, draw = (
        int(os.environ.get("VLMCONSOLE_KILLS", "5")),
        random.Random(os.environ.get("VLMCONSOLE_KILL_SEED", "0")),
    )
    while kills > 0:
        steps = sorted(draw.sample(range(1, 18), min(kills, 5)))
        kills -= len(steps)
        earlier: RunFolder | None = None
        for step in steps:
            run = make(places, earlier=earlier, **changes)
            kill_at(run, step)
            earlier = run
        last = make(places, earlier=earlier, **changes)
        assert ended(last) == 0, last.state()
        for epoch in range(1, 7):
            assert weights(last, f"epoch-{epoch}") == weights(whole, f"epoch-{epoch}"), (steps, epoch)
        mine, theirs = (run.read_json("summary.json") for run in (last, whole))
        assert mine["adapter_sha256"] == theirs["adapter_sha256"] and mine["dev"] == theirs["dev"], steps


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_base_with_nan_in_it_is_named(tmp_path: Path) -> None:
    """A base with NaN in it, which no rate mends: stopped with its reason through a real worker."""
    places = lab(tmp_path)
    base = tmp_path / "base"
    base.mkdir()
    for path in base_folder("").iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    arrays = read_arrays(base / "model.safetensors")
    name = next(name for name in arrays if name.endswith("layers.3.mlp.down_proj.weight") and "visual" not in name)
    kind, values = arrays[name]
    (base / "model.safetensors").write_bytes(
        to_bytes({**arrays, name: (kind, values * float("nan"))}, {"format": "pt"})
    )
    run = make(places, base=str(base))
    assert ended(run) == 1
    reason = run.state()["reason"]
    check_nouns(reason, "epoch 1", "loss nan", str(base), "NaN")
    check_nouns(reason, "model.language_model.layers.3.mlp.down_proj.weight")
    assert not run.file("training.jsonl").exists() and not run.file("adapter").exists()


@pytest.mark.slow
def test_a_later_divergence_blames_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base was whole and a step was taken: then it is the training's own settings, and that step is kept."""
    steps = sft.Course.steps

    def spoilt(course: sft.Course, until: int) -> Iterator[sft.SftStep]:
        for step in steps(course, until):
            yield step
            next(course.model.parameters()).data.fill_(torch.nan)

    monkeypatch.setattr(sft.Course, "steps", spoilt)
    places = lab(tmp_path)
    run = make(places)
    with refused("training-diverged", "epoch 1", "loss nan", "lr", error=JobError):
        work(places, run)
    assert [line["step"] for line in run.read_jsonl("training.jsonl")] == [1] and run.file("checkpoint.pt").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_full_disk_is_the_reason_and_loses_nothing(tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        places = lab(disk)
        run = make(places, epochs=6, dev_epochs=[6])
        assert ended(run) == 1
        state = run.state()
        assert state["state"] == "failed" and "disk is full" in state["reason"], state
        assert not list(run.path.glob(".*.tmp"))
        there = [path for path in run.path.glob("epoch-*") if path.is_dir()]
        assert there and all(read_provenance(path) for path in there)
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        second = make(places, earlier=run, epochs=6, dev_epochs=[6])
        assert ended(second) == 0, second.state()
        notes = [event["text"] for event in second.read_jsonl("events.jsonl") if event["kind"] == "note"]
        assert any("from step" in note and run.name in note for note in notes)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_repair_goes_on_from_the_newest_run_of_a_preset(done: tuple[Places, RunFolder]) -> None:
    places, run = done
    repaired = make(places, adapter="sft-expand-tiny", seed=4)
    summary = work(places, repaired)
    origin = read_provenance(repaired.file("adapter"))
    assert origin is not None and origin.kind == "repair"
    assert origin.parent_sha256 == summary["parent_sha256"] == run.read_json("summary.json")["adapter_sha256"]
    assert weights(repaired, "start") == weights(run, "adapter")
    with pytest.raises(LabError, match="no adapter"):
        work(places, make(places, adapter="repair-9"))


def test_a_training_that_scores_its_start_says_whether_it_learned(tmp_path: Path) -> None:
    places = lab(tmp_path)
    run = make(places, score_start=True, epochs=1, dev_epochs=[1], lr=1e-6)
    outcome = work(places, run)["outcome"]
    before, after = (list(run.read_jsonl(f"dev-epoch{epoch}.jsonl")) for epoch in (0, 1))
    assert [line["id"] for line in before] == [line["id"] for line in after] and outcome["n"] == len(after) == 4
    assert outcome["learned"] is False and outcome["causes"], "a rate of nothing teaches nothing"
    assert any("rate" in cause for cause in outcome["causes"])
    events = json.dumps(list(run.read_jsonl("events.jsonl")))
    assert "did not learn: development" in events and "likely cause: rate" in events
