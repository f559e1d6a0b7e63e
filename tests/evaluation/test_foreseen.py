"""What makes an evaluation unfit for its plan is said when it is planned, not after an hour; settings as TOML."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from audited import PLAN, SmallLab
from refusals import mentions, refused

from vlmconsole.evaluation.preflight import plan_problems
from vlmconsole.evaluation.resolve import resolve
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.binding import bind, freeze_for_lab
from vlmconsole.gates.plan import parse_plan
from vlmconsole.jobs.presets import PresetError, load_preset
from vlmconsole.queue.adding import plan as planned
from vlmconsole.text.toml import toml_value


@pytest.fixture
def lab(tmp_path: Path) -> SmallLab:
    return SmallLab(tmp_path / "home")


def told(lab: SmallLab, change: dict[str, Any], alone: bool = True, **settings: Any) -> list[str]:
    path = lab.places.home / "mini-plan.toml"
    path.write_text(tomlkit.dumps({**PLAN, **change}))
    asked = {"data": ["mini"], "plan": str(path), "after_adapter": "some", **settings}
    return plan_problems(resolve(EvaluateSettings.model_validate(asked), lab.places), alone)


GROUPS = PLAN["groups"]
CASES: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({}, {"data": ["naming"]}, ("mini-plan", "mini", "naming")),
    ({}, {"data": ["nosuch"]}, ("no dataset", "nosuch")),
    ({"data": {"recipes": ["naming"]}}, {"data": ["naming"]}, ("test-regular", "naming")),
    (
        {"groups": [{**GROUPS[0], "n": 9}, GROUPS[1]], "generations": {"evaluation": 22}},
        {},
        ("mini:test-regular", "4", "mini-plan", "9"),
    ),
    (
        {"groups": [{**GROUPS[0], "split": "dev", "n": 3}, GROUPS[1]], "generations": {"evaluation": 10}},
        {},
        ("mini:dev", "dev split"),
    ),
    (
        {"conditions": {"max_tokens": 64}},
        {"max_new_tokens": 32},
        ("max_tokens = 64", "32"),
    ),
    ({"conditions": {"seed": 42}}, {"seed": 7}, ("seed = 42", "7")),
    ({}, {"diagnostic": "mini:train"}, ("no answers", "training images")),
    (
        {"generations": {"evaluation": 12, "training_diagnostic": 8}},
        {"diagnostic": "mini:train"},
        ("mini:train", "4", "mini-plan", "8", "diagnostic"),
    ),
    ({}, {"plan": "repair-15-tinny"}, ("repair-15-tiny",)),
    ({}, {"plan": "0123456789ab"}, ("No plan", "0123456789ab")),
]


@pytest.mark.parametrize(("change", "settings", "nouns"), CASES, ids=["-".join(case[2]) for case in CASES])
def test_what_the_plan_cannot_judge_is_foreseen(
    lab: SmallLab, change: dict[str, Any], settings: dict[str, Any], nouns: tuple[str, ...]
) -> None:
    found = told(lab, change, **settings)
    assert any(mentions(text, *nouns) for text in found), found


def test_nothing_is_held_against_a_fitting_evaluation_nor_against_what_a_flow_will_make(lab: SmallLab) -> None:
    assert told(lab, {}) == []
    assert told(lab, {}, alone=False, data=["mini-2"]) == []
    assert told(lab, {}, alone=False, plan="${freeze.frozen}") == []


def test_development_answers_of_another_number_and_another_before_are_foreseen(lab: SmallLab) -> None:
    trained = lab.train()
    adapter = str(trained.file("adapter"))
    (few,) = told(lab, {"generations": {"evaluation": 12, "development": 5}}, after_adapter=adapter)
    assert mentions(few, "6 development answers", "mini-plan", "5")
    frozen = freeze_for_lab(
        bind(parse_plan(PLAN, "test"), [lab.dataset], before_adapter="one sha256:aa"), lab.places.home, lab.ledger
    )
    (other,) = told(lab, {}, plan=frozen.sha256)
    assert mentions(other, "mini-plan", "sha256:aa", "base")
    lab.remake("dev", lambda rows: rows[::-1])
    assert any(mentions(text, "mini-plan", "bound") for text in told(lab, {}, plan=frozen.sha256))


def test_planning_and_queueing_refuse_it(lab: SmallLab) -> None:
    sets = ["data=['naming']", "after_adapter=some"]
    with refused("preflight-failed", "eval-sft-tiny", "sft-7-tiny", "sft-expand-tiny", error=PresetError):
        planned(load_preset("eval-sft-tiny"), sets, lab.places, alone=False)
    assert planned(load_preset("eval-sft-tiny"), ["after_adapter=some"], lab.places, alone=False)


def test_settings_are_shown_as_a_preset_writes_them() -> None:
    value = {"on": True, "text": 'say "a"', "n": 3, "x": 1e-3, "list": [1, "b"], "in": {"a b": False, "gone": None}}
    lines = "\n".join(f"{key} = {toml_value(item)}" for key, item in value.items())
    assert tomllib.loads(lines) == {**value, "in": {"a b": False}}
    assert toml_value({}) == "{}" and "None" not in json.dumps(lines)
