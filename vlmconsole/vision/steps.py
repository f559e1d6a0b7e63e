"""The arithmetic of visual tokens and of the KV cache, step by step, as people check it."""

from __future__ import annotations

from vlmconsole.text.sizes import size
from vlmconsole.vision.kv import EXCLUDED, KVShape
from vlmconsole.vision.tokens import ProcessorSettings, VisualTokens


def token_steps(width: int, height: int, result: VisualTokens, settings: ProcessorSettings) -> str:
    """From the size that is sent to the number of visual tokens."""
    _, rows, columns = result.image_grid_thw
    wide, high = result.resized
    merge = settings.merge_size
    resize = "" if (wide, high) == (width, height) else f" → resized to {wide}×{high}"
    return (
        f"{width}×{height}{resize} → {columns}×{rows} patches of {settings.patch_size}"
        f" (image_grid_thw {list(result.image_grid_thw)})"
        f" → {columns // merge}×{rows // merge} merged → {result.visual_tokens} image tokens"
    )


def rule_text(settings: ProcessorSettings, name: str) -> str:
    """Whose rule turns a picture into tokens, and its figures; `name` is the model's."""
    side = settings.patch_size * settings.merge_size
    return (
        f"rule: {name}: patch {settings.patch_size}, merge {settings.merge_size}, sides to multiples of {side},"
        f" {settings.min_pixels:,} to {settings.max_pixels:,} pixels"
    )


def kv_steps(shape: KVShape, tokens: int, sequences: int) -> list[str]:
    """From the model's shape to the bytes of `sequences` sequences of `tokens` tokens, and what is not in them."""
    total = shape.bytes(tokens, sequences)
    fewer = ""
    if shape.windowed_layers and shape.window < tokens:
        fewer = f" ({shape.window} in {shape.windowed_layers} of the layers)"
    return [
        f"2 (keys, values) × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim}"
        f" × {shape.bytes_per_element:g} bytes = {size(shape.bytes_per_token)} a token",
        f"× {tokens} tokens{fewer} × {sequences} sequence{'s' if sequences > 1 else ''} = {size(total)}",
        *shape.notes,
        f"Not included: {', '.join(EXCLUDED)}.",
    ]
