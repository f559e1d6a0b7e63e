"""Supervised LoRA training on answers alone: one course of steps that can be left and taken up exactly.

The base and its vision half stay frozen; adapter and optimizer are float32 whatever the base is. Nothing here knows
of runs or jobs: `vlmconsole.jobs.sft` writes down what a course reports.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example
from vlmconsole.training.adapters.store import AdapterError, load_peft, open_adapter
from vlmconsole.training.curriculum import IGNORED, Curriculum, Schedule, batch_inputs, rate_at
from vlmconsole.training.lora import inject
from vlmconsole.training.model import Loaded


@dataclass(frozen=True)
class SftTraining:
    """How the adapter is trained. `rate` is AdamW's, `clip` the largest gradient norm, `warm_up` in steps."""

    rank: int = 8
    alpha: int = 16
    rate: float = 2e-4
    warm_up: int = 30
    schedule: Schedule = "cosine"
    clip: float = 1.0
    seed: int = 0
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class SftStep:
    """One step as it was: loss (mean over the supervised tokens), gradient norm before clipping, tokens, seconds.

    `step` counts from 1. `tokens` are all that went through the model, `supervised` those that count.
    """

    step: int
    epoch: int
    loss: float
    grad_norm: float
    rate: float
    tokens: int
    supervised: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: one line of `training.jsonl`."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.rate,
            "tokens": self.tokens,
            "supervised": self.supervised,
            "seconds": round(self.seconds, 4),
        }


class DivergedError(FloatingPointError):
    """The loss or the gradient is no longer a number; the weights were not touched by it."""


def adapted(loaded: Loaded, settings: SftTraining, start: Path | None = None) -> Any:
    """Return the model with a fresh language-side LoRA, or with the adapter in `start` to go on from; both trainable.

    Raises AdapterError when `start` is damaged, does not fit, has another rank or alpha, or touches the vision half.
    """
    if start is None:
        model = inject(loaded.model, rank=settings.rank, alpha=settings.alpha, seed=settings.seed)
    else:
        rank, alpha = _plain(start)
        if (rank, alpha) != (settings.rank, settings.alpha):
            raise AdapterError(
                f"The starting adapter {start} has rank {rank} and alpha {alpha:g}, not {settings.rank} and "
                f"{settings.alpha}.",
                f"Set rank={rank} and alpha={alpha:g}, or start from another adapter.",
                code="adapter-differs",
            )
        model = load_peft(loaded, start, trainable=True)
    if settings.gradient_checkpointing:
        model.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check_taught(model)
    return model


def _plain(start: Path) -> tuple[int, float]:
    """Rank and alpha of an adapter to go on from. Raises AdapterError for settings that a training here has not."""
    settings = open_adapter(start).settings
    odd = ["init_lora_weights"] if settings.initial not in (True, False, "gaussian") else []
    odd += [] if settings.plain else ["use_rslora" if settings.rslora else "rank_pattern or alpha_pattern"]
    odd += ["lora_dropout"] if settings.dropout else []
    if odd:
        raise AdapterError(
            f"The starting adapter {start} was trained with {', '.join(odd)}, which a training here does not have.",
            "Start from a plain LoRA, or merge this one into its base and train a fresh one on that.",
        )
    return settings.rank, settings.alpha


def taught(model: Any) -> dict[str, Any]:
    """Return the trained tensors by name, in the model's own order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def check_taught(model: Any) -> None:
    """Assert that only the language's LoRA is trained, and in float32. Raises AdapterError otherwise."""
    import torch

    tensors = taught(model)
    visual = [name for name in tensors if "visual" in name]
    foreign = [name for name in tensors if "lora_" not in name]
    coarse = [name for name, p in tensors.items() if p.dtype != torch.float32]
    if not tensors or visual or foreign or coarse:
        raise AdapterError(
            f"Of {len(tensors)} tensors to be trained {len(visual)} are visual, {len(foreign)} no LoRA and "
            f"{len(coarse)} not float32; all must be the language's LoRA in float32."
        )


