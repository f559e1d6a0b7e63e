"""A user's file is known by its bytes: mended labels make a new generation, and nothing old is lost or mixed up."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import SmallLab, wrong
from PIL import Image
from refusals import refused
from test_dataset import checked

from vlmconsole.audit.images import Shelves
from vlmconsole.audit.run import audit
from vlmconsole.cli import main
from vlmconsole.data import names
from vlmconsole.data.dataset import make_dataset, manifest_digest, read_manifest
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.generations import aside, generation, generations
from vlmconsole.data.recipe import load_recipe
from vlmconsole.data.rows import DataError, Row, read_rows
from vlmconsole.data.splits import LeakError, PictureIndex
from vlmconsole.gates.tamper_check import altered
from vlmconsole.runs.folder import RunFolder


class Files:
    """A lab home beside a folder of the user's: five images, a file for training and one for tests, a recipe."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.datasets = self.home / "datasets"
        for n in range(6):
            Image.new("RGB", (32, 32), (40 * n, 20, 200)).save(folder / f"{n}.png")
        self.write(
            "train", [{"image": f"{n}.png", "question": "What?", "answer": "blue", "id": f"q{n}"} for n in (0, 1)]
        )
        self.write(
            "test", [{"image": f"{n}.png", "question": "What?", "answer": "red", "id": f"t/{n}"} for n in (2, 3)]
        )
        self.recipe = folder / "mine.toml"
        self.recipe.write_text(
            'title = "own"\nseed = 1\n'
            '[[splits]]\nname = "train"\nrole = "train"\nparts = [{ file = "train.jsonl" }]\n'
            '[[splits]]\nname = "test"\nrole = "test"\nparts = [{ file = "test.jsonl" }]\n'
        )

    def write(self, name: str, rows: list[dict[str, Any]]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def mend(self, name: str, key: str, value: Any, at: int = 0) -> None:
        rows = [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_text().splitlines()]
        rows[at][key] = value
        self.write(name, rows)

    def make(self, *, replace: bool = False, rename: str | None = None, seed: int | None = None) -> Path:
        recipe = load_recipe(str(self.recipe), rename=rename, seed=seed)
        return make_dataset(recipe, self.datasets, replace=replace)

    def truths(self, folder: Path, split: str = "test") -> dict[str, str]:
        return {row.uid: row.truth for row in read_rows(folder / f"{split}.parquet")}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def command(files: Files, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["--home", str(files.home), *words])
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.mend("test", "answer", "green"),
        lambda files: files.mend("train", "question", "Which colour?"),
        lambda files: files.mend("test", "id", "other"),
        lambda files: Image.new("RGB", (32, 32), (1, 2, 3)).save(files.folder / "2.png"),  # the file stays as it is
        lambda files: files.write("test", [{"image": "2.png", "question": "What?", "answer": "red"}]),
    ],
)
def test_changed_bytes_are_refused_with_both_hashes_and_replace_makes_a_new_generation(
    files: Files, change: Any
) -> None:
    folder = files.make()
    first, before = manifest_digest(read_manifest(folder)), files.truths(folder)
    then = {entry["file"]: entry["sha256"] for entry in read_manifest(folder)["own"]}
    change(files)
    with pytest.raises(DataError) as refused:
        files.make()
    changed = next(sha for sha in then.values() if sha[:12] in refused.value.message)
    assert "now" in refused.value.message and f"mine@{first[:12]}" in refused.value.hint
    with pytest.raises(DataError, match=changed[:12]):
        names.promised(str(files.recipe), files.datasets)
    assert files.make(replace=True) == folder
    now = manifest_digest(read_manifest(folder))
    old = files.datasets / f"mine@{first[:12]}"
    assert now != first and files.truths(old) == before, "old runs keep theirs"
    assert checked(folder) == {} and checked(old) == {}
    assert names.ready(f"mine@{first[:12]}", files.datasets) == old
    assert generation(files.datasets, "mine", first) == old and generation(files.datasets, "mine", now) == folder
    assert files.make() == folder, "the same bytes again: nothing is to be done"
    shelves = Shelves(files.datasets)
    assert {row.uid: row.truth for row in shelves.split("mine", "test", first)} == before
    assert {row.uid: row.truth for row in shelves.split("mine", "test", now)} == files.truths(folder)


def test_generations_there_and_back(files: Files) -> None:
    digests = []
    for answer in ("green", "red", "green"):
        files.mend("test", "answer", answer)
        digests.append(manifest_digest(read_manifest(files.make(replace=True))))
    assert digests[0] == digests[2] != digests[1]
    assert len(generations(files.datasets, "mine")) == 3
    for digest in digests:
        assert manifest_digest(read_manifest(generation(files.datasets, "mine", digest))) == digest


