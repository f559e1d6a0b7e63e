"""A trained model as a folder, and the evidence of what training changed: tensor by tensor, vision apart."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmconsole.system.atomic_folder import making
from vlmconsole.training.masters import half_steps, lost_above
from vlmconsole.training.model import Loaded

WEIGHTS_ONLY = "weights only: cannot resume exactly"
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*",
    "*.pt",
    "*.gguf",
    "README.md",
    "*.lock",
    ".*",
)


def export_model(loaded: Loaded, base: Path, folder: Path, card: str) -> None:
    """Write the whole model to `folder`: the base's own configuration, tokenizer and template, the weights as they are.

    `card` becomes its README. The folder appears whole or not at all. Raises OSError.
    """
    with making(folder) as building:
        shutil.copytree(base, building, ignore=shutil.ignore_patterns(*_WEIGHTS), dirs_exist_ok=True)
        scratch = building / "weights"
        loaded.model.save_pretrained(scratch, safe_serialization=True)
        for pattern in ("*.safetensors", "*.safetensors.index.json"):
            for path in scratch.glob(pattern):
                path.replace(building / path.name)
        shutil.rmtree(scratch)
        (building / "README.md").write_text(card, "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what became of each tensor: how many of its numbers changed, by how much at most, and both norms.

    `rounding_norm` is the norm of half the distance from each number to its next one: a change that is far below it
    was mostly rounded away. Compared in float32 after a comparison bit by bit; names missing on one side raise
    KeyError.
    """
    made = []
    for name in sorted(set(before) | set(after)):
        old, new = before[name].detach().cpu(), after[name].detach().cpu()
        moved = int((old != new).sum())
        difference = new.float() - old.float()
        made.append(
            {
                "name": name,
                "visual": "visual." in name,
                "numbers": old.numel(),
                "changed": moved,
                "largest": float(difference.abs().max()) if moved else 0.0,
                "change_norm": float(difference.norm()) if moved else 0.0,
                "norm": float(old.float().norm()),
                "rounding_norm": float(half_steps(old).norm()) if old.is_floating_point() else 0.0,
            }
        )
    return made


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over `changes`, the vision tower apart from the language half."""
    out: dict[str, Any] = {}
    for part, visual in (("language", False), ("visual", True)):
        own = [row for row in rows if row["visual"] is visual]
        out[part] = {
            "tensors": len(own),
            "tensors_changed": sum(row["changed"] > 0 for row in own),
            "numbers": sum(row["numbers"] for row in own),
            "numbers_changed": sum(row["changed"] for row in own),
            "largest": max((row["largest"] for row in own), default=0.0),
            "change_norm": sum(row["change_norm"] ** 2 for row in own) ** 0.5,
            "rounding_norm": sum(row["rounding_norm"] ** 2 for row in own) ** 0.5,
        }
    return out


def numbers_moved(half: dict[str, Any]) -> str:
    """Return how many of a half's numbers changed, for people: a tensor counts as changed when one of its numbers
    is.
    """
    return f"{half['numbers_changed']:,} of {half['numbers']:,} ({percent(half['numbers_changed'], half['numbers'])})"


def percent(part: int, whole: int) -> str:
    """Return a share in per cent, with two digits of a small one."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2g} %" if 0 < share < 10 else f"{share:.0f} %" if share < 99.5 or part == whole else "> 99 %"


def rounded_away(half: dict[str, Any], rate: float, precision: str) -> str:
    """Return a warning where most numbers stayed because steps of `rate` are below this precision's resolution; ""
    else.
    """
    few = 0 < 2 * half["numbers_changed"] < half["numbers"]
    if not few or half["change_norm"] >= half["rounding_norm"]:
        return ""
    return (
        f"only {numbers_moved(half)} of the trained numbers changed: AdamW's step is about lr ({rate:g}), and in"
        f" {precision} that is rounded away on every number above {lost_above(rate, precision):.1g}; the change's norm"
        f" is {half['change_norm']:.2g}, that of half a rounding step {half['rounding_norm']:.2g}"
    )


def eyes_sha256(model: Any) -> str:
    """SHA-256 (hex) of the vision tower's tensors, names and bytes: equal before and after means bit-identical."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if "visual." in name:
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
