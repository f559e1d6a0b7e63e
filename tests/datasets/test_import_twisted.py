"""Twisted sources, as they come from elsewhere: each is right, or refused by line with the reason."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lab.imports import PNG, examples, imported, rows_of
from tests.lab.refusals import refused
from vlmconsole.data.formats.raw_example import MAX_TEXT, ColumnNames
from vlmconsole.data.importing.dataset_import import UnusableRowsError

ROW: dict[str, Any] = {"image": "a.png", "question": "What?", "answer": "circle"}
TURNS = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": "circle"}]
MESSAGES = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "circle"}]
DATA_URL = "data:image/png;base64," + base64.b64encode(PNG.read_bytes()).decode()


def deep(levels: int) -> str:
    return '{"image": "a.png", "question": "What?", "answer": ' + "[" * levels + "1" + "]" * levels + "}"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"image": "a.png", "conversations": [{**TURNS[0], "value": "<image><image>?"}, TURNS[1]]}, "image-tags"),
        ({"images": ["a.png", "a.png"], "conversations": TURNS}, "image-tags"),
        ({"conversations": TURNS}, "image-tags"),
        ({"image": "a.png", "conversations": [{"from": "narrator", "value": "x"}]}, "turns-invalid"),
        ({"image": "a.png", "conversations": [{"from": "human", "value": None}]}, "question-invalid"),
        ({"image": "a.png", "conversations": []}, "question-missing"),
        ({"image": "a.png", "conversations": [TURNS[0], {"from": "gpt", "value": " "}]}, "answer-missing"),
        ({"video": "a.mp4", "conversations": TURNS}, "media-unsupported"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]}, "media-unsupported"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, MESSAGES[1]]}, "image-tags"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "turns-invalid"),
        ({"messages": [MESSAGES[0], {"role": "assistant", "content": None}], "image": "a.png"}, "turns-invalid"),
        ({"messages": [{"role": "user", "content": "?"}, {"role": "user", "content": "?"}]}, "turns-invalid"),
        ({"problem": "What?", "solution": "<answer>a</answer><answer>b</answer>", "image": "a.png"}, "answer-tags"),
        ({"problem": "What?", "solution": "<answer>never closed", "image": "a.png"}, "answer-tags"),
        ({"query": "What?", "response": "x", "history": ["a"], "image": "a.png"}, "turns-invalid"),
        ({"question": "Which?", "A": "red", "B": "blue", "answer": "E", "image": "a.png"}, "answer-invalid"),
        ({"question": "Which?", "options": ["red", "blue"], "answer": 7, "image": "a.png"}, "answer-invalid"),
        ({**ROW, "image": "/etc/passwd"}, "picture-missing"),
        ({**ROW, "image": "/tmp/../etc/passwd"}, "path-outside"),
        ({**ROW, "image": "../../outside.png"}, "path-outside"),
        ({**ROW, "image": "sub/../../outside.png"}, "path-outside"),
        ({**ROW, "image": "https://example.org/a.png"}, "image-remote"),
        ({**ROW, "image": "data:image/png,abc"}, "image-invalid"),
        ({**ROW, "image": "data:image/png;base64," + base64.b64encode(b"GIF89a").decode()}, "picture-damaged"),
        ({**ROW, "image": 7}, "image-missing"),
        ({**ROW, "image": "gone.png"}, "file-missing"),
        ({**ROW, "image": "text.png"}, "picture-missing"),
        ({**ROW, "image": "loop.png"}, "file-unreadable"),
        ({**ROW, "image": "folder"}, "file-irregular"),
        ({**ROW, "image": "a\0.png"}, "file-unreadable"),
        ({**ROW, "question": 5}, "question-invalid"),
        ({**ROW, "question": "half \ud800"}, "text-unstorable"),
        ({**ROW, "question": "<|im_start|>system"}, "text-control"),
        ({**ROW, "question": "x" * (MAX_TEXT + 1)}, "text-too-long"),
        ({**ROW, "question": "é" * (MAX_TEXT // 2 + 1)}, "text-too-long"),
        ({**ROW, "answer": "x" * (MAX_TEXT + 1)}, "text-too-long"),
        ({**ROW, "answer": ["x", "x" * (MAX_TEXT + 1), "x"]}, "text-too-long"),
        ({**ROW, "answer": None}, "truth-unfit"),
        ({**ROW, "answer": {"n": [float("nan")]}}, "json-invalid"),
        ({**ROW, "id": ["x"]}, "id-invalid"),
        ({**ROW, "id": "x" * 201}, "id-invalid"),
        (deep(100_000), "json-invalid"),
        ('{"image": "a.png", "image": "b.png", "question": "?", "answer": "x"}', "json-invalid"),
        ("[1, 2]", "json-invalid"),
        ("\xff\xfe", "json-invalid"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused_by_its_line(row: dict[str, Any] | str, code: str, tmp_path: Path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "folder").mkdir()
    good = {key: row[key] for key in row if key in ("conversations", "messages", "problem", "query", "A", "options")}
    good = next(iter(good), "") if isinstance(row, dict) else ""
    plain: dict[str, Any] = {
        "conversations": {"image": "a.png", "conversations": TURNS},
        "messages": {"image": "a.png", "messages": MESSAGES},
        "problem": {"problem": "What?", "solution": "x", "image": "a.png"},
        "query": {"query": "What?", "response": "x", "image": "a.png"},
        "A": {"question": "Which?", "A": "red", "B": "blue", "answer": "A", "image": "a.png"},
        "options": {"question": "Which?", "options": ["red", "blue"], "answer": 0, "image": "a.png"},
    }.get(str(good), ROW)
    path = rows_of(tmp_path, plain, row)
    with pytest.raises(UnusableRowsError) as failure:
        imported(path, tmp_path / "lab")
    (problem,) = failure.value.problems
    assert (problem.where, problem.code) == ("rows.jsonl line 2", code), problem
    assert len(examples(imported(path, tmp_path / "lab", skip_bad=True))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + json.dumps(ROW),
        "\ufeff\ufeff" + json.dumps(ROW),
        json.dumps(ROW) + "\r\n\r\n",
        "\n\n" + json.dumps(ROW),
        json.dumps({**ROW, "hint": None, "extra": []}),
        json.dumps({**ROW, "image": DATA_URL}),
        json.dumps({**ROW, "image": {"bytes": base64.b64encode(PNG.read_bytes()).decode(), "path": "/etc/passwd"}}),
        json.dumps({**ROW, "image": "./a.png"}),
        json.dumps({**ROW, "image": "link.png"}),
        json.dumps({**ROW, "image": "sub\\a.png"}),
        json.dumps({**ROW, "notes": "x" * 10_000_000}),
        json.dumps({**ROW, "context": ["x" * MAX_TEXT]}),
    ],
    ids=[
        "bom",
        "boms",
        "crlf",
        "blank",
        "nulls",
        "data-url",
        "bytes",
        "dot",
        "symlink",
        "windows",
        "10-mb-cell",
        "1-mb-context",
    ],
)
def test_what_is_only_odd_is_read_right(text: str, tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(PNG.read_bytes())
    (tmp_path / "link.png").symlink_to("a.png")
    (example,) = examples(imported(rows_of(tmp_path, text), tmp_path / "lab"))
    assert (example.images, example.question, example.truth) == ((PNG.read_bytes(),), "What?", "circle")


def test_paths_are_taken_inside_the_folder_named_for_images_and_absolute_ones_are_told(tmp_path: Path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "p.png").write_bytes(PNG.read_bytes())
    (tmp_path / "rows").mkdir()
    path = rows_of(tmp_path / "rows", {**ROW, "image": str(photos / "p.png")}, {**ROW, "image": "p.png"})
    with refused("rows-invalid", "rows.jsonl line 2", "p.png"):
        imported(path, tmp_path / "lab")
    dataset = imported(path, tmp_path / "lab", images=photos)
    assert len(examples(dataset)) == 2
    assert dataset.manifest["notes"]["images taken by an absolute path"] == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "sheet-empty"),
        ("image,question,answer\n", "source-empty"),
        ("image,image,answer\na.png,x,y\n", "sheet-invalid"),
        ("image,ques\0tion,answer\na.png,x,y\n", "byte-nul"),
        ("colour,size\nred,3\n", "format-unrecognised"),
    ],
)
def test_a_sheet_without_rows_or_columns_is_refused(text: str, code: str, tmp_path: Path):
    (tmp_path / "sheet.csv").write_text(text)
    with refused(code):
        imported(tmp_path / "sheet.csv", tmp_path / "lab")


@pytest.mark.parametrize(
    ("data", "where", "code"),
    [
        (b"image,question,answer\na.png,What?,x\na.png,What?,x,y,z\n", "line 3", "cells-many"),
        (b"image,question,answer\na.png,What?,x\na.png\n", "line 3", "cells-few"),
        ("image,question,answer\na.png,What?,x\na.png,Größe?,x\n".encode("cp1252"), "line 3", "encoding-unknown"),
        (b"image,question,answer\na.png,What?,x\na.png,Wh\0at?,x\n", "line 3", "byte-nul"),
        (b"image,question,answer\na.png,What?,x\na.png,What?,\n", "line 3", "truth-unfit"),
    ],
)
def test_a_line_of_a_sheet_that_is_out_of_place_is_named(data: bytes, where: str, code: str, tmp_path: Path):
    rows_of(tmp_path)
    (tmp_path / "sheet.csv").write_bytes(data)
    with pytest.raises(UnusableRowsError) as failure:
        imported(tmp_path / "sheet.csv", tmp_path / "lab")
    (problem,) = failure.value.problems
    assert (problem.where, problem.code) == (f"sheet.csv {where}", code)


def test_a_sheet_as_spreadsheets_export_it(tmp_path: Path):
    rows_of(tmp_path)
    text = 'Image;Question;Answer\r\na.png;"Which; and\r\nwhy?";"say ""red"""\r\n'
    for data in (text.encode("utf-16"), text.encode("utf-8-sig"), text.replace(";", "\t").encode()):
        (tmp_path / "sheet.csv").write_bytes(data)
        dataset = imported(tmp_path / "sheet.csv", tmp_path / "lab", f"n{len(data)}")
        (example,) = examples(dataset)
        assert (example.question.split()[0][:5], example.truth) == ("Which", 'say "red"')


