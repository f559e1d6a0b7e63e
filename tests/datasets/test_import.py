"""Importing: each public format gives what `tests/data/datasets/expected.json` says; a dataset is whole or absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.imports import examples, imported, rows_of
from tests.lab.refusals import refused
from vlmconsole.data.importing.dataset_import import UnusableRowsError
from vlmconsole.data.importing.settings import read_shares
from vlmconsole.data.manifest import read_manifest

FIXTURES = Path(__file__).parents[1] / "data" / "datasets"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_each_format_gives_what_is_expected(name: str, tmp_path: Path):
    prompt = {"prompt": "What shape is this?"} if name == "classes" else {}
    dataset = imported(FIXTURES / name, tmp_path, **prompt)
    found, expected = examples(dataset), EXPECTED[name]
    assert len(found) == dataset.manifest["rows"] == expected["rows"]
    for example in found:
        example.check()
    asked = [next(example.questions()) for example in found]
    if "questions" in expected:
        assert [example.question for example in asked] == expected["questions"]
    truths = [example.truth for example in asked]
    if "answers" in expected:
        counts = [len(truth) if isinstance(truth, list) else truth for truth in truths]
        assert counts == expected["answers"]
    if "pictures" in expected:
        assert [len(example.images) for example in found] == expected["pictures"]
    if "system" in expected:
        assert [example.system for example in found] == expected["system"]
    if "splits" in expected:
        assert list(dataset.manifest["splits"]) == expected["splits"]
    if "options" in expected:
        assert [len(example.options["choices"]) for example in found] == expected["options"]


def test_ids_and_all_turns_are_kept(tmp_path: Path):
    *_, last = examples(imported(FIXTURES / "llava.json", tmp_path))
    assert last.id == "two-turns"
    assert [turn.role for turn in last.turns] == ["user", "assistant"] * 2
    assert [example.truth for example in last.questions()] == ["12.50", "twelve fifty"]


def test_a_spreadsheet_export_names_what_it_ignores(tmp_path: Path):
    rows_of(tmp_path)
    sheet = tmp_path / "sheet.csv"
    sheet.write_bytes("\ufeffImage;Question;Answer;Till\r\na.png;What is it?;12,50;7\r\na.png;And?;3;8\r\n".encode())
    dataset = imported(sheet, tmp_path / "lab")
    first, second = examples(dataset)
    assert (first.truth, second.truth, first.scorer) == ("12,50", "3", "number")
    assert dataset.manifest["ignored_columns"] == {"Till": 2}
    assert first.metadata == {"Till": "7"}


def test_rows_that_cannot_be_used_are_named_and_nothing_is_written(tmp_path: Path):
    good = {"image": "a.png", "question": "What?", "answer": "circle", "id": "g"}
    rows = rows_of(
        tmp_path, good, {**good, "id": "n", "answer": None}, "{broken", {**good, "id": "m", "image": "gone.png"}, good
    )
    with pytest.raises(UnusableRowsError) as failure:
        imported(rows, tmp_path / "lab")
    places = {problem.where: (problem.id, problem.code) for problem in failure.value.problems}
    assert places == {
        "rows.jsonl line 2": ("n", "truth-unfit"),
        "rows.jsonl line 3": ("", "json-invalid"),
        "rows.jsonl line 4": ("m", "file-missing"),
        "rows.jsonl line 5": ("g", "id-twice"),
    }
    assert not (tmp_path / "lab" / "own").exists()
    dataset = imported(rows, tmp_path / "lab", skip_bad=True)
    assert [example.id for example in examples(dataset)] == ["g"]
    assert len(read_manifest(dataset.folder)["skipped"]) == 4


def test_the_same_bytes_make_nothing_and_others_are_refused(tmp_path: Path):
    row = {"image": "a.png", "question": "What?", "answer": "circle"}
    path = rows_of(tmp_path, row)
    first = imported(path, tmp_path / "lab")
    again = imported(path, tmp_path / "lab")
    assert (first.new, again.new) == (True, False)
    rows_of(tmp_path, {**row, "answer": "square"})
    with refused("dataset-exists", first.manifest["content_sha256"][:12], "--replace"):
        imported(path, tmp_path / "lab")
    second = imported(path, tmp_path / "lab", replace=True)
    assert second.manifest["generation"] == 2
    assert [example.truth for example in examples(second)] == ["square"]
    (aside,) = (tmp_path / "lab").glob("own@*")
    assert read_manifest(aside)["generation"] == 1


def test_shares_are_met_and_images_stay_together(tmp_path: Path):
    from PIL import Image

    rows = []
    for number in range(20):
        Image.new("RGB", (40, 30), (number * 12, 5, 9)).save(tmp_path / f"{number}.png")
        rows += [{"image": f"{number}.png", "question": f"{asked}?", "answer": "x"} for asked in "ab"]
    dataset = imported(rows_of(tmp_path, *rows), tmp_path / "lab", shares=read_shares("train=80,dev=10,test=10"))
    assert {split: about["n"] for split, about in dataset.manifest["splits"].items()} == {
        "train": 32,
        "dev": 4,
        "test": 4,
    }
    places: dict[bytes, set[str]] = {}
    for example in examples(dataset):
        places.setdefault(example.images[0], set()).add(example.split)
    assert all(len(splits) == 1 for splits in places.values())


def test_a_dataset_is_titled_by_its_file_or_folder(tmp_path: Path) -> None:
    source = tmp_path / "shops"
    source.mkdir()
    path = rows_of(source, {"image": "a.png", "question": "What is it?", "answer": "circle"})
    assert imported(path, tmp_path / "datasets").manifest["title"] == "imported from rows.jsonl"
    folder = Path(__file__).parents[1] / "data" / "datasets" / "classes"
    made = imported(folder, tmp_path / "datasets", name="kinds", prompt="What shape?")
    assert made.manifest["title"] == "imported from classes"
