"""Checkpoints from which a run goes on exactly: written whole or not at all, and checked before they are believed.

`torch.load` does not notice a changed byte inside a tensor, so the file's SHA-256 stands beside it in
`<name>.json`. That note is written before the new file takes the old one's place and names both, so a kill at any
moment leaves a pair that fits.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.folder import to_json, write_atomic


class CheckpointError(LabError):
    """A checkpoint that cannot be taken up: damaged, missing, or another run's. Says what to do."""


def save(path: Path, state: dict[str, Any], **about: Any) -> None:
    """Write `state` (tensors and plain values) as `path`; `about` goes into the note beside it.

    Raises OSError (the disk is full, …) with the earlier checkpoint left as it was.
    """
    import torch

    partial = path.with_suffix(".part")
    try:
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new = _sha256(partial)
        write_atomic(_note(path), to_json({"sha256": new, "before": _known(path)[:2], **about}))
        partial.replace(path)
    except RuntimeError as error:  # torch's writer hides a full disk behind a failed check of its own
        if shutil.disk_usage(path.parent).free < _size(state):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(partial)) from error
        raise


def read(path: Path) -> dict[str, Any]:
    """Return the state of the checkpoint at `path`. Raises CheckpointError when it is missing or not what was
    written.
    """
    import torch

    advice = "Start the preset anew, or continue an earlier attempt whose checkpoint is whole."
    try:
        actual = _sha256(path)
        if actual not in _known(path):
            raise CheckpointError(
                f"{path} is damaged: it is not the file that was written ({actual[:12]}…).",
                advice,
                code="checkpoint-damaged",
            )
        state = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror or error}.", advice, code="checkpoint-missing"
        ) from None
    except Exception as error:  # a torn pickle raises whatever its last bytes happen to mean
        if isinstance(error, LabError):
            raise
        raise CheckpointError(
            f"{path} is damaged: {type(error).__name__}.", advice, code="checkpoint-damaged"
        ) from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is no checkpoint of this program.", advice)
    return state


def copy(source: Path, target: Path) -> None:
    """Bring a checkpoint and its note into a new attempt's folder; the old one is only read."""
    write_atomic(_note(target), _note(source).read_bytes() if _note(source).exists() else b"{}")
    partial = target.with_suffix(".part")  # a kill in the middle must not leave half a checkpoint under its name
    shutil.copyfile(source, partial)
    partial.replace(target)


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def _known(path: Path) -> list[str]:
    """The hashes that `path` may have: the newest first, then the one before it."""
    try:
        note = json.loads(_note(path).read_text("utf-8"))
        return [str(note["sha256"]), *map(str, note.get("before") or [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _sha256(path: Path) -> str:
    total = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def _size(value: Any) -> int:
    """Bytes of the tensors in a nested state."""
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_size(item) for item in value)
    return int(value.nbytes) if hasattr(value, "nbytes") else 0
