"""A capacity search as a job, end to end: real client, real sockets, servers of known limits, one that dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from test_bench_cli import call
from tuned_server import profile

from vlmconsole.engines.profile import save_profile
from vlmconsole.jobs import capacity
from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import read_frozen
from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.measure.capacity.settings import CapacitySettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

COMMON: dict[str, Any] = {
    "model": "reference",
    "output_tokens": 4,
    "warm_up": 0,
    "lag_limit_ms": 60_000,  # other programs share the machine that tests run on
    "rule": {"first": 120, "most": 480},
}


def job(tmp_path: Path, **settings: Any) -> tuple[Context, CapacitySettings]:
    places = Places(home=tmp_path / "home").ensure()
    spec = CapacitySettings.model_validate(COMMON | settings)
    dump = spec.model_dump(mode="json")
    run = RunFolder.create(places.runs, kind="capacity", preset="c", spec=dump, title="c", home=places.home)
    return Context(run, places), spec


def test_concurrency_of_a_server_with_four_slots(tmp_path: Path) -> None:
    # An answer takes 40 ms of a slot: C in flight wait 40 × (C / 4 − 1) ms, far below the limit at 4, far above at 64.
    with running(Schedule(role_ms=1, ttft_ms=37, itl_ms=1, tokens=4, limit=4)) as server:
        where, spec = job(
            tmp_path, base_url=server.base_url, find="concurrency", slo="ttft_p95<=0.25", start=4, most=64,
            rule={"first": 120, "most": 480, "resolution": 1},
        )  # fmt: skip
        summary = capacity.run(where, spec)
    assert 4 <= summary["holds"] < 64 and summary["confirmed"] and summary["fails"] > summary["holds"]
    assert summary["confirmed_on"] == "a fresh pass" and summary["broke"] is None
    assert {"find", "slo", "resolution", "requests_spent", "requests_grid", "probes"} <= summary.keys()
    rows = [row for row in where.run.read_jsonl("requests.jsonl") if row["phase"] == "measured"]
    assert len(rows) == summary["requests_spent"], "every request spent is in the books"
    frozen = read_frozen(where.run, "rule.json", Ledger(where.places.ledger))
    assert frozen.sha256 == summary["rule_sha256"] and frozen.t < min(
        event["t"] for event in where.run.read_jsonl("events.jsonl") if event.get("kind") == "cell"
    )
    assert [probe["load"] for probe in where.run.read_jsonl("probes.jsonl")] == [
        probe["load"] for probe in summary["probes"]
    ]
    assert all(
        name.startswith(("concurrency-", "confirm-concurrency-")) for name in where.run.read_json("conditions.json")
    )

    again = Context(RunFolder.create(
        where.places.runs, kind="capacity", preset="c", spec=where.run.job()["spec"], title="c", home=where.places.home,
    ), where.places, where.run)  # fmt: skip
    resumed = capacity.run(again, spec)
    assert (resumed["holds"], resumed["fails"]) == (summary["holds"], summary["fails"]), "nothing was measured again"


def test_rate_is_found_by_the_command(tmp_path: Path) -> None:
    with running(Schedule(role_ms=1, ttft_ms=17, itl_ms=1, tokens=4, limit=8)) as server:  # 400 requests/s at most
        sets = [f"base_url={server.base_url}", "server=", "model=reference", "find=rate", "slo=ttft_p95<=0.2"]
        sets += ["output_tokens=4", "warm_up=0", "lag_limit_ms=60000", "start=100", "most=800", "rule.most=400"]
        sets += ["rule.resolution=1"]
        words = [word for text in sets for word in ("--set", text)]
        code, result, said = call(tmp_path, "run", "capacity", *words)
    assert code == 0, said
    assert result["find"] == "rate" and result["slo"] == "ttft_p95<=0.2" and result["run"]
    assert result["holds"] is not None and result["holds"] < 800 and result["requests_grid"] > 0
    for probe in result["probes"]:
        assert {"load", "n", "goodput", "violating", "low", "high", "verdict"} <= probe.keys()
    assert json.dumps(result["probes"])


@pytest.mark.slow
def test_b_is_found_on_servers_of_its_own_and_confirmed_on_a_fresh_start(tmp_path: Path) -> None:
    where, spec = job(tmp_path, server="tuned", find="B", slo="ttft_p95<=10", start=2, most=4, model="")
    save_profile(where.places.servers, profile())
    summary = capacity.run(where, spec)
    assert (summary["holds"], summary["fails"], summary["confirmed"]) == (4, None, True)
    assert summary["confirmed_on"] == "a fresh start"
    assert len(list(where.run.path.glob("server-*-b*.log"))) == 3, "B 2, B 4, and B 4 anew"


def test_a_server_that_dies_is_a_result(tmp_path: Path) -> None:
    with running(Schedule(role_ms=1, ttft_ms=10, itl_ms=1, tokens=8)) as server:
        where, spec = job(tmp_path, base_url=server.fault_url("die"), find="concurrency", slo="ttft_p95<=1")
        summary = capacity.run(where, spec)
    assert summary["holds"] is None and summary["fails"] == 1 and summary["broke"]["load"] == 1
    assert summary["probes"][0]["verdict"] == "fails" and "died" in summary["broke"]["why"]


def test_what_cannot_be_restarted_is_refused_beforehand(tmp_path: Path) -> None:
    where, spec = job(tmp_path, base_url="http://127.0.0.1:1/v1", find="B", slo="ttft_p95<=1")
    (problem,) = capacity.problems(spec, where.places, True)
    assert "B" in problem
    with refused("cells-unmeasured", error=JobError):
        capacity.run(*job(tmp_path, base_url="http://127.0.0.1:1/v1", find="concurrency", slo="ttft_p95<=1"))
