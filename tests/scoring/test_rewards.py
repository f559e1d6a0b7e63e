"""Rewards of sampled answers: their parts and weights, what fails, and the same through verl's door."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from refusals import mentions

from vlmconsole.scoring.rewards import JudgedExample, Reward, RewardPart, RewardParts
from vlmconsole.scoring.verl_reward import LOADED, write_loader

SOURCE = """
def short(prediction, truth, most=3):
    return float(len(prediction) <= most)

def shaky(prediction, truth):
    if prediction == "raise":
        raise ValueError("shaky")
    return prediction == truth
"""


class Settings(BaseModel):
    reward: RewardParts = []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def reward(value: Any) -> Reward:
    return Reward(Settings(reward=value).reward)


@pytest.mark.parametrize(
    ("value", "scorers"),
    [
        ("", []),
        ([], []),
        ("number", ["number"]),
        ("mine.py:short", ["python:mine.py:short"]),
        (["exact", "python:mine.py:short"], ["exact", "python:mine.py:short"]),
        ({"scorer": "number", "options": {"tolerance": 0.1}}, ["number"]),
        ([{"scorer": ""}, {"scorer": "exact", "weight": 2}], ["", "exact"]),
    ],
)
def test_a_setting_is_a_name_a_table_or_a_list_of_both(value: Any, scorers: list[str]) -> None:
    assert [part.scorer for part in Settings(reward=value).reward] == scorers


@pytest.mark.parametrize(
    "value", ["guess", [{"scorer": "exact", "weight": 0}], [{"scorer": "exact", "wait": 1}], 3, [{"weight": "inf"}]]
)
def test_a_wrong_setting_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        Settings(reward=value)


def test_parts_are_weighted_and_kept_by_name(file: Path) -> None:
    made = reward([{"scorer": "exact", "weight": 3}, {"scorer": f"{file}:short", "options": {"most": 2}}])
    scored = made.judge("blue", JudgedExample("blue"))
    assert scored.reward == pytest.approx(0.75) and scored.valid and not scored.all_correct
    assert scored.details == {"parts": {"exact/1": 1.0, "python:mine.py:short": 0.0}}
    assert made.identity()[1]["scorer"].startswith("python:mine.py:short options")
    assert reward(["exact", "exact"]).names == ["exact/1", "exact/1 #2"]


def test_an_own_scorer_keeps_the_examples_options() -> None:
    example = JudgedExample("B", "choice", {"choices": {"A": "circle", "B": "square"}})
    assert reward([{"scorer": ""}]).judge("(B)", example).all_correct
    assert reward("choice").judge("(B)", example).all_correct
    assert reward([{"scorer": ""}, "exact"]).judge("(B)", example).details["parts"] == {"own": 1.0, "exact/1": 1.0}


def test_a_part_that_fails_gives_its_answer_nothing_and_says_why(file: Path) -> None:
    made = reward(["exact", f"{file}:shaky"])
    scored = made.judge("raise", JudgedExample("raise"))
    assert (scored.reward, scored.valid, scored.all_correct) == (0.0, False, False)
    assert scored.details["failed"] and mentions(scored.reason, "shaky", "ValueError")
    assert made.judge("blue", JudgedExample("blue")).reward == 1


def test_verl_gets_the_same_rewards_by_a_file_of_the_run(file: Path, tmp_path: Path) -> None:
    made = reward([{"scorer": ""}, {"scorer": f"{file}:shaky", "weight": 2}])
    truths = {
        "a": {"truth": 2, "scorer": "number", "options": {"tolerance": 0.1}, "question": "?"},
        "b": {"truth": ["x", "y"], "scorer": "exact", "options": {}, "question": "?"},
    }
    run = tmp_path / "run with space"
    run.mkdir()
    called = runpy.run_path(str(write_loader(run, made, truths)))[LOADED]
    for uid, about in truths.items():
        for answer in ("2.1", "x", "raise", ""):
            example = JudgedExample(about["truth"], about["scorer"], about["options"], "?", uid, "own")
            wanted = made.judge(answer, example)
            text = json.dumps(about["truth"])
            given = called(data_source="own", solution_str=answer, ground_truth=text, extra_info={"uid": uid})
            parts = {f"part/{name}": value for name, value in wanted.details["parts"].items()}
            assert given == {
                "score": wanted.reward,
                "all_correct": float(wanted.all_correct),
                "partial": wanted.partial,
                "valid": float(wanted.valid),
                "failed": float(answer == "raise"),
                **parts,
            }
    with pytest.raises(KeyError, match="other"):
        called(data_source="own", solution_str="x", ground_truth="x", extra_info={"uid": "other"})


def test_a_function_changed_after_the_start_is_not_verls_reward(file: Path, tmp_path: Path) -> None:
    loader = write_loader(tmp_path, reward(f"{file}:short"), {"a": {}})
    file.write_text(SOURCE + "# other\n")
    called = runpy.run_path(str(loader))[LOADED]
    with pytest.raises(RuntimeError, match="changed"):
        called(data_source="own", solution_str="x", ground_truth="x", extra_info={"uid": "a"})


def test_parts_may_not_ask_for_nothing() -> None:
    assert RewardPart().scorer == "" and RewardPart(scorer="exact").weight == 1
