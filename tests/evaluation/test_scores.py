"""The score of an evaluation: stored, gathered from older runs, in lines and in lists; failures are counted apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judged import plan, right, write_run
from refusals import mentions

from vlmconsole.cli.run import ending
from vlmconsole.desks.runs import line_of
from vlmconsole.evaluation.figures import group_figures, paired_figures, score_figures
from vlmconsole.evaluation.scores import score_lines, short_score, side_scores
from vlmconsole.gates.samples import Sample, read_side
from vlmconsole.runs.folder import RunFolder


def sample(at: int, partial: float, *, valid: bool = True, http_ok: bool = True) -> Sample:
    fields: dict[str, Any] = dict.fromkeys(("picture_sha256", "pixel_sha256", "prompt_sha"), "a" * 64)
    return Sample(
        id=str(at), group="g", answer="x" if http_ok else None, truth="x", valid=valid, all_correct=partial == 1.0,
        partial=partial, reward=partial, http_ok=http_ok, t=0.0, **fields,
    )  # fmt: skip


def summary_of(home: Path) -> tuple[RunFolder, dict[str, Any]]:
    run = write_run(home, plan(), right(2), right(7))
    before, after = (read_side(run.file(f"{side}.jsonl")).samples for side in ("before", "after"))
    groups = group_figures(before, after, ["regular", "hollow", "naming"])
    scores = {"before": score_figures(before.values()), "after": score_figures(after.values())}
    return run, {"n": 60, "groups": groups, "scores": scores, "paired": paired_figures(before, after)}


def test_invalid_answers_count_and_failed_requests_do_not() -> None:
    figures = score_figures([sample(0, 1.0), sample(1, 0.0, valid=False), sample(2, 0.0, http_ok=False)])
    assert (figures["n"], figures["answered"], figures["failed"], figures["invalid"]) == (3, 2, 1, 1)
    assert figures["mean"] == 0.5 and 0.0 <= figures["low"] < 0.5 < figures["high"] <= 1.0
    assert mentions(
        score_lines({"scores": {"before": figures}})[0], "50.0 %", "n = 2", "1 invalid", "1 request", "failed"
    )
    none = score_figures([sample(0, 0.0, http_ok=False)])
    assert none["mean"] is None and side_scores({"scores": {"before": none}}) == {}


def test_a_score_that_is_no_small_fraction_is_not_bent() -> None:
    odd = 1 - 613 / 1201
    assert score_figures([sample(0, odd), sample(1, odd)])["mean"] == pytest.approx(odd, abs=1e-15)
    assert score_figures([sample(0, 7 / 9)])["mean"] == pytest.approx(7 / 9, abs=1e-15)


def test_a_run_says_its_score_in_its_ending_and_in_lists(tmp_path: Path) -> None:
    run, summary = summary_of(tmp_path)
    run.write_json("summary.json", summary)
    run.set_state("done")
    words = ending(run)
    assert mentions(words, "score before", "20.0 %", "score after", "70.0 %", "15 won", "0 lost", "McNemar", "regular")
    assert line_of(run).said == "20 → 70 %"


def test_an_earlier_run_has_its_score_from_its_groups(tmp_path: Path) -> None:
    _, summary = summary_of(tmp_path)
    old = {"n": 60, "groups": summary["groups"]}
    assert side_scores(old)["after"].mean == pytest.approx(side_scores(summary)["after"].mean)
    assert side_scores(old)["after"].interval is None and short_score(old) == "20 → 70 %"
    alone = {"groups": {name: {"before": group["before"]} for name, group in summary["groups"].items()}}
    assert short_score(alone) == "20.0 %, n 30"


def test_other_summaries_have_no_score() -> None:
    for summary in (
        {},
        {"groups": "x"},
        {"scores": {"before": 1}},
        {"n": 3, "groups": {"g": {"before": {"answered": 0}}}},
    ):
        assert score_lines(summary) == [] and short_score(summary) == ""


def test_a_training_says_its_development_scores(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", kind="sft", preset="sft", spec={}, title="t", home=tmp_path)
    run.write_json("summary.json", {"dev": {"1": 0.02, "2": 0.458}, "dev_n": 96, "epoch": 2, "steps": 30})
    run.set_state("done")
    assert mentions(ending(run), "development score", "epoch 1 2.0 %", "epoch 2 45.8 %", "chosen", "96")
    assert line_of(run).said == "epoch 2, dev 46 %"  # fits the list's column
