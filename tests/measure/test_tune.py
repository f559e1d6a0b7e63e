"""Tuning: the rule on the lab's own situation, settings that are refused, and the job from the frozen rule on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_nouns, mentions, refused

from vlmconsole.engines.profile import ProfileError, load_profiles
from vlmconsole.jobs import tune
from vlmconsole.jobs.presets import PresetError, load_preset, overlay
from vlmconsole.measure.tune.memory import Peak
from vlmconsole.measure.tune.rule import MeasuredCell, TuneChoice, change, choose, confirm
from vlmconsole.measure.tune.settings import SAMPLED, TuneRule, TuneSettings, with_parameters

BASE = "chunked-512-mem-0.7"


def preset(name: str, *sets: str) -> Any:
    return overlay(load_preset(name), list(sets))


@cache
def lab_rule() -> TuneRule:
    found: TuneRule = preset("tune-lab").rule
    return found


def rule(**changes: Any) -> TuneRule:
    return TuneRule.model_validate(lab_rule().model_dump() | changes)


def cell(chunk: int, memory: float, p95: float, throughput: float, **more: Any) -> MeasuredCell:
    """A sound cell of the lab's grid: 12 answers of exactly 128 tokens that ended at their ceiling."""
    values = {"chunked_prefill_size": chunk, "mem_fraction_static": memory}
    made = MeasuredCell(
        name=f"chunked-{chunk}-mem-{memory}",
        values=values,
        state="valid",
        planned=12,
        n=12,
        finish_reasons={"length": 12},
        output_tokens=128,
        ttft_p95_s=p95,
        throughput=throughput,
        peak_bytes=int(memory * 2**35),
    )
    return replace(made, **more)


def the_lab() -> list[MeasuredCell]:
    """Nine cells as the lab may have seen them: one out of memory, one inconsistent, two slow, three close."""
    return [
        cell(256, 0.55, 0.900, 300.0),
        cell(256, 0.70, 0.910, 270.0),  # below 95 % of 300
        cell(256, 0.80, 0.500, 310.0, n=11, set_aside=1),  # an early stop
        cell(512, 0.55, 0.700, 284.9),  # just below
        cell(512, 0.70, 0.760, 300.0),  # the baseline
        cell(512, 0.80, 0.750, 300.0),
        cell(1024, 0.55, 0.690, 309.0),
        cell(1024, 0.70, 0.680, 310.0),  # the lowest, and 0.55 is close to it
        cell(1024, 0.80, 0.100, 400.0, state="failed", n=0, why="out of memory"),
    ]


# --- the rule ---
def test_the_labs_situation_ends_at_1024_and_055_step_by_step() -> None:
    found = choose(the_lab(), rule(), BASE)
    assert found.chosen == "chunked-1024-mem-0.55"
    dropped = {
        "chunked-256-mem-0.8": ("inconsistent", "1 answer", "128 tokens"),
        "chunked-1024-mem-0.8": ("failed", "out of memory"),
        "chunked-256-mem-0.7": ("throughput", "270.0 tok/s < 285.0"),
        "chunked-512-mem-0.55": ("throughput", "284.9 tok/s < 285.0"),
    }
    assert set(found.dropped) == set(dropped)
    for name, nouns in dropped.items():
        check_nouns(found.dropped[name], *nouns)
    first, second, third, fourth = found.steps
    check_nouns(first, "1", "7 of 9 cells", "chunked-256-mem-0.8 (inconsistent")
    check_nouns(second, "throughput", "≥ 285.0 tok/s", "95 %", "300.0 tok/s", "5 cells")
    check_nouns(third, "TTFT p95", "chunked-1024-mem-0.7 0.680 s", "≤ 0.700 s", "+3 %")
    assert fourth.endswith("chunked-1024-mem-0.55 0.55, chunked-1024-mem-0.7 0.7 → chunked-1024-mem-0.55")


def test_nothing_is_close_when_close_is_nothing() -> None:
    found = choose(the_lab(), rule(close_within=0), BASE)
    assert found.chosen == "chunked-1024-mem-0.7"
    assert mentions(found.steps[-1], "4", "nothing") and found.steps[-1].endswith(": chunked-1024-mem-0.7")


