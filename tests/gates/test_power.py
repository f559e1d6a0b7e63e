"""What gates can see: power against simulated runs, gates that decide nothing, and weak intervals refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judged import PLAN, plan
from refusals import refused

from vlmconsole.gates.measures import of_counts
from vlmconsole.gates.plan import Plan
from vlmconsole.gates.power import CHURN, BaseShare, GatePower, power, refuse_weak_intervals
from vlmconsole.scoring.bounded import paired_bounds
from vlmconsole.scoring.intervals import paired_interval

N = 64


def planned(metric: str, limit: dict[str, float], **changes: Any) -> Plan:
    group = {"name": "g", "split": "test-regular", "n": N, "scorer": "counting", **changes.pop("group", {})}
    changes = {"intervals": "percentile", **changes}
    return plan(
        groups=[group], gates=[{"group": "g", "metric": metric, **limit}], generations={"evaluation": 2 * group["n"]},
        **changes,
    )  # fmt: skip


def seen(judged: Plan, base: float | None) -> GatePower:
    shares = {"all_correct": base, "partial": base, "valid": base, "blind": base}
    known = {"g": BaseShare({k: v for k, v in shares.items() if v is not None}, "run")} if base is not None else {}
    (only,) = power(judged, known)
    return only


def test_a_drop_that_cannot_happen_is_vacuous_and_a_gain_without_room_unreachable() -> None:
    drop = planned("partial_drop", {"at_most": 5.0})
    assert seen(drop, 0.0).state == "vacuous" and "vacuous" in seen(drop, 0.02).text
    assert seen(drop, 0.5).state == ""
    gain = planned("partial_gain_ci_low", {"above": 0.0})
    assert seen(gain, 63 / 64).state == "unreachable" and "unreachable" in seen(gain, 63 / 64).text
    assert seen(gain, 0.5).state == ""
    assert seen(planned("all_correct", {"at_least": 0.0}), 0.5).state == "vacuous"
    assert seen(planned("all_correct", {"at_least": 1.01}), 0.5).state == "unreachable"


def test_an_assumed_base_calls_a_gate_only_what_it_is_for_every_base() -> None:
    drop = seen(planned("partial_drop", {"at_most": 5.0}), None)
    assert drop.state == "" and drop.source == "" and "not measured" in drop.text
    assert seen(planned("all_correct", {"at_least": 0.0}), None).state == "vacuous"


def test_a_guard_below_its_base_cannot_judge() -> None:
    guard = planned("partial_drop", {"at_most": 5.0}, group={"base_at_least": 0.8})
    assert seen(guard, 0.5).state == "not judged" and seen(guard, 0.9).state == ""


@pytest.mark.parametrize(
    ("metric", "limit", "intervals"),
    [
        ("all_correct", {"at_least": 0.7}, "percentile"),
        ("partial_gain_ci_low", {"above": 0.0}, "percentile"),
        ("score_gain_ci_low", {"above": 0.0}, "bounded"),
        ("score_drop", {"at_most": 5.0}, "percentile"),
    ],
)
def test_the_change_that_is_named_is_seen_in_eighty_of_a_hundred_runs(
    metric: str, limit: dict[str, float], intervals: str
) -> None:
    judged = planned(metric, limit, intervals=intervals)
    base = 0.5
    told = seen(judged, base)
    (gate,) = judged.gates
    at = told.fails_at if metric == "score_drop" else told.passes_at
    assert at is not None and told.sees is not None
    random, right = np.random.default_rng(3), N // 2
    turned = CHURN * base * (1 - base) * N
    win = (max(0.0, at - base) * N + turned) / (N - right)
    lose = (max(0.0, base - at) * N + turned) / right
    passed, runs = 0, 300
    for _ in range(runs):
        won, lost = int(random.binomial(N - right, win)), int(random.binomial(right, lose))
        before = [0.0] * (N - right) + [1.0] * right
        after = [1.0] * won + [0.0] * (N - right - won) + [0.0] * lost + [1.0] * (right - lost)
        interval = (
            paired_bounds(before, after, draws=999)
            if intervals == "bounded"
            else paired_interval(before, after, resamples=999)
        )
        passed += gate.passes(gate.definition.value(of_counts(N, right, won, lost, interval)))
    wanted = 0.2 if metric == "score_drop" else 0.8
    assert passed / runs == pytest.approx(wanted, abs=0.08)


def test_chances_grow_with_the_change_and_a_gate_on_more_examples_sees_less() -> None:
    few = seen(planned("score_gain_ci_low", {"above": 0.0}, group={"n": 40}), 0.5)
    many = seen(planned("score_gain_ci_low", {"above": 0.0}, group={"n": 160}), 0.5)
    assert few.sees is not None and many.sees is not None and 0 < many.sees < few.sees
    assert few.unchanged is not None and few.unchanged < 0.05


def test_a_weak_interval_is_refused_and_a_bounded_one_is_not() -> None:
    small = {**PLAN, "intervals": "percentile"}
    with refused("interval-weak", "10", "bounded"):
        refuse_weak_intervals(plan(**small))
    refuse_weak_intervals(plan(intervals="bounded"))
    refuse_weak_intervals(planned("all_correct", {"at_least": 0.5}, group={"n": 10}))
