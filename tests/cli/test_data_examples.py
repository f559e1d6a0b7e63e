"""`vlmconsole data export`, `note` and `notes`: what they print and write, and that nothing of a dataset runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from own_datasets import evaluate, example, shapes, write_dataset
from refusals import check_json_error

from vlmconsole.cli import main
from vlmconsole.data.example import IMAGE_TAG, ExampleTurn

HOSTILE = '<img src=x onerror=alert(1)>\x1b[2J=HYPERLINK("http://evil")'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    evaluate(tmp_path, shapes(tmp_path), lambda one, k: one.truth, lambda one, k: "grey" if k < 3 else one.truth)
    return tmp_path


def run(home: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), *words])
    captured = capsys.readouterr()
    assert left.value.code == status, captured
    return captured.out


def test_the_json_form_holds_every_answer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value: dict[str, Any] = json.loads(run(home, capsys, "data", "export", "shapes", "--where", "is:lost", "--json"))
    assert value["n"] == 3 and [one["id"] for one in value["examples"]] == [f"shape-0000{k}" for k in range(3)]
    first = value["examples"][0]
    assert first["truth"] == "red" and [(a["side"], a["answer"], a["right"]) for a in first["answers"]] == [
        ("before", "red", True),
        ("after", "grey", False),
    ]


def test_the_files_hold_what_the_filter_left(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = home / "wrong.html", home / "wrong.csv"
    words = ("data", "export", "shapes", "--where", "is:wrong", "--html", str(page), "--csv", str(table))
    assert str(page) in run(home, capsys, *words)
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(rows) == 3 and rows[1]["truth"] == "blue"
    after = next(name for name in rows[0] if name.endswith(":after answer"))
    assert {row[after] for row in rows} == {"grey"} and rows[0][after.replace("answer", "right")] == "False"
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 3 and "is:wrong" in html and "✗ wrong" in html


def test_foreign_text_is_text_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = (ExampleTurn("user", f"{IMAGE_TAG}{HOSTILE}"), ExampleTurn("assistant", HOSTILE))
    one = example(1, id=f"={HOSTILE}", turns=turns, truth=HOSTILE, group=HOSTILE)
    folder = write_dataset(tmp_path, "odd", {"test": ("test", [one])})
    evaluate(tmp_path, folder, lambda one, k: HOSTILE)
    page, table = tmp_path / "odd.html", tmp_path / "odd.csv"
    run(tmp_path, capsys, "data", "export", "odd", "--html", str(page), "--csv", str(table))
    html, text = page.read_text(), table.read_text()
    assert "<img src=x" not in html and "&lt;img src=x" in html
    assert "\x1b" not in html + text
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["id"].startswith("'=") and row["truth"].startswith("<img")


def test_notes_from_the_shell_are_those_of_the_screen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(home, capsys, "data", "note", "shapes", "shape-00002", "--tag", "blurred", "--text", "left edge")
    value = json.loads(run(home, capsys, "data", "notes", "shapes", "--json"))
    assert value["tags"] == {"blurred": 1} and value["notes"][0]["text"] == "left edge"
    noted = json.loads(run(home, capsys, "data", "export", "shapes", "--where", "tag:blurred", "--json"))
    assert [one["id"] for one in noted["examples"]] == ["shape-00002"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("export", "shops"), "dataset-missing"),
        (("export", "shapes", "--where", "is:odd"), "filter-invalid"),
        (("note", "shapes", "shape-7"), "example-missing"),
        (("note", "shapes", "shape-00001", "--tag", "?!"), "tag-invalid"),
    ],
)
def test_what_cannot_be_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str
) -> None:
    check_json_error(run(home, capsys, "data", *words, "--json", status=2), code)