def test_the_limits_are_inclusive_and_the_sampled_peak_can_decide() -> None:
    base, at_the_floor = cell(512, 0.70, 0.75, 300.0), cell(256, 0.80, 0.5, 285.0, peak_bytes=10)
    assert choose([base, at_the_floor], rule(), BASE).chosen == at_the_floor.name
    even = [cell(512, 0.70, 1.0, 300.0, peak_bytes=2**30), cell(256, 0.8, 1.03, 300.0, peak_bytes=2**29)]
    found = choose(even, rule(memory=SAMPLED), BASE)
    assert found.chosen == "chunked-256-mem-0.8"
    assert "512 MiB" in found.steps[-1]
    unknown = choose([even[0], replace(even[1], peak_bytes=None)], rule(memory=SAMPLED), BASE)
    assert unknown.chosen is None and mentions(unknown.why, "memory", "chunked-256-mem-0.8", "not measured")


@pytest.mark.parametrize(
    ("change", "nouns"),
    [
        ({"failures": 1, "n": 11}, ["1 of 12", "failed"]),
        ({"finish_reasons": {"length": 11, "stop": 1}}, ["1 × stop", "length"]),
        ({"output_tokens": "127–128"}, ["127–128 tokens", "128"]),
        ({"n": 10}, ["10 of 12", "counted"]),
        ({"state": "invalid", "why": "client late"}, ["INVALID", "client late"]),
        ({"ttft_p95_s": None}, ["no TTFT"]),
    ],
)
def test_what_cannot_be_used_is_dropped_with_its_reason(change: dict[str, Any], nouns: list[str]) -> None:
    bad = cell(1024, 0.55, 0.1, 999.0, **change)
    found = choose([cell(512, 0.70, 0.75, 300.0), bad], rule(), BASE)
    assert found.chosen == BASE
    check_nouns(found.dropped[bad.name], *nouns)


def test_without_a_usable_baseline_nothing_is_chosen() -> None:
    broken = [replace(one, failures=2) if one.name == BASE else one for one in the_lab()]
    found = choose(broken, rule(), BASE)
    assert found.chosen is None
    assert found.why.startswith(f"the baseline {BASE} cannot be used (2 of 12 requests failed)")
    assert choose([], rule(), BASE).chosen is None


measured = st.builds(
    cell,
    st.sampled_from([256, 512, 1024]),
    st.sampled_from([0.55, 0.7, 0.8]),
    st.floats(0.01, 10),
    st.floats(1, 1000),
    failures=st.integers(0, 1),
)


@settings(deadline=None)
@given(st.lists(measured, unique_by=lambda one: one.name, max_size=9))
def test_whatever_was_measured_the_choice_obeys_the_rule(cells: list[MeasuredCell]) -> None:
    given_rule = rule()
    found: TuneChoice = choose(cells, given_rule, BASE)
    base = next((one for one in cells if one.name == BASE and not one.failures), None)
    assert (found.chosen is None) == (base is None)
    if base is None:
        return
    sound = [one for one in cells if not one.failures and one.throughput >= 0.95 * base.throughput]  # type: ignore[operator]
    lowest = min(one.ttft_p95_s for one in sound)  # type: ignore[type-var]
    winner = next(one for one in sound if one.name == found.chosen)
    close = [one for one in sound if one.ttft_p95_s <= lowest * 1.03]  # type: ignore[operator]
    assert winner in close
    assert winner.memory(given_rule) == min(one.memory(given_rule) for one in close)  # type: ignore[type-var]


def test_fresh_starts_confirm_or_refute_by_the_same_limits() -> None:
    base, won = cell(512, 0.70, 1.0, 300.0), cell(1024, 0.55, 0.895, 309.6)
    assert confirm(won, base, rule())[0] is True
    assert change(won, base)["ttft_p95"] == pytest.approx(-0.105)
    assert change(won, base)["throughput"] == pytest.approx(0.032)
    assert change(won, base)["peak_bytes"] == won.peak_bytes - base.peak_bytes  # type: ignore[operator]
    for worse, said in (
        (replace(won, throughput=280.0), "throughput 280.0 tok/s < 285.0: does not hold"),
        (replace(won, ttft_p95_s=1.04), "TTFT p95 1.040 s > 1.030: does not hold"),
        (replace(won, failures=1), "1 of 12 requests failed"),
    ):
        good, words = confirm(worse, base, rule())
        assert not good
        assert said in "; ".join(words)
    assert change(won, replace(base, ttft_p95_s=None))["ttft_p95"] is None


