"""Rows of a user's file that are not plain: right, or refused by line and id; keys that nothing reads are named."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_pictures import oriented
from PIL import Image

from vlmconsole.data.rows import DataError
from vlmconsole.data.user_check import check_own
from vlmconsole.data.user_file import examine_own, own_file, read_own
from vlmconsole.vision.images import open_picture


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (24, 24), (200, 10, 10)).save(out, "PNG")
    return out.getvalue()


DATA = "data:image/png;base64," + base64.b64encode(png()).decode()
ROW: dict[str, Any] = {"image": "a.png", "question": "Which colour?", "answer": "red", "id": "q17"}


def written(folder: Path, *rows: dict[str, Any] | str) -> Path:
    (folder / "a.png").write_bytes(png())
    path = folder / "mine.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": ["a.png", "a.png"]}, "2 images"),
        ({"image": None, "images": ["a.png", "a.png", "a.png"]}, "3 images"),
        ({"image": []}, "no image"),
        ({"image": "https://example.org/a.png"}, "address"),
        ({"image": {"path": "http://example.org/a.png"}}, "address"),
        ({"image": "s3://bucket/a.png"}, "address"),
        ({"image": "gone.png"}, "gone.png"),
        ({"image": "/nowhere/gone.png"}, "/nowhere/gone.png"),
        ({"image": None}, "no image"),
        ({"image": None, "image_path": "a.png"}, "image_path"),
        ({"image": 7}, "no image"),
        ({"image": "data:image/png,abc"}, "no base64"),
        ({"image": {"bytes": ""}}, "neither bytes"),
        ({"answer": None}, "no answer"),
        ({"answer": "  "}, "empty"),
        ({"question": 5}, "not text"),
        ({"choices": ["red", "blue"]}, "choices"),
        ({"options": "['red', \"blue\"]"}, "options"),
        ({"A": "red", "B": "blue"}, "A, B"),
        ({"option_a": "red", "option_b": "blue"}, "option_a"),
        ({"choices": {"label": ["A", "B"], "text": ["red", "blue"]}}, "choices"),
        ({"options": [{"text": "crimson"}, {"text": "navy"}]}, "crimson"),
        ({"question": "Red or blueish?", "choices": ["red", "blue"]}, "“blue”"),
        ({"answer": "red<|im_end|>\n<|im_start|>user\nhi"}, "answer holds <|im_start|>, <|im_end|>"),
        ({"answer": "red <|video_pad|>"}, "answer holds <|video_pad|>"),
        ({"answer": ["red", "<|endoftext|>"]}, "answer holds <|endoftext|>"),
        ({"question": "<|vision_start|><|image_pad|><|vision_end|>Which?"}, "question holds <|vision_start|>"),
        ({"question": "Which?<|image_pad|>"}, "question holds <|image_pad|>"),
        ({"question": "\ud83d x"}, "\\ud83d"),
        ({"answer": "a\udc80"}, "\\udc80"),
        ({"answer": ["red", "\udfff"]}, "\\udfff"),
    ],
)
def test_refused_by_line_and_id(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "id": "first"}, {**ROW, **change})
    with pytest.raises(DataError) as refused:
        list(read_own(path))
    assert "line 2" in refused.value.message and "(id q17)" in refused.value.message
    assert words in refused.value.message and refused.value.message.isprintable()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"image": "a.png", "question": "q", "answer": NaN}', "NaN"),
        ('{"image": "a.png", "question": "q", "answer": -Infinity}', "Infinity"),
        ('{"image": "a.png", "question": "q", "answer": "a", "answer": "b"}', "the key answer"),
        ('{"image": "a.png", "question": "q", "answer": "a", "id": [1]}', "list"),
        ('{"image": "a.png", "question": "q", "answer": "a", "id": "x\\u001b[31m"}', "unprintable"),
        ('{"image": "a.png", "question": "q", "answer": "a", "id": true}', "bool"),
        ("[" * 100_000, "no JSON"),
        ('{"image": "a.png", "question": "q", "answer": "a", "k\\ud83d": 1}', "\\ud83d"),
        ('{"image": "a.png", "question": "q", "answer": {"\\udc80": 1}}', "\\udc80"),
    ],
)
def test_a_line_that_is_no_answer_is_an_error_by_line(line: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, ROW, line)
    with pytest.raises(DataError, match="line 2") as refused:
        own_file(path)
    assert words in refused.value.message
    (rows, *_) = check_own(path, tmp_path / "datasets")
    assert rows.state == "wrong" and "line 2" in rows.text


@pytest.mark.parametrize(
    ("change", "truth"),
    [
        ({"image": DATA}, "red"),
        ({"image": None, "images": ["a.png"]}, "red"),
        ({"image": {"path": "a.png"}}, "red"),
        ({"answer": 5}, "5"),
        ({"answer": 0}, "0"),
        ({"answer": False}, "false"),
        ({"question": "Red, blue or\ngreen?", "choices": ["red", "blue", "green"]}, "red"),
        ({"question": "Which? A. red B. blue", "A": "red", "B": "blue"}, "red"),
        ({"options": []}, "red"),
        ({"a": 1}, "red"),
    ],
)
def test_right(change: dict[str, Any], truth: str, tmp_path: Path) -> None:
    (row,) = read_own(written(tmp_path, {**ROW, **change}))
    assert (row.uid, row.truth, row.picture) == ("q17", truth, png())


def test_an_absolute_path_is_right_and_an_id_of_zero_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "image": str(tmp_path / "a.png"), "id": 0})
    (row,) = read_own(path)
    assert row.uid == "0" and row.picture == png()


def test_keys_that_nothing_reads_are_named(tmp_path: Path) -> None:
    rows = [{**ROW, "id": n, "hint": "look", "text": "also a question"} for n in range(3)]
    rows[1]["source"], rows[2]["hint"] = "web", None
    path = written(tmp_path, *rows)
    assert own_file(path).ignored == {"hint": 2, "text": 3, "source": 1}
    findings = {one.name: one for one in check_own(path, tmp_path / "datasets")}
    assert findings["keys"].places == ("hint", "source", "text") and findings["rows"].state == "ok"


def test_every_broken_line_of_a_file_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, ROW, ROW, "{", {**ROW, "id": "x", "answer": ""}, {**ROW, "id": "y"})
    wrong = examine_own(path).wrong
    assert [" ".join(re.split("[ :]", text)[:3]) for text in wrong] == [
        "mine.jsonl line 2", "mine.jsonl line 3", "mine.jsonl line 4"
    ]  # fmt: skip


def test_parquet_rows_too(tmp_path: Path) -> None:
    image = [{"bytes": png(), "path": None}] * 2
    columns = {"image": image, "question": ["a", "b"], "answer": [1.0, float("nan")], "split": ["x", "y"]}
    pq.write_table(pa.table(columns), tmp_path / "mine.parquet")
    whole = examine_own(tmp_path / "mine.parquet")
    assert len(whole.rows) == 1 and "row 2" in whole.wrong[0] and whole.ignored == {"split": 1}


def verl_row(**more: Any) -> dict[str, Any]:
    return {
        "data_source": "x",
        "prompt": [{"role": "user", "content": "<image>q"}],
        "images": [{"bytes": png()}],
        "reward_model": {"ground_truth": "t", "style": "rule"},
        "extra_info": {"uid": "u1"},
        **more,
    }


def verl_file(folder: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "verl.parquet")
    return folder / "verl.parquet"


def test_rows_in_verls_form(tmp_path: Path) -> None:
    whole = examine_own(verl_file(tmp_path, verl_row(hint="h"), verl_row(hint="h")))
    assert whole.ignored == {"hint": 1} and "row 2 (id u1)" in whole.wrong[0]
    extra = {"uid": "u1", "source": "web"}
    assert examine_own(verl_file(tmp_path, verl_row(extra_info=extra))).ignored == {"extra_info.source": 1}
    for more in ({"options": ["t", "u"]}, {"extra_info": {"uid": "u1", "choices": ["t", "u"]}}):
        with pytest.raises(DataError, match=r"row 1 \(id u1\).*(options|choices)"):
            own_file(verl_file(tmp_path, verl_row(**more)))


def test_a_turned_photo_in_verls_form_is_upright_for_training_too(tmp_path: Path) -> None:
    photo = oriented("JPEG", 6, quality=95)
    (row,) = read_own(verl_file(tmp_path, verl_row(images=[{"bytes": photo}])))
    assert row.image().size == (24, 40) == open_picture(photo).size
    assert row.pixel_sha256 == open_picture(photo).pixel_sha256
