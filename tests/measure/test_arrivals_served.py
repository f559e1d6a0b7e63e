"""Loads of every shape sent to a server over real sockets: when requests left, when the load ended, what was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.engines.profile import given_profile
from vlmconsole.jobs import bench, sweep
from vlmconsole.jobs.contract import Context
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.probes import seconds_alone
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.sweep import SweepSettings
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

PATIENT_MS = 60_000  # other programs share the machine that tests run on


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with running(Schedule(role_ms=1, ttft_ms=20, itl_ms=2, tokens=6)) as reference:
        yield reference


def context(tmp_path: Path, kind: str) -> Context:
    places = Places(home=tmp_path / "home").ensure()
    run = RunFolder.create(places.runs, kind=kind, preset=kind, spec={}, title=kind, home=places.home)
    return Context(run, places)


def measured(tmp_path: Path, server: Reference, **settings: Any) -> tuple[RunFolder, dict[str, Any], Conditions]:
    given = {"base_url": server.base_url, "model": "reference", "lag_limit_ms": PATIENT_MS, "output_tokens": 6}
    where = context(tmp_path, "bench")
    summary = bench.run(where, BenchSettings.model_validate(given | settings))
    return where.run, summary, Conditions.model_validate(where.run.read_json("conditions.json"))


def rows(run: RunFolder) -> list[dict[str, Any]]:
    return sorted(
        (row for row in run.read_jsonl("requests.jsonl") if row["phase"] == "measured"), key=lambda row: row["index"]
    )


def test_a_closed_loop_sends_for_its_duration_and_misses_nothing_it_did_not_need(
    tmp_path: Path, server: Reference
) -> None:
    run, summary, conditions = measured(tmp_path, server, concurrency=3, duration=1.0)
    sent = rows(run)
    assert summary["n"] == summary["planned"] == len(sent) > 3 and summary["failures"] == 0
    assert [row["index"] for row in sent] == list(range(len(sent)))
    assert max(row["sent"] for row in sent) <= 1.1
    assert (conditions.client_concurrency, conditions.rate, conditions.arrivals) == (3, None, None)
    assert any("prepare" in note for note in conditions.notes), "what was asked beforehand is no secret"
    assert not any("used up" in note for note in conditions.notes)
    units = {event["unit"] for event in run.read_jsonl("events.jsonl") if event.get("kind") == "progress"}
    assert units == {"s"}


def test_what_was_prepared_may_not_last_and_then_it_is_noted(
    tmp_path: Path, server: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlmconsole.measure.workload.MOST_PREPARED", 4)
    _, summary, conditions = measured(tmp_path, server, concurrency=2, duration=60.0)
    assert summary["n"] == 4 and any("4 prepared requests were used up" in note for note in conditions.notes)


def test_how_long_an_answer_takes_alone(server: Reference) -> None:
    body = {"model": "reference", "max_tokens": 6, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    assert 0.028 < seconds_alone(given_profile(server.base_url, "reference"), [body, body]) < 5


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"arrivals": "gamma", "burstiness": 0.5, "rate": 40.0}, "gamma, burstiness 0.5"),
        ({"arrivals": "ramp", "ramp_from": 10.0, "rate": 60.0}, "ramp from 10"),
        ({"arrivals": "poisson", "rate": 40.0}, "poisson"),
        ({"rate": 40.0}, "constant"),
    ],
)
def test_each_shape_is_sent_as_it_is_due(
    tmp_path: Path, server: Reference, settings: dict[str, Any], label: str
) -> None:
    run, summary, conditions = measured(tmp_path, server, requests=20, **settings)
    due = BenchSettings.model_validate(settings).shape.due(20) if "ramp_from" not in settings else None
    sent = rows(run)
    assert summary["n"] == 20 and (conditions.arrivals, conditions.client_concurrency) == (label, None)
    if due is not None:
        assert [row["scheduled"] for row in sent] == pytest.approx(due, abs=1e-5)
    assert all(row["sent"] >= row["scheduled"] for row in sent)
    late = sorted(row["sent"] - row["scheduled"] for row in sent)
    assert late[len(late) // 2] < 0.05


def test_a_trace_is_replayed_with_its_times_lengths_and_shared_prefixes(tmp_path: Path, server: Reference) -> None:
    trace = tmp_path / "trace.jsonl"
    requests = [
        {
            "timestamp": 400 + 100 * number,
            "input_length": 700 + number,
            "output_length": 6,
            "hash_ids": [1, 10 + number],
        }
        for number in range(6)
    ]
    trace.write_text("".join(json.dumps(request) + "\n" for request in requests))
    run, summary, conditions = measured(
        tmp_path, server, arrivals="trace", trace=str(trace), speed=4.0, equal_work=True
    )
    sent = rows(run)
    assert [row["scheduled"] for row in sent] == pytest.approx([number / 40 for number in range(6)], abs=1e-5)
    assert [row["prompt_tokens"] for row in sent] == pytest.approx([700 + number for number in range(6)], abs=2)
    assert (summary["n"], summary["set_aside"], conditions.max_tokens) == (6, {}, None)
    assert conditions.arrivals is not None and "6 requests" in conditions.arrivals and "speed 4" in conditions.arrivals
    words = run.read_json("request.json")["messages"][0]["content"].split()
    assert len(words) > 600


def test_an_answer_shorter_than_its_trace_says_is_set_aside(tmp_path: Path, server: Reference) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": 0, "output_length": tokens}) + "\n" for tokens in (6, 9)))
    _, summary, conditions = measured(tmp_path, server, arrivals="trace", trace=str(trace), equal_work=True)
    assert (summary["n"], summary["set_aside"]) == (1, {"early stop": 1})
    assert any("input_length" in note for note in conditions.notes)


def test_a_trace_that_is_not_there_is_known_before_it_runs(tmp_path: Path) -> None:
    spec = BenchSettings(arrivals="trace", trace=str(tmp_path / "none.jsonl"))
    (problem,) = bench.problems(spec, Places(tmp_path), True)
    assert "none.jsonl" in problem


def test_a_sweep_of_rates_for_a_duration(tmp_path: Path, server: Reference) -> None:
    where = context(tmp_path, "sweep")
    spec = SweepSettings.model_validate(
        {
            "base_url": server.base_url,
            "model": "reference",
            "lag_limit_ms": PATIENT_MS,
            "output_tokens": 6,
            "duration": 0.5,
            "grid": {"rate": [10, 20]},
        }
    )
    summary = sweep.run(where, spec)
    assert [cell["name"] for cell in summary["cells"]] == ["r10", "r20"]
    assert [cell["summary"]["n"] for cell in summary["cells"]] == [5, 10] and summary["requests"] == 15
    assert "rate" in summary["varied"] and summary["valid"] and summary["equal_work"]
