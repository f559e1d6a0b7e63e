"""Between two scrapes: rates, quantiles of histograms, and what a restart does to them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmconsole.engines.metrics import Histogram, Scrape
from vlmconsole.gauges.deltas import Window, difference, quantile


def histogram(values: list[float], bounds: list[float]) -> Histogram:
    return Histogram(
        {bound: float(sum(value <= bound for value in values)) for bound in [*bounds, math.inf]},
        sum(values),
        len(values),
    )


@given(
    st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60),
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8, unique=True),
    st.floats(0.01, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], bounds: list[float], q: float) -> None:
    found = quantile(histogram(values, sorted(bounds)), q)
    true = sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]
    assert found is not None
    assert found.low <= found.value <= found.high
    assert found.low <= true <= found.high


@given(st.lists(st.floats(0.0, 5.0), max_size=30), st.lists(st.floats(0.0, 5.0), max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_difference_is_the_histogram_of_what_came_between(before: list[float], between: list[float]) -> None:
    bounds = [0.1, 0.5, 1.0, 2.0]
    delta = difference(histogram(before + between, bounds), histogram(before, bounds))
    assert delta.buckets == histogram(between, bounds).buckets
    assert delta.count == len(between) and delta.sum == pytest.approx(sum(between), abs=1e-9)


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile(histogram([], [1.0]), 0.5) is None
    assert quantile(Histogram({}, 0, 0), 0.5) is None
    beyond = quantile(histogram([9.0], [1.0]), 0.5)
    assert beyond is not None and beyond.value == 1.0 and math.isinf(beyond.high)


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.integers(0, 500), st.booleans()), min_size=2, max_size=80))
@settings(max_examples=100, deadline=None)
def test_a_rate_is_never_negative_whatever_restarts(steps: list[tuple[float, int, bool]]) -> None:
    window, at, total = Window(10.0), 0.0, 1000.0
    for gap, grown, restart in steps:
        at, total = at + gap, (0.0 if restart else total) + grown
        window.push(at, Scrape(counters={"output_tokens": total}))
        rate = window.rate("output_tokens")
        assert rate is None or rate >= 0


def test_a_rate_is_exact_and_a_restart_begins_anew() -> None:
    window = Window(60.0)
    for second in range(100):
        assert not window.push(second, Scrape(counters={"output_tokens": 50.0 * second}))
    assert window.rate("output_tokens", 10) == pytest.approx(50)
    counted = window.counted("output_tokens")
    assert counted is not None and counted[1] == pytest.approx(60)
    assert window.push(100, Scrape(counters={"output_tokens": 10.0}))
    assert window.rate("output_tokens") is None, "one scrape of the new server is no rate"
    window.push(101, Scrape(counters={"output_tokens": 40.0}))
    assert window.rate("output_tokens") == pytest.approx(30)
