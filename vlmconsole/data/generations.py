"""Generations of a dataset: what was replaced stays beside it as NAME@DIGEST, readable by that name.

A run, a plan or an adapter names a dataset and the hash of what it held: its generation is found by both.
"""

from __future__ import annotations

from pathlib import Path

from vlmconsole.data.manifest import MANIFEST, manifest_digest, read_manifest
from vlmconsole.data.rows import DataError

DIGITS = 12  # of a digest, in a folder's name


def generation(datasets: Path, name: str, digest: str = "") -> Path:
    """Return the folder of the generation with that digest (hex) where the lab holds it, else the newest one's."""
    newest = datasets / name
    if not digest or _digest(newest) == digest:
        return newest
    earlier = (path for path in sorted(datasets.glob(f"{name}@{digest[:DIGITS]}*")) if _digest(path) == digest)
    return next(earlier, newest)


def generations(datasets: Path, name: str) -> list[Path]:
    """Return the folders of all generations of a dataset, the newest first by its plain name."""
    earlier = sorted(datasets.glob(f"{name}@*")) if "@" not in name else []
    return [path for path in (datasets / name, *earlier) if (path / MANIFEST).is_file()]


def aside(folder: Path) -> Path:
    """Return where the generation in `folder` goes when another takes its name."""
    stem = f"{folder.name}@{manifest_digest(read_manifest(folder))[:DIGITS]}"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
    return next(path for path in (folder.with_name(name) for name in names) if not path.exists())


def _digest(folder: Path) -> str:
    if not (folder / MANIFEST).is_file():
        return ""
    try:
        return manifest_digest(read_manifest(folder))
    except DataError:
        return ""
