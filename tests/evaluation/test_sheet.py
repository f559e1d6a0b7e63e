"""Contact sheets: one question over a folder or a dataset, as a dataset and as an evaluation that nothing scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evaluated import Scripted
from own_datasets import example, picture, shapes, write_dataset
from refusals import check_json_error, refused

from vlmconsole.cli import main
from vlmconsole.cli.ask import answers_of
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.example import read_examples
from vlmconsole.data.sheet import SPLIT, ContactSheet, dataset_images, folder_images, write_sheet
from vlmconsole.desks.data import DataDesk
from vlmconsole.desks.sheet import sheet_of
from vlmconsole.evaluation.items import choose
from vlmconsole.evaluation.resume import Earlier
from vlmconsole.evaluation.run import Evaluation
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.samples import read_side
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

QUESTION = "How many people?"


class Counting(Scripted):
    """Answers with a number of its own for each, fails where it is told to."""

    def ask(self, items: Any) -> list[Any]:
        from vlmconsole.evaluation.answerer import ModelAnswer

        self.asked += [(self.side, item.id) for item in items]
        return [
            ModelAnswer(None, error="HTTP 503")
            if item.id in self.fails
            else ModelAnswer(str(9 - int(item.id.split(".")[0])), seconds=float(item.id.split(".")[0]))
            for item in items
        ]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "holiday"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.png").write_bytes(picture(number))
    (folder / "9.png").write_bytes(b"cut off")
    (folder / "notes.txt").write_text("no image, and not meant to be one")
    return folder


def attempt(
    home: Path,
    sheet: ContactSheet,
    fails: frozenset[str] = frozenset(),
    stopping: Any = lambda: False,
    earlier: Any = None,
) -> tuple[RunFolder, Evaluation]:
    spec = {"data": [sheet.folder.name], "paired": False}
    run = RunFolder.create(home / "runs", kind="evaluate", preset="ask", spec=spec, title="t", home=home)
    settings = EvaluateSettings(**spec, batch=1)

    @contextmanager
    def opener(side: str) -> Iterator[Counting]:
        yield Counting(side, {"backend": "server"}, [], fails=fails)

    items = choose(settings, [sheet.folder], None)
    return run, Evaluation(run, settings, items, opener, stopping=stopping, earlier=earlier)


def test_a_folder_is_a_dataset_and_what_cannot_be_read_is_named(tmp_path: Path, images: Path) -> None:
    home = tmp_path / "home"
    sheet = sheet_of(Places(home), str(images), QUESTION)
    assert sheet.new and sheet.folder.name.startswith("sheet-holiday-")
    assert [(entry["id"], bool(entry["reason"])) for entry in sheet.skipped] == [("9.png", True)]
    examples = list(read_examples(sheet.folder / f"{SPLIT}.parquet"))
    assert [one.id for one in examples] == ["0.png", "1.png", "2.png", "3.png"]
    assert {one.question for one in examples} == {QUESTION} and all(one.truth is None for one in examples)
    again = write_sheet(QUESTION, folder_images(images), "holiday", home / "datasets")
    assert not again.new and again.folder == sheet.folder, "the same again makes nothing"
    other = write_sheet("What colour?", folder_images(images), "holiday", home / "datasets")
    assert other.new and other.folder != sheet.folder
    (entry,) = [entry for entry in DataDesk(Places(home)).listing() if entry.path == sheet.folder]
    assert entry.state == "intact" and entry.form == "contact sheet" and entry.title == QUESTION
    assert not [one for one in check_dataset(sheet.folder, home / "datasets") if one.state == "wrong"]


def test_a_sheet_over_training_images_keeps_nothing_from_being_trained_on(tmp_path: Path) -> None:
    """It is asked about images of a training split, and the index of images that isolation counts stays as it was."""
    folder = shapes(tmp_path)
    sheet = sheet_of(Places(tmp_path), "shapes", QUESTION, "split:train")
    assert sheet.manifest["rows"] == 4 and not (tmp_path / "datasets" / "index.sqlite").exists()
    sent = [one.images for one in read_examples(sheet.folder / f"{SPLIT}.parquet")]
    assert sent == [one.images for one in read_examples(folder / "train.parquet")]


def test_its_evaluation_has_answers_failures_and_no_score(tmp_path: Path, images: Path) -> None:
    sheet = write_sheet(QUESTION, folder_images(images), "holiday", tmp_path / "datasets")
    run, evaluation = attempt(tmp_path, sheet, frozenset({"2.png"}))
    summary = evaluation.answer()
    assert summary["scores"] == {} and summary["groups"] == {} and summary["scorers"] == []
    assert summary["n"] == 4 and summary["http_failures"] == 1
    assert not read_side(run.file("before.jsonl")).problems, "its lines are samples like any other"
    view = DataDesk(Places(tmp_path)).view(DataDesk(Places(tmp_path)).listing()[0], "sort:answer")
    assert [view.opened.examples[place].id for place in view.shown] == ["3.png", "1.png", "0.png", "2.png"]
    (_, first), *_ = view.answered(view.shown[0])
    assert first.right is None and first.score is None and first.answer == "6"


def test_cancelling_keeps_what_came_and_a_retry_asks_the_rest(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmconsole.cli.common import state
    from vlmconsole.evaluation.answerer import Stopping

    sheet = write_sheet(QUESTION, folder_images(images), "holiday", tmp_path / "datasets")
    looks = iter([False, False, True])
    run, evaluation = attempt(tmp_path, sheet, stopping=lambda: next(looks))
    with pytest.raises(Stopping):
        evaluation.answer()
    monkeypatch.setattr(state, "home", tmp_path)
    value = answers_of(sheet, run.name, "time")
    assert (value["n"], value["answered"], value["failed"], len(value["skipped"])) == (4, 2, 0, 1)
    assert [row["answer"] for row in value["answers"]] == ["9", "8", None, None]
    again, evaluation = attempt(tmp_path, sheet, earlier=Earlier(run))
    evaluation.answer()
    assert answers_of(sheet, again.name)["answered"] == 4


def test_examples_with_and_without_a_truth_are_not_mixed(tmp_path: Path) -> None:
    some = [example(0), example(1, truth=None, scorer="")]
    folder = write_dataset(tmp_path, "mixed", {"test": ("test", some)})
    with refused("truth-missing", "1 of 2", "truth"):
        choose(EvaluateSettings(data=["mixed"], paired=False), [folder], None)


def test_an_example_without_an_image_is_named_and_alone_refused(tmp_path: Path) -> None:
    text = example(0, images=(), turns=example(0).turns[1:])
    with refused("source-empty", "shape-00000", "no image"):
        write_sheet(QUESTION, dataset_images([text]), "texts", tmp_path)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("", "."), "question-missing"),
        (("Why?", "no-such-place"), "source-missing"),
        (("Why?", ".", "--where", "is:wrong"), "filter-unused"),
        (("Why?", ".", "--sort", "size"), "sort-unknown"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path,
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: str,
) -> None:
    monkeypatch.chdir(images)
    with pytest.raises(SystemExit) as left:
        main(["--home", str(tmp_path / "home"), "ask", *words, "--json"])
    assert left.value.code in (1, 2)
    check_json_error(capsys.readouterr().out, code)


@pytest.mark.slow
def test_from_the_shell_with_the_bundled_model(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real job: queued, answered in this process, exported with its thumbnails, and the same dataset twice."""
    home, page = tmp_path / "home", tmp_path / "sheet.html"
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), "ask", "What shape is red?", str(images), "--html", str(page), "--json"])
    captured = capsys.readouterr()
    assert left.value.code == 0, captured.err
    value = json.loads(captured.out)
    assert value["answered"] == 4 and len(value["skipped"]) == 1 and "9.png" in captured.err
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 4 and value["answers"][0]["answer"] in html
