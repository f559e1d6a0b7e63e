"""What figures mean: percentiles, throughput, in-flight, lengths, and the summary that gathers them."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.measure.definitions import DEFINITIONS, in_flight, span_text, throughput
from vlmconsole.scoring.distribution import distribution, percentile

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=80)


@given(values, st.floats(0, 1))
def test_percentiles_are_exact_and_equal_to_numpy(found: list[float], share: float) -> None:
    assert math.isclose(percentile(sorted(found), share), numpy.quantile(found, share), rel_tol=1e-9, abs_tol=1e-9)


def test_no_values_have_no_percentile_and_no_distribution() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    assert distribution([]) is None
    assert distribution([None, None]) is None


def test_unknown_values_are_left_out_not_taken_as_zero() -> None:
    found = distribution([0.2, None, 0.4])
    assert found is not None
    assert (found.n, found.min, found.p50) == (2, 0.2, pytest.approx(0.3))


@pytest.mark.parametrize(("n", "flagged"), [(59, True), (60, False)])
def test_a_p95_of_few_is_flagged(n: int, flagged: bool) -> None:
    found = distribution([float(i) for i in range(n)])
    assert found is not None
    assert (found.flag is not None) is flagged
    assert found.flag is None or "59" in found.flag


def test_throughput_is_tokens_over_the_whole_span_and_unknown_with_one_unknown() -> None:
    assert throughput([128, 128], 10.0, 12.0) == pytest.approx(128.0)
    assert throughput([128, None], 10.0, 12.0) is None
    assert throughput([], 10.0, 12.0) is None
    assert throughput([128], 10.0, 10.0) is None


def test_in_flight_is_the_average_over_time_and_the_peak() -> None:
    # 1 s alone, 1 s together, 1 s alone; then a request that begins when the last one ends
    found = in_flight([(0.0, 2.0), (1.0, 3.0), (3.0, 4.0)])
    assert found is not None
    assert found.mean == pytest.approx(5 / 4)
    assert found.max == 2
    assert in_flight([]) is None


def test_lengths_are_one_number_only_when_all_agree() -> None:
    assert span_text([335, 335]) == 335
    assert span_text([128, 120, 127]) == "120–128"
    assert span_text([335, None]) is None
    assert span_text([]) is None


def test_every_figure_says_its_formula() -> None:
    assert {"ttft_s", "tpot_s", "itl_s", "e2e_s", "throughput_tok_s"} <= set(DEFINITIONS)
    assert "first non-empty text" in DEFINITIONS["ttft_s"]
