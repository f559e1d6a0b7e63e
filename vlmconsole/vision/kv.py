"""The KV cache's size: bytes = 2 · layers · sequences · tokens · KV heads · head size · bytes per element."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.system.reading import UnreadableError, read_json
from vlmconsole.vision import kv_families as families

EXCLUDED = ("weights", "vision activations", "temporaries", "the server's idle pool")
_BYTES: dict[str, float] = {
    **dict.fromkeys(("float32", "fp32", "float"), 4),
    **dict.fromkeys(("float16", "bfloat16", "fp16", "bf16", "half"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1),
    **dict.fromkeys(("fp4", "fp4_e2m1", "int4"), 0.5),
}


class KVError(LabError):
    """A model configuration that the formula cannot be applied to; the message is one line for people."""


@dataclass(frozen=True)
class KVShape:
    """What one token leaves behind, per sequence; `kv_heads` are the key/value heads, never the query heads.

    `windowed_layers` of the `layers` keep at most `window` tokens. `notes` says what was assumed.
    """

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: float
    windowed_layers: int = 0
    window: int = 0
    notes: tuple[str, ...] = ()

    def stored_as(self, dtype: str | None) -> KVShape:
        """Return the same with elements of `dtype`, as a server stores them; unchanged for a name that is not known."""
        size = _BYTES.get((dtype or "").removeprefix("torch."))
        return self if size is None else replace(self, bytes_per_element=size)

    @property
    def bytes_per_token(self) -> int:
        """Bytes for one more token of one sequence while no window is full."""
        return kv_bytes(self.layers, self.kv_heads, self.head_dim, self.bytes_per_element, 1)

    def bytes(self, tokens: int, sequences: int = 1) -> int:
        """Bytes for `sequences` sequences of `tokens` tokens each."""
        full = kv_bytes(
            self.layers - self.windowed_layers, self.kv_heads, self.head_dim, self.bytes_per_element, tokens, sequences
        )
        if not self.windowed_layers:
            return full
        kept = min(tokens, self.window)
        return full + kv_bytes(
            self.windowed_layers, self.kv_heads, self.head_dim, self.bytes_per_element, kept, sequences
        )


def kv_bytes(
    layers: int, kv_heads: int, head_dim: int, bytes_per_element: float, tokens: int, sequences: int = 1
) -> int:
    """Bytes of keys and values: 36 layers, 2 KV heads, 128, 2 bytes are 36 KiB a token, 144 MiB for 4096.

    Excludes EXCLUDED. Raises KVError for figures that are negative, not finite or of no size that exists.
    """
    if min(layers, kv_heads, head_dim, bytes_per_element, tokens, sequences) < 0:
        raise KVError("layers, heads, sizes, tokens and sequences cannot be negative")
    # Half a byte an element (a 4-bit KV cache) is the only fraction that exists; the product is still whole.
    try:
        return round(2 * layers * kv_heads * head_dim * tokens * sequences * bytes_per_element)
    except (OverflowError, ValueError):
        raise KVError("layers, heads, sizes, tokens and sequences must be finite, and their product too") from None


def from_config(folder: str | Path) -> KVShape:
    """Return the KV shape in a model folder's `config.json` (or that file itself), flat or with a `text_config`.

    Raises KVError when a figure is missing or the attention is of a kind the formula does not describe.
    """
    path = Path(folder)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = read_json(path)
    except UnreadableError as error:
        missing = f"{path} does not exist: point at the model's own folder"
        raise KVError(missing if error.missing else error.message, code=error.code) from None
    if not isinstance(config, dict):
        raise KVError(f"{path} is not a JSON object", code="config-invalid")
    return shape_of(config, source=str(path))


def shape_of(config: dict[str, Any], *, source: str = "the configuration") -> KVShape:
    """Return the KV shape in a configuration that was already read; `source` names it in errors."""
    stated = text_half(config)
    family = families.family_of(stated.get("model_type") or config.get("model_type"))
    # A null is a value: it says that there is no window, or that the head size follows from the width.
    text: dict[str, Any] = {**families.defaults(family), **stated}
    why = families.refusal(family, text)
    if why:
        raise KVError(f"{source}: {why}", code="attention-unknown")
    notes: list[str] = []
    layers = _whole(text, source, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = _whole(text, source, "num_attention_heads", "n_head", "n_heads")
    kv_heads = _kv_heads(text, source, heads, notes)
    wide = "hidden_size", "n_embd", "d_model", "n_embed"
    head_dim = _whole(text, source, "head_dim", "kv_channels", default=0)
    head_dim = head_dim or _whole(text, source, *wide) // heads

    try:
        kinds, known = families.kinds(family, text, layers)
    except ValueError as error:
        raise KVError(f"{source}: {error}", code="config-invalid") from None
    if not known:
        notes.append(f"model_type {family} is not known here: read as plain attention in every layer")
    shared = text.get("num_kv_shared_layers") or (
        15 if family == "gemma3n_text" and "num_kv_shared_layers" not in text else 0
    )
    if isinstance(shared, int) and 0 < shared < layers:
        kinds = kinds[: layers - shared]
        notes.append(f"{shared} of {layers} layers use the keys and values of others")
    cached = [kind for kind in kinds if kind not in families.STATELESS]
    if len(cached) < len(kinds):
        notes.append(
            f"hybrid: {len(kinds) - len(cached)} of {layers} layers keep a fixed state instead of keys and values"
        )
    windowed, window = _window(text, source, cached)
    if windowed:
        notes.append(f"{windowed} of {layers} layers keep at most {window} tokens (sliding window)")

    dtype = next(
        (str(place[key]) for place in (stated, config) for key in ("dtype", "torch_dtype") if place.get(key)), ""
    )
    dtype = dtype.removeprefix("torch.")
    if dtype not in _BYTES:
        notes.append("no known dtype stated: 2 bytes an element assumed")
    if config.get("quantization") or config.get("quantization_config"):
        notes.append("quantised weights do not make the KV cache smaller")
    return KVShape(len(cached), kv_heads, head_dim, _BYTES.get(dtype, 2), windowed, window, tuple(notes))


def text_half(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language half's own settings, which stand at the top or under one of several names."""
    for key in ("thinker_config", "text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, dict) and nested:
            return text_half(nested)
    return config


def _kv_heads(text: dict[str, Any], source: str, heads: int, notes: list[str]) -> int:
    attention = text.get("attn_config")
    of_attention = attention if isinstance(attention, dict) else {}
    if text.get("model_type") == "dbrx" and not of_attention.get("kv_n_heads"):
        return 1
    multi_query = text.get("multi_query", text.get("model_type") in ("falcon", "gpt_bigcode"))
    if multi_query and text.get("model_type") in ("falcon", "gpt_bigcode", "RefinedWebModel"):
        return 1
    settings = {**of_attention, **text}
    for key in ("num_key_value_heads", "kv_n_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
        if settings.get(key) is not None:
            return _whole(settings, source, key)
    notes.append("no num_key_value_heads: every attention head keeps its own keys and values")
    return heads


def _window(text: dict[str, Any], source: str, cached: list[str]) -> tuple[int, int]:
    """(layers that keep at most so many tokens, how many those are)."""
    chunked, sliding = cached.count(families.CHUNKED), cached.count(families.SLIDING)
    if chunked:
        return chunked, _whole(text, source, "attention_chunk_size", default=8192)
    if not sliding:
        return 0, 0
    window = _whole(text, source, "sliding_window")
    # Its class makes the window exclusive where attention goes both ways.
    return sliding, window // 2 + 1 if text.get("use_bidirectional_attention") is True else window


def _whole(values: dict[str, Any], source: str, *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise KVError(f"{source}: {key} is {value!r}, not a positive whole number", code="config-invalid")
    if default is None:
        raise KVError(f"{source} has no {keys[0]}", code="config-incomplete")
    return default
