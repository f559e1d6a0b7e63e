"""A user's own pictures, questions and answers: read, made into a dataset, and named where they are broken."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audited import SmallLab
from refusals import check_nouns, refused
from test_dataset import checked, one_split

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import make_scene
from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.rows import DataError, Row, read_rows, write_rows
from vlmconsole.data.splits import LeakError
from vlmconsole.data.user_file import read_own

# --- a user's own pictures ---
ONE_EACH = '{"red_circles": 1, "blue_squares": 1}'


def own_file(folder: Path) -> Path:
    picture = make_scene("mine", red=2, blue=1, others=0).png()
    (folder / "photo.png").write_bytes(picture)
    other = base64.b64encode(make_scene("mine2", red=1, blue=1).png()).decode()
    lines = [
        {"image": "photo.png", "answer": {"red_circles": 2, "blue_squares": 1}, "id": "first"},
        {"image": "photo.png", "question": "What is the weather?", "answer": "white"},
        {"image": {"bytes": other}, "question": "How many?", "truth": "two"},
        {
            "image": f"data:image/png;base64,{other}",
            "prompt": COUNT_PROMPT,
            "answer": '{"red_circles": 1, "blue_squares": 1}',
        },
    ]
    path = folder / "mine.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_a_users_jsonl_becomes_rows_and_a_dataset(tmp_path: Path) -> None:
    path = own_file(tmp_path)
    rows = list(read_own(path))
    assert [row.uid for row in rows] == ["first", "mine.jsonl-00002", "mine.jsonl-00003", "mine.jsonl-00004"]
    assert [row.source for row in rows] == ["own/counting", "own/text", "own/text", "own/counting"]
    assert rows[0].question == COUNT_PROMPT and rows[0].picture == (tmp_path / "photo.png").read_bytes()
    folder = make_dataset(one_split("test", {"file": str(path)}), tmp_path / "datasets")
    assert checked(folder) == {} and len(list(read_rows(folder / "test.parquet"))) == 4
    assert [row.sha256 for row in read_own(folder / "test.parquet")] == [
        row.sha256 for row in read_rows(folder / "test.parquet")
    ]
    with refused("picture-leaked", "first", "later:test", error=LeakError):
        make_dataset(one_split("train", {"file": str(path)}, name="x"), tmp_path / "datasets")


@pytest.mark.parametrize(
    ("line", "code", "noun"),
    [
        ("{", "json-invalid", "JSON"),
        ("[1]", "json-invalid", "JSON object"),
        ('{"image": "gone.png", "answer": "x", "question": "y"}', "file-missing", "gone.png"),
        ('{"question": "y", "answer": "x"}', "image-missing", "image"),
        ('{"image": "photo.png", "question": "y"}', "answer-missing", "answer"),
        ('{"image": "photo.png", "answer": "three"}', "truth-invalid", "red_circles"),
        ('{"image": {"bytes": "%%%"}, "question": "y", "answer": "x"}', "image-missing", "bytes"),
    ],
)
def test_a_users_broken_line_is_named(line: str, code: str, noun: str, tmp_path: Path) -> None:
    own_file(tmp_path)
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with refused(code, "line 1", noun, error=DataError):
        list(read_own(tmp_path / "bad.jsonl"))


def test_plain_parquet_columns_are_read_too(tmp_path: Path) -> None:
    picture = make_scene("mine", red=2, blue=1, others=0).png()
    columns = {"image": [{"bytes": picture, "path": None}], "question": ["What?"], "answer": ["shapes"]}
    pq.write_table(pa.table(columns), tmp_path / "mine.parquet")
    (row,) = read_own(tmp_path / "mine.parquet")
    assert (row.picture, row.truth, row.source) == (picture, "shapes", "own/text")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1nothing")
    with refused("parquet-invalid", "torn.parquet", error=DataError):
        list(read_own(tmp_path / "torn.parquet"))


def damaged(rows: list[Row]) -> list[Row]:
    """The second picture cut in half, the third no picture at all."""
    half = replace(rows[1], picture=rows[1].picture[: len(rows[1].picture) // 2])
    return [rows[0], half, replace(rows[2], picture=b"nothing"), *rows[3:]]


def test_a_damaged_picture_names_its_row(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home")
    rows = damaged(lab.rows("train"))
    write_rows(tmp_path / "mine.parquet", rows)
    with pytest.raises(DataError, match=rf"row 2 \(id {rows[1].uid}\).*cut off"):
        list(read_own(tmp_path / "mine.parquet"))

    write_rows(lab.dataset / "train.parquet", rows)
    found = {one.name: one.text for one in check_dataset(lab.dataset, lab.places.datasets) if one.state == "wrong"}
    check_nouns(found["image hashes"], rows[1].uid, rows[2].uid, "no image")
