"""Checking an imported dataset: its files by hash, and every example whole, in order and with images that open."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmconsole.data.example import read_examples
from vlmconsole.data.findings import Finding, finding
from vlmconsole.data.rows import DataError


def imported_findings(
    folder: Path, manifest: dict[str, Any], on_progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """What can be checked of the imported dataset in `folder` without its sources."""
    wrong = [problem for name, entry in manifest["files"].items() if (problem := _file(folder / name, entry))]
    faults: list[str] = []
    done, total = 0, sum(int(split.get("n", 0)) for split in manifest["splits"].values())
    for name, split in manifest["splits"].items():
        ids: set[str] = set()
        n = 0
        try:
            for example in read_examples(folder / f"{name}.parquet"):
                n, done = n + 1, done + 1
                if example.id in ids:
                    faults.append(f"{name}: two examples are called {example.id}")
                ids.add(example.id)
                try:
                    example.check()
                    example.pictures()
                except DataError as error:
                    faults.append(error.message)
                if on_progress is not None:
                    on_progress(done, total)
        except DataError as error:
            faults.append(error.message)
        if n != split.get("n"):
            faults.append(f"{name} has {n} examples, {split.get('n')} were imported")
    return [
        finding("files", f"{len(manifest['files'])} files as they were made", wrong),
        finding("examples", f"{done} examples, each a conversation with its images", faults),
    ]


def _file(path: Path, entry: dict[str, Any]) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    with path.open("rb") as file:
        same = hashlib.file_digest(file, "sha256").hexdigest() == entry.get("sha256")
    return "" if same else f"{path.name} was changed after it was made"
