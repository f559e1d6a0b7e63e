"""Datasets: exact coverage, truth in one place, no picture twice, and checks that catch what was planted."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from judged import recipe, small_dataset
from PIL import Image, PngImagePlugin
from refusals import mentions, refused

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import make_scene
from vlmconsole.data.contact_sheet import contact_sheet
from vlmconsole.data.dataset import MANIFEST, make_dataset, manifest_digest, read_manifest, read_objects
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.recipe import Part, RecipeError, load_recipe, recipe_names
from vlmconsole.data.rows import DataError, Row, read_rows, write_rows
from vlmconsole.data.splits import LeakError, PictureIndex


# --- recipes: sums and coverage ---
def parts(name: str, split: str = "train") -> tuple[Part, ...]:
    return next(s for s in load_recipe(name).splits if s.name == split).parts


def times(part: Part) -> Counter[tuple[int, int]]:
    return Counter((red, blue) for red, blue, _ in part.cells(random.Random(1)))


def test_the_labs_numbers() -> None:
    (sft,) = parts("sft-expand")
    assert set(times(sft).values()) == {12} and len(times(sft)) == 64
    first, replayed = parts("repair-1")
    assert set(times(first).values()) == {6} and len(times(first)) == 169
    assert (first.size, replayed.size, replayed.replay) == (1014, 266, "sft-expand:train")
    scattered, high, hollow, whole = parts("repair-2")
    assert (scattered.size, high.size, hollow.size, whole.size) == (676, 400, 204, 1280)
    assert set(times(scattered).values()) == {4}
    assert set(times(high).values()) == {16} and min(times(high)) == (8, 8) and max(times(high)) == (12, 12)
    assert set(times(hollow).values()) == {1, 2} and len(times(hollow)) == 169
    sizes = {s.name: sum(p.size or 0 for p in s.parts) for s in load_recipe("repair-2").splits}
    assert sizes["train"] == 2560 and sizes["dev"] == 192
    assert [n for name, n in sizes.items() if name.startswith("test")] == [64] * 7
    grpo = {s.name: sum(p.size or 0 for p in s.parts) for s in load_recipe("grpo-128-32").splits}
    assert grpo == {"train": 128, "heldout": 32, "new": 128}


def test_tiny_twins_replay_tiny_twins_and_no_two_recipes_share_a_seed() -> None:
    recipes = [load_recipe(name) for name in recipe_names()]
    assert len({r.seed for r in recipes}) == len(recipes)
    for r in recipes:
        replays = [p.replay for s in r.splits for p in s.parts if p.replay]
        assert all(
            (":" in source) and source.split(":")[0].endswith("-tiny") is r.name.endswith("-tiny") for source in replays
        )


@pytest.mark.parametrize(
    ("part", "nouns"),
    [
        ({"group": "regular"}, ("every", "count")),
        ({"group": "round", "count": 3}, ("unknown", "group")),
        ({"group": "regular", "replay": "a:b", "count": 3}, ("group", "replay", "file")),
        ({"replay": "a", "count": 3}, ("dataset:split",)),
        ({"group": "naming", "every": 2}, ("count",)),
        ({"group": "regular", "count": 3, "low": 9}, ("above", "high")),
        ({"group": "regular", "count": 3, "hight": 9}, ("hight",)),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_key(part: dict[str, Any], nouns: tuple[str, ...], tmp_path: Path) -> None:
    inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in part.items())
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "t"\nseed = 1\n[[splits]]\nname = "train"\nrole = "train"\nparts = [{{ {inner} }}]\n')
    with refused("recipe-invalid", *nouns, error=RecipeError) as told:
        load_recipe(str(path))
    assert (
        "Value error" not in told.value.message and "at least 1" not in told.value.message
    )  # nor what follows from it


def test_a_recipe_without_its_keys_is_told_which(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('title = "t"\nsplit = 1\n')
    with refused("recipe-invalid", "seed", "splits", "split"):
        load_recipe(str(path))


# --- what is made ---
def checked(folder: Path) -> dict[str, str]:
    return {one.name: one.text for one in check_dataset(folder, folder.parent) if one.state == "wrong"}


def test_the_parquet_is_verls_schema_and_the_truth_is_in_the_reward_only(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    table = pq.read_table(folder / "train.parquet")
    assert [str(field.type) for field in table.schema] == [
        "string",
        "list<element: struct<role: string, content: string>>",
        "list<element: struct<bytes: binary, path: string>>",
        "string",
        "struct<style: string, ground_truth: string>",
        "struct<split: string, index: int64, uid: string>",
    ]
    for row in table.to_pylist():
        assert row["prompt"] == [{"role": "user", "content": "<image>" + COUNT_PROMPT}]
        (image,) = row["images"]
        assert image["path"] is None and Image.open(io.BytesIO(image["bytes"])).size == (448, 448)
        assert row["reward_model"]["style"] == "rule"
        assert set(json.loads(row["reward_model"]["ground_truth"])) == {"red_circles", "blue_squares"}
    assert checked(folder) == {}


def test_the_same_recipe_makes_the_same_bytes_in_another_lab(tmp_path: Path) -> None:
    one = small_dataset(tmp_path / "one")
    two = make_dataset(recipe(), tmp_path / "two" / "datasets")
    for name in ("train.parquet", "test-hollow.objects.jsonl", "test-naming.parquet"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert manifest_digest(read_manifest(one)) == manifest_digest(read_manifest(two))


def test_no_picture_is_made_twice_even_where_most_would_be_empty(tmp_path: Path) -> None:
    empty = [{"name": "train", "role": "train", "parts": [{"group": "regular", "low": 0, "high": 0, "every": 20}]}]
    folder = make_dataset(recipe(splits=empty, seed=9), tmp_path)
    hashes = [entry[2] for entry in read_manifest(folder)["splits"]["train"]["pictures"]]
    assert len(set(hashes)) == 20 and read_manifest(folder)["redrawn"] > 0
    again = make_dataset(recipe(splits=empty, seed=10, name="other"), tmp_path)
    blank = hashlib.sha256(Image.new("RGB", (448, 448), "white").tobytes()).hexdigest()
    others = [entry[2] for entry in read_manifest(again)["splits"]["train"]["pictures"]]
    assert blank in hashes and not set(hashes) & set(others)


def test_a_made_dataset_is_left_alone_and_never_overwritten(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    before = (folder / MANIFEST).read_bytes()
    assert make_dataset(recipe(), folder.parent) == folder and (folder / MANIFEST).read_bytes() == before
    with refused("dataset-exists", folder.name, "--name"):
        make_dataset(recipe(seed=6), folder.parent)
    assert not list(folder.parent.glob(".*tmp"))


def one_split(role: str, *inner: dict[str, Any], name: str = "later") -> Any:
    return recipe(name=name, seed=77, splits=[{"name": role, "role": role, "parts": list(inner)}])


def test_replay_takes_training_pictures_and_never_a_test(tmp_path: Path) -> None:
    datasets = small_dataset(tmp_path).parent
    fresh = {"group": "regular", "low": 0, "high": 1, "count": 3}
    folder = make_dataset(one_split("train", fresh, {"replay": "small:train", "count": 5}), datasets)
    source = {row.sha256: row for row in read_rows(datasets / "small" / "train.parquet")}
    rows = list(read_rows(folder / "train.parquet"))
    assert sum(row.sha256 in source for row in rows) == 5
    assert all(row.truth == source[row.sha256].truth for row in rows if row.sha256 in source)
    assert checked(folder) == {}
    twice = make_dataset(one_split("train", {"replay": "later:train", "count": 8}, name="third"), datasets)
    assert checked(twice) == {}
    for source_split, code in (("small:test-hollow", "replay-of-test"), ("nowhere:train", "dataset-missing")):
        with refused(code, source_split):
            make_dataset(one_split("train", {"replay": source_split, "count": 2}, name="x"), datasets)
    with refused("replay-in-test", "small:train"):
        make_dataset(one_split("test", {"replay": "small:train", "count": 2}, name="x"), datasets)
    with (datasets / "small" / "train.parquet").open("ab") as file:
        file.write(b"!")
    with refused("file-changed", "train.parquet"):
        make_dataset(one_split("train", {"replay": "small:train", "count": 2}, name="x"), datasets)
    assert not (datasets / "x").exists()


# --- checks catch what was planted ---
def plant(folder: Path, split: str, change: Callable[[list[Row]], Any]) -> None:
    """Change rows and make every hash of the manifest fit again: only the content can give it away."""
    path = folder / f"{split}.parquet"
    rows = list(read_rows(path))
    change(rows)
    write_rows(path, rows)
    manifest = read_manifest(folder)
    manifest["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    pictures = manifest["splits"][split]["pictures"]
    for row, entry in zip(rows, pictures, strict=True):
        entry[1:3] = [row.sha256, row.pixel_sha256]
    (folder / MANIFEST).write_text(json.dumps(manifest))


def png(image: Image.Image, info: PngImagePlugin.PngInfo | None = None) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", pnginfo=info)
    return out.getvalue()


def wrong_label(rows: list[Row]) -> None:
    counts = json.loads(rows[0].truth)
    rows[0] = replace(rows[0], truth=json.dumps({**counts, "red_circles": counts["red_circles"] + 1}))


def swapped_truths(rows: list[Row]) -> None:
    one, two = rows[:2]
    rows[:2] = [replace(one, truth=two.truth), replace(two, truth=one.truth)]


def hidden_truth(rows: list[Row]) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("truth", rows[0].truth)
    rows[0] = replace(rows[0], picture=png(rows[0].image(), info))


def extra_object(rows: list[Row]) -> None:
    image = rows[0].image()
    other = make_scene("planted", red=1, blue=0, others=0)
    thing = other.things[0]
    box = (thing.x - 30, thing.y - 30, thing.x + 30, thing.y + 30)
    image.paste(other.draw().crop(box), box)
    rows[0] = replace(rows[0], picture=png(image))


def leaked(rows: list[Row]) -> None:
    rows[0] = replace(rows[0], picture=make_scene("5:train:0:0:0", "regular", red=0, blue=0).png())


PLANTED: dict[str, tuple[str, Callable[[list[Row]], Any], str, str]] = {
    "a wrong label": ("test-regular", wrong_label, "labels", "the pixels show"),
    "an extra object": ("test-regular", extra_object, "labels", "small-test-regular-00000"),
    "the truth inside the picture": ("test-regular", hidden_truth, "truth's place", "carries truth"),
    "the answer in the question": (
        "test-naming",
        lambda rows: rows.__setitem__(0, replace(rows[0], question=f"Is it {rows[0].truth}?")),
        "truth's place",
        "answer",
    ),
    "a wrong naming answer": (
        "test-naming",
        lambda rows: rows.__setitem__(0, replace(rows[0], truth="octagon")),
        "labels",
        "the pixels say",
    ),
    "a swapped pair of truths": (
        "test-hollow",
        swapped_truths,
        "labels",
        "the pixels show",
    ),
    "the same picture in training and test": (
        "train",
        lambda rows: rows.__setitem__(0, replace(rows[0], picture=TEST_PICTURE[0])),
        "isolation",
        "same image",
    ),
}
TEST_PICTURE: list[bytes] = []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_although_every_hash_fits(fault: str, tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    TEST_PICTURE[:] = [next(read_rows(folder / "test-regular.parquet")).picture]
    split, change, name, words = PLANTED[fault]
    plant(folder, split, change)
    assert words in checked(folder)[name]


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = read_manifest(folder)
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(("key", "value"), [("n", "many"), ("role", None), ("pictures", 7), ("replayed", "x")])
def test_an_edited_manifest_is_one_sentence(tmp_path: Path, key: str, value: Any) -> None:
    manifest = {"name": "m", "files": {}, "splits": {"test": {"role": "test", "n": 1, "pictures": [], key: value}}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with refused("manifest-damaged", key, "test", error=DataError):
        read_manifest(tmp_path)


def drop(folder: Path) -> list[Row]:
    return list(read_rows(folder / "train.parquet"))[1:]


TAMPERED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a changed file": (lambda f: (f / "train.objects.jsonl").open("a").write("\n"), "files", "jsonl was changed"),
    "a missing file": (lambda f: (f / "train.parquet").unlink(), "files", "train.parquet is missing"),
    "a stray file": (lambda f: (f / "notes.txt").write_text("x"), "files", "notes.txt"),
    "another seed in the recipe": (
        lambda f: edit_manifest(f, lambda m: m["recipe"].update(seed=9)), "recipe", "hashed"
    ),
    "a dropped row": (lambda f: write_rows(f / "train.parquet", drop(f)), "coverage", "times, not"),
    "a lost index": (lambda f: (f.parent / "index.sqlite").unlink(), "isolation", "index"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TAMPERED)
def test_tampering_is_named(fault: str, tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    change, name, words = TAMPERED[fault]
    change(folder)
    found = checked(folder)
    assert words in found[name]


def test_a_moved_object_in_the_list_is_found(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    facts = read_objects(folder, "test-hollow")
    thing = next(fact for fact in facts if fact["objects"])["objects"][0]
    thing["x"] += 40
    (folder / "test-hollow.objects.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    assert f"is seen at {thing['x']}" in checked(folder)["labels"]


def test_what_cannot_be_read_from_pixels_is_said_to_be_so(tmp_path: Path) -> None:
    overlap = {
        "name": "overlap",
        "role": "exploratory",
        "parts": [{"group": "overlap", "low": 1, "high": 2, "every": 1}],
    }
    folder = make_dataset(recipe(name="explored", splits=[overlap]), tmp_path)
    findings = check_dataset(folder, tmp_path)
    (unclear,) = (one.text for one in findings if one.state == "not verifiable")
    assert mentions(unclear, "4 images", "objects")
    assert not [one for one in findings if one.state == "wrong"]


# --- the index and the sheet ---
def test_the_index_outlives_a_deleted_dataset(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    first = next(read_rows(folder / "train.parquet"))
    shutil.rmtree(folder)
    (known,) = PictureIndex(folder.parent).find([first.pixel_sha256])
    assert known.place == "small:train small-train-00000" and known.role == "train"
    assert make_dataset(recipe(), folder.parent).exists()  # the same recipe may make its own pictures again


def test_two_makers_cannot_both_claim_a_picture(tmp_path: Path) -> None:
    folder = small_dataset(tmp_path)
    index = PictureIndex(folder.parent)
    taken = next(iter(index.all()))
    with (
        refused("picture-leaked", "small:train", error=LeakError),
        index.adding([replace(taken, digest="x")]),
    ):
        raise AssertionError("the folder must not appear")
    assert len(index.find([taken.sha256])) == 1


def test_a_contact_sheet_shows_each_picture_with_its_truth(tmp_path: Path) -> None:
    rows = list(read_rows(small_dataset(tmp_path) / "test-naming.parquet"))
    sheet = contact_sheet(rows, columns=4)
    assert sheet.size == (4 * 156 + 6, 3 * 174 + 6)
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([])


# --- scenes that are all alike ---
def blank_counting(name: str, seed: int) -> Any:
    parts = [{"group": "regular", "low": 0, "high": 0, "every": 6}]
    return recipe(name=name, seed=seed, splits=[{"name": "train", "role": "train", "parts": parts}])


def occluded(name: str, seed: int, every: int) -> Any:
    parts = [{"group": "occlusion", "low": 0, "high": 1, "every": every}]
    return recipe(name=name, seed=seed, splits=[{"name": "occlusion", "role": "exploratory", "parts": parts}])


@pytest.mark.parametrize("first", ["counting", "exploratory"])
def test_blank_scenes_are_made_in_either_order(first: str, tmp_path: Path) -> None:
    both = [blank_counting("counting", 9), occluded("exploratory", 10, 1)]
    for one in both if first == "counting" else reversed(both):
        assert checked(make_dataset(one, tmp_path)) == {}
    many = make_dataset(occluded("more", 11, 5), tmp_path)  # blank five times over in one recipe
    assert checked(many) == {}
    blank = [fact for fact in read_objects(many, "occlusion") if not any(fact["label"].values())]
    assert len(blank) == 5 and all(fact["objects"] for fact in blank)


def test_a_dataset_with_its_one_blank_scene_is_the_one_it_always_was(tmp_path: Path) -> None:
    made = make_dataset(occluded("exploratory", 10, 1), tmp_path)
    first = next(fact for fact in read_objects(made, "occlusion") if not any(fact["label"].values()))
    assert first["objects"] == [] and first["seed"] == "explore:10:occlusion:0:0:0:occlusion:0:0"
