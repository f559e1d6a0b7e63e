"""The KV cache's size: bytes = 2 · layers · sequences · tokens · KV heads · head size · bytes per element."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.reading import UnreadableError, read_json

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
        """The same with elements of `dtype`, as a server stores them; unchanged for a name that is not known."""
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

    Excludes EXCLUDED. Raises KVError for negative figures.
    """
    if min(layers, kv_heads, head_dim, bytes_per_element, tokens, sequences) < 0:
        raise KVError("layers, heads, sizes, tokens and sequences cannot be negative")
    # Half a byte an element (a 4-bit KV cache) is the only fraction that exists; the product is still whole.
    return round(2 * layers * kv_heads * head_dim * tokens * sequences * bytes_per_element)


def from_config(folder: str | Path) -> KVShape:
    """The KV shape in a model folder's `config.json` (or that file itself), flat or with a `text_config`.

    Raises KVError when a figure is missing or the attention is of a kind the formula does not describe.
    """
    path = Path(folder)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = read_json(path)
    except UnreadableError as error:
        missing = f"{path} does not exist: point at the model's own folder"
        raise KVError(missing if error.missing else error.message) from None
    if not isinstance(config, dict):
        raise KVError(f"{path} is not a JSON object")
    return shape_of(config, source=str(path))


def shape_of(config: dict[str, Any], *, source: str = "the configuration") -> KVShape:
    """The KV shape in a configuration that was already read; `source` names it in errors."""
    nested = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), None)
    text: dict[str, Any] = {**config, **nested} if nested else config
    if text.get("kv_lora_rank"):
        raise KVError(
            f"{source}: this model compresses its keys and values (latent attention); the formula does not apply"
        )
    notes: list[str] = []
    layers = _whole(text, source, "num_hidden_layers", "n_layer")
    heads = _whole(text, source, "num_attention_heads", "n_head")
    kv_heads = _whole(text, source, "num_key_value_heads", default=heads)
    if text.get("num_key_value_heads") is None:
        notes.append("no num_key_value_heads: every attention head keeps its own keys and values")
    head_dim = _whole(text, source, "head_dim", default=_whole(text, source, "hidden_size", "n_embd") // heads)

    cached, windowed, window = layers, 0, 0
    kinds = text.get("layer_types")
    # Qwen2 and Qwen2.5-VL always state a window, and use it only where this switch is on.
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        window = _whole(text, source, "sliding_window")
    if isinstance(kinds, list) and kinds:
        stateless = sum("attention" not in str(kind) or "linear" in str(kind) for kind in kinds)
        cached = layers - stateless
        windowed = sum("sliding" in str(kind) for kind in kinds) if window else 0
        if stateless:
            notes.append(f"hybrid: {stateless} of {layers} layers keep a fixed state instead of keys and values")
    elif window:
        windowed = layers - (_whole(text, source, "max_window_layers", default=0) if "max_window_layers" in text else 0)
    if windowed:
        notes.append(f"{windowed} of {layers} layers keep at most {window} tokens (sliding window)")

    dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if dtype not in _BYTES:
        notes.append("no known dtype stated: 2 bytes an element assumed")
    if config.get("quantization") or config.get("quantization_config"):
        notes.append("quantised weights do not make the KV cache smaller")
    return KVShape(cached, kv_heads, head_dim, _BYTES.get(dtype, 2), max(windowed, 0), window, tuple(notes))


def _whole(values: dict[str, Any], source: str, *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise KVError(f"{source}: {key} is {value!r}, not a positive whole number")
    if default is None:
        raise KVError(f"{source} has no {keys[0]}")
    return default
