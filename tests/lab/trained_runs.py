"""What a training leaves in its run folder, as far as a comparison of two reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlmconsole.runs.folder import RunFolder

SPEC: dict[str, Any] = {
    "base": "",
    "adapter": "",
    "data": "mini",
    "rank": 8,
    "lr": 0.002,
    "seed": 1,
    "checkpoint_every": 50,
}
TOLD: dict[str, Any] = {
    "hardware": "two cores", "engine": "transformers", "engine_version": "5.24.0", "model": "tiny",
    "model_sha256": "b" * 64, "precision": "float32", "adapter": "fresh", "settings": {"device": "cpu", "threads": 1},
}  # fmt: skip


def training(runs: Path, name: str, kind: str = "sft", steps: int = 20, ends: float = 0.1, **changes: Any) -> RunFolder:
    """What a training leaves, as far as a comparison reads it. `changes`: of the settings, conditions or summary."""
    spec = {**SPEC, **{key: value for key, value in changes.items() if key in SPEC}}
    run = RunFolder.create(runs, kind=kind, preset=name, spec=spec, title=name, home=runs.parent)
    run.write_json("conditions.json", {**TOLD, **{k: v for k, v in changes.items() if k in TOLD}})
    for step in range(1, steps + 1):
        loss = 1.0 + (ends - 1.0) * step / steps
        run.append_jsonl("training.jsonl", {"step": step, "loss": loss, "grad_norm": 0.5, "lr": 0.001, "seconds": 0.2})
    for epoch, rewards in ((1, [0.0, 1.0]), (2, [1.0, 1.0])):
        for reward in rewards:
            run.append_jsonl(f"dev-epoch{epoch}.jsonl", {"id": "x", "reward": reward})
    summary = {"steps": steps, "epoch": 2, "data": {"mini": "d" * 64}, "parent_sha256": None}
    run.write_json("summary.json", {**summary, **{k: v for k, v in changes.items() if k in summary}})
    run.set_state(changes.get("state", "done"))
    return run
