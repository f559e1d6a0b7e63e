"""Integers that no float holds are refused or wrong, never a crash."""

from __future__ import annotations

import pytest

from vlmconsole.scoring.function_process import FunctionFailure
from vlmconsole.scoring.python_scorer import score_of
from vlmconsole.scoring.registry import find_scorer

HUGE = 10**400


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("nan"), float("inf")])
def test_a_function_that_returns_no_share_fails_its_sample(value: float) -> None:
    with pytest.raises(FunctionFailure):
        score_of(value)


def test_boxes_with_huge_edges_are_none() -> None:
    boxes = find_scorer("boxes")
    assert boxes.check([0, 0, HUGE, 10])
    assert not boxes.score(f"[0, 0, {HUGE}, 10]", [0, 0, 10, 10]).valid
