"""Isolation of imported datasets: pixels, not bytes; only what crosses train, dev and test is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.lab.imports import examples, imported
from tests.lab.refusals import refused
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.example import read_examples, write_examples
from vlmconsole.data.importing.dataset_import import ImportedDataset
from vlmconsole.data.importing.settings import read_shares


def photo(seed: int, size: tuple[int, int] = (400, 320)) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (8, 10, 3), dtype=np.uint8))
    grain = rng.normal(0, 8, (size[1], size[0], 3))
    return Image.fromarray(
        np.clip(np.asarray(small.resize(size, Image.Resampling.BICUBIC)) + grain, 0, 255).astype("u1")
    )


def jpeg(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=85, **options)
    return out.getvalue()


def png_of(data: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(out, "PNG")
    return out.getvalue()


def sheet(folder: Path, *images: bytes, asked: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, data in enumerate(images):
        name = f"{number}.png" if data.startswith(b"\x89") else f"{number}.jpg"
        (folder / name).write_bytes(data)
        rows += [{"image": name, "question": f"{turn}?", "answer": "yes"} for turn in range(asked)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_same_pixels_in_other_bytes_do_not_cross(tmp_path: Path):
    data = jpeg(photo(1))
    imported(sheet(tmp_path / "a", data, jpeg(photo(2))), tmp_path / "lab", "a", role="train")
    for other in (data, png_of(data), jpeg(photo(1), progressive=True), jpeg(photo(1), comment="mine")):
        with refused("picture-leaked", "b-00001", "a:train"):
            imported(sheet(tmp_path / "b", other), tmp_path / "lab", "b", role="test")
    assert not (tmp_path / "lab" / "b").exists()
    imported(sheet(tmp_path / "b", jpeg(photo(3))), tmp_path / "lab", "b", role="test")


def test_a_png_known_first_holds_back_the_jpeg(tmp_path: Path):
    data = jpeg(photo(1))
    imported(sheet(tmp_path / "a", png_of(data)), tmp_path / "lab", "a", role="test")
    with refused("picture-leaked", "a:test"):
        imported(sheet(tmp_path / "b", data), tmp_path / "lab", "b", role="train")
    (tmp_path / "lab" / "looks.sqlite").unlink()  # a cache: isolation holds without it
    with refused("picture-leaked", "a:test"):
        imported(sheet(tmp_path / "b", data), tmp_path / "lab", "b", role="train")


def test_what_does_not_cross_may_be_shared(tmp_path: Path):
    rows = sheet(tmp_path / "a", jpeg(photo(1)), png_of(jpeg(photo(2))))
    for name, role in (("t1", "test"), ("t2", "test")):
        imported(rows, tmp_path / "lab", name, role=role)
    rows = sheet(tmp_path / "b", jpeg(photo(3)))
    for name in ("first", "second"):
        imported(rows, tmp_path / "lab", name, role="train")


def test_a_new_division_of_the_same_rows_is_fine_until_a_run_has_used_the_first(tmp_path: Path):
    rows = sheet(tmp_path / "a", *(jpeg(photo(seed, (96, 80))) for seed in range(10)))
    shares = read_shares("train=50,test=50")
    imported(rows, tmp_path / "lab", shares=shares)
    imported(rows, tmp_path / "lab", shares=shares, seed=1, replace=True)
    run = tmp_path / "lab" / "runs" / "2026-01-01_00-00-00_sft_ab12"
    run.mkdir(parents=True)
    (run / "job.json").write_text(json.dumps({"kind": "sft", "spec": {"data": ["own"]}}))
    (run / "state.json").write_text(json.dumps({"state": "done"}))
    with refused("picture-leaked", "own:"):
        imported(rows, tmp_path / "lab", shares=shares, seed=2, replace=True)


def test_equal_pixels_stay_in_one_split_and_near_ones_are_reported(tmp_path: Path):
    photos = [photo(seed) for seed in range(8)]
    plain = [jpeg(image) for image in photos]
    others = [png_of(data) for data in plain]  # the same pixels
    near = [jpeg(image.point(lambda level: min(255, level + 3))) for image in photos]
    dataset = imported(
        sheet(tmp_path / "a", *plain, *others, *near), tmp_path / "lab", shares=read_shares("train=50,test=50")
    )
    split = [example.split for example in sorted(examples(dataset), key=lambda example: example.id)]
    assert split[:8] == split[8:16]
    report = dataset.manifest["near_duplicates"]
    crossing = sum(a != b for a, b in zip(split[:8], split[16:], strict=True))
    assert report["pairs"] >= crossing > 0
    assert all({pair["first"].split()[0], pair["second"].split()[0]} == {"train", "test"} for pair in report["nearest"])


def test_folders_as_splits_that_share_an_image_are_refused(tmp_path: Path):
    data = jpeg(photo(1))
    for split, image in (("train", data), ("test", png_of(data))):
        (tmp_path / "src" / split / "circle").mkdir(parents=True)
        suffix = "png" if image.startswith(b"\x89") else "jpg"
        (tmp_path / "src" / split / "circle" / f"a.{suffix}").write_bytes(image)
    with refused("picture-leaked", "train/circle/a.jpg", "test/circle/a.png"):
        imported(tmp_path / "src", tmp_path / "lab", prompt="What?")


@pytest.mark.parametrize("change", ["cut", "hole", "end"])
def test_a_broken_jpeg_is_named_however_it_is_broken(change: str, tmp_path: Path):
    data = jpeg(photo(4, (640, 480)))
    middle = len(data) // 2
    broken = {
        "cut": data[:middle],
        "hole": data[:middle] + bytes(2000) + data[middle + 2000 :],
        "end": data[:middle] + b"\xff\xd9",
    }[change]
    rows = sheet(tmp_path / "a", data, broken)
    with refused("rows-invalid", "rows.jsonl line 2"):
        imported(rows, tmp_path / "lab")


def states(dataset: ImportedDataset) -> dict[str, str]:
    return {item.name: item.state for item in check_dataset(dataset.folder, dataset.folder.parent)}


def test_a_check_recomputes_what_the_manifest_says(tmp_path: Path):
    rows = sheet(tmp_path / "a", *(jpeg(photo(seed)) for seed in range(4)))
    dataset = imported(rows, tmp_path / "lab", shares=read_shares("train=50,test=50"))
    assert set(states(dataset).values()) == {"ok"}
    rows.write_text(rows.read_text() + "\n")
    assert states(dataset)["source"] == "not verifiable"
    first, second = (list(read_examples(dataset.folder / f"{split}.parquet")) for split in ("train", "test"))
    mended = replace(first[0], truth=["yes", 3, None], images=(png_of(second[0].images[0]),))
    write_examples(dataset.folder / "train.parquet", [mended, mended])
    found = states(dataset)
    assert {name for name, state in found.items() if state == "wrong"} == {"files", "rows", "truths", "isolation"}
