"""The audit of a GRPO run: rewards and advantages again from its answers, gradients, and whole weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audited import lines_of, write_lines, write_tensors

from vlmconsole.audit.training import audit_policy
from vlmconsole.runs.folder import RunFolder

TRUTH = '{"red_circles": 2, "blue_squares": 1}'
HALF = '{"red_circles": 2, "blue_squares": 3}'
WEIGHTS = {"model.visual.blocks.0.weight": np.ones(4), "model.layers.0.weight": np.ones(4)}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, kind="grpo", preset="grpo", spec={}, title="grpo", home=tmp_path)
    write_tensors(tmp_path / "base", WEIGHTS)
    write_tensors(made.file("model"), {**WEIGHTS, "model.layers.0.weight": np.full(4, 1.5)})
    for step in (1, 2):
        made.append_jsonl("training.jsonl", {"step": step, "grad_norm": 0.2 * (step - 1), "loss": 0.0})
        answers = [TRUTH, HALF, HALF, "no"] if step == 2 else [TRUTH] * 4
        rewards = [1.0, 0.5, 0.5, 0.0] if step == 2 else [1.0] * 4
        spread = statistics.stdev(rewards)
        for answer, reward in zip(answers, rewards, strict=True):
            advantage = (reward - statistics.mean(rewards)) / (spread + 1e-6)
            line = {"step": step, "group": 0, "uid": "a", "truth": TRUTH, "answer": answer}
            made.append_jsonl("rollouts.jsonl", {**line, "reward": reward, "advantage": advantage})
    return made


def wrong(run: RunFolder) -> dict[str, str]:
    return {one.name: one.text for one in audit_policy(run, run.path.parent / "base") if one.state != "ok"}


def rollout(at: int, **fields: Any) -> Callable[[RunFolder], None]:
    def plant(run: RunFolder) -> None:
        lines = lines_of(run, "rollouts.jsonl")
        lines[at].update(fields)
        write_lines(run, "rollouts.jsonl", lines)

    return plant


def weights(**changed: Any) -> Callable[[RunFolder], None]:
    names = {"visual": "model.visual.blocks.0.weight", "language": "model.layers.0.weight"}
    return lambda run: write_tensors(run.file("model"), {**WEIGHTS, **{names[k]: v for k, v in changed.items()}})


def no_gradient(run: RunFolder) -> None:
    lines = lines_of(run, "training.jsonl")
    write_lines(run, "training.jsonl", [{**line, "grad_norm": 0.0} for line in lines])


def a_step_is_missing(run: RunFolder) -> None:
    write_lines(run, "training.jsonl", lines_of(run, "training.jsonl")[1:])


def test_nothing_is_found_in_a_clean_run(run: RunFolder) -> None:
    """A step whose group agrees has no gradient, and that is no fault."""
    assert not wrong(run)


@pytest.mark.parametrize("where", ["conditions", "settings", "lines"])
def test_answers_are_scored_again_by_the_scorer_that_rewarded_them(tmp_path: Path, where: str) -> None:
    spec = {"scorer": "naming" if where == "settings" else ""}
    run = RunFolder.create(tmp_path, kind="grpo", preset="grpo", spec=spec, title="grpo", home=tmp_path)
    if where == "conditions":
        run.write_json("conditions.json", {"settings": {"scorer": "naming"}})
    named = {"scorer": "naming"} if where == "lines" else {}
    for answer, reward in (("Circle.", 1.0), ("square", 0.0)):
        line = {"step": 1, "group": 0, "uid": "a", "truth": "circle", "answer": answer, "reward": reward, **named}
        run.append_jsonl("rollouts.jsonl", {**line, "advantage": (reward - 0.5) / (0.5**0.5 + 1e-6)})
    found = {one.name: one.state for one in audit_policy(run, None)}
    assert (found["rewards"], found["advantages"]) == ("ok", "ok")
    rollout(1, reward=1.0)(run)
    assert {one.name: one.state for one in audit_policy(run, None)}["rewards"] == "wrong"


@pytest.mark.parametrize(
    ("plant", "name", "said"),
    [
        (rollout(5, reward=1.0), "rewards", "its answer gives 0.5"),
        (rollout(4, answer='{"red_circles": true, "blue_squares": 1}'), "rewards", "its answer gives 0"),
        (rollout(4, answer=TRUTH + " and more"), "rewards", "its answer gives 0"),
        (rollout(4, answer='{"red_circles": 2, "red_circles": 2, "blue_squares": 1}'), "rewards", "its answer gives 0"),
        (rollout(4, advantage=0.3), "advantages", "advantage 0.3"),
        (weights(visual=np.full(4, 1.1), language=np.zeros(4)), "vision frozen", "visual.blocks.0.weight was changed"),
        (weights(), "weight change", "nothing was learnt"),
        (no_gradient, "gradients", "no step"),
        (a_step_is_missing, "gradients", "line 1 is step 2"),
    ],
)
def test_a_fault_is_named(run: RunFolder, plant: Callable[[RunFolder], None], name: str, said: str) -> None:
    plant(run)
    assert said in wrong(run).get(name, ""), wrong(run)


def test_evidence_that_is_not_there_is_said(run: RunFolder) -> None:
    run.file("rollouts.jsonl").unlink()
    run.file("training.jsonl").unlink()
    assert {one.name: one.state for one in audit_policy(run, None)} == {
        "rewards": "not verifiable",
        "gradients": "not verifiable",
        "weight change": "not verifiable",
    }
