"""A Qwen2.5-VL's sizes, from its `config.json` alone: parameters and KV bytes, without its weights on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.models.qwen2_5_vl import positive_whole
from vlmconsole.system.reading import read_json
from vlmconsole.vision.kv import kv_bytes


class ShapeError(LabError):
    """A model configuration whose sizes cannot be read."""


@dataclass(frozen=True)
class Shape:
    """Layers and widths. `vision_*` are of the vision tower; `merged` is the size of its merged patches' vector."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    vision_layers: int
    vision_hidden: int
    vision_inner: int
    patch: int
    merge: int
    temporal: int

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def language(self) -> int:
        """Parameters of the language half; tied embeddings count once."""
        attention = self.hidden * (2 * self.query + 2 * self.keys) + self.query + 2 * self.keys
        block = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * block + self.hidden + embeddings

    @property
    def vision(self) -> int:
        """Parameters of the vision tower with its merger."""
        wide, inner = self.vision_hidden, self.vision_inner
        pixels = 3 * self.temporal * self.patch**2
        block = 4 * wide * wide + 4 * wide + 3 * wide * inner + 2 * inner + wide + 2 * wide
        merged = wide * self.merge**2
        return (
            pixels * wide + self.vision_layers * block + wide + merged * (merged + self.hidden) + merged + self.hidden
        )

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.language + self.vision

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA of `rank` on every linear layer of the language half."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.inner))

    def kv(self, tokens: int, sequences: int, width: float) -> int:
        """Bytes of keys and values at `width` bytes an element."""
        return kv_bytes(self.layers, self.kv_heads, self.head_dim, width, tokens, sequences)


#: From the configuration that Qwen published with the weights; the check is its parameter count, 3,754,622,976.
QWEN2_5_VL_3B = Shape(36, 2048, 11008, 16, 2, 128, 151936, True, 32, 1280, 3420, 14, 2, 2)


def shape_of(base: Path) -> Shape:
    """Return the sizes of the model in a folder. Raises ShapeError when a figure is missing."""
    path = base / "config.json"
    try:
        config = read_json(path)
        text = {**config, **(config.get("text_config") or {})}
        eyes = config["vision_config"]
        heads = positive_whole(text, "num_attention_heads")
        return Shape(
            layers=positive_whole(text, "num_hidden_layers"),
            hidden=positive_whole(text, "hidden_size"),
            inner=positive_whole(text, "intermediate_size"),
            heads=heads,
            kv_heads=positive_whole(text, "num_key_value_heads", heads),
            head_dim=positive_whole(text, "head_dim", positive_whole(text, "hidden_size") // heads),
            vocabulary=positive_whole(text, "vocab_size"),
            tied=bool(text.get("tie_word_embeddings", True)),
            vision_layers=positive_whole(eyes, "depth"),
            vision_hidden=positive_whole(eyes, "hidden_size"),
            vision_inner=positive_whole(eyes, "intermediate_size"),
            patch=positive_whole(eyes, "patch_size", 14),
            merge=positive_whole(eyes, "spatial_merge_size", 2),
            temporal=positive_whole(eyes, "temporal_patch_size", 2),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShapeError(f"{path} does not tell the model's sizes: {error}") from None
