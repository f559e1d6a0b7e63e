"""A split leafed through: any example at once, thumbnails, and what becomes of damaged files."""

from __future__ import annotations

import io
import random
from pathlib import Path

import judged
import pytest
from own_datasets import example, picture, shapes
from PIL import Image
from refusals import refused

from vlmconsole.data.browse import BrowsedSplit, image_count
from vlmconsole.data.example import IMAGE_TAG, ExampleTurn, read_examples, write_examples
from vlmconsole.data.rows import DataError
from vlmconsole.data.thumbnails import SIDE, Thumbnails, make_thumbnail


def test_any_example_is_the_one_that_is_read_in_order(tmp_path: Path) -> None:
    """Over several row groups, with several images, one and none."""
    path = tmp_path / "test.parquet"
    every = [example(k) for k in range(300)]
    two = (ExampleTurn("user", f"{IMAGE_TAG} and {IMAGE_TAG}: which is larger?"),)
    every[130] = example(130, images=(picture(1), picture(2)), turns=two, truth="the first")
    every[299] = example(299, images=(), turns=(ExampleTurn("user", "What is red?"),), truth=None, scorer="")
    write_examples(path, every)
    split = BrowsedSplit(path)
    order = list(range(300))
    random.Random(3).shuffle(order)
    for index in order:
        assert split.example(index) == every[index]
    assert [image_count(split.examples[index]) for index in (0, 130, 299)] == [1, 2, 0]
    assert all(one.images == () for one in split.examples), "no image is held beside the last row groups"
    split.close()


def test_drawn_scenes_are_read_as_examples_too(tmp_path: Path) -> None:
    path = judged.small_dataset(tmp_path) / "test-naming.parquet"
    split = BrowsedSplit(path)
    assert [split.example(k) for k in range(len(split))] == list(read_examples(path))


def test_a_file_that_is_no_parquet_or_damaged_is_refused(tmp_path: Path) -> None:
    path = shapes(tmp_path) / "test.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with refused("parquet-invalid", "test.parquet", error=DataError):
        BrowsedSplit(path)


def test_a_thumbnail_is_small_and_kept(tmp_path: Path) -> None:
    store = Thumbnails(tmp_path / "cache")
    assert store.get("a:1") is None
    data = make_thumbnail(picture(5, (900, 600), "JPEG"))
    image = Image.open(io.BytesIO(data))
    assert max(image.size) == SIDE and image.size[0] / image.size[1] == pytest.approx(1.5, abs=0.02)
    store.put("a:1", data)
    store.close()
    assert Thumbnails(tmp_path / "cache").get("a:1") == data
    assert make_thumbnail(b"GIF89a, but no image") == b""


def test_the_store_is_bounded_and_a_broken_one_is_made_anew(tmp_path: Path) -> None:
    store = Thumbnails(tmp_path, limit=100_000)
    for number in range(200):
        store.put(f"k{number}", bytes(1000))
    assert store.get("k0") is None and store.get("k199") == bytes(1000)
    kept = sum(store.get(f"k{number}") is not None for number in range(200))
    assert 70 <= kept <= 100
    store.close()
    store.path.write_bytes(b"no database" * 1000)
    for beside in tmp_path.glob("thumbnails.sqlite-*"):
        beside.unlink()
    again = Thumbnails(tmp_path)
    again.put("k", b"x")
    assert again.get("k") == b"x" and again.get("k199") is None
