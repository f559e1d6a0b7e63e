"""How a model's weights are quantised, from its `config.json`: method, bits, group size, mode and what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEYS = ("quantization", "quantization_config")
"""MLX writes both with the same content; every other format writes the second alone."""
_COMPRESSED = {"compressed-tensors", "fp8", "fbgemm_fp8", "modelopt"}


@dataclass(frozen=True)
class Quantization:
    """What is known of it; None where the config does not say.

    `method` as the config names it ("mlx", "gptq", "bitsandbytes", …); `group_size` in weights that share a scale;
    `mode` is MLX's kind of scale or the method's own ("affine", "mxfp4", "nf4"). `mixed` are the bits of the layers
    that have bits of their own, by how many layers have them; 0 bits: left as they were.
    """

    method: str
    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None
    mixed: tuple[tuple[int, int], ...] = ()

    @property
    def label(self) -> str:
        """One phrase that tells two quantisations apart: "4-bit affine, group 64 (mlx; 3 layers 8-bit)"."""
        bits = f"{self.bits}-bit" if self.bits else "quantised, bits not known"
        head = f"{bits} {self.mode}" if self.mode else bits
        group = f", group {self.group_size}" if self.group_size else ""
        others = [f"{count} layers {f'{bits}-bit' if bits else 'not quantised'}" for bits, count in self.mixed]
        return f"{head}{group} ({'; '.join([self.method, *others])})"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as conditions hold it."""
        return {
            "method": self.method,
            "bits": self.bits,
            "group_size": self.group_size,
            "mode": self.mode,
            **({"mixed": {str(bits): count for bits, count in self.mixed}} if self.mixed else {}),
        }


def from_json(value: Any) -> Quantization | None:
    """Return the inverse of `Quantization.to_json`; None for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("method"), str):
        return None
    mixed = value.get("mixed")
    pairs = mixed.items() if isinstance(mixed, Mapping) else ()
    try:
        others = tuple(sorted((int(bits), int(count)) for bits, count in pairs))
    except (TypeError, ValueError):
        others = ()
    bits, size = _whole(value, "bits"), _whole(value, "group_size")
    return Quantization(value["method"], bits, size, _text(value, "mode"), others)


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """Return what a model's configuration states, at its top or in its text half; None where it states none."""
    for place in (config, config.get("text_config"), config.get("llm_config")):
        if not isinstance(place, Mapping):
            continue
        stated = next((place[key] for key in KEYS if isinstance(place.get(key), Mapping) and place[key]), None)
        if stated is not None:
            return _read(stated)
    return None


def _read(stated: Mapping[str, Any]) -> Quantization:
    method = _text(stated, "quant_method")
    fours = any(key in stated for key in ("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit"))
    if method == "mlx" or (method is None and not fours):
        mixed: dict[int, int] = {}
        own = _whole(stated, "bits")
        for name, value in stated.items():
            # Layers named for themselves: settings of their own, or false for one that was left as it was.
            left = value is False and ("." in name or name == "lm_head")
            bits = 0 if left else _whole(value, "bits") if isinstance(value, Mapping) else None
            if bits is not None and bits != own:
                mixed[bits] = mixed.get(bits, 0) + 1
        mode = _text(stated, "mode") or ("affine" if own else None)
        return Quantization("mlx", own, _whole(stated, "group_size"), mode, tuple(sorted(mixed.items())))
    if method is None or method == "bitsandbytes":
        four = bool(stated.get("load_in_4bit") or stated.get("_load_in_4bit"))
        eight = bool(stated.get("load_in_8bit") or stated.get("_load_in_8bit"))
        bits = 4 if four else 8 if eight else None
        mode = _text(stated, "bnb_4bit_quant_type") if four else "int8" if eight else None
        return Quantization("bitsandbytes", bits, None, mode)
    bits = next((n for key in ("bits", "w_bit", "nbits", "weight_bits") if (n := _whole(stated, key))), None)
    group = next((n for key in ("group_size", "q_group_size") if (n := _whole(stated, key))), None)
    if bits is None and method in _COMPRESSED:
        return _compressed(method, stated)
    mode = next((text for key in ("checkpoint_format", "version", "fmt") if (text := _text(stated, key))), None)
    return Quantization(method, bits, group, mode)


def _compressed(method: str, stated: Mapping[str, Any]) -> Quantization:
    """The `config_groups` of compressed-tensors and ModelOpt; plain FP8 names no bits, it is eight by its name."""
    groups = stated.get("config_groups")
    settings: list[tuple[int | None, int | None, str | None]] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            bits = _whole(weights, "num_bits")
            settings.append((bits, _whole(weights, "group_size"), _text(weights, "type")))
    if not settings:
        return Quantization(method, 8 if "fp8" in method else None, None, _text(stated, "fmt"))
    bits, size, mode = settings[0]
    mixed: dict[int, int] = {}
    for other, _, _ in settings[1:]:
        if other and other != bits:
            mixed[other] = mixed.get(other, 0) + 1
    return Quantization(method, bits, size, mode, tuple(sorted(mixed.items())))


def _whole(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None
