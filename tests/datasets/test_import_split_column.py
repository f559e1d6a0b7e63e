"""A source's own column of splits is followed where all of it is known, and never passed over in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.lab.imports import examples, imported, rows_of
from tests.lab.refusals import refused

ROW: dict[str, Any] = {"question": "What?", "answer": "circle"}


def labelled(folder: Path, *splits: Any, column: str = "split", **more: Any) -> Path:
    """A row with an image of its own for each split."""
    for at in range(len(splits)):
        Image.new("RGB", (40 + at, 30), (at * 40, 90, 200)).save(folder / f"i{at}.png")
    return rows_of(folder, *({**ROW, "image": f"i{at}.png", column: split, **more} for at, split in enumerate(splits)))


@pytest.mark.parametrize("column", ["split", "Split", "subset", "fold"])
def test_a_column_of_splits_is_followed_and_told(column: str, tmp_path: Path):
    path = labelled(tmp_path, "train", "Validation", "test", " dev ", "val", column=column)
    dataset = imported(path, tmp_path / "lab")
    assert [example.split for example in examples(dataset)] == ["train", "dev", "dev", "dev", "test"]
    assert {split: about["role"] for split, about in dataset.manifest["splits"].items()} == {
        "train": "train",
        "dev": "dev",
        "test": "test",
    }
    assert dataset.manifest["used_columns"][column] == 5
    assert column not in dataset.manifest["ignored_columns"]
    assert [rows for note, rows in dataset.manifest["notes"].items() if column in note] == [5]
    assert not imported(path, tmp_path / "lab").new


@pytest.mark.parametrize(
    ("splits", "settings"),
    [
        (["train", None, "test"], {}),
        (["train", "holdout", "test"], {}),
        (["train", "dev", "test"], {"role": "test"}),
        (["train", "dev", "test"], {"shares": {"train": 1, "test": 1}}),
        (["train", "dev", "test"], {"group": "split"}),
    ],
)
def test_a_column_of_splits_that_is_not_followed_is_warned_of(splits: list[Any], settings: Any, tmp_path: Path):
    dataset = imported(labelled(tmp_path, *splits), tmp_path / "lab", **settings)
    (note,) = [note for note in dataset.manifest["notes"] if "split" in note]
    assert "--as" in note and "not followed" in note
    assert dataset.manifest["splits"].keys() <= ({"train", "test"} if settings else {"train"})


def test_what_only_has_such_a_name_is_an_ordinary_column(tmp_path: Path):
    dataset = imported(labelled(tmp_path, 0, 1, 2, column="fold"), tmp_path / "lab")
    assert (list(dataset.manifest["splits"]), dataset.manifest["notes"]) == (["train"], {})
    assert dataset.manifest["ignored_columns"] == {"fold": 3}


def test_an_image_in_two_splits_of_the_column_is_a_leak(tmp_path: Path):
    with refused("picture-leaked", "rows.jsonl line 1", "rows.jsonl line 2"):
        imported(
            rows_of(tmp_path, *({**ROW, "image": "a.png", "split": split} for split in ("train", "test"))),
            tmp_path / "lab",
        )


def test_rows_that_are_left_out_do_not_decide_whether_the_column_is_followed(tmp_path: Path):
    path = labelled(tmp_path, "train", "test")
    path.write_text(path.read_text() + '{"image": "gone.png", "question": "?", "answer": "x", "split": "odd"}\n')
    dataset = imported(path, tmp_path / "lab", skip_bad=True)
    assert list(dataset.manifest["splits"]) == ["train", "test"]
