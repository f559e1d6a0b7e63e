"""Every row of an import is checked with the scorer that is stored, and against its own image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

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


@pytest.mark.parametrize("scorer", ["", "boxes"])
@pytest.mark.parametrize(
    "box",
    [
        [0, 0, 9999, 9999],
        [-3, 0, 9, 9],
        [0, -3, 9, 9],
        [0, 0, 65, 9],
        [0, 0, 9, 49],
        [[0, 0, 9, 9], [0, 0, 65, 9]],
        [{"bbox_2d": [0, 0, 9, 49], "label": "cup"}],
    ],
    ids=str,
)
def test_a_box_outside_its_image_is_named(box: Any, scorer: str, tmp_path: Path):
    path = boxed(tmp_path, [0, 0, 64, 48], box)
    with pytest.raises(UnusableRowsError) as failure:
        imported(path, tmp_path / "lab", scorer=scorer)
    (problem,) = failure.value.problems
    assert (problem.where, problem.code) == ("rows.jsonl line 2", "truth-unfit")
    assert "64×48" in problem.reason
    (example,) = examples(imported(path, tmp_path / "lab", scorer=scorer, skip_bad=True))
    assert (example.scorer, example.truth) == ("boxes", [0, 0, 64, 48])


def test_a_box_is_held_to_the_upright_image_that_is_sent_and_to_any_of_several(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGB", (64, 48)).save(tmp_path / "wide.png")
    rows = [
        {"image": "turned.jpg", "question": "Where?", "answer": [0, 0, 48, 64]},
        {"image": ["turned.jpg", "wide.png"], "question": "Where?", "answer": [0, 0, 64, 48]},
        {"image": "wide.png", "question": "Where?", "answer": [0, 0, 64.3, 48]},  # rounded by half a pixel at most
        {"question": "Where?", "answer": [0, 0, 999, 999]},  # no image to hold it to
    ]
    assert len(examples(imported(rows_of(tmp_path, *rows), tmp_path / "lab"))) == len(rows)


def boxed(folder: Path, *boxes: Any) -> Path:
    Image.new("RGB", (64, 48), "white").save(folder / "b.png")
    return rows_of(folder, *({"image": "b.png", "question": "Where?", "answer": box} for box in boxes))
