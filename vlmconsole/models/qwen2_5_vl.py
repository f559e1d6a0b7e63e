"""Qwen2.5-VL's marks, and the weights that one has by its `config.json`: names and shapes, without torch.

Defaults are those of transformers' own configuration classes; `tests/models/test_bases.py` holds this against the model
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
END, PAD = "<|im_end|>", "<|endoftext|>"
CONTROL = (
    PAD, "<|im_start|>", END, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", IMAGE, VIDEO,
)  # fmt: skip
"""Marks by which a conversation is put together: in a text they would be read as turns and images, not as text."""
TEXT = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
VISION = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
}
TEXT_TYPES = ("qwen2_5_vl_text", "qwen2_5_vl")
VISION_TYPES = ("qwen2_5_vl_vision", "qwen2_5_vl")
HARMLESS = re.compile(r"rotary_(pos_)?emb\.inv_freq$|^lm_head\.weight$")
"""Tensors that older exports wrote along: a table that is computed anew, and the head where it is the embeddings."""

Weight = tuple[str, tuple[int, ...]]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language half's settings: `text_config` where there is one (flat keys then do not count), else the
    top.
    """
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def vision_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the vision tower's settings, {} where none are stated (the class's defaults then hold)."""
    nested = config.get("vision_config")
    return nested if isinstance(nested, Mapping) else {}


def tied(config: Mapping[str, Any]) -> bool:
    """Return whether the head is the embeddings' own table: the outer key, or that of a nested text half."""
    return bool(config.get("tie_word_embeddings") or text_config(config).get("tie_word_embeddings"))


def canonical(name: str) -> str:
    """Return one name for a tensor whatever the version that wrote it: as transformers has called it since 4.52."""
    if name.startswith("visual."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith(("model.visual.", "model.language_model.")):
        return "model.language_model." + name.removeprefix("model.")
    return name


def weights(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """{canonical name: shape} of every tensor that the model needs. Raises ValueError for a size that is no number."""
    return dict([*_language(config), *_vision(config)])


def _language(config: Mapping[str, Any]) -> Iterator[Weight]:
    text = text_config(config)
    size = {key: positive_whole(text, key, value) for key, value in TEXT.items()}
    if "num_key_value_heads" in text and text["num_key_value_heads"] is None:
        size["num_key_value_heads"] = size["num_attention_heads"]
    hidden, inner, vocabulary = size["hidden_size"], size["intermediate_size"], size["vocab_size"]
    head = positive_whole(text, "head_dim", hidden // size["num_attention_heads"])
    query, keys = size["num_attention_heads"] * head, size["num_key_value_heads"] * head
    yield "model.language_model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(size["num_hidden_layers"]):
        at = f"model.language_model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{name}.weight", (hidden,)
        for name, wide in (("q", query), ("k", keys), ("v", keys)):
            yield f"{at}self_attn.{name}_proj.weight", (wide, hidden)
            yield f"{at}self_attn.{name}_proj.bias", (wide,)
        yield f"{at}self_attn.o_proj.weight", (hidden, query)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            yield f"{at}mlp.{name}_proj.weight", shape
    yield "model.language_model.norm.weight", (hidden,)
    if not tied(config):
        yield "lm_head.weight", (vocabulary, hidden)


def _vision(config: Mapping[str, Any]) -> Iterator[Weight]:
    eyes = vision_config(config)
    size = {key: positive_whole(eyes, key, value) for key, value in VISION.items()}
    wide, inner, out = size["hidden_size"], size["intermediate_size"], size["out_hidden_size"]
    patch, merged = size["patch_size"], size["hidden_size"] * size["spatial_merge_size"] ** 2
    pixels = (size["in_channels"], size["temporal_patch_size"], patch, patch)
    yield "model.visual.patch_embed.proj.weight", (wide, *pixels)
    for block in range(size["depth"]):
        at = f"model.visual.blocks.{block}."
        yield f"{at}norm1.weight", (wide,)
        yield f"{at}norm2.weight", (wide,)
        for name, shape in (
            ("attn.qkv", (3 * wide, wide)),
            ("attn.proj", (wide, wide)),
            ("mlp.gate_proj", (inner, wide)),
            ("mlp.up_proj", (inner, wide)),
            ("mlp.down_proj", (wide, inner)),
        ):
            yield f"{at}{name}.weight", shape
            yield f"{at}{name}.bias", shape[:1]
    yield "model.visual.merger.ln_q.weight", (wide,)
    for name, shape in (("mlp.0", (merged, merged)), ("mlp.2", (out, merged))):
        yield f"model.visual.merger.{name}.weight", shape
        yield f"model.visual.merger.{name}.bias", shape[:1]


def positive_whole(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a size of `config.json`, or `default` where it is not there. Raises ValueError for what is no size."""
    value = values.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} is {value!r}, not a positive whole number")
    return value
