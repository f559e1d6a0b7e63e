"""The rules of a supervised training that need no model: order, rate, selection, estimate, presets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vlmconsole.jobs.presets import PresetError, load_preset, overlay
from vlmconsole.jobs.sft import KIND
from vlmconsole.queue.flows import read_flow
from vlmconsole.runs.places import Places
from vlmconsole.training.curriculum import Curriculum, rate_at
from vlmconsole.training.selection import SelectionRule, choose

FEW = st.integers(1, 9)


@given(rows=st.integers(1, 60), epochs=st.integers(1, 3), batch=FEW, accumulation=FEW, seed=st.integers(0, 5))
def test_every_picture_is_seen_once_an_epoch(rows: int, epochs: int, batch: int, accumulation: int, seed: int) -> None:
    plan = Curriculum(rows, epochs, batch, accumulation, seed)
    for epoch in range(epochs):
        first = epoch * plan.steps_per_epoch
        steps = [plan.step_rows(step) for step in range(first, first + plan.steps_per_epoch)]
        assert sorted(row for step in steps for part in step for row in part) == list(range(rows))
        assert all(1 <= len(part) <= batch for step in steps for part in step)
        assert all(1 <= len(step) <= accumulation for step in steps)


def test_order_follows_the_seed_and_the_epoch() -> None:
    plan = Curriculum(30, 2, 4, 1, 1)
    assert plan.order(1) == Curriculum(30, 9, 2, 2, 1).order(1)
    assert plan.order(1) != plan.order(2) != Curriculum(30, 2, 4, 1, 2).order(2)


def test_rate_rises_then_falls_to_a_twentieth() -> None:
    rates = [rate_at(step, 100, 2e-3, 10, "cosine") for step in range(100)]
    assert rates[0] < rates[5] < max(rates) <= 2e-3
    assert rates[10:] == sorted(rates[10:], reverse=True) and 1e-4 <= rates[-1] < 1.1e-4
    assert rate_at(99, 100, 1.0, 0, "linear") == pytest.approx(0.0595)
    assert rate_at(99, 100, 1.0, 0, "constant") == 1.0


@given(
    st.dictionaries(st.integers(1, 9), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=5), min_size=1)
)
def test_best_mean_wins_and_ties_go_to_the_earlier(rewards: dict[int, list[float]]) -> None:
    choice = choose(rewards)
    best = max(sum(values) for values in rewards.values())
    assert choice.epoch == min(epoch for epoch, values in rewards.items() if sum(values) == best)
    assert choice.tied[0] == choice.epoch and choice.means[choice.epoch] == best / 5


def test_selection_needs_the_same_samples_of_each() -> None:
    for bad in ({}, {1: []}, {1: [1.0], 2: [1.0, 0.5]}):
        with pytest.raises(ValueError, match="same, non-empty"):
            choose(bad)
    rule = SelectionRule("few", "0" * 64, "dev", ("a", "b"), (2, 4, 6), 64).to_json()
    assert rule["epochs"] == [2, 4, 6] and "earlier epoch" in rule["rule"]
    assert "not a baseline" in rule["label"] and "scorers" not in rule, "rules of earlier versions keep their hash"
    scored = SelectionRule("few", "0" * 64, "dev", ("a",), (2,), 64, scorers=("exact/1",), scoring_sha256="1" * 64)
    assert scored.to_json()["scorers"] == ["exact/1"]


@pytest.mark.parametrize(
    ("name", "steps", "epochs", "rate"),
    [
        ("sft-expand", 1152, [2, 4, 6], 2e-4),
        ("repair-1", 1920, [2, 4, 6], 1e-4),
        ("repair-2", 1920, [1, 2, 3], 5e-5),
        ("sft-expand-tiny", 1152, [2, 4, 6], 2e-3),
        ("repair-1-tiny", 1920, [2, 4, 6], 1.5e-3),
        ("repair-2-tiny", 1920, [1, 2, 3], 1e-3),
    ],
)
def test_presets_have_the_labs_sizes(name: str, steps: int, epochs: list[int], rate: float, tmp_path: Path) -> None:
    spec = overlay(load_preset(name))
    values = spec.model_dump()
    assert (values["rank"], values["alpha"], values["dev_epochs"], values["lr"]) == (8, 16, epochs, rate)
    assert KIND.estimate_here is not None
    guess = KIND.estimate_here(spec, Places(tmp_path))
    assert f"= {steps} steps of 4" in guess.note
    # Nothing is said of the time of what was never measured.
    assert (guess.seconds is None) == (not name.endswith("-tiny"))
    assert guess.memory_bytes is not None and "Memory:" in guess.note


def test_flows_pass_the_chosen_adapter_on() -> None:
    for tiny in ("", "-tiny"):
        seeds = read_flow("seeds", load_preset(f"sft-seeds{tiny}").spec)
        assert [step.set["seed"] for step in seeds.steps] == [1, 2, 3] and not any(step.after for step in seeds.steps)
        rounds = read_flow("rounds", load_preset(f"repair-rounds{tiny}").spec)
        assert [step.set.get("adapter") for step in rounds.steps] == [None, "${sft.adapter}", "${repair1.adapter}"]


def test_candidates_must_be_epochs_of_the_training() -> None:
    preset = load_preset("sft-expand-tiny")
    for wrong in ("[2, 7]", "[2, 2]", "[0]"):
        with refused("setting-invalid", "“dev_epochs”", "6", "once", error=PresetError):
            overlay(preset, [f"dev_epochs={wrong}"])
