"""A dataset's manifest: its recipe, every file's hash, every picture's hashes; read, checked, and hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.system.reading import UnreadableError, read_json

MANIFEST = "manifest.json"
IMPORTED = 2  # `format` of an imported dataset's manifest; those of drawn scenes have none


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a dataset's manifest, with its tables `splits` and `files`. Raises DataError when the folder is no
    dataset.
    """
    try:
        value = read_json(folder / MANIFEST)
    except UnreadableError as error:
        missing = f"{folder} is no dataset: it has no {MANIFEST}"
        raise DataError(missing if error.missing else error.message, code=error.code) from None
    if not isinstance(value, dict):
        raise DataError(f"{folder / MANIFEST} is no JSON object")
    for key in ("splits", "files"):
        table = value.get(key)
        if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
            raise DataError(
                f"{folder / MANIFEST} has no table of its {key}",
                "It was edited: make the dataset again.",
                code="manifest-invalid",
            )
    kinds: dict[str, tuple[type, Any]] = {
        "role": (str, None),
        "n": (int, None),
        "replayed": (int, 0),
        "pictures": (list, []),
    }
    for name, split in value["splits"].items():
        if wrong := [key for key, (kind, absent) in kinds.items() if not isinstance(split.get(key, absent), kind)]:
            raise DataError(
                f"{folder / MANIFEST}: the {', '.join(wrong)} of its split {name} cannot be read",
                "It was edited: make the dataset again.",
                code="manifest-damaged",
            )
    return value


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Hash (hex) of what a dataset holds, by which plans and adapters name it; the time of making plays no part."""
    return hashlib.sha256(canonical_json({k: v for k, v in manifest.items() if k != "made"})).hexdigest()