def frozen_sha256(model: Any) -> dict[str, str]:
    """SHA-256 of the frozen weights, the vision half's and the rest apart: equal before and after, or a fault."""
    import torch

    digests = {"visual": hashlib.sha256(), "language": hashlib.sha256()}
    for name, p in model.named_parameters():
        if not p.requires_grad and "lora_" not in name:
            total = digests["visual" if "visual" in name else "language"]
            total.update(f"{name} {p.dtype} {tuple(p.shape)}\n".encode())
            total.update(p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {half: total.hexdigest() for half, total in digests.items()}


class Course:
    """A training in progress: `steps()` goes on from where it stands, `state()` and `take_up()` leave and enter it."""

    def __init__(
        self, loaded: Loaded, model: Any, rows: Sequence[Example], plan: Curriculum, settings: SftTraining
    ) -> None:
        import torch

        self.loaded, self.model, self.rows, self.plan, self.settings = loaded, model, rows, plan, settings
        self.done = 0  # steps
        self._taught = taught(model)
        self._optimizer = torch.optim.AdamW(self._taught.values(), lr=settings.rate, weight_decay=0.0, foreach=False)
        base = model.get_base_model()
        self._device = base.device
        coarse = base.dtype == torch.bfloat16
        self._compute = torch.autocast(self._device.type, dtype=torch.bfloat16) if coarse else contextlib.nullcontext()

    def steps(self, until: int) -> Iterator[SftStep]:
        """Train up to `until` steps in all, yielding each. Raises DivergedError before a bad update is made."""
        self.model.train()
        while self.done < until:
            yield self._step()

    def _step(self) -> SftStep:
        import torch

        began = time.monotonic()
        batches = [
            batch_inputs(self.loaded, [self.rows[i] for i in indices]) for indices in self.plan.step_rows(self.done)
        ]
        counts = [int((inputs["labels"][:, 1:] != IGNORED).sum()) for inputs in batches]
        rate = rate_at(self.done, self.plan.steps, self.settings.rate, self.settings.warm_up, self.settings.schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for inputs, count in zip(batches, counts, strict=True):
            placed = {name: value.to(self._device) for name, value in inputs.items()}
            with self._compute:
                mean = self.model(**placed, use_cache=False).loss
            # Each batch weighs as many tokens as it teaches, so that accumulation changes nothing but memory.
            part = mean * (count / sum(counts))
            part.backward()
            loss += part.item()
        norm = float(torch.nn.utils.clip_grad_norm_(self._taught.values(), self.settings.clip, foreach=False))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise DivergedError(f"loss {loss}, gradient norm {norm} at step {self.done + 1}")
        self._optimizer.step()
        self.done += 1
        return SftStep(
            self.done,
            (self.done - 1) // self.plan.steps_per_epoch + 1,
            loss,
            norm,
            rate,
            sum(int(inputs["attention_mask"].sum()) for inputs in batches),
            sum(counts),
            time.monotonic() - began,
        )

    def state(self) -> dict[str, Any]:
        """Return everything that going on exactly needs: step, adapter, optimizer, random state.

        Raises DivergedError when a number of the adapter is none any more: that must not replace a good checkpoint.
        """
        import torch

        broken = [name for name, p in self._taught.items() if not bool(torch.isfinite(p).all())]
        if broken:
            raise DivergedError(f"{broken[0]} holds NaN or infinity after step {self.done}")
        return {
            "step": self.done,
            "adapter": {name: p.detach().cpu() for name, p in self._taught.items()},
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if self._device.type == "cuda" else [],
        }

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from a state made by `state()`. Raises AdapterError when it is of another shape."""
        import torch

        kept = state["adapter"]
        if {name: tuple(p.shape) for name, p in self._taught.items()} != {n: tuple(t.shape) for n, t in kept.items()}:
            raise AdapterError("The checkpoint's adapter has other tensors than this training's.")
        with torch.no_grad():
            for name, p in self._taught.items():
                p.copy_(kept[name])
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        if state["cuda"] and self._device.type == "cuda":
            torch.cuda.set_rng_state_all(state["cuda"])
        self.done = int(state["step"])


def memory_bytes(model: Any) -> int | None:
    """Return the most GPU memory (bytes) that torch has held so far; None on a CPU, where the run's own samples say
    it.
    """
    import torch

    device = model.get_base_model().device
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
