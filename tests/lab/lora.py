"""A real PEFT adapter for tests: made by the lab's own `inject`, with a second half that does something."""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path
from typing import Any

from vlmconsole.training.adapters.provenance import Provenance, write_provenance
from vlmconsole.training.adapters.store import base_sha256
from vlmconsole.training.lora import inject
from vlmconsole.training.model import Loaded, load

BASE = Path(str(files("vlmconsole.assets") / "tiny-qwen2.5-vl"))


@functools.cache
def bundled() -> Loaded:
    """The bundled model, loaded once a test process. Whoever puts an adapter into it must take it out again."""
    return load(BASE)


def origin(**more: Any) -> Provenance:
    """A provenance that fits the bundled model in float32."""
    values: dict[str, Any] = {
        "kind": "sft",
        "base": "tiny-qwen2.5-vl",
        "base_sha256": base_sha256(BASE),
        "precision": "float32",
        "rank": 4,
        "alpha": 8,
        "data": {"sft-expand-tiny": "0" * 64},
        "run": "made-by-a-test",
    }
    return Provenance(**{**values, **more})


def make_adapter(folder: Path, *, seed: int = 1, strength: float = 0.15, rank: int = 4, mark: bool = True) -> Path:
    """Write an untrained adapter whose B is not zero, so that it changes answers. Returns its folder."""
    import torch

    loaded = load(BASE)
    model = inject(loaded.model, rank=rank, alpha=2 * rank, seed=seed)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength)
    model.save_pretrained(folder)
    if mark:
        write_provenance(folder, origin(rank=rank, alpha=2 * rank))
    return folder
