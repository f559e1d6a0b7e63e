"""The search for a capacity on queues of known capacity, on a simulated clock: found, never above, requests spent."""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vlmconsole.measure.capacity.rule import CapacityRule, look, variance_ratio
from vlmconsole.measure.capacity.search import CapacitySearch, LoadRange, Probe, ProbePass
from vlmconsole.measure.capacity.settings import CapacitySettings
from vlmconsole.measure.request_table import RequestTimes
from vlmconsole.measure.slo import Slo

PREFILL = 0.1
SERVERS, WAIT = 32, 0.5  # slots of one request a second each; seconds that 5 % may wait longer


def open_queue(rate: float, n: int, draw: random.Random) -> list[RequestTimes]:
    """Evenly spaced arrivals at a first-come queue of SERVERS slots, service 1 s ± 20 %, from empty on."""
    free, made = [0.0] * SERVERS, []
    for number in range(n):
        now = number / rate
        start = max(now, heapq.heappop(free))
        end = start + draw.uniform(0.8, 1.2)
        heapq.heappush(free, end)
        made.append(RequestTimes(now, end, ttft=start - now + PREFILL, tpot=0.01, e2e=end - now))
    return made


def closed_queue(clients: int, n: int, slots: int, service: float, draw: random.Random) -> list[RequestTimes]:
    """A closed loop of `clients` at `slots`, each answer `service` seconds give or take 2 %."""
    free, ready, made = [0.0] * slots, [0.0] * clients, []
    for _ in range(n):
        now = heapq.heappop(ready)
        start = max(now, heapq.heappop(free))
        end = start + service * draw.uniform(0.98, 1.02)
        heapq.heappush(free, end)
        heapq.heappush(ready, end)
        made.append(RequestTimes(now, end, ttft=start - now + PREFILL, tpot=0.01, e2e=end - now))
    return made


def searched(
    measure: Callable[[float, int], ProbePass], loads: LoadRange, rule: CapacityRule, **more: bool
) -> CapacitySearch:
    search = CapacitySearch(
        lambda load, n, number, confirmation: measure(load, n),
        Slo.parse(f"ttft_p95<={PREFILL + WAIT}"),
        rule,
        loads,
        **more,
    )
    search.run()
    return search


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(20), marks=pytest.mark.slow)])
def test_the_largest_rate_of_a_known_queue(seeds: range) -> None:
    """SERVERS requests a second are what the slots can do: beyond that the queue grows, shortly below nobody waits."""
    near = spent = grid = 0
    for seed in seeds:
        draw = random.Random(seed)
        search = searched(
            lambda rate, n, draw=draw: ProbePass(open_queue(rate, n, draw)),  # type: ignore[misc]
            LoadRange(0.9, 0.01, 1000), CapacityRule(resolution=0.1),
        )  # fmt: skip
        assert search.holds is not None and search.holds <= SERVERS, f"seed {seed} holds above the truth"
        near += search.holds >= SERVERS / 1.1 and search.confirmed
        spent, grid = spent + search.spent, grid + search.grid_requests
    assert near >= len(seeds) - 1, f"{near} of {len(seeds)} within the resolution"
    assert spent < grid / 3


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_concurrency_is_found_to_the_request(seed: int) -> None:
    draw = random.Random(seed)
    slots, service = 4, 0.4  # a full cycle is C × service / slots: the wait is the rest of it
    truth = math.floor(slots * (1 + WAIT / (service * 1.02)))
    search = searched(
        lambda load, n: ProbePass(closed_queue(round(load), n, slots, service, draw)),
        LoadRange(1, 1, 256, whole=True), CapacityRule(resolution=0.05), closed=True,
    )  # fmt: skip
    assert (search.holds, search.fails, search.confirmed) == (truth, truth + 1, True)
    assert search.spent < search.grid_requests


def test_a_queue_that_still_grows_never_holds() -> None:
    draw = random.Random(1)
    rule, slo = CapacityRule(), Slo.parse("ttft_p95<=100")  # far above what these passes come to
    grown = look([open_queue(SERVERS * 1.3, 800, draw)], slo, rule, None)
    assert grown.verdict == "more" and grown.shares[0].share == 0 and not grown.shares[0].steady


def answers_at(limit: float) -> Callable[[float, int], ProbePass]:
    """A server that keeps every limit up to a load and none beyond."""
    draw = random.Random(0)

    def measure(load: float, n: int) -> ProbePass:
        late = 9.0 if load > limit else 0.1
        return ProbePass([RequestTimes(k, k + 1, ttft=late * draw.uniform(0.9, 1.1)) for k in range(n)])

    return measure


@given(st.floats(0.02, 900), st.floats(0.05, 500), st.floats(0.02, 1))
def test_any_limit_is_bracketed_within_the_resolution(limit: float, start: float, resolution: float) -> None:
    rule = CapacityRule(resolution=resolution, first=160, most=640)
    search = searched(answers_at(limit), LoadRange(start, 0.01, 1000), rule)
    assert search.holds is not None and search.confirmed
    assert search.holds <= limit and (search.fails is None or limit < search.fails <= search.holds * (1 + resolution))
    assert search.fails is not None or search.holds == 1000
    assert len(search.probes) < 60


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 10))
def test_any_whole_limit_is_found_exactly(limit: int, start: int, least: int) -> None:
    rule = CapacityRule(resolution=0.001, first=160, most=640)
    search = searched(answers_at(limit), LoadRange(max(start, least), least, 256, whole=True), rule)
    assert search.holds == (limit if limit >= least else None)
    assert search.fails == (limit + 1 if limit >= least else least)
    assert all(probe.load == int(probe.load) for probe in search.probes)


