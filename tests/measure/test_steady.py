"""The steady window against runs with planted warm-ins and drifts."""

from __future__ import annotations

import random

import pytest

from vlmconsole.measure.request_table import RequestTimes
from vlmconsole.measure.steady import LEAST, steady_figures, steady_window, trend, warm_in


def run(values: list[float], step: float = 0.1) -> list[RequestTimes]:
    return [RequestTimes(5 + step * k, 5 + step * k + value, ttft=value, e2e=value) for k, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("length", [20, 60, 150])
def test_a_planted_warm_in_is_cut_off_where_it_ends(length: int, seed: int) -> None:
    draw = random.Random(seed)
    values = [1 + 3 * max(0.0, 1 - k / length) + draw.gauss(0, 0.1) for k in range(400)]
    assert 0.6 * length <= warm_in(values) <= 1.5 * length + 60
    figures = steady_figures(run(values), None)
    assert figures["ttft_s"]["mean"] == pytest.approx(1.0, abs=0.1) and figures["n"] < 400


def test_what_drifts_to_its_end_has_no_window() -> None:
    draw = random.Random(0)
    for slope in (0.01, -0.01):
        values = [10 + slope * k + draw.gauss(0, 0.1) for k in range(400)]
        window = steady_window(run(values), None)
        assert window.from_s is None and "drifted" in window.why
        assert steady_figures(run(values), None)["n"] == 0


def test_steady_runs_keep_nearly_all_and_seldom_lose_their_window() -> None:
    lost = 0
    for seed in range(100):
        draw = random.Random(seed)
        lost += steady_window(run([draw.gauss(1, 0.1) for _ in range(400)]), None).from_s is None
    assert lost <= 6


def test_the_window_of_a_closed_loop_begins_when_c_are_in_flight_and_ends_with_the_last_sent() -> None:
    requests = [RequestTimes(k * 1.0, k + 4.0, ttft=1 + k % 3 / 100) for k in range(80)]
    window = steady_window(requests, 4)
    assert window.from_s is not None and window.from_s >= 3 and window.to_s == 79
    assert "in flight" in steady_window(requests, 9).why


def test_too_few_requests_have_no_window() -> None:
    assert steady_window(run([1.0] * (LEAST - 1)), None).from_s is None
    assert steady_window(run([1.0] * LEAST), None).n > 0
    assert steady_window([], None).why
    assert trend([float(k) for k in range(80)]) == 28 and trend([1.0] * 80) == 0
