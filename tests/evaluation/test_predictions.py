"""What was answered to a dataset: by which runs, to which generation, and what is left out and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_datasets import evaluate, shapes

from vlmconsole.data.manifest import manifest_digest, read_manifest
from vlmconsole.evaluation import predictions as module
from vlmconsole.evaluation.predictions import PredictionReader
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shapes(tmp_path)


def digest(folder: Path) -> str:
    return manifest_digest(read_manifest(folder))


def test_both_sides_of_an_evaluation(tmp_path: Path, folder: Path) -> None:
    run = evaluate(tmp_path, folder, lambda one, k: one.truth, lambda one, k: None if k == 3 else "grey")
    reader = PredictionReader(Places(tmp_path))
    predictions = reader.of("shapes", digest(folder))
    assert [source.name for source in predictions.sources] == [f"{run.name}:before", f"{run.name}:after"]
    assert predictions.sources[1].model.endswith("epoch-2")
    (_, before), (_, after) = predictions.of("test", "shape-00003")
    assert before.right and before.score == 1.0 and before.seconds == 0.4
    assert after.failed and not after.wrong and after.reason == "HTTP 503"
    assert predictions.of("train", "shape-00003") == [] and predictions.of("test", "shape-99999") == []
    assert reader.of("shapes", digest(folder)) is predictions, "nothing moved: nothing is read again"
    with run.file("after.jsonl").open("a") as file:
        file.write('{"id": "shape-00003", "torn')
    assert len(reader.of("shapes", digest(folder)).of("test", "shape-00003")) == 2


def test_answers_to_an_earlier_generation_are_counted_and_not_shown(tmp_path: Path, folder: Path) -> None:
    evaluate(tmp_path, folder, lambda one, k: one.truth, digest="0" * 64)
    predictions = PredictionReader(Places(tmp_path)).of("shapes", digest(folder))
    assert (predictions.sources, predictions.earlier) == ((), 1)


def test_the_oldest_of_many_are_counted(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    runs = [evaluate(tmp_path, folder, lambda one, k: "red") for _ in range(3)]
    predictions = PredictionReader(Places(tmp_path)).of("shapes", digest(folder))
    assert [source.run for source in predictions.sources] == [run.name for run in reversed(runs[1:])]
    assert predictions.older == 1


def test_the_last_development_pass_of_a_training(tmp_path: Path, folder: Path) -> None:
    run = RunFolder.create(
        tmp_path / "runs", kind="sft", preset="sft-shapes", spec={"data": "shapes"}, title="t", home=tmp_path
    )
    run.write_json("selection.json", {"dataset": "shapes", "dataset_sha256": digest(folder)})
    for epoch in (1, 2, 10):
        line = {"id": "shape-00001", "group": "test", "answer": f"epoch {epoch}", "all_correct": epoch == 10}
        run.append_jsonl(f"dev-epoch{epoch}.jsonl", {**line, "valid": True, "partial": 0.5})
    predictions = PredictionReader(Places(tmp_path)).of("shapes", digest(folder))
    (answered,) = predictions.of("test", "shape-00001")
    assert answered[0].side == "dev, epoch 10" and answered[1].answer == "epoch 10" and answered[1].score == 0.5


def test_lines_of_another_dataset_of_the_same_run_are_not_its_own(tmp_path: Path, folder: Path) -> None:
    run = evaluate(tmp_path, folder, lambda one, k: one.truth)
    lines = [json.loads(line) for line in run.file("before.jsonl").read_text().splitlines()]
    run.file("before.jsonl").write_text("".join(json.dumps({**line, "dataset": "other"}) + "\n" for line in lines))
    assert PredictionReader(Places(tmp_path)).of("shapes", digest(folder)).sources == ()