def test_a_picture_does_not_cross_from_one_generations_test_into_anothers_training(files: Files) -> None:
    files.make()
    files.write("train", [{"image": "2.png", "question": "What?", "answer": "blue"}])
    files.write("test", [{"image": "4.png", "question": "What?", "answer": "red"}])
    with pytest.raises(LeakError, match=r"mine:test mine-test-t/2"):
        files.make(replace=True)
    assert len(generations(files.datasets, "mine")) == 1, "the old one stays in its place"


def test_the_same_images_may_come_again_under_another_name_in_the_same_roles(files: Files) -> None:
    files.make()
    files.mend("train", "answer", "green")
    second = files.make(rename="second")
    assert {item.name: item.state for item in check_dataset(second, files.datasets)}["isolation"] == "ok"


def test_the_place_of_the_file_plays_no_part(files: Files, tmp_path: Path) -> None:
    folder = files.make()
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in [*files.folder.glob("*.png"), *files.folder.glob("*.jsonl"), files.recipe]:
        path.rename(moved / path.name)
    assert make_dataset(load_recipe(str(moved / "mine.toml")), files.datasets) == folder


def test_a_recipe_may_name_the_hash_that_it_wants(files: Files) -> None:
    sha = read_manifest(files.make())["own"][1]["sha256"]
    files.recipe.write_text(files.recipe.read_text().replace('"test.jsonl"', f'"test.jsonl", file_sha256 = "{sha}"'))
    assert files.make()
    files.mend("test", "answer", "green")
    with pytest.raises(Exception, match=f"wants {sha[:12]}"):
        files.make()