def test_a_server_that_breaks_is_a_load_that_fails() -> None:
    good = answers_at(1000)

    def measure(load: float, n: int) -> ProbePass:
        return ProbePass([], broke="the server died under it") if load > 20 else good(load, n)

    search = searched(measure, LoadRange(1, 1, 256, whole=True), CapacityRule(resolution=0.01))
    assert (search.holds, search.fails, search.confirmed) == (20, 21, True)
    broke = next(probe.to_json() for probe in search.probes if probe.load == 21)
    assert broke["verdict"] == "fails" and "died" in broke["why"] and broke["violating"] is None


def test_a_late_client_ends_the_search_and_says_nothing_of_the_server() -> None:
    good = answers_at(1000)

    def measure(load: float, n: int) -> ProbePass:
        return ProbePass([], unusable="load client too slow") if load > 20 else good(load, n)

    search = searched(measure, LoadRange(1, 1, 256, whole=True), CapacityRule())
    assert (search.holds, search.fails, search.confirmed) == (16, None, False) and "too slow" in search.stopped


def test_a_confirmation_that_fails_is_searched_below() -> None:
    good, seen = answers_at(1000), list[float]()

    def measure(load: float, n: int, number: int, confirmation: bool) -> ProbePass:
        if confirmation:
            seen.append(load)
        return good(9999.0 if confirmation and load > 14 else load if load < 17 else 9999.0, n)

    search = CapacitySearch(measure, Slo.parse("ttft_p95<=1"), CapacityRule(), LoadRange(1, 1, 256, whole=True))
    search.run()
    assert seen[0] == 16 and search.confirmed and search.holds == seen[-1] == 14 and search.fails == 15
    assert [probe.confirmation for probe in search.probes].count(True) == len(set(seen))


def test_nothing_holds_where_the_least_load_fails() -> None:
    search = searched(answers_at(0.001), LoadRange(4, 0.5, 100), CapacityRule())
    assert (search.holds, search.fails, search.confirmed) == (None, 0.5, False)
    assert json.dumps([probe.to_json() for probe in search.probes])


def test_probes_tell_what_the_contract_wants() -> None:
    probe = searched(answers_at(3), LoadRange(1, 1, 8, whole=True), CapacityRule()).probes[0].to_json()
    assert {"load", "n", "goodput", "violating", "low", "high", "verdict"} <= probe.keys()
    assert Probe(3, None, "fails", why="x").to_json()["violating"] is None


def test_dependent_values_count_for_less() -> None:
    draw = random.Random(2)
    independent = [draw.random() for _ in range(2000)]
    runs = [value for value in independent[:100] for _ in range(20)]
    assert 1 <= variance_ratio([independent]) < 2
    assert variance_ratio([runs]) > 10 and variance_ratio([[1.0] * 50]) == 1.0 and variance_ratio([[]]) == 1.0


@pytest.mark.parametrize(
    ("settings", "noun"),
    [
        ({}, "slo"),
        ({"slo": "ttft_p95<=1", "requests": 5}, "rule.first"),
        ({"slo": "ttft_p95<=1", "duration": 5}, "rule.first"),
        ({"slo": "ttft_p95<=1", "rate": 2}, "start"),
        ({"slo": "ttft_p95<=1", "concurrency": 2}, "concurrency"),
        ({"slo": "ttft_p95<=1", "arrivals": "trace", "trace": "x"}, "trace"),
        ({"slo": "ttft_p95<=1", "find": "B", "arrivals": "poisson"}, "closed"),
        ({"slo": "ttft_p95<=1", "find": "B", "running_limit": 4}, "running_limit"),
        ({"slo": "ttft_p95<=1", "find": "concurrency", "start": 1.5}, "whole"),
        ({"slo": "ttft_p95<=1", "start": 5, "most": 4}, "start"),
    ],
)
def test_settings_that_no_search_can_have(settings: dict[str, object], noun: str) -> None:
    with pytest.raises(ValidationError, match=noun):
        CapacitySettings.model_validate(settings)


def test_settings_survive_their_json_and_make_probes() -> None:
    spec = CapacitySettings.model_validate({"slo": "ttft_p95<=1", "arrivals": "poisson", "output_tokens": 9})
    assert CapacitySettings.model_validate(spec.model_dump(mode="json")) == spec
    probe = spec.probe(2.5, 40, 7)
    assert (probe.rate, probe.requests, probe.seed, probe.arrivals, probe.output_tokens) == (2.5, 40, 7, "poisson", 9)
    closed = CapacitySettings.model_validate({"slo": "ttft_p95<=1", "find": "concurrency"}).probe(6, 40, 0)
    assert (closed.concurrency, closed.rate, closed.open_loop) == (6, None, False)
