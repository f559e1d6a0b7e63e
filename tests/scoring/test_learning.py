"""Whether a training learned something: the sign of the gain, and a cause for each way of not learning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import mentions

from vlmconsole.scoring.learning import grpo_causes, sft_causes, training_outcome

SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=8, max_size=60)


def samples(*answers: str, valid: bool = True, finish: str = "stop") -> list[dict[str, Any]]:
    return [
        {"answer": answer, "truth": f"t{n % 5}", "valid": valid, "finish": finish} for n, answer in enumerate(answers)
    ]


@given(SCORES)
def test_equal_scores_never_count_as_learned(scores: list[float]) -> None:
    outcome = training_outcome(scores, scores, ["rate"])
    assert not outcome.learned and outcome.causes == ("rate",) and outcome.before == outcome.after


def test_a_clear_gain_is_learned_and_needs_no_cause() -> None:
    outcome = training_outcome([0.0] * 24 + [1.0] * 12, [1.0] * 35 + [0.0], ["rate"])
    assert outcome.learned and not outcome.causes and outcome.low > 0
    assert mentions(outcome.text, "learned", "33 %", "97 %", "n = 36")
    assert outcome.to_json()["learned"] is True


def test_one_lucky_answer_is_not_learning() -> None:
    outcome = training_outcome([0.0] * 60, [1.0] + [0.0] * 59)
    assert not outcome.learned and mentions(outcome.text, "did not learn", "0 %", "2 %")


def truths(*values: str, answer: str = "") -> list[dict[str, Any]]:
    return [{"answer": answer or value, "truth": value, "valid": True} for value in values]


def test_a_gain_that_one_answer_to_everything_reaches_is_not_learning() -> None:
    given = truths(*["right"] * 19, *["left"] * 17, answer="right")
    outcome = training_outcome([0.0] * 36, [1.0] * 19 + [0.0] * 17, ["rate"], given)
    assert outcome.low > 0 and not outcome.learned and "rate" not in outcome.causes
    assert mentions(" ".join(outcome.causes), "no better than one answer", "right", "53 %", "36 of 36")
    assert mentions(outcome.text, "did not learn", "53 %")


def test_what_scores_above_the_commonest_truth_is_learned() -> None:
    given = truths(*["right"] * 19, *["left"] * 17)
    assert training_outcome([0.0] * 36, [1.0] * 30 + [0.0] * 6, (), given).learned
    alike = truths(*["yes"] * 36)  # one truth alone: there is nothing to tell apart
    assert training_outcome([0.0] * 36, [1.0] * 36, (), alike).learned


@pytest.mark.parametrize(
    ("losses", "lines", "cause"),
    [
        ([2.0] * 40, samples("a", "b", "c", "d"), "rate"),
        ([2.0, 1.9] + [0.05] * 38, samples("a", "b", "c", "d"), "frozen vision"),
        ([9.0, 8.0] + [1.5] * 38, samples("a", "b", "c", "d"), "stayed there"),
        ([2.0 - 0.04 * step for step in range(40)], samples("a", "b", "c", "d"), "too short"),
        ([2.0, 0.1], samples("The colour is", "It is", "a", "b", valid=False), "format"),
        ([2.0, 0.1], samples(*"abcd", finish="length"), "max_new_tokens"),
        ([2.0, 0.1], samples(*["red"] * 9, "blue"), "one answer to everything"),
    ],
)
def test_each_way_of_not_learning_has_its_cause(losses: list[float], lines: list[dict[str, Any]], cause: str) -> None:
    assert any(mentions(text, cause) for text in sft_causes(losses, 1e-3, lines))


def test_grpo_names_groups_without_advantage_and_gradients_of_zero() -> None:
    still = [{"zero_advantage": 1.0, "grad_norm": 0.0, "reward_mean": 0.0}] * 9
    causes = grpo_causes([*still, {"zero_advantage": 0.5, "grad_norm": 0.2, "reward_mean": 0.0}])
    assert any(mentions(text, "advantage", "95 %") for text in causes)
    assert any(mentions(text, "gradient 0", "9 of 10") for text in causes)
    assert any(mentions(text, "no sampled answer") for text in causes)
    (only,) = grpo_causes([{"zero_advantage": 0.2, "grad_norm": 0.2, "reward_mean": 0.4}] * 10)
    assert mentions(only, "lr")
