"""The least work that a model's answer takes: floating-point operations and bytes, phase by phase.

Counted from the weights' own headers, so that any family counts: each matrix of the language half is multiplied once
with every token (two operations a number), each of the vision tower once with every patch, each of the merger once
with every visual token. What cannot be counted for sure (a tower's attention of unknown shape, experts that several
tokens of a batch share) is left out: less work than the model really does, never more. docs/limits.md has the formulas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.models.base import BaseReadError, read_base
from vlmconsole.models.weights import Tensor
from vlmconsole.vision.kv import KVError, KVShape, shape_of, text_half

_MERGER = re.compile(r"merger|projector|connector|mlp1\.|resampler|aligner")
_EYES = re.compile(r"visual|vision|vit\b|image_newline|patch_embed")
_EXPERTS = re.compile(r"\bexperts\b|switch_mlp")
_EMBEDDING = re.compile(r"embed_tokens|\bwte\b|tok_embeddings|word_embeddings")
_HEAD = re.compile(r"lm_head|\boutput\.weight")
_PACKED = {"U32", "I32"}  # a quantised matrix: several numbers lie in each


class WorkError(LabError):
    """A model whose work cannot be counted; says why."""

    code = "limit-unknown"


@dataclass(frozen=True)
class WeightsPart:
    """Matrices of one part of a model: how many numbers, and how many bytes they take as they are stored."""

    numbers: float = 0
    bytes: float = 0

    def __add__(self, other: WeightsPart) -> WeightsPart:
        return WeightsPart(self.numbers + other.numbers, self.bytes + other.bytes)

    def __mul__(self, share: float) -> WeightsPart:
        return WeightsPart(self.numbers * share, self.bytes * share)


@dataclass(frozen=True)
class Phase:
    """Work of one phase: floating-point operations, and bytes that must come from memory at least once."""

    name: str
    flops: float
    bytes: float


@dataclass(frozen=True)
class ModelWork:
    """What one model takes. `language` are the active matrices but the last one, which is `head`."""

    language: WeightsPart
    head: WeightsPart
    vision: WeightsPart
    merger: WeightsPart
    kv: KVShape
    heads: int
    patches_per_token: int
    vision_width: int = 0  # 0: its attention is not counted
    vision_full_layers: int = 0  # layers of the tower in which every patch sees every other

    def vision_phase(self, visual_tokens: int) -> Phase:
        """Images to visual tokens."""
        if not visual_tokens:
            return Phase("vision", 0, 0)
        patches = visual_tokens * self.patches_per_token
        attention = 4 * float(patches) ** 2 * self.vision_width * self.vision_full_layers
        flops = 2 * (self.vision.numbers * patches + self.merger.numbers * visual_tokens) + attention
        return Phase("vision", flops, self.vision.bytes + self.merger.bytes)

    def prefill(self, tokens: int) -> Phase:
        """`tokens` of a prompt, none of them cached, to the first logits."""
        attention = 2 * float(tokens) ** 2 * self._width * (self.kv.layers - self.kv.windowed_layers)
        flops = 2 * self.language.numbers * tokens + 2 * self.head.numbers + attention
        return Phase("prefill", flops, self.language.bytes + self.head.bytes)

    def decode(self, batch: float, context: float) -> Phase:
        """Return one token for each of `batch` sequences that are `context` tokens long."""
        attention = 4 * context * self._width * (self.kv.layers - self.kv.windowed_layers)
        flops = batch * (2 * (self.language.numbers + self.head.numbers) + attention)
        read = self.language.bytes + self.head.bytes + batch * self.kv.bytes(int(context))
        return Phase("decode", flops, read)

    @property
    def _width(self) -> int:
        return self.heads * self.kv.head_dim


def work_of(folder: Path, *, kv_dtype: str | None = None) -> ModelWork:
    """Return the work of the model in a folder, its keys and values stored as `kv_dtype`. Raises WorkError, saying
    why.
    """
    try:
        base = read_base(folder)
        kv = shape_of(dict(base.config), source=str(folder / "config.json")).stored_as(kv_dtype)
        tensors = base.tensors
    except (BaseReadError, KVError) as error:
        raise WorkError(f"its shape is not known: {error.message}") from None
    text = text_half(dict(base.config))
    heads = text.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        raise WorkError("its config has no num_attention_heads")
    bits = base.quantization.bits if base.quantization else None
    parts = _parts(tensors, bits, _active_share(text))
    if not parts["head"].numbers:
        parts["head"] = parts["embedding"]  # tied: the embedding is the last matrix
    if not parts["language"].numbers:
        raise WorkError("its weights have no matrices that are known as a language model's")
    eyes = base.config.get("vision_config")
    width, full, merge = _tower(eyes if isinstance(eyes, Mapping) else {})
    return ModelWork(
        parts["language"], parts["head"], parts["vision"], parts["merger"], kv, heads, merge**2, width, full
    )


def _parts(tensors: Mapping[str, Tensor], bits: int | None, active: float) -> dict[str, WeightsPart]:
    parts = {name: WeightsPart() for name in ("language", "head", "embedding", "vision", "merger")}
    for name, tensor in tensors.items():
        stored = WeightsPart(0, tensor.end - tensor.start)
        if len(tensor.shape) >= 2 and not name.endswith((".scales", ".biases")):
            per = (32 // bits) if tensor.kind in _PACKED and bits else 1
            stored = WeightsPart(float(math.prod(tensor.shape)) * per, stored.bytes)
        elif not name.endswith((".scales", ".biases")):
            continue  # norms and biases: small, and not multiplied
        if _EXPERTS.search(name):
            stored *= active
        parts[_part_of(name)] += stored
    return parts


def _part_of(name: str) -> str:
    if _MERGER.search(name):
        return "merger"
    if _EYES.search(name):
        return "vision"
    if _HEAD.search(name):
        return "head"
    return "embedding" if _EMBEDDING.search(name) else "language"


def _active_share(text: Mapping[str, Any]) -> float:
    """The share of experts that one token uses; a batch uses at least those of one token. 1 without experts."""
    experts = next((n for key in ("num_experts", "num_local_experts", "n_routed_experts") if (n := text.get(key))), 0)
    used = next((n for key in ("num_experts_per_tok", "top_k_experts") if (n := text.get(key))), 0)
    return used / experts if isinstance(experts, int) and isinstance(used, int) and 0 < used <= experts else 1.0


def _tower(eyes: Mapping[str, Any]) -> tuple[int, int, int]:
    """(width, layers with attention over all patches, merge size) of a Qwen vision tower; zeros where not known."""
    merge = eyes.get("spatial_merge_size", 1)
    merge = merge if isinstance(merge, int) and merge > 0 else 1
    full, width = eyes.get("fullatt_block_indexes"), eyes.get("hidden_size")
    if isinstance(full, list) and isinstance(width, int):
        return width, len(full), merge
    return 0, 0, merge
