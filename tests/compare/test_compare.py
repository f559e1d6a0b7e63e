"""Comparing measurements: refused with every differing condition named, or figures side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import GRID, lab_with_runs
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.compare.runs import COMPARED, compare, compare_runs
from vlmconsole.compare.sweeps import compare_sweeps
from vlmconsole.measure.summary import Lag, _lag_verdict
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import Distribution

BASE: dict[str, Any] = {
    "hardware": "one card",
    "engine": "SGLang",
    "engine_version": "0.5.5",
    "model": "Qwen2.5-VL-3B",
    "precision": "bfloat16",
    "image": "448x336",
    "input_tokens": 335,
    "output_tokens": 128,
    "client_concurrency": 4,
    "running_limit": 4,
    "cache": "off",
    "warm_up": "4 requests, not counted",
    "temperature": 0.0,
    "clock": "sent → first text",
    "client": "vlmconsole",
    "route": "loopback",
    "n": 12,
    "settings": {"chunked-prefill-size": 1024, "port": 1},
}
OTHER = {
    "hardware": "another",
    "engine": "vLLM",
    "engine_version": "0.5.23",
    "model": "other",
    "precision": "4-bit",
    "adapter": "sft",
    "image": "896x672",
    "input_tokens": 1735,
    "output_tokens": "120–128",
    "client_concurrency": 1,
    "running_limit": 1,
    "cache": "on",
    "clock": "something else",
    "client": "another client",
    "top_p": 0.9,
    "system_sha256": "c0ffee",
    "route": "network",
}


def conditions(**changes: Any) -> Conditions:
    return Conditions.model_validate({**BASE, **changes})


def test_equal_conditions_compare_and_sample_size_may_differ() -> None:
    found = compare(conditions(), conditions(n=48, client_error="±1 ms", notes=("x",)))
    assert found.comparable
    assert mentions(found.sentence(), "Comparable", "no")
    assert found.same["input_tokens"] == 335
    assert found.unknown == ["model weights"]


@pytest.mark.parametrize("key", sorted(OTHER))
def test_each_condition_alone_is_refused_by_its_name_and_may_be_the_experiment(key: str) -> None:
    a, b = conditions(), conditions(**{key: OTHER[key]})
    found = compare(a, b)
    assert not found.comparable
    assert [one.key for one in found.differs] == [key]
    assert COMPARED[key] in found.sentence()
    assert str(OTHER[key]) in found.sentence()
    allowed = compare(a, b, only=key)
    assert allowed.comparable
    assert allowed.allowed is not None
    assert allowed.allowed.key == key


def test_every_difference_is_named_at_once_and_only_allows_one() -> None:
    b = conditions(**OTHER)
    found = compare(conditions(), b)
    assert {one.key for one in found.differs} == set(OTHER)
    assert all(COMPARED[key] in found.sentence() for key in OTHER)
    still = compare(conditions(), b, only="input_tokens")
    assert not still.comparable
    assert {one.key for one in still.differs} == set(OTHER) - {"input_tokens"}


def test_unknown_is_not_equal_to_known() -> None:
    found = compare(conditions(), conditions(precision=None))
    assert [one.key for one in found.differs] == ["precision"]
    assert mentions(found.sentence(), "bfloat16", "not known")


def test_no_adapter_is_a_value_not_something_unknown() -> None:
    found = compare(conditions(), conditions(adapter="sft"))
    assert mentions(found.sentence(), "adapter", "none", "sft")


def test_another_nucleus_or_system_prompt_is_another_condition_and_none_is_a_value() -> None:
    found = compare(conditions(top_p=0.9), conditions(top_p=1.0, system_sha256="ab" * 32))
    assert mentions(found.sentence(), "2", "top-p", "0.9", "1.0", "system prompt", "none", "abababababab")
    assert mentions(compare(conditions(), conditions(top_p=1.0)).sentence(), "top-p", "not set", "1.0")


def test_server_settings_count_and_where_it_listens_does_not() -> None:
    found = compare(conditions(), conditions(settings={"chunked-prefill-size": 256, "port": 2, "new": True}))
    assert [one.key for one in found.differs] == ["settings.chunked-prefill-size"]
    only = compare(
        conditions(), conditions(settings={"chunked-prefill-size": 256}), only="settings.chunked-prefill-size"
    )
    assert only.comparable


def test_a_setting_that_is_a_condition_is_named_once() -> None:
    a = conditions(settings={"max-running-requests": 4})
    b = conditions(running_limit=1, settings={"max-running-requests": 1})
    assert [one.key for one in compare(a, b).differs] == ["running_limit"]


def test_of_warm_ups_only_counts_whether_there_were_any() -> None:
    assert compare(conditions(), conditions(warm_up="2 requests, not counted")).comparable
    assert not compare(conditions(), conditions(warm_up="0 requests, not counted")).comparable


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    with refused("condition-unknown", "lenght", "input_tokens"):
        compare(conditions(), conditions(), only="lenght")


def make_run(parent: Path, name: str, summary: dict[str, Any] | None, **changes: Any) -> RunFolder:
    run = RunFolder.create(parent, kind="bench", preset=name, spec={}, title=name, home=parent)
    if summary is not None:
        run.write_json("conditions.json", conditions(**changes).model_dump(mode="json"))
        run.write_json("summary.json", summary)
    return run


SUMMARY = {"valid": True, "n": 12, "ttft_s": {"p50": 0.2, "p95": 0.4, "n": 12}, "throughput_tok_s": 100.0}


def test_figures_stand_side_by_side_with_their_change(tmp_path: Path) -> None:
    faster = {**SUMMARY, "ttft_s": {"p50": 0.1, "p95": 0.3, "n": 48}, "throughput_tok_s": None}
    a, b = make_run(tmp_path, "a", SUMMARY), make_run(tmp_path, "b", faster)
    comparison, rows = compare_runs(a, b)
    assert comparison.comparable
    by_key = {row.key: row for row in rows}
    assert by_key["ttft_s.p50"].change == pytest.approx(-0.5)
    assert (by_key["ttft_s.p95"].n_a, by_key["ttft_s.p95"].n_b) == (12, 48)
    assert by_key["throughput_tok_s"].change is None
    assert "tpot_s.p50" not in by_key


def test_an_invalid_cell_is_not_compared(tmp_path: Path) -> None:
    late = {**SUMMARY, "valid": False, "invalid_because": "the client was late."}
    comparison, _ = compare_runs(make_run(tmp_path, "a", SUMMARY), make_run(tmp_path, "b", late))
    assert not comparison.comparable
    assert mentions(comparison.sentence(), "INVALID", late["invalid_because"])


def test_beside_an_invalid_run_no_hint_that_cannot_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {**SUMMARY, "valid": False, "invalid_because": "the client was late."}
    a = make_run(tmp_path, "a", SUMMARY)
    cases: tuple[tuple[dict[str, Any], int, bool, bool], ...] = (
        (late, 4, False, False),
        (late, 8, True, False),
        (SUMMARY, 8, True, True),
    )
    for summary, concurrency, table, hint in cases:
        b = make_run(tmp_path, "b", summary, client_concurrency=concurrency)
        with pytest.raises(SystemExit) as left:
            main(["--home", str(tmp_path), "runs", "compare", str(a.path), str(b.path)])
        told = capsys.readouterr().out
        assert left.value.code == 3 and "Not comparable" in told
        assert ("differs  " in told, "--only client_concurrency" in told) == (table, hint)


def test_the_lag_limit_says_where_it_comes_from() -> None:
    probe = Distribution(n=100, mean=0.01, min=0.0, p50=0.001, p90=0.09, p95=0.1, p99=0.12, max=0.2)
    long = _lag_verdict(Lag(probe, None), 0.02, 1.38438)
    assert long is not None and mentions(long, "120.0 ms", "27.7 ms", "2 % of the median TTFT", "lag_limit_ms 20")
    short = str(_lag_verdict(Lag(probe, None), 0.02, 0.5))
    assert mentions(short, "120.0 ms", "20.0 ms", "lag_limit_ms 20") and "median" not in short
    assert _lag_verdict(Lag(probe, None), 0.2, None) is None


def test_a_run_without_figures_says_so(tmp_path: Path) -> None:
    with refused("figures-missing"):
        compare_runs(make_run(tmp_path, "a", SUMMARY), make_run(tmp_path, "b", None))


def make_sweep(parent: Path, name: str, cells: dict[str, dict[str, Any]]) -> RunFolder:
    """A sweep of measured cells: name → changed conditions, or what its line in cells.jsonl is to have besides."""
    run = RunFolder.create(parent, kind="sweep", preset=name, spec={}, title=name, home=parent)
    for cell, more in cells.items():
        line = {"name": cell, "state": "valid", "settings": {}, "summary": SUMMARY}
        given = conditions(**{key: value for key, value in more.items() if key in BASE}).model_dump(mode="json")
        line |= {"conditions": given, **{key: value for key, value in more.items() if key not in BASE}}
        run.append_jsonl("cells.jsonl", {key: value for key, value in line.items() if value is not None})
    return run


def test_two_sweeps_are_compared_cell_by_cell_and_each_unlike_cell_is_refused(tmp_path: Path) -> None:
    faster = {**SUMMARY, "throughput_tok_s": 150.0}
    a = make_sweep(tmp_path, "a", {"C1": {}, "C4": {}, "large": {}, "late": {}, "only-a": {}})
    b = make_sweep(
        tmp_path,
        "b",
        {
            "C4": {"model": "another", "precision": "4-bit"},
            "C1": {"summary": faster},  # another order, same name
            "large": {"state": "failed", "why": "the server ended", "summary": None},
            "late": {"state": "invalid", "why": "the client was late"},
        },
    )
    found = compare_sweeps(a, b)
    assert [pair.name for pair in found.pairs] == ["C1", "C4", "late"]
    first, unlike, late = found.pairs
    assert first.comparison.comparable
    assert {row.key: row.change for row in first.rows}["throughput_tok_s"] == pytest.approx(0.5)
    assert [one.key for one in unlike.comparison.differs] == ["model", "precision"]
    assert mentions(unlike.comparison.sentence(), "precision", "bfloat16", "4-bit")
    (invalid,) = late.comparison.invalid
    assert mentions(invalid, f"{b.name}:late", "INVALID", "the client was late")
    assert not found.comparable
    assert mentions(found.sentence(), "1 of 3", "cells")
    assert [line.split(" ", 1)[0] for line in found.alone] == [f"{a.name}:large", f"{a.name}:only-a", f"{b.name}:large"]
    assert "the server ended" in found.alone[-1]
    told = found.to_json()
    assert "figures" in told["cells"][0] and "figures" not in told["cells"][1]


def test_a_damaged_cell_is_said_and_refuses_no_other(tmp_path: Path) -> None:
    odd = {**SUMMARY, "ttft_s": "x", "e2e_s": {"p50": "y", "p95": True}, "throughput_tok_s": float("nan")}
    a = make_sweep(tmp_path, "a", {"C1": {}, "C2": {}, "C4": {}, "C8": {}})
    b = make_sweep(
        tmp_path, "b", {"C1": {}, "C2": {"conditions": {}}, "C4": {"conditions": {"n": "many"}}, "C8": {"summary": odd}}
    )
    found = compare_sweeps(a, b)
    assert [(pair.name, pair.comparison.comparable) for pair in found.pairs] == [("C1", True), ("C8", True)]
    assert all(row.b is None for row in found.pairs[1].rows)  # no number: unknown
    assert any(mentions(text, f"{b.name}:C2", "no conditions") for text in found.alone)
    assert any(mentions(text, f"{b.name}:C4", "conditions", "damaged") for text in found.alone)


def test_sweeps_that_differ_in_one_condition_everywhere_are_an_experiment(tmp_path: Path) -> None:
    names = {"C1": 1, "C4": 4}
    a = make_sweep(tmp_path, "a", {name: {"client_concurrency": c} for name, c in names.items()})
    b = make_sweep(tmp_path, "b", {name: {"client_concurrency": c, "cache": "on"} for name, c in names.items()})
    assert not compare_sweeps(a, b).comparable
    found = compare_sweeps(a, b, only="cache")
    assert found.comparable
    assert mentions(found.sentence(), "Comparable", "2 cells")
    strangers = compare_sweeps(a, make_sweep(tmp_path, "c", {"x": {}, "y": {}}))
    assert not strangers.comparable
    assert mentions(strangers.sentence(), "Not comparable", "no cell")
    assert len(strangers.alone) == 4


def test_the_command_shows_every_cell_and_the_exit_code_says_whether_all_may_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = lab_with_runs(tmp_path / "home", GRID)
    other = places.runs / "20261129-235200-cb-grid-tiny-cafe"
    shutil.copytree(places.runs / GRID, other)

    def call(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["--home", str(places.home), "runs", "compare", GRID, other.name, *words])
        return int(stopped.value.code or 0), capsys.readouterr().out

    code, said = call("--json")
    told = json.loads(said)
    assert (code, told["comparable"], len(told["cells"]), told["alone"]) == (0, True, 6, [])
    assert [line.split(" ", 1)[0] for line in told["not_intact"]] == [other.name]  # a copy is in no ledger
    lines = (other / "cells.jsonl").read_text().splitlines()
    changed = json.loads(lines[0])
    changed["conditions"]["precision"] = "bfloat16"
    (other / "cells.jsonl").write_text("\n".join([json.dumps(changed), *lines[1:]]) + "\n")
    code, said = call()
    assert code == 3
    assert mentions(said, "5 of 6", "cells")
    assert any(mentions(line, changed["name"], "Not comparable", "1", "precision") for line in said.splitlines())
    assert "--only precision" in said
    assert call("--only", "precision")[0] == 0
