"""Adapters as a training leaves them: folders that appear whole, and how far each tensor moved."""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmconsole.models.weights import as_float, read_arrays
from vlmconsole.runs.folder import write_atomic
from vlmconsole.system.atomic_folder import making
from vlmconsole.training.adapters.provenance import Provenance, write_provenance
from vlmconsole.training.adapters.store import FILES, Adapter, open_adapter


def save_adapter(model: Any, folder: Path, origin: Provenance) -> Adapter:
    """Write the trained adapter as a PEFT folder with its provenance, whole or not at all; one there is replaced.

    Raises OSError (a full disk) with nothing left behind.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save

    config = copy.deepcopy(model.peft_config["default"])
    config.inference_mode = True
    with making(folder) as building:
        tensors = {name: value.detach().cpu().contiguous() for name, value in get_peft_model_state_dict(model).items()}
        write_atomic(building / FILES["peft"], save(tensors, metadata={"format": "pt"}))
        config.save_pretrained(str(building))
        write_provenance(building, origin)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    return open_adapter(folder)


def copy_adapter(source: Path, target: Path) -> Adapter:
    """Copy an adapter's folder byte by byte; it appears whole or not at all, and replaces one that is there."""
    with making(target) as building:
        shutil.copytree(source, building, dirs_exist_ok=True)
        for path in building.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
    return open_adapter(target)


@dataclass(frozen=True)
class Change:
    """How far one tensor moved: Euclidean lengths before, after and of the difference, its largest element.

    `changed` of its `numbers` are others than before.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    before: float
    after: float
    moved: float
    most: float
    numbers: int
    changed: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: one entry of `weights.json`."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.kind,
            "before_l2": self.before,
            "after_l2": self.after,
            "change_l2": self.moved,
            "change_max": self.most,
            "changed": self.most > 0,
            "numbers": self.numbers,
            "numbers_changed": self.changed,
        }


def changes(before: Path, after: Path) -> list[Change]:
    """Return each tensor's change between two PEFT folders of the same shape, in float64. Raises KeyError otherwise."""
    old, new = (read_arrays(folder / FILES["peft"]) for folder in (before, after))
    if old.keys() != new.keys():
        raise KeyError(f"{before} and {after} hold other tensors")
    differences = []
    for name, (kind, values) in sorted(new.items()):
        first, last = as_float(*old[name]).astype(np.float64), as_float(kind, values).astype(np.float64)
        moved = last - first
        before_l2, after_l2, moved_l2 = (float(np.linalg.norm(part)) for part in (first, last, moved))
        most = float(np.abs(moved).max(initial=0.0))
        changed = int(np.count_nonzero(moved))
        lengths = (before_l2, after_l2, moved_l2, most)
        differences.append(Change(name, tuple(values.shape), kind, *lengths, moved.size, changed))
    return differences


def moved(tensors: Sequence[Change]) -> float:
    """Return the Euclidean length of the whole change."""
    return math.sqrt(sum(tensor.moved**2 for tensor in tensors))