@pytest.mark.parametrize("text", ["[]", "[" + json.dumps(ROW), '[{"image": "a.png",}]', "[1]", "{}"])
def test_a_json_list_that_is_empty_cut_or_broken_is_refused(text: str, tmp_path: Path):
    with refused_any():
        imported(rows_of(tmp_path, text, name="rows.json"), tmp_path / "lab")
    assert not (tmp_path / "lab" / "own").exists()


def refused_any() -> Any:
    from vlmconsole.data.rows import DataError

    return pytest.raises(DataError)


def test_a_long_json_list_is_read_piece_by_piece(tmp_path: Path):
    rows = [{**ROW, "id": f"r{n}", "notes": "é" * (n % 7) * 30_000} for n in range(60)]
    rows_of(tmp_path)
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")
    assert [example.id for example in examples(imported(tmp_path / "rows.json", tmp_path / "lab"))] == [
        f"r{n}" for n in range(60)
    ]


def test_parquet_of_every_width_and_mixed_answers(tmp_path: Path):
    png = PNG.read_bytes()
    table = pa.table(
        {
            "image": pa.array([png, png], pa.large_binary()),
            "question": pa.array(["What?", "How many?"], pa.large_string()),
            "answer": pa.array(["circle", "2"], pa.large_string()),
            "label": pa.array([1.5, float("nan")]),
        }
    )
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    dataset = imported(tmp_path / "train-00000-of-00001.parquet", tmp_path / "lab")
    assert [example.truth for example in examples(dataset)] == ["circle", "2"]
    assert dataset.manifest["ignored_columns"] == {"label": 2}
    pq.write_table(
        pa.table({"image": [png], "question": ["How long?"], "answer": [float("nan")]}), tmp_path / "nan.parquet"
    )
    with refused("rows-invalid", "nan.parquet row 1", "nan"):
        imported(tmp_path / "nan.parquet", tmp_path / "lab", "nan")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "nan.parquet").read_bytes()[:-20])
    with refused("parquet-invalid", "cut.parquet"):
        imported(tmp_path / "cut.parquet", tmp_path / "lab", "cut")


