"""Small steps in coarse numbers: float32 copies that keep them, and words for what is rounded away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_grpo import FAST, equal, rows, weights

from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.recipe import load_recipe
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.grpo import GrpoSpec, estimate, run
from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training import checkpoint, export
from vlmconsole.training.bases import base_folder
from vlmconsole.training.grpo_train import GrpoTraining, Trainer
from vlmconsole.training.masters import Masters, half_steps, lost_above
from vlmconsole.training.model import load

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_a_step_is_what_moves_a_number(dtype: torch.dtype) -> None:
    values = (torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 0.05).to(dtype)
    half = half_steps(values)
    up = values.double() + 1.001 * half * values.sign().double()
    assert bool((up.to(dtype) != values).all())
    assert torch.equal((values.double() + 0.999 * half * values.sign().double()).to(dtype), values)
    above = values[values.abs() > lost_above(1e-4, str(dtype).removeprefix("torch."))]
    assert torch.equal((above.double() + 0.999e-4 * above.sign().double()).to(dtype), above)


def test_copies_take_steps_that_coarse_numbers_lose() -> None:
    start = torch.linspace(0.01, 2.0, 64)

    def trained(dtype: torch.dtype, copies: bool) -> tuple[Any, Any]:
        parameter = torch.nn.Parameter(start.to(dtype).clone())
        masters = Masters([parameter]) if copies else None
        stepped = [parameter] if masters is None else masters.weights
        optimizer = torch.optim.AdamW(stepped, lr=1e-5, weight_decay=0.0, foreach=False)
        if masters is not None:
            masters.follow(optimizer)
        for _ in range(100):
            optimizer.zero_grad(set_to_none=True)
            for _ in range(2):  # two micro batches: their gradients add up in float32
                parameter.sum().backward()
            optimizer.step()
        return parameter.detach(), stepped[0].detach()

    exact, _ = trained(torch.float32, False)
    lost, _ = trained(torch.bfloat16, False)
    kept, copies = trained(torch.bfloat16, True)
    assert copies.dtype == torch.float32 and torch.equal(kept, copies.bfloat16())
    # 100 steps of 1e-5, each rounded to float32 near 2.
    assert torch.allclose(start.bfloat16().float() - copies, start - exact, rtol=0, atol=100 * 2**-24)
    assert torch.equal(lost, start.bfloat16()) and int((kept != lost).sum()) > 5


@pytest.mark.slow
def test_going_on_with_copies_is_exact(tmp_path: Path) -> None:
    def trainer() -> Trainer:
        loaded = load(base_folder(""), dtype="bfloat16")
        return Trainer(loaded, rows(8), GrpoTraining(**{**FAST, "rate": 1e-5}), masters=True)

    whole, first, second = trainer(), trainer(), trainer()
    whole.take(), whole.take(), first.take()
    checkpoint.save(tmp_path / "checkpoint.pt", first.state())
    second.restore(checkpoint.read(tmp_path / "checkpoint.pt"))
    assert equal(weights(second.loaded.model), weights(first.loaded.model))
    second.take()
    assert equal(weights(second.loaded.model), weights(whole.loaded.model))
    assert equal(dict(second.stepped()), dict(whole.stepped()))
    assert {p.dtype for p in whole.stepped().values()} == {torch.float32}


def test_few_numbers_of_many_tensors_is_a_warning() -> None:
    loaded = load(base_folder(""), dtype="bfloat16")
    before = weights(loaded.model)
    trainer = Trainer(loaded, rows(2), GrpoTraining(**{**FAST, "rate": 1e-6}))
    for parameter in trainer.stepped().values():
        parameter.grad = torch.ones_like(parameter)
    trainer.optimizer.step()
    half = export.summary(export.changes(before, weights(loaded.model)))["language"]
    assert half["tensors_changed"] > 30 and half["numbers_changed"] < 0.05 * half["numbers"]
    assert "rounded away" in export.rounded_away(half, 1e-6, "bfloat16")
    # Few for another reason: what changed is more than rounding.
    assert export.rounded_away({**half, "change_norm": 9.0}, 1e-6, "bfloat16") == ""
    assert export.rounded_away({**half, "numbers_changed": 0}, 1e-6, "bfloat16") == ""


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
parts = [{ group = "regular", count = 2 }]
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Places:
    places = Places(tmp_path_factory.mktemp("lab")).ensure()
    (places.home / "few.toml").write_text(RECIPE)
    make_dataset(load_recipe(str(places.home / "few.toml")), places.datasets)
    return places


def trained(lab: Places, *sets: str) -> tuple[dict[str, Any], RunFolder, list[dict[str, Any]]]:
    preset = load_preset("grpo-3-tiny", lab)
    given = [
        "data=few",
        "steps=2",
        "questions=2",
        "temperature=2.0",
        "max_new_tokens=20",
        "reload_check=1",
        "seed=1",
        *sets,
    ]
    folder = create_run(lab, preset, overlay(preset, given), None)
    summary = run(Context(folder, lab, None), GrpoSpec.model_validate(folder.job()["spec"]))
    return summary, folder, [event for event in folder.read_jsonl("events.jsonl") if event["kind"] == "note"]


def share(text: str) -> float:
    changed, numbers = text.partition(" (")[0].replace(",", "").split(" of ")
    return int(changed) / int(numbers)


@pytest.mark.slow
def test_a_training_whose_steps_round_away_says_so(lab: Places) -> None:
    summary, folder, notes = trained(lab, "precision=bfloat16", "float32_masters=false", "lr=1e-6")
    assert share(summary["language_numbers_changed"]) < 0.05
    assert summary["language_change_norm"] < summary["language_rounding_norm"]
    assert summary["language_tensors_changed"].endswith(" of 51")  # as before, and no longer alone
    (warning,) = [note["text"] for note in notes if note["level"] == "warning"]
    assert "rounded away" in warning and "0.0005" in warning
    assert "float32_masters" not in folder.read_json("conditions.json")["settings"]


@pytest.mark.slow
def test_float32_and_copies_lose_nothing(lab: Places) -> None:
    summary, folder, notes = trained(lab, "precision=bfloat16", "lr=1e-6", "weight_decay=0.01")
    assert share(summary["float32_numbers_changed"]) > 0.9 and summary["reload_same_answers"] == "1 of 1"
    assert folder.read_json("conditions.json")["settings"]["float32_masters"] is True
    assert not [note for note in notes if note["level"] == "warning"]
    summary, folder, notes = trained(lab, "precision=float32", "lr=1e-6", "weight_decay=0.01")
    assert share(summary["language_numbers_changed"]) > 0.8 and "float32_numbers_changed" not in summary
    assert "float32_masters" not in folder.read_json("conditions.json")["settings"]
    # Below even float32's resolution: 2e-10 on numbers of 0.02.
    summary, _, notes = trained(lab, "precision=float32", "lr=1e-10")
    assert any("rounded away" in note["text"] for note in notes if note["level"] == "warning")


def test_the_plan_says_what_coarse_weights_lose(lab: Places) -> None:
    def note(*sets: str, preset: str = "grpo-3-tiny") -> str:
        spec = overlay(load_preset(preset, lab), list(sets))
        assert isinstance(spec, GrpoSpec)
        return estimate(spec).note

    assert "rounded away" in note(preset="grpo-30")
    float32 = 'verl.overrides=["actor_rollout_ref.actor.fsdp_config.model_dtype=float32"]'
    assert "rounded away" not in note(float32, preset="grpo-30")
    assert "rounded away" in note("precision=bfloat16", "float32_masters=false", "lr=1e-6")
    assert "rounded away" not in note("precision=bfloat16") + note("precision=float32", "float32_masters=false")


def test_a_share_is_never_rounded_to_nothing_or_all() -> None:
    assert [export.percent(*pair) for pair in ((0, 9), (1, 10**6), (999, 1000), (9, 9), (65, 10000))] == [
        "0 %",
        "0.0001 %",
        "> 99 %",
        "100 %",
        "0.65 %",
    ]
