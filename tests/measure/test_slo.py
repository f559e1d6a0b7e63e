"""Objectives: how they are read, which requests keep them, and goodput in summaries, tables and comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bench_cli import PATIENT, call

from vlmconsole.compare.runs import figures
from vlmconsole.drawings.measured import cell_table
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.request_table import RequestTable, RequestTimes
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.slo import Slo, SloLimit, goodput, slo_sentence
from vlmconsole.measure.views import CellView
from vlmconsole.scoring.shares import share_interval

SLO = Slo.parse("ttft_p95<=0.8,tpot_p90<=50ms")


def test_an_objective_is_read_and_written() -> None:
    assert SLO.limits == (SloLimit("ttft", 95, 0.8), SloLimit("tpot", 90, 0.05))
    assert str(SLO) == "ttft_p95<=0.8,tpot_p90<=0.05" and Slo.parse(str(SLO)) == SLO
    assert [limit.allowed for limit in SLO.limits] == [0.05, 0.1]
    assert BenchSettings(slo=" e2e_p99.5 ≤ 2s ").slo == "e2e_p99.5<=2"
    assert "slo" not in BenchSettings().model_dump()


WRONG = [
    "ttft<=1",
    "ttft_p95<1",
    "ttft_p0<=1",
    "ttft_p95<=0",
    "itl_p95<=1",
    "ttft_p95<=1,",
    "ttft_p95<=1h",
    "ttft_p100<=1",
    "ttft_p95<=1e9",
]


@pytest.mark.parametrize("text", ["", *WRONG, "ttft_p95<=99999999", "ttft_p95<=1,ttft_p95<=2"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Slo.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_an_objective_or_refused(text: str) -> None:
    try:
        slo = Slo.parse(text)
    except ValueError:
        return
    assert Slo.parse(str(slo)) == slo


def request(**figures: float | bool | None) -> RequestTimes:
    return RequestTimes(0.0, 1.0, **figures)  # type: ignore[arg-type]


def test_a_request_is_good_when_it_keeps_every_limit() -> None:
    assert SLO.good(request(ttft=0.8, tpot=0.05)) and not SLO.good(request(ttft=0.81, tpot=0.01))
    assert not SLO.good(request(ttft=0.1, tpot=0.06)) and not SLO.good(request(failed=True))
    assert SLO.good(request(ttft=0.1)), "an answer of one token has no time per token to break"


def test_goodput_counts_good_requests_and_judges_each_limit_by_its_share() -> None:
    requests = [request(ttft=0.1, tpot=0.01)] * 90 + [request(ttft=0.9, tpot=0.01)] * 4 + [request(ttft=0.1)] * 5
    value = goodput(SLO, [*requests, request(failed=True)], 20.0)
    assert (value["n"], value["good"], value["requests_per_s"], value["holds"]) == (100, 95, 4.75, True)
    first, second = value["limits"]
    assert (first["violating"], first["holds"], first["unknown"], first["n"]) == (0.05, True, 0, 100)
    assert second["violating"] == pytest.approx(1 / 95) and (second["unknown"], second["n"]) == (5, 95)
    assert first["low"] < 0.05 < first["high"] and json.dumps(value)
    worse = goodput(SLO, [*requests, *[request(failed=True)] * 2], 20.0)
    assert worse["holds"] is False and worse["limits"][0]["holds"] is False
    assert "ttft_p95" in slo_sentence({"goodput": worse}) and "tpot_p90<=0.05 broken" not in slo_sentence(
        {"goodput": worse}
    )
    assert goodput(SLO, [request(ttft=0.1)], 1.0)["holds"] is None, "no time per token is known of any"
    assert goodput(SLO, [], None)["requests_per_s"] is None
    assert goodput(SLO, [request(failed=True)], None)["requests_per_s"] == 0.0


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_of_a_share_is_clopper_and_pearsons(counts: tuple[int, int]) -> None:
    from scipy.stats import binom

    count, n = counts
    low, high = share_interval(count, n)
    assert 0 <= low <= count / n <= high <= 1
    if count:
        assert binom.sf(count - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    if count < n:
        assert binom.cdf(count, n, high) == pytest.approx(0.025, rel=1e-6)


def test_no_share_is_refused() -> None:
    for count, n in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError):
            share_interval(count, n)


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.none() | st.floats(0, 10), st.none() | st.integers(0, 9), st.booleans()))
)
def test_a_table_gives_back_what_was_added(rows: list[tuple[float, float | None, int | None, bool]]) -> None:
    table = RequestTable()
    added = [RequestTimes(at, at + 1, ttft, None, None, ttft, tokens, failed) for at, ttft, tokens, failed in rows]
    for times in added:
        table.add(times)
    assert list(table) == added and len(table) == len(added)


def view(**goodput: object) -> CellView:
    kept = {"slo": "ttft_p95<=1", "requests_per_s": 3.25, "n": 9, "good": 8, "holds": True, "limits": []}
    summary = {"ttft_s": {"p50": 0.5, "p95": 0.6}, "n": 9, "goodput": {**kept, **goodput}}
    return CellView("a", "valid", "", "", {}, summary, {})


def test_tables_and_comparisons_show_it_where_there_is_one() -> None:
    def text(cell: CellView, width: int) -> str:
        return "\n".join("".join(piece[0] for piece in line.pieces) for line in cell_table([cell], width))

    assert "good/s" in text(view(), 120) and "3.25" in text(view(), 120)
    assert "good/s" not in text(CellView("a", "valid", "", "", {}, {}, {}), 120)
    assert "good/s" not in text(view(), 34)
    text(view(limits=["odd", 3], requests_per_s="much", slo=[1]), 80)  # a damaged file is no crash
    rows = {row.key: row for row in figures(view().summary, view(requests_per_s=6.5).summary)}
    assert rows["goodput"].change == 1.0
    assert "goodput" not in {row.key for row in figures(view().summary, view(slo="ttft_p95<=2").summary)}


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with running(Schedule(role_ms=1, ttft_ms=20, itl_ms=3, tokens=8)) as reference:
        yield reference


def test_bench_tells_goodput(server: Reference, tmp_path: Path) -> None:
    common = [
        "-n",
        "8",
        "--base-url",
        server.base_url,
        "--model",
        "reference",
        "--output-tokens",
        "8",
        "--set",
        PATIENT,
    ]
    code, result, said = call(tmp_path, "bench", *common, "--slo", "ttft_p95<=60,e2e_p95<=0.001")
    assert code == 0, said
    kept = result["goodput"]
    assert kept == result["summary"]["goodput"] and (kept["n"], kept["good"], kept["holds"]) == (8, 0, False)
    assert [limit["violating"] for limit in kept["limits"]] == [0.0, 1.0] and kept["requests_per_s"] == 0.0
    code, result, _ = call(tmp_path, "bench", *common, "--slo", "ttft<=60")
    assert code == 2 and "slo" in result["error"]["message"]
