"""Every row of an import is checked with the scorer that is stored, and against its own image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.imports import examples, imported, rows_of
from tests.lab.refusals import refused
from vlmconsole.data.importing.dataset_import import UnusableRowsError
from vlmconsole.scoring.registry import find_scorer

ROW: dict[str, Any] = {"image": "a.png", "question": "What?", "answer": "circle"}
TWICE = '{"a": 1, "a": 2}'


def answered(folder: Path, *answers: Any) -> Path:
    return rows_of(folder, *({**ROW, "answer": answer} for answer in answers))


@pytest.mark.parametrize(
    ("answers", "bad"),
    [
        ([{"a": 1}, TWICE], [1]),
        ([{"a": 1}, {"b": 2}, "circle"], [1, 2]),
        ([{"red_circles": 1, "blue_squares": 2}, {"a": 1}, "x"], [1, 2]),
        ([[0, 0, 9, 9], [[0, 0, 9, 9]], "x"], [2]),
        (["circle", {"a": 1}], [2]),
        ([True, "x"], [1]),
    ],
)
def test_each_row_is_checked_with_the_scorer_that_is_stored(answers: list[Any], bad: list[int], tmp_path: Path):
    path = answered(tmp_path, *answers)
    with pytest.raises(UnusableRowsError) as failure:
        imported(path, tmp_path / "lab")
    assert {(row.where, row.code) for row in failure.value.problems} == {
        (f"rows.jsonl line {line}", "truth-unfit") for line in bad
    }
    left = examples(imported(path, tmp_path / "lab", skip_bad=True))
    assert len(left) == len(answers) - len(bad)
    for example in left:
        assert not find_scorer(example.scorer).check(example.truth, example.options)


def test_an_option_without_a_scorer_is_one_of_the_scorer_that_is_proposed(tmp_path: Path):
    (example,) = examples(imported(answered(tmp_path, "12"), tmp_path / "lab", options={"tolerance": 0.05}))
    assert (example.scorer, example.options) == ("number", {"tolerance": 0.05})
    with refused("options-invalid", "nonsense"):
        imported(answered(tmp_path, "12"), tmp_path / "lab", "other", options={"nonsense": 1})
