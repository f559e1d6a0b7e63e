"""Datasets of a user's own in a lab home, small or of thousands of examples, and finished evaluations over them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from vlmconsole.data.example import IMAGE_TAG, Example, ExampleTurn, write_examples
from vlmconsole.data.manifest import manifest_digest, read_manifest
from vlmconsole.gates.samples import prompt_hash
from vlmconsole.runs.folder import RunFolder, to_json
from vlmconsole.vision.images import pixel_sha256

COLOURS = ("red", "blue", "green", "orange")


def picture(number: int, size: tuple[int, int] = (64, 48), form: str = "PNG") -> bytes:
    """An image that no other number has: a shape of one of four colours, at a place of its own."""
    image = Image.new("RGB", size, (236, 236, 230))
    left, top = number % (size[0] // 2), number // 7 % (size[1] // 2)
    corners = (left, top, left + size[0] // 2 - 1, top + size[1] // 2 - 1)
    pen = ImageDraw.Draw(image)
    (pen.ellipse if number % 2 else pen.rectangle)(corners, fill=COLOURS[number % 4])
    pen.point((number % size[0], size[1] - 1 - number // size[0] % 8), fill=(number % 256, number // 256 % 256, 9))
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def example(number: int, split: str = "test", **changes: Any) -> Example:
    """An example about the colour of `picture(number)`."""
    truth = COLOURS[number % 4]
    turns = (ExampleTurn("user", f"{IMAGE_TAG}What colour is shape {number}?"), ExampleTurn("assistant", truth))
    values: dict[str, Any] = {
        "id": f"shape-{number:05d}", "images": (picture(number),), "turns": turns, "truth": truth, "scorer": "exact",
        "split": split, "index": number, "group": "round" if number % 2 else "square",
    }  # fmt: skip
    return Example(**{**values, **changes})


def write_dataset(home: Path, name: str, splits: dict[str, tuple[str, Iterator[Example] | list[Example]]]) -> Path:
    """A dataset as an import leaves it; `splits`: role and examples by name."""
    folder = home / "datasets" / name
    folder.mkdir(parents=True)
    files, about = {}, {}
    for split, (role, examples) in splits.items():
        path = folder / f"{split}.parquet"
        n = write_examples(path, examples)
        files[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
        about[split] = {"role": role, "n": n}
    manifest = {
        "format": 2, "name": name, "generation": 1, "source_format": "jsonl", "sources": [], "scorer": "exact",
        "options": {}, "splits": about, "files": files, "recipe_sha256": hashlib.sha256(name.encode()).hexdigest(),
    }  # fmt: skip
    (folder / "manifest.json").write_text(to_json(manifest))
    return folder


def shapes(home: Path, name: str = "shapes", n: int = 12) -> Path:
    """A dataset with a test split of `n` examples and a train split of four."""
    train = [example(k, "train") for k in range(100, 104)]
    return write_dataset(home, name, {"test": ("test", [example(k) for k in range(n)]), "train": ("train", train)})


Answers = Callable[[Example, int], str | None]


def evaluate(home: Path, folder: Path, before: Answers, after: Answers | None = None, **changes: Any) -> RunFolder:
    """A finished evaluation over a dataset's test split, with answers by choice, scored by equality."""
    run = RunFolder.create(
        home / "runs", kind="evaluate", preset=changes.pop("preset", "eval-shapes"), spec={"data": [folder.name]},
        title="Evaluation", home=home, name=changes.pop("name", None),
    )  # fmt: skip
    from vlmconsole.data.example import read_examples

    examples = list(read_examples(folder / "test.parquet"))
    for side, answers in (("before", before), ("after", after)):
        if answers is not None:
            lines = [_line(one, answers(one, number), folder.name) for number, one in enumerate(examples)]
            run.append_jsonl(f"{side}.jsonl", *lines)
    digest = changes.pop("digest", None) or manifest_digest(read_manifest(folder))
    summary = {"before": {"model": "tiny-qwen2.5-vl"}, "data": {folder.name: digest}}
    if after is not None:
        summary["after"] = {"model": "tiny-qwen2.5-vl", "adapter": "20261201-120000-sft-shapes-ab12/adapter/epoch-2"}
    run.write_json("summary.json", summary)
    run.set_state("done")
    return run


def _line(one: Example, answer: str | None, dataset: str) -> dict[str, Any]:
    right = answer == one.truth
    image = one.images[0]
    return {
        "id": one.id, "group": one.group, "picture_sha256": hashlib.sha256(image).hexdigest(),
        "pixel_sha256": pixel_sha256(Image.open(io.BytesIO(image))), "prompt_sha": prompt_hash(one.question),
        "answer": answer, "truth": one.truth, "valid": bool(answer), "all_correct": right, "partial": float(right),
        "reward": float(right), "http_ok": answer is not None, "error": "" if answer is not None else "HTTP 503",
        "reason": "" if answer else "empty", "scorer": "exact/1", "seconds": 0.4, "dataset": dataset,
        "split": one.split, "t": 1_796_000_000.0,
    }  # fmt: skip


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
