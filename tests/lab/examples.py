"""Examples for tests: drawn scenes, conversations with several images or none, and a dataset made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmconsole.counting.scene import make_scene
from vlmconsole.data.example import Example, ExampleTurn, from_columns, write_examples
from vlmconsole.data.manifest import MANIFEST
from vlmconsole.data.rows import Row
from vlmconsole.runs.folder import to_json, write_atomic


def drawn(row: Row) -> Example:
    """A drawn scene's row as the example that is read of it."""
    return from_columns(row.verl(), row.uid)


def scene(key: str, red: int = 2, blue: int = 1) -> bytes:
    """A scene's PNG."""
    return make_scene(key, red=red, blue=blue).png()


def conversation(*turns: tuple[str, str], id: str = "x", images: Sequence[bytes] = (), **more: Any) -> Example:
    """An example of (role, text) turns."""
    given = {"scorer": "naming", "truth": turns[-1][1] if turns[-1][0] == "assistant" else None, **more}
    return Example(id, tuple(images), tuple(ExampleTurn(role, text) for role, text in turns), **given)  # type: ignore[arg-type]


def several(split: str, n: int) -> list[Example]:
    """`n` examples, in turn: one image first, two images within a text, text alone, two turns, a system prompt."""
    made = []
    for i in range(n):
        first, second = scene(f"{split}:{i}:a", red=1 + i % 3), scene(f"{split}:{i}:b", blue=1 + i % 2)
        kinds: list[Example] = [
            conversation(("user", "<image>What shape is red?"), ("assistant", "circle"), images=[first]),
            conversation(
                ("user", "Look at <image> and at <image>: what shape is red in both?"),
                ("assistant", "circle"),
                images=[first, second],
            ),
            conversation(("user", "What colour is a red circle?"), ("assistant", "red")),
            conversation(
                ("user", "<image>What shape is red?"),
                ("assistant", "circle"),
                ("user", "And what is blue here? <image>"),
                ("assistant", "square"),
                images=[first, second],
            ),
            conversation(
                ("system", "Answer with one word."),
                ("user", "<image>What shape is blue?"),
                ("assistant", "square"),
                images=[first],
            ),
        ]
        example = kinds[i % len(kinds)]
        made.append(
            Example(f"{split}-{i}", example.images, example.turns, example.truth, "naming", split=split, index=i)
        )
    return made


def imported(datasets: Path, name: str, splits: dict[str, tuple[str, Sequence[Example]]]) -> Path:
    """A dataset folder as an import leaves it: `splits` are split → (role, examples)."""
    folder = datasets / name
    folder.mkdir(parents=True)
    described, files = {}, {}
    for split, (role, examples) in splits.items():
        path = folder / f"{split}.parquet"
        described[split] = {"role": role, "n": write_examples(path, examples)}
        data = path.read_bytes()
        files[path.name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    manifest = {"format": 2, "name": name, "generation": 1, "splits": described, "files": files}
    write_atomic(folder / MANIFEST, to_json(manifest))
    return folder