# --- settings ---
def test_the_labs_grid_is_nine_cells_and_132_requests() -> None:
    lab: TuneSettings = preset("tune-lab")
    cells = lab.expand()
    assert [one.values for one in cells][:2] == [
        {"chunked_prefill_size": 256, "mem_fraction_static": 0.55},
        {"chunked_prefill_size": 256, "mem_fraction_static": 0.7},
    ]
    assert len({one.name for one in cells}) == 9
    check_nouns(tune.estimate(lab).note, "132 requests", "44 warm-ups", "9 cells", "2 confirmations")
    assert lab.baseline().name == BASE
    sglang = load_profiles(None)["sglang-remote"]
    line = lab.profile(cells[0], sglang)
    assert line.launch is not None
    assert line.launch.argv[-4:] == ("--chunked-prefill-size", "256", "--mem-fraction-static", "0.55")
    assert "--disable-radix-cache" in line.launch.argv
    chosen = with_parameters(sglang, cells[0].values)  # what is saved keeps the server's own cache
    assert chosen.launch is not None
    assert "--disable-radix-cache" not in chosen.launch.argv
    assert lab.plan()["rule"]["baseline"] == {"chunked_prefill_size": 512, "mem_fraction_static": 0.7}


def test_mlx_parameters_go_where_the_lab_starts_it_from() -> None:
    tiny: TuneSettings = preset("tune-tiny")
    demo = load_profiles(None)["demo"]
    one = tiny.profile(tiny.expand()[0], demo)
    assert one.running_limit == 2
    assert one.launch is not None
    assert one.launch.extra == ("--prefill-step-size", "128")
    flagged = with_parameters(with_parameters(demo, {"trust_remote_code": True}), {"trust_remote_code": False})
    assert flagged.launch is not None
    assert flagged.launch.extra == ()
    with refused("server-foreign", "openai", error=ProfileError):
        with_parameters(load_profiles(None)["openai"], {"x": 1})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("grid={}",), "grid is empty"),
        (("grid={trust_remote_code = [true, false]}",), "in its profile"),
        (("grid={model_path = ['evil']}",), "in its profile"),
        (("grid={host = ['0']}",), "in its profile"),
        (("grid={attention_backend = ['../evil.py', 'triton']}",), "in its profile"),
        (("grid={reasoning_parser_plugin = ['evil']}",), "in its profile"),
        (("grid.chunked_prefill_size=[256, 256]",), "each value once"),
        (("grid.max_running_requests=[1]",), "the same setting"),
        (("rule.baseline={chunked_prefill_size = 512}",), "chunked_prefill_size, mem_fraction_static"),
        (("rule.baseline.mem_fraction_static=0.6",), "no cell"),
        (("rule.memory=weight",), "or one of"),
        (("output_tokens=64",), "must be output_tokens"),
        (("image=large",), "WIDTHxHEIGHT"),
        (("rule.close=0.1",), "“rule.close”"),
        (("rule.consistent.finish_reason=stop",), "length"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(changes: tuple[str, ...], said: str) -> None:
    with refused("setting-invalid", said, error=PresetError):
        preset("tune-lab", *changes)


@pytest.mark.parametrize("field", ["baseline", "close_within", "consistent", "throughput_floor", "memory"])
def test_the_rule_has_no_defaults(field: str) -> None:
    raw = load_preset("tune-lab").spec
    without = {key: value for key, value in raw["rule"].items() if key != field}
    with pytest.raises(ValueError, match="Field required"):
        TuneSettings.model_validate({**raw, "rule": without})


def test_a_peak_never_mixes_a_card_with_the_processor() -> None:
    peak = Peak()
    assert peak.to_json()["peak_bytes"] is None
    peak.add(9 * 2**30, "RAM", "resident")
    peak.add(2**30, "VRAM", "gpu0")
    peak.add(2**29, "VRAM", "gpu0")
    assert (peak.kind, peak.peak_bytes, peak.samples) == ("VRAM", 2**30, 2)
