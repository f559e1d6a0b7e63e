"""What a comparison says of chance: intervals from the requests of both sides, and how busy the machine was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import DATA
from refusals import mentions
from test_hostile_runs import told

from vlmconsole.compare.resampling import TOO_FEW, noise, request_values
from vlmconsole.compare.runs import COMPARABLE_MEANS, compare_runs, compare_sides, side
from vlmconsole.drawings.measured import cell_table
from vlmconsole.measure.machine_load import BUSY_MEANS
from vlmconsole.measure.views import cells
from vlmconsole.reports.measured import sections
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.intervals import LEAST, unpaired_interval

RECORDED = DATA / "runs"
CALM, LOUD = {"before": 0.4, "after": 1.1, "cores": 2}, {"before": 13.0, "after": 9.0, "cores": 2}


def bench(home: Path, name: str, ttfts: list[float], host: dict[str, Any] | None = None) -> RunFolder:
    """The recorded measurement with these TTFTs, seconds."""
    run = RunFolder(shutil.copytree(RECORDED / "bench", home / "runs" / f"20261129-23503{name}-bench-9695"))
    first = next(row for row in run.read_jsonl("requests.jsonl") if row["counted"])
    lines = [json.dumps({**first, "index": at, "ttft_s": ttft}) for at, ttft in enumerate(ttfts)]
    run.file("requests.jsonl").write_text("\n".join(lines) + "\n")
    figures = {"n": len(ttfts), "p50": float(np.median(ttfts)), "p95": max(ttfts)}
    changed = {"n": len(ttfts), "ttft_s": figures, "host": host}
    run.write_json("summary.json", {**run.read_json("summary.json"), **changed})
    return run


def test_an_unpaired_interval_is_repeatable_and_finds_what_is_there() -> None:
    random = np.random.default_rng(5)
    slow, fast = random.normal(2.0, 0.1, 40), random.normal(1.0, 0.1, 60)
    found = unpaired_interval(slow.tolist(), fast.tolist())
    assert found == unpaired_interval(slow.tolist(), fast.tolist())
    assert found.low < found.difference < found.high < -0.8 and found.low > -1.2
    assert found.n == 40 and mentions(found.method, "unpaired", "bootstrap", "medians")
    means = unpaired_interval(slow.tolist(), fast.tolist(), statistic="mean")
    assert means.difference == pytest.approx(fast.mean() - slow.mean())
    expected = (slow.var() / 40 + fast.var() / 60) ** 0.5  # of a difference of means, by formula
    assert means.standard_error == pytest.approx(expected, rel=0.1)


def test_an_unpaired_interval_covers_no_difference_about_95_times_of_100() -> None:
    random = np.random.default_rng(1)
    trials = [(random.normal(size=LEAST), random.normal(size=2 * LEAST)) for _ in range(300)]
    found = [unpaired_interval(a.tolist(), b.tolist(), resamples=499) for a, b in trials]
    assert 0.91 <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.995


@pytest.mark.parametrize("values", [[1.0] * (LEAST - 1), [1.0] * LEAST + [float("nan")]])
def test_what_cannot_be_resampled_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least|finite"):
        unpaired_interval(values, [1.0] * 10)


def test_a_change_in_shares_never_falls_below_nothing_and_agrees_with_the_difference() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        a, b = random.lognormal(0, 1.5, 8).tolist(), random.lognormal(-0.5, 1.5, 9).tolist()
        share, plain = (unpaired_interval(a, b, relative=relative, resamples=499) for relative in (True, False))
        assert -1 < share.low <= share.high
        assert share.difference == pytest.approx(np.median(b) / np.median(a) - 1)
        assert (share.low <= 0 <= share.high) == (plain.low <= 0 <= plain.high)
    with pytest.raises(ValueError, match="above zero"):
        unpaired_interval([0.0] * 6, [1.0] * 6, relative=True)


def test_large_sides_are_resampled_in_parts_with_the_same_meaning() -> None:
    random = np.random.default_rng(2)
    a, b = random.normal(size=30_000), random.normal(0.1, 1, size=30_000)
    found = unpaired_interval(a.tolist(), b.tolist(), statistic="mean", resamples=200)
    assert found.difference == pytest.approx(b.mean() - a.mean())
    assert found.low < found.difference < found.high
    assert found.standard_error == pytest.approx((2 / 30_000) ** 0.5, rel=0.25)


def test_words_of_noise() -> None:
    one, other = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0, 2.1, 2.2, 2.3, 2.4, 2.5]
    assert noise(one, one)[1].endswith(TOO_FEW)
    assert noise(one[:5], other) == (None, f"{TOO_FEW} (n = 5 < 6)")
    interval, said = noise(one, other)
    assert interval is not None and interval[0] > 0
    assert said.startswith("+") and TOO_FEW not in said
    assert noise([], one) == (None, "")
    assert noise([0.0] * 6, one) == (None, "")  # no share of nothing


def test_a_change_within_the_scatter_of_its_requests_is_too_few_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = bench(tmp_path, "1", [0.10, 0.30, 0.11, 0.25, 0.12, 0.31])
    b = bench(tmp_path, "2", [0.28, 0.12, 0.31, 0.27, 0.13, 0.33])
    row = next(row for row in compare_runs(a, b)[1] if row.key == "ttft_s.p50")
    assert row.change is not None and row.change > 0.3
    assert row.interval is not None and row.interval[0] < 0 < row.interval[1]
    code, said = told(capsys, "--home", str(tmp_path), "runs", "compare", a.name, b.name)
    assert code == 0
    line = next(line for line in said.splitlines() if line.startswith("TTFT p50"))
    assert line.rstrip().endswith(TOO_FEW)
    assert COMPARABLE_MEANS in said
    assert "✓" not in said


def test_a_change_beyond_the_scatter_has_its_interval(tmp_path: Path) -> None:
    a = bench(tmp_path, "1", [0.10, 0.11, 0.12, 0.13, 0.14, 0.15])
    b = bench(tmp_path, "2", [0.30, 0.31, 0.32, 0.33, 0.34, 0.35])
    rows = {row.key: row for row in compare_runs(a, b)[1]}
    assert rows["ttft_s.p50"].interval is not None and rows["ttft_s.p50"].interval[0] > 1.0
    assert rows["ttft_s.p95"].noise == "" and rows["throughput_tok_s"].noise == ""


def test_requests_that_are_not_those_of_the_summary_give_no_interval(tmp_path: Path) -> None:
    a, b = (bench(tmp_path, name, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) for name in "12")
    b.file("requests.jsonl").write_text(b.file("requests.jsonl").read_text() * 2)
    rows = {row.key: row for row in compare_runs(a, b)[1]}
    assert rows["ttft_s.p50"].interval is None and rows["ttft_s.p50"].noise == ""


def test_warm_ups_and_what_was_not_counted_are_no_values() -> None:
    found = request_values(RunFolder(RECORDED / "bench"))
    assert {key: len(values) for key, values in found[""].items()} == {"ttft_s": 6, "e2e_s": 6}
    of_cells = request_values(RunFolder(RECORDED / "cb-grid-tiny"))
    assert len(of_cells) == 6 and {len(values["ttft_s"]) for values in of_cells.values()} == {8}
    assert request_values(RunFolder(RECORDED / "cache-probe-text")) == {}


def test_cells_of_a_sweep_are_held_against_their_own_requests() -> None:
    run = RunFolder(RECORDED / "cb-grid-tiny")
    one, other = side(run, "c2-b1"), side(run, "c2-b4")
    row = compare_sides(one, other, "running_limit")[1][0]
    assert row.key == "ttft_s.p50" and row.interval is not None and row.interval[1] < 0


def test_a_busy_machine_is_said_and_refuses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    calm, loud = bench(tmp_path, "1", values, CALM), bench(tmp_path, "2", values, LOUD)
    code, said = told(capsys, "--home", str(tmp_path), "runs", "compare", calm.name, loud.name)
    assert code == 0
    (remark,) = [line for line in said.splitlines() if "! b: " in line]
    assert mentions(remark, "load 13.0", "9.0", "2 cores") and "! a:" not in said
    assert BUSY_MEANS in said
    _, said = told(capsys, "--home", str(tmp_path), "--json", "runs", "compare", calm.name, loud.name)
    assert len(json.loads(said)["remarks"]) == 1


def test_a_report_says_that_the_machine_was_busy(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    calm, loud = bench(tmp_path, "1", values, CALM), bench(tmp_path, "2", values, LOUD)
    titles = [[part.title for one in sections(run) for part in one.parts] for run in (calm, loud)]
    assert "The machine" not in titles[0] and "The machine" in titles[1]


def test_the_runs_screen_says_that_the_machine_was_busy_and_wraps_it(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    calm, loud = bench(tmp_path, "1", values, CALM), bench(tmp_path, "2", values, LOUD)
    shown = [" ".join(line.plain.strip() for line in cell_table(cells(run), 60)) for run in (calm, loud)]
    assert "busy" not in shown[0]
    assert mentions(shown[1], "busy", "load 13.0", "9.0", "2 cores")
