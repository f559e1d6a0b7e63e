"""Two finished evaluations paired example by example, refused by name where they asked or scored otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from judged import CONDITIONS, N, evaluated, lines_of, write_lines
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.compare.evaluations import ALL, compare_evaluations, evaluated_side


def compared(home: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), "runs", "compare", *words])
    return int(left.value.code or 0)


def test_two_evaluations_of_the_same_examples_are_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = evaluated(tmp_path, 2, 4), evaluated(tmp_path, 2, 9)
    assert compared(tmp_path, one.name, other.name, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["kind"], value["comparable"], value["n"]) == ("evaluation", True, 3 * N)
    score = value["score"]
    assert (score["wins"], score["losses"]) == (15, 0) and score["low"] > 0 and score["mcnemar_p"] < 0.001
    assert score["b"] - score["a"] == pytest.approx(score["difference"]) == pytest.approx(0.5)
    assert set(value["groups"]) == {"regular", "hollow", "naming"}
    assert compared(tmp_path, one.name, other.name) == 0
    assert mentions(capsys.readouterr().out, "score", "15 won", "0 lost", "McNemar")


def test_a_side_can_be_named_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    run = evaluated(tmp_path, 3, 8)
    comparison = compare_evaluations(evaluated_side(run, "before"), evaluated_side(run))
    assert comparison.measures[ALL].flips.wins == 15 and comparison.a.name == f"{run.name}:before"
    with refused("side-missing", "before", "after"):
        evaluated_side(run, "blind")


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("question", "prompt_sha", "e" * 64),
        ("examples", "picture_sha256", "e" * 64),
        ("truth", "truth", "other"),
        ("scorer", "scorer", "anls/1"),
        ("scorer", "options", {"threshold": 0.4}),
    ],
)
def test_what_was_asked_or_scored_otherwise_is_refused_by_name(
    tmp_path: Path, key: str, field: str, value: Any
) -> None:
    one, other = evaluated(tmp_path, 2, 4), evaluated(tmp_path, 2, 4, lambda line: line.update({field: value}))
    comparison = compare_evaluations(evaluated_side(one), evaluated_side(other))
    assert [difference.key for difference in comparison.comparison.differs] == [key]
    assert not comparison.measures
    if key != "examples":
        assert compare_evaluations(evaluated_side(one), evaluated_side(other), key).comparison.comparable


def test_decoding_must_agree_and_engine_and_precision_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = evaluated(tmp_path, 2, 4), evaluated(tmp_path, 2, 5)
    other.write_json("conditions.json", {"before": CONDITIONS, "after": {**CONDITIONS, "max_tokens": 8, "engine": "x"}})
    assert compared(tmp_path, one.name, other.name) == 3
    assert mentions(capsys.readouterr().out, "max tokens", "64", "8")
    assert compared(tmp_path, one.name, other.name, "--only", "max_tokens", "--json") == 0
    assert mentions(json.loads(capsys.readouterr().out)["remarks"][0], "engine", "x")
    with refused("condition-unknown", "rate"):
        compare_evaluations(evaluated_side(one), evaluated_side(other), "rate")


def test_failed_requests_are_left_out_and_said_and_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    one, other = evaluated(tmp_path, 2, 4), evaluated(tmp_path, 2, 4)
    lines = lines_of(other, "after.jsonl")
    lines[0] |= {"http_ok": False, "answer": None}
    write_lines(other, "after.jsonl", lines)
    comparison = compare_evaluations(evaluated_side(one), evaluated_side(other))
    assert comparison.measures[ALL].n == 3 * N - 1 and mentions(comparison.remarks[0], "1 example", "failed")
    other.set_state("failed")
    cut = compare_evaluations(evaluated_side(one), evaluated_side(other))
    assert not cut.comparison.comparable and mentions(cut.comparison.sentence(), other.name, "failed")
