"""Integers that no float holds are refused or wrong, never a crash."""

from __future__ import annotations

from typing import Any

import pytest

from vlmconsole.scoring.function_process import FunctionFailure
from vlmconsole.scoring.python_scorer import score_of
from vlmconsole.scoring.registry import find_scorer, scorer_names
from vlmconsole.scoring.scorer import ScoringError
from vlmconsole.scoring.supported.judge import read_reply

HUGE = 10**400


def _id(_: object) -> str:
    return "truth"  # Python refuses to write out 10**5000


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("nan"), float("inf")])
def test_a_function_that_returns_no_share_fails_its_sample(value: float) -> None:
    with pytest.raises(FunctionFailure):
        score_of(value)


def test_boxes_with_huge_edges_are_none() -> None:
    boxes = find_scorer("boxes")
    assert boxes.check([0, 0, HUGE, 10])
    assert not boxes.score(f"[0, 0, {HUGE}, 10]", [0, 0, 10, 10]).valid


FIELD = {"fields": {"a": {"scorer": "number"}}}


@pytest.mark.parametrize("truth", [HUGE, -HUGE, [1, HUGE], 10**5000, 1.7e308, "9" * 70 + "e300", f"-{HUGE}"], ids=_id)
def test_a_truth_too_large_is_refused(truth: Any) -> None:
    number = find_scorer("number")
    assert number.check(truth) and find_scorer("json").check({"a": truth}, FIELD)
    with pytest.raises(ScoringError):
        number.score("1", truth)


@pytest.mark.parametrize("answer", [str(HUGE), f"-{HUGE}", "9" * 70 + "e300", "-" + "9" * 70 + "e300", "1e301"])
def test_an_answer_too_large_is_invalid(answer: str) -> None:
    assert not find_scorer("number").score(answer, 1).valid
    assert find_scorer("json").score(f'{{"a": {answer}}}', {"a": 1}, FIELD).score == 0


def test_numbers_at_the_edge_are_compared() -> None:
    score = find_scorer("number").score("-1e300", 1e300)
    assert score.valid and not score.correct and score.details["error"] == 2e300
    assert find_scorer("number").score("1e300", 10**300).correct


def test_a_judge_that_replies_with_a_huge_score_gave_none() -> None:
    assert read_reply(f'{{"score": {HUGE}}}') is None and read_reply('{"score": NaN}') is None


@pytest.mark.parametrize("truth", [HUGE, 10**5000, {"a": HUGE}, {"a": 10**5000}, [0, 0, 1, 10**5000]], ids=_id)
@pytest.mark.parametrize("name", [name for name in scorer_names() if name != "judge"])
def test_no_scorer_crashes_on_a_huge_integer(name: str, truth: Any) -> None:
    scorer = find_scorer(name)
    options = {"choices": ["x", "y"]} if name == "choice" else {}
    for prediction in ("1", str(HUGE), '{"a": 1e999}', f'{{"a": {HUGE}}}'):
        if not scorer.check(truth, options):
            assert 0 <= scorer.score(prediction, truth, options).score <= 1
