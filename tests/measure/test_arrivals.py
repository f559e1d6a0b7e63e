"""When requests are due: each shape of arrivals, its rate, its end; and traces read from files."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from refusals import check_error

from vlmconsole.errors import LabError
from vlmconsole.measure.arrivals import ARRIVALS, PoissonArrivals, RampArrivals
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.sweep import SweepSettings
from vlmconsole.measure.trace import Trace, TraceRequest, read_trace
from vlmconsole.measure.trace_inputs import TokenRate, TraceInputs

OLD = {"api_key_env", "arrivals", "base_url", "concurrency", "equal_work", "image", "input_tokens", "lag_limit_ms"}
OLD |= {"model", "output_tokens", "rate", "requests", "seed", "server", "stall_timeout_s", "temperature"}
OLD |= {"total_timeout_s", "warm_up"}


def due(**settings: Any) -> list[float]:
    load = BenchSettings.model_validate(settings)
    times = load.shape.due(load.wanted_requests, load.duration)
    assert times is not None
    return times


def test_settings_of_before_are_the_same_json() -> None:
    assert set(BenchSettings().model_dump(mode="json")) == OLD
    assert set(BenchSettings(rate=2.0, arrivals="poisson").model_dump(mode="json")) == OLD
    assert BenchSettings(requests=12).model_dump() == BenchSettings().model_dump()


def test_every_shape_is_registered_under_the_name_that_settings_take() -> None:
    assert set(get_args(BenchSettings.model_fields["arrivals"].annotation)) == set(ARRIVALS)
    for settings in ({}, {"arrivals": "poisson"}, {"arrivals": "closed"}):
        load = BenchSettings.model_validate(settings)
        assert load.shape.due(3) is None and load.shape.label() == "" and not load.open_loop


def test_constant_and_poisson_are_due_as_they_were() -> None:
    assert due(rate=2.0, requests=3) == [0.0, 0.5, 1.0]
    draw = random.Random(3)
    before = list(itertools.accumulate((draw.expovariate(10.0) for _ in range(1999)), initial=0.0))
    assert due(rate=10.0, requests=2000, arrivals="poisson", seed=3) == before
    assert before[-1] == pytest.approx(200, rel=0.1)
    assert due(rate=10.0, requests=20, arrivals="poisson", seed=4) != before[:20]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_keeps_the_rate_and_spreads_by_its_burstiness(burstiness: float) -> None:
    times = due(rate=5.0, arrivals="gamma", burstiness=burstiness, requests=40_000)
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_ramp_grows_in_a_straight_line_to_its_end() -> None:
    times = due(arrivals="ramp", ramp_from=0.0, rate=10.0, requests=500)
    assert len(times) == 500 and times[0] == 0.0 and times == sorted(times)
    assert times[-1] == pytest.approx(100, rel=0.01)
    half = sum(at < 50 for at in times)
    assert half == pytest.approx(125, abs=2)  # the integral of a ramp: a quarter in the first half
    down = due(arrivals="ramp", ramp_from=10.0, rate=0.0 + 1e-6, requests=500)
    assert sum(at < 50 for at in down) == pytest.approx(375, abs=2)
    timed = due(arrivals="ramp", ramp_from=2.0, rate=4.0, duration=10.0)
    assert len(timed) in (30, 31) and timed[-1] <= 10.0


@given(st.floats(0, 50), st.floats(0.01, 50), st.floats(0.1, 60))
def test_a_ramp_is_due_where_its_rate_adds_up(begin: float, end: float, length: float) -> None:
    for number, at in enumerate(itertools.islice(RampArrivals(begin, end, length).times(), 200)):
        assert begin * at + (end - begin) * at**2 / (2 * length) == pytest.approx(number, abs=1e-6)


@given(st.floats(0.5, 200), st.integers(0, 1000), st.floats(0.5, 5))
def test_a_duration_ends_the_arrivals_and_changes_none(rate: float, seed: int, duration: float) -> None:
    shape = PoissonArrivals(rate, seed)
    timed = shape.due(None, duration)
    assert timed is not None and all(at < duration for at in timed)
    assert shape.due(len(timed) + 1) == [*timed, next(itertools.islice(shape.times(), len(timed), None))]


@pytest.mark.parametrize(
    ("settings", "nouns"),
    [
        ({"arrivals": "gamma", "rate": 2.0}, ["burstiness"]),
        ({"arrivals": "gamma", "burstiness": 1.0}, ["rate"]),
        ({"arrivals": "ramp", "rate": 2.0}, ["ramp_from"]),
        ({"arrivals": "trace"}, ["trace"]),
        ({"trace": "t.jsonl"}, ["trace", "closed"]),
        ({"rate": 2.0, "burstiness": 2.0}, ["burstiness", "gamma", "constant"]),
        ({"speed": 2.0}, ["speed", "trace"]),
        ({"arrivals": "closed", "rate": 2.0}, ["rate", "closed"]),
        ({"duration": 5.0, "requests": 12}, ["requests", "duration"]),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], nouns: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        BenchSettings.model_validate(settings)
    assert all(noun in str(refused.value) for noun in nouns)


def test_a_duration_takes_the_place_of_requests_and_survives_its_json() -> None:
    load = BenchSettings.model_validate({"duration": 5.0, "requests": None, "rate": 3.0})
    assert load.wanted_requests is None
    kept = load.model_dump(mode="json")
    assert "requests" not in kept and kept["duration"] == 5.0
    again = BenchSettings.model_validate(kept)
    assert again.wanted_requests is None and again.shape.due(None, again.duration) == [i / 3 for i in range(15)]


def test_a_sweep_crosses_rates() -> None:
    sweep = SweepSettings.model_validate(
        {"arrivals": "gamma", "burstiness": 0.5, "grid": {"rate": [1, 2.5], "output_tokens": [8]}}
    )
    cells = sweep.expand()
    assert [cell.name for cell in cells] == ["r1-out8", "r2.5-out8"]
    assert [cell.settings.rate for cell in cells] == [1, 2.5] and cells[0].varied()["rate"] == 1
    assert "rate" not in SweepSettings.model_validate({"grid": {"concurrency": [1]}}).expand()[0].varied()
    with pytest.raises(ValidationError, match="rate"):
        SweepSettings.model_validate({"arrivals": "gamma", "burstiness": 0.5, "grid": {"concurrency": [1]}})
    timed = SweepSettings.model_validate({"duration": 4.0, "grid": {"concurrency": [1, 2]}}).expand()
    assert [cell.settings.wanted_requests for cell in timed] == [None, None] and timed[0].weight == 4.0


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_a_trace_is_read_sorted_from_its_first_request_on(tmp_path: Path) -> None:
    first = {"timestamp": 1500, "input_length": 600, "output_length": 9, "hash_ids": [4, 7], "chat": 3}
    path = written(tmp_path, {"timestamp": 27482}, first)
    trace = read_trace(path)
    assert trace.requests == (TraceRequest(0.0, 600, 9, (4, 7)), TraceRequest(25.982, None, None))
    assert trace.unread == ("chat",)
    assert due(arrivals="trace", trace=str(path), speed=2.0) == [0.0, 12.991]
    assert due(arrivals="trace", trace=str(path), requests=1) == [0.0]
    load = BenchSettings(arrivals="trace", trace=str(path))
    assert load.open_loop and "2 requests" in load.shape.label() and trace.sha256[:12] in load.shape.label()
    written(tmp_path, first)
    assert len(read_trace(path).requests) == 1, "a file that changed is read again"


@pytest.mark.parametrize(
    ("row", "nouns"),
    [
        ("{", ["line 2", "JSON"]),
        ([1], ["line 2", "object"]),
        ({"timestamp": "soon"}, ["timestamp"]),
        ({"timestamp": float("nan")}, ["timestamp"]),
        ({"timestamp": 1, "input_length": 0}, ["input_length"]),
        ({"timestamp": 1, "output_length": 1.5}, ["output_length"]),
        ({"timestamp": 1, "input_length": 10, "hash_ids": [1, 2, 3]}, ["hash_ids"]),
        ({"timestamp": 1, "hash_ids": ["a"]}, ["hash_ids"]),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, row: Any, nouns: list[str]) -> None:
    path = written(tmp_path, {"timestamp": 0}, row)
    with pytest.raises(LabError) as refused:
        read_trace(path)
    check_error(refused.value, "trace-invalid", *nouns)


@pytest.mark.parametrize(("content", "code"), [("\n\n", "trace-empty"), (None, "trace-unreadable")])
def test_a_trace_without_requests_is_refused(tmp_path: Path, content: str | None, code: str) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LabError) as refused:
        read_trace(path)
    check_error(refused.value, code, "trace.jsonl")


def test_prompts_of_a_trace_share_the_words_of_the_hash_ids_that_they_share() -> None:
    from vlmconsole.measure.inputs import InputRecipe

    inputs = TraceInputs(InputRecipe("cell", {"max_tokens": 5, "min_tokens": 5}), TokenRate(30.0, 1.25), 16)
    one = TraceRequest(0.0, 1030, 9, (1, 2))
    other = TraceRequest(1.0, 1542, None, (1, 2, 3))
    texts = [inputs.text(number, request).split() for number, request in enumerate((one, other))]
    question = len(["Describe", "what", "you", "see", "and", "count", "it."])
    assert [len(text) - question for text in texts] == [800, round(1512 / 1.25)]  # (1030 − 30) / 1.25 words
    assert texts[0][:800] == texts[1][:800], "the last block is cut where the prompt ends"
    lone = inputs.text(2, TraceRequest(0.0, 1030, 9)).split()
    assert len(lone) == len(texts[0]) and lone[:20] != texts[0][:20]
    assert inputs.text(3, TraceRequest(0.0, 1030, 9)).split()[:20] != lone[:20], "without hash ids nothing is shared"
    assert inputs.fields(one) == {"max_tokens": 9, "min_tokens": 9} and inputs.output(other) == 16
    elsewhere = TraceInputs(InputRecipe("other", {}), TokenRate(30.0, 1.25), 16)
    assert elsewhere.text(0, one).split()[:20] != texts[0][:20], "a second run does not meet the first one's cache"
    assert Trace((one, other), "").requests[1].at == 1.0
