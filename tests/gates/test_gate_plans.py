"""Shipped plans and what a plan must be: limits, hashes, groups that its recipes make."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import judged
import pytest
from judged import plan

from vlmconsole.data.recipe import load_recipe
from vlmconsole.errors import LabError
from vlmconsole.gates.plan import PlanError, load_plan, parse_plan, plan_names


# --- plans ---
def test_the_labs_fifteen_gates_are_exactly_its_own() -> None:
    lab = load_plan("lab-15")
    found = {(gate.group, gate.metric): (gate.sign, gate.limit) for gate in lab.gates}
    floors = {"regular": 0.85, "variants": 0.8, "scattered": 0.8, "dense": 0.7, "hollow": 0.75, "high": 0.6}
    expected: dict[tuple[str, str], tuple[str, float]] = {
        (group, "all_correct"): (">=", floor) for group, floor in floors.items()
    }
    for group in ("regular", "variants", "scattered", "dense", "textvqa"):
        expected[(group, "partial_drop")] = ("<=", 5.0)
    for group in ("hollow", "high"):
        expected[(group, "partial")] = (">=", 0.8)
        expected[(group, "partial_gain_ci_low")] = (">", 0.0)
    assert found == expected and len(lab.gates) == 15
    assert lab.generations.total == 1600 and all(group.n == 64 for group in lab.groups)
    twin = load_plan("repair-15-tiny")
    swapped = {(g.group.replace("naming", "textvqa"), g.metric): (g.sign, g.limit) for g in twin.gates}
    assert swapped == expected
    assert twin.group("naming").base_at_least == 0.8


def test_every_shipped_plan_fits_its_recipes_and_says_whose_it_is() -> None:
    assert {"lab-15", "sft-7", "repair-15-tiny", "sft-7-tiny", "grpo-5", "grpo-5-tiny"} <= set(plan_names())
    for name in plan_names():
        shipped = load_plan(name)
        assert "our own" in shipped.whose or "reference lab" in shipped.whose
        for recipe in shipped.data.recipes:
            # The guard of a plan whose own data have none is the dataset of the name.
            splits = {split.name: split for one in ("naming", recipe) for split in load_recipe(one).splits}
            for group in shipped.groups:
                if group.scorer != "textvqa":
                    assert sum(part.size or 0 for part in splits[group.split].parts) == group.n
    assert len(load_plan("sft-7").gates) == 7 and load_plan("sft-7").generations.total == 1056


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gates": [{"group": "nope", "metric": "all_correct", "at_least": 0.5}]}, "nope"),
        ({"gates": [{"group": "regular", "metric": "all_correct", "at_most": 0.5}]}, "at_least"),
        ({"gates": [{"group": "regular", "metric": "speed", "at_least": 0.5}]}, "metric"),
        ({"generations": {"evaluation": 7}}, "the groups make 60"),
        ({"limit": 3}, "limit"),
        ({"gates": []}, "gates"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_the_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan({**judged.PLAN, **change}, "test")


def test_anything_that_changes_in_a_plan_changes_its_hash() -> None:
    for change in ({"title": "x"}, {"resamples": 998}, {"seeds": {"training": [2]}}, {"conditions": {}}):
        assert plan(**change).sha256 != plan().sha256


def test_an_unknown_plan_names_the_nearest() -> None:
    with pytest.raises(LabError) as caught:
        load_plan("lab-14")
    assert "lab-15" in caught.value.hint


@pytest.mark.parametrize("name", ["grpo-5", "grpo-5-tiny"])
def test_reinforcement_learning_must_show_a_gain_and_no_loss_by_a_list_that_says_it_is_ours(name: str) -> None:
    """What "it helped" would mean: an interval above zero; the drops allowed are those of the lab's own fifteen."""
    ours, lab = load_plan(name), load_plan("lab-15")
    assert ours.whose.startswith("our own list") and ours.selection is None
    drops = {gate.limit for gate in lab.gates if gate.metric == "partial_drop"}
    assert {gate.limit for gate in ours.gates if gate.metric == "partial_drop"} == drops
    gains = {gate.group: (gate.sign, gate.limit) for gate in ours.gates if gate.metric == "partial_gain_ci_low"}
    assert gains == {"heldout": (">", 0.0), "new": (">", 0.0)}


# Taken from plans that were frozen by earlier versions: an upgrade must not make them other plans.
FROZEN = {
    "sft-7-tiny": "5a32bf1c59ea",
    "repair-15-tiny": "35e1963949bc",
    "stress-8-tiny": "2b7a3444aad6",
}


@pytest.mark.parametrize(("name", "sha"), FROZEN.items())
def test_shipped_plans_keep_the_hash_under_which_they_were_frozen(name: str, sha: str) -> None:
    assert load_plan(name).sha256.startswith(sha)


def test_the_base_is_inside_the_hash_and_plans_without_one_keep_theirs() -> None:
    free = plan()
    assert "base_sha256" not in free.value()
    bound = free.model_copy(update={"base_sha256": "a" * 64})
    assert bound.sha256 != free.sha256 and bound.value()["base_sha256"] == "a" * 64
    assert bound.template().sha256 == free.template().sha256
    with pytest.raises(PlanError, match="base_sha256"):
        plan(base_sha256="short")


def test_a_plans_wrong_keys_are_told_as_people_write_them(tmp_path: Path) -> None:
    text = (files("vlmconsole.presets") / "gates" / f"{plan_names()[0]}.toml").read_text("utf-8")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(re.sub(r"^n = \d+", "n = 'many'", text, count=1, flags=re.MULTILINE))
    with pytest.raises(PlanError) as told:
        load_plan(str(wrong))
    assert "groups[1].n" in str(told.value), told.value
    wrong.write_text(re.sub(r"(?m)^evaluation = \d+", "evaluation = 3", text, count=1))
    with pytest.raises(PlanError) as told:
        load_plan(str(wrong))
    assert "Value error" not in str(told.value) and "the groups make" in str(told.value), told.value
