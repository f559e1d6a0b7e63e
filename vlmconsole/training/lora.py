"""Language-side LoRA: where the adapters go, and one plain training step on answers only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import Scene, label_json, make_scene
from vlmconsole.training.model import Loaded, encode
from vlmconsole.training.prompts import Turn

# The whole name must match, so the vision tower's own `mlp.gate_proj` and the like stay out.
LANGUAGE_ONLY = r"(?:.*\.)?(?:language_model\.)?layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"


def inject(model: Any, *, rank: int = 8, alpha: int = 16, seed: int = 0) -> Any:
    """Return the model with a fresh language-side LoRA, everything else frozen.

    The adapter is float32 whatever the base is. Raises RuntimeError if a visual tensor would be trained.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=LANGUAGE_ONLY, lora_dropout=0.0, bias="none")
    adapted = get_peft_model(model, config, autocast_adapter_dtype=True)
    taught = [name for name, p in adapted.named_parameters() if p.requires_grad]
    visual = [name for name in taught if "visual" in name]
    if visual or not taught:
        raise RuntimeError(f"{len(visual)} visual of {len(taught)} tensors would be trained; it must be the language's")
    return adapted


def answer_loss(loaded: Loaded, model: Any, chats: Sequence[Sequence[Turn]]) -> Any:
    """Mean cross-entropy of the answers' tokens and their end marks; the question never counts."""
    inputs = encode(loaded, chats)
    return model(**inputs, use_cache=False).loss


def teach(
    loaded: Loaded,
    model: Any,
    scenes: Sequence[Scene],
    *,
    steps: int,
    batch: int = 4,
    rate: float = 2e-3,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train the adapter in `model` in place: `steps` of `batch` counting scenes, reshuffled each epoch."""
    import torch

    taught = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(taught, lr=rate, weight_decay=0.0, foreach=False)
    order: list[int] = []
    rng = random.Random(f"teach:{seed}")
    model.train()
    for step in range(steps):
        if len(order) < batch:
            order = rng.sample(range(len(scenes)), len(scenes))
        picked, order = order[:batch], order[batch:]
        chats = [[Turn(COUNT_PROMPT, label_json(scenes[i].label), (scenes[i].draw(),))] for i in picked]
        warm = min(1.0, (step + 1) / 30)
        decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * decay
        loss = answer_loss(loaded, model, chats)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(taught, 1.0, foreach=False)
        optimizer.step()
        report(step + 1, loss.item())
    model.eval()


def expand_scenes(seed: int, each: int = 12) -> list[Scene]:
    """Regular scenes of all 64 combinations of 0–7 red circles and blue squares, `each` times."""
    return [
        make_scene(f"teach:{seed}:{red}:{blue}:{i}", red=red, blue=blue)
        for red in range(8)
        for blue in range(8)
        for i in range(each)
    ]
