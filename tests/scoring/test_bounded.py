"""Intervals that hold their level at small n: known values, properties, and their coverage beside the bootstrap's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmconsole.scoring.bounded import (
    FEW_MOVED,
    SMALL,
    mean_interval,
    paired_bounds,
    paired_difference,
    share_interval,
)
from vlmconsole.scoring.intervals import paired_interval

SCORE = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


def test_shares_have_their_clopper_pearson_bounds() -> None:
    for right, n, low, high in (
        (0, 10, 0.0, 0.3085),
        (10, 10, 0.6915, 1.0),
        (5, 10, 0.1871, 0.8129),
        (1, 60, 0.0004, 0.0894),
    ):
        interval = share_interval(right, n)
        assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
        same = mean_interval([1.0] * right + [0.0] * (n - right))
        assert (same.low, same.high, same.method) == (interval.low, interval.high, "Clopper–Pearson")


def test_equal_scores_have_the_bounds_of_what_was_not_seen() -> None:
    n = 8
    unseen = 1 - 0.025 ** (1 / n)  # the share that 8 examples can miss with 97.5 % certainty
    interval = mean_interval([0.5] * n)
    assert interval.high == pytest.approx(0.5 + 0.5 * unseen, abs=0.005)
    assert interval.low == pytest.approx(0.5 - 0.5 * unseen, abs=0.005)
    still = paired_bounds([1.0, 0.0] * 4, [1.0, 0.0] * 4)
    assert still.high == pytest.approx(unseen, abs=0.005) and still.low == pytest.approx(-unseen, abs=0.005)


@settings(max_examples=40, deadline=None)
@given(st.lists(SCORE, min_size=1, max_size=40))
def test_an_interval_is_around_its_mean_and_the_same_again(scores: list[float]) -> None:
    interval = mean_interval(scores, draws=999)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0
    assert interval == mean_interval(list(reversed(scores)), draws=999) or interval.mean == pytest.approx(
        mean_interval(list(reversed(scores)), draws=999).mean
    )


@pytest.mark.parametrize("scores", [[], [1.2], [float("nan")], [-0.1, 0.5]])
def test_scores_outside_the_range_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError):
        mean_interval(scores)


def test_few_changes_among_few_examples_are_held_where_the_bootstrap_does_not() -> None:
    random, truth, sets = np.random.default_rng(7), 0.1 - 0.02, 150
    held = {"bounded": 0, "percentile": 0}
    for _ in range(sets):
        moved = random.choice([1.0, -1.0, 0.0], size=8, p=[0.1, 0.02, 0.88])
        before, after = np.maximum(0, -moved).tolist(), np.maximum(0, moved).tolist()
        for name, interval in (
            ("bounded", paired_bounds(before, after, draws=2000)),
            ("percentile", paired_interval(before, after, resamples=500)),
        ):
            held[name] += interval.low <= truth <= interval.high
    assert held["bounded"] / sets >= 0.95 and held["percentile"] / sets < 0.7


def test_the_method_follows_from_how_much_there_is() -> None:
    n = 2 * SMALL
    few = paired_difference([0.0] * n, [1.0] * (FEW_MOVED - 1) + [0.0] * (n - FEW_MOVED + 1))
    many = paired_difference([0.0] * n, [1.0] * FEW_MOVED + [0.0] * (n - FEW_MOVED))
    small = paired_difference([0.0] * (SMALL - 1), [1.0] * (SMALL - 1))
    assert "Gaffke" in few.method and "percentile" in many.method and "Gaffke" in small.method
