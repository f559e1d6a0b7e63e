"""Checkpoints for exact resume: whole or not at all on disk, and never believed without their hash."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.folder import write_atomic

MAGIC = b"VLMCKPT1"
_HEAD = len(MAGIC) + hashlib.sha256().digest_size


class CheckpointError(LabError):
    """A checkpoint that cannot be taken up; says why and what is still there."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values: an 8-byte mark, the payload's SHA-256, then torch's own format.

    Readers see the old or the new checkpoint, never a part. Raises OSError (a full disk) with the old one kept.
    """
    import torch

    payload = io.BytesIO()
    torch.save(state, payload)
    data = payload.getvalue()
    write_atomic(path, MAGIC + hashlib.sha256(data).digest() + data)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state that was written, on the CPU. Raises CheckpointError when the file is damaged or foreign."""
    import torch

    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.", _HINT) from None
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path} is no checkpoint of this lab.", _HINT)
    if hashlib.sha256(data[_HEAD:]).digest() != data[len(MAGIC) : _HEAD]:
        raise CheckpointError(f"The checkpoint {path} is damaged: its content is not what was hashed.", _HINT)
    state = torch.load(io.BytesIO(data[_HEAD:]), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds no training state.", _HINT)
    return state


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file so that `target` appears whole or not at all."""
    beside = target.with_name(f".{target.name}.copy")
    beside.write_bytes(source.read_bytes())
    descriptor = os.open(beside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(target)


_HINT = (
    "Nothing was changed; the adapters of its finished epochs are whole. Start again from the preset, not by a retry."
)
