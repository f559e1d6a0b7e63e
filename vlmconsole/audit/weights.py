"""Audit of weights: read from safetensors files by this module alone, compared tensor by tensor with NumPy."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmconsole.data.findings import Finding, finding

_TYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}


class AuditWeightsError(Exception):
    """A weights file cannot be read; the message is a sentence."""


def weights_hash(folder: Path) -> str:
    """Return the identity (hex) of a folder's weights as provenance names it: the name and SHA-256 of each
    `*.safetensors`.

    Raises AuditWeightsError when there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise AuditWeightsError(f"{folder} holds no weights")
    try:
        lines = [f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files]
    except OSError as error:
        raise AuditWeightsError(f"{folder} cannot be read: {error.strerror}") from None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def tensors(folder: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    """{name: (type as the file names it, values)} over all `*.safetensors` of a folder; bfloat16 widened to float32.

    Raises AuditWeightsError.
    """
    arrays: dict[str, tuple[str, NDArray[Any]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            data = path.read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8 : 8 + length])
            body = memoryview(data)[8 + length :]
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                first, last = entry["data_offsets"]
                values = np.frombuffer(body[first:last], dtype=_TYPES[entry["dtype"]]).reshape(entry["shape"])
                if entry["dtype"] == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                arrays[name] = (entry["dtype"], values)
        except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AuditWeightsError(f"{path} is no whole safetensors file: {error}") from None
    if not arrays:
        raise AuditWeightsError(f"{folder} holds no weights")
    return arrays


def is_visual(name: str) -> bool:
    """Return whether a tensor belongs to the vision half."""
    return "visual" in name.split(".")


def audit_change(run: Path, claimed: dict[str, Any]) -> list[Finding]:
    """Return what a LoRA training really changed: `start/` against `adapter/`, and both against the run's own
    account.
    """
    try:
        old, new = tensors(run / "start"), tensors(run / "adapter")
    except AuditWeightsError as error:
        return [Finding("weight change", "not verifiable", str(error))]
    visual = [name for name in (*old, *new) if is_visual(name)]
    visual += [str(tensor.get("name")) for tensor in claimed.get("tensors", []) if is_visual(str(tensor.get("name")))]
    before, after = claimed.get("frozen_before") or {}, claimed.get("frozen_after") or {}
    frozen: list[str] = []
    for half in sorted(set(before) | set(after)):
        if before.get(half) != after.get(half):
            text = f"the base's {half} weights were {str(before.get(half))[:12]}… and are {str(after.get(half))[:12]}…"
            (visual if half == "visual" else frozen).append(text)
    if not before or not after:
        frozen.append("weights.json does not say what the frozen weights were before and after")
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())
        return [Finding("weight change", "wrong", f"start and adapter hold other tensors: {odd[0]}", tuple(odd))]
    wrong, moved = [], 0
    stated = {str(tensor.get("name")): tensor for tensor in claimed.get("tensors", [])}
    for name, (kind, values) in new.items():
        first = old[name][1].astype(np.float64)
        difference = values.astype(np.float64) - first
        if not np.isfinite(values).all():
            wrong.append(f"{name} holds numbers that are none")
            continue
        if kind != "F32":
            wrong.append(f"{name} is {kind}, trained parameters are F32")
        length = float(np.linalg.norm(difference))
        moved += bool(np.any(difference))
        account = stated.get(name)
        if account is None or abs(float(account.get("change_l2", -1.0)) - length) > 1e-5 * max(1.0, length):
            wrong.append(f"{name} moved by {length:.6g}, weights.json says {(account or {}).get('change_l2')}")
    if not moved:
        wrong.append("no tensor moved at all: nothing was learnt")
    return [
        finding("weight change", f"{moved} of {len(new)} FP32 language tensors moved, each as far as is said", wrong),
        finding(
            "vision frozen", "no visual tensor is in the adapter, and the base's were the same after", sorted({*visual})
        ),
        finding("base frozen", "the base's weights hash the same before and after the training", frozen),
    ]


def audit_full_change(base: Path, model: Path) -> list[Finding]:
    """Return a whole model against its base: language tensors moved, visual ones byte for byte the same."""
    try:
        old, new = tensors(base), tensors(model)
    except AuditWeightsError as error:
        return [Finding("weight change", "not verifiable", str(error))]
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())
        return [Finding("weight change", "wrong", f"base and model hold other tensors: {odd[0]}", tuple(odd))]
    changed = [name for name in new if not np.array_equal(old[name][1], new[name][1])]
    visual = [f"{name} was changed" for name in changed if is_visual(name)]
    none = [] if any(not is_visual(name) for name in changed) else ["no language tensor moved: nothing was learnt"]
    return [
        finding("weight change", f"{len(changed)} of {len(new)} tensors moved", none),
        finding("vision frozen", f"{sum(map(is_visual, new))} visual tensors, bit for bit the base's", visual),
    ]