def test_class_names_of_a_hub_stand_for_their_numbers(tmp_path: Path):
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pa.table({"image": [PNG.read_bytes()] * 2, "label": [1, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "a.parquet")
    dataset = imported(tmp_path / "a.parquet", tmp_path / "lab", prompt="Which animal?")
    assert [(example.truth, example.question) for example in examples(dataset)] == [
        ("dog", "Which animal?"),
        ("cat", "Which animal?"),
    ]


def test_other_files_are_refused_with_what_to_do(tmp_path: Path):
    for name, noun in (("a.xlsx", "CSV"), ("a.zip", "unpack"), ("a.txt", ".jsonl")):
        (tmp_path / name).write_bytes(b"x")
        with refused("source-unknown", noun):
            imported(tmp_path / name, tmp_path / "lab")
    with refused("source-missing"):
        imported(tmp_path / "nothing", tmp_path / "lab")


def test_a_prompt_keeps_json_and_refuses_what_is_no_column(tmp_path: Path):
    path = rows_of(tmp_path, {**ROW, "unit": "cm"})
    prompt = '{question} in {unit}, as {"n": 1}'
    (example,) = examples(imported(path, tmp_path / "lab", prompt=prompt))
    assert example.question == 'What? in cm, as {"n": 1}'
    with refused("rows-invalid", "units"):
        imported(path, tmp_path / "lab", "other", prompt="{question} in {units}")


def test_options_in_a_column_reach_the_model_or_the_row_is_refused(tmp_path: Path):
    row = {"image": "a.png", "question": "Which?", "choices": "['red', 'blue']", "answer": "blue", "hint": "Look."}
    (example,) = examples(imported(rows_of(tmp_path, row), tmp_path / "lab"))
    assert example.question.startswith("Look.\nWhich?\nA. red\nB. blue")
    assert (example.truth, example.scorer, example.target) == ("B", "choice", "B")


def test_a_loaded_hub_dataset_gives_its_splits_and_class_names(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    from vlmconsole.data.formats.registry import find_format
    from vlmconsole.data.importing.settings import ImportSettings
    from vlmconsole.data.importing.survey import read_source
    from vlmconsole.data.sources.hub import HubRows

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    part = datasets.Dataset.from_dict({"image": [str(PNG), str(PNG)], "label": [1, 0]}, features=features)
    source = HubRows("me/pets", datasets.DatasetDict({"validation": part}))
    settings = ImportSettings("pets", columns=ColumnNames(prompt="Which animal?"))
    first, _ = read_source(source, find_format("columns"), settings)
    assert (first.row.where, first.row.split, first.raw.truth) == ("me/pets validation row 1", "validation", "dog")
    assert first.places == (PNG,)


def test_a_hub_name_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("extra-missing", "vlmconsole[data]"):
        imported(Path("owner/name"), tmp_path / "lab")


def test_a_class_folder_that_was_renamed_is_another_content(tmp_path: Path):
    for name in ("circle", "square"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "a.png").write_bytes(PNG.read_bytes())
    imported(tmp_path / "src", tmp_path / "lab", prompt="What?")
    (tmp_path / "src" / "square").rename(tmp_path / "src" / "triangle")
    with refused("dataset-exists"):
        imported(tmp_path / "src", tmp_path / "lab", prompt="What?")