def test_a_dataset_made_before_hashes_were_kept_is_compared_by_its_rows(files: Files) -> None:
    folder = files.make()
    manifest = read_manifest(folder)
    plain = load_recipe(str(files.recipe))
    manifest.update(recipe=plain.model_dump(mode="json"), recipe_sha256=plain.sha256)
    del manifest["own"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert files.make() == folder
    files.mend("test", "answer", "green")
    with pytest.raises(DataError, match="kept no hash"):
        files.make()


def test_the_users_ids_are_in_every_name_and_two_alike_are_refused(files: Files) -> None:
    assert sorted(files.truths(files.make())) == ["mine-test-t/2", "mine-test-t/3"]
    files.write("test", [{"image": "2.png", "question": "a", "answer": "b", "id": 0}] * 2)
    with refused("rows-invalid", "line 2", "(id 0)", "test.jsonl line 1", error=DataError):
        files.make(replace=True)


def test_check_of_ones_own_file_before_and_after(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    mine = str(files.folder / "test.jsonl")
    assert command(files, capsys, "data", "check", mine)[0] == 0
    first = manifest_digest(read_manifest(files.make()))
    code, out, _ = command(files, capsys, "data", "check", mine, "--json")
    states = {one["name"]: one["state"] for one in json.loads(out)["findings"]}
    assert code == 0 and states == {"rows": "ok", "dataset mine": "ok", "isolation": "ok"}
    files.mend("test", "answer", "green")
    code, out, _ = command(files, capsys, "data", "check", mine)
    assert code == 0 and "--replace" in out
    for words in (["make", str(files.recipe)], ["make", str(files.recipe), "--replace"], ["list"]):
        code, out, err = command(files, capsys, "data", *words)
        if words[-1].endswith(".toml"):
            assert code == 1 and "now" in err and "--replace" in err
        else:
            assert code == 0
    assert f"mine@{first[:12]}" in out
    second = Files(files.folder)
    second.make(replace=True)
    files.write("other", [{"image": "0.png", "question": "What?", "answer": "x"}])
    code, out, _ = command(files, capsys, "data", "check", str(files.folder / "other.jsonl"))
    assert code == 1 and "stands in mine:train" in out, "a picture of another file's dataset is told"


def test_a_name_means_the_labs_dataset_before_a_folder_here(
    files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files.make()
    (files.folder / "mine").mkdir()
    monkeypatch.chdir(files.folder)
    code, out, err = command(files, capsys, "data", "check", "mine", "--json")
    assert code == 0 and json.loads(out)["path"] == str(made) and "./mine" in err
    assert command(files, capsys, "data", "check", "./mine")[0] == 1
    assert json.loads(command(files, capsys, "data", "show", "mine", "--json")[1])["path"] == str(made)


def test_a_plan_counts_the_rows_of_a_file_and_names_unused_keys(files: Files) -> None:
    from vlmconsole.jobs.data import files_note, sizes

    files.mend("train", "difficulty", 3)
    assert sizes(str(files.recipe)) == {"train": 2, "test": 2}
    assert "train.jsonl: 2 rows" in files_note(str(files.recipe))
    assert "difficulty (1 row)" in files_note(str(files.recipe))
    seen: list[tuple[int, int]] = []
    make_dataset(load_recipe(str(files.recipe)), files.datasets, on_progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (4, 4) and {of for _, of in seen} == {4}
    own = read_manifest(files.datasets / "mine")["own"]
    assert [entry["ignored"] for entry in own] == [{"difficulty": 1}, {}]


def test_the_index_keeps_both_generations(files: Files) -> None:
    files.make()
    files.mend("test", "answer", "green")
    files.make(replace=True)
    assert len(list(PictureIndex(files.datasets).all())) == 8


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    ("answer", "scorer", "fits"),
    [("green", "counting", False), ("green", "naming", True), (7, "counting", False), ({"red_circles": 1}, "x", False)],
)
def test_a_scorer_that_cannot_judge_the_truths_is_refused_before_the_job(
    files: Files, made: bool, answer: Any, scorer: str, fits: bool
) -> None:
    from vlmconsole.jobs import preflight
    from vlmconsole.runs.places import Places

    if scorer == "x":
        files.mend("test", "answer", {"red_circles": 1, "blue_squares": 0})
        assert preflight.scorer(str(files.recipe), "counting", Places(files.home), splits=["test"], roles=[])
        files.mend("test", "answer", {"red_circles": 1, "blue_squares": 0}, at=1)
        assert preflight.scorer(str(files.recipe), "counting", Places(files.home), splits=["test"]) == []
        return
    files.mend("test", "answer", answer)
    if made:
        files.make()
    told = preflight.scorer(str(files.recipe), scorer, Places(files.home), roles=["test"])
    assert (told == []) == fits
    better = "number" if answer == 7 and not made else "naming"  # rows of a made dataset hold text
    assert fits or ("cannot judge" in told[0] and "t/" in told[0] and f"scorer = {better} can" in told[0])


@pytest.mark.parametrize("data", ["mine", "file", ["other", "mine"], "mine:train"])
def test_a_dataset_that_a_run_works_with_is_not_replaced(
    files: Files, capsys: pytest.CaptureFixture[str], data: Any
) -> None:
    files.make()
    files.mend("test", "answer", "green")
    spec = {"data": str(files.recipe) if data == "file" else data}
    run = RunFolder.create(files.home / "runs", kind="sft", preset="p", spec=spec, title="t", home=files.home)
    run.set_state("running")
    code, _, err = command(files, capsys, "data", "make", str(files.recipe), "--replace")
    assert code == 1 and run.name in err and len(generations(files.datasets, "mine")) == 1
    run.set_state("done")
    assert command(files, capsys, "data", "make", str(files.recipe), "--replace")[0] == 0
    assert len(generations(files.datasets, "mine")) == 2


# --- what was made of an earlier generation ---
def replaced(lab: SmallLab) -> Path:
    """The lab's dataset put aside, and another generation under its name: every label of two splits is another."""
    old = aside(lab.dataset)
    lab.dataset.rename(old)
    shutil.copytree(old, lab.dataset)

    def mend(rows: list[Row]) -> list[Row]:
        return [replace(row, truth='{"red_circles": 9, "blue_squares": 9}') for row in rows]

    lab.remake("train", mend)
    lab.remake("test-regular", mend)
    return old


def test_old_runs_keep_their_generation_in_audit_and_verify(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home").whole()
    before = {one.name.partition(":")[0] for one in audit(lab.run, lab.places).findings if one.state == "wrong"}
    assert before == set()
    old = replaced(lab)
    for run in (lab.run, lab.trained):
        assert wrong(audit(run, lab.places)) == {}
    assert altered(lab.places, lab.ledger.read())["data"] == []
    # Without the old generation the new one is what it always was: a dataset that was swapped.
    shutil.rmtree(old)
    found = wrong(audit(lab.run, lab.places))
    assert "samples" in found and "test set" in found and "mini: identity" in found
    assert altered(lab.places, lab.ledger.read())["data"] != []


def test_an_evaluation_without_a_plan_is_held_to_the_generation_that_it_names(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home").whole()
    lab.run.file("plan.json").unlink()
    digest = manifest_digest(read_manifest(lab.dataset))
    replaced(lab)
    assert "samples" not in wrong(audit(lab.run, lab.places)), "of before digests were recorded: any generation"
    summary = lab.run.read_json("summary.json")
    lab.run.write_json("summary.json", {**summary, "data": {"mini": digest}})
    assert "samples" not in wrong(audit(lab.run, lab.places))
    lab.run.write_json("summary.json", {**summary, "data": {"mini": manifest_digest(read_manifest(lab.dataset))}})
    assert "samples" in wrong(audit(lab.run, lab.places))
