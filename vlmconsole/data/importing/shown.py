"""Examples of a dataset as commands and JSON show them: without the images' bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, read_examples
from vlmconsole.scoring.registry import find_scorer


def shown_examples(folder: Path, manifest: Mapping[str, Any], split: str | None = None) -> Iterator[Example]:
    """Yield the examples of a split in their order; of all splits, one after another, without one. Raises DataError."""
    for name in [split] if split else manifest["splits"]:
        yield from read_examples(folder / f"{name}.parquet")


def first_examples(folder: Path, manifest: Mapping[str, Any], n: int, split: str | None = None) -> list[dict[str, Any]]:
    """Return the first `n` as JSON."""
    return [example_json(example) for example in itertools.islice(shown_examples(folder, manifest, split), n)]


def example_json(example: Example) -> dict[str, Any]:
    """Return an example as JSON: the number of its images instead of them; of a choice, `options` are what it
    offers.
    """
    return {
        "id": example.id,
        "images": len(example.images),
        "turns": [{"role": turn.role, "content": turn.text} for turn in example.turns],
        "truth": example.truth,
        "scorer": example.scorer,
        "options": _own_options(example),
        "split": example.split,
    }


def _own_options(example: Example) -> Any:
    own = find_scorer(example.scorer).row_option if example.scorer else ""
    return example.options[own] if own and list(example.options) == [own] else dict(example.options)
