"""An adapter in MLX's own form: its configuration and tensors, checked against what mlx-vlm makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.models.weights import Tensor
from vlmconsole.text.numbers import number
from vlmconsole.training.adapters.config import AdapterError
from vlmconsole.training.adapters.tensors import DAMAGED, linear_sizes, paired

PREFIX = "language_model.model."
_TENSOR = re.compile(rf"{re.escape(PREFIX)}(?P<module>layers\.\d+\.(?:self_attn|mlp)\.\w+)\.lora_(?P<half>[ab])")

_TOP: dict[str, Callable[[Any], bool]] = {
    "fine_tune_type": lambda value: value == "lora",
    "num_layers": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "lora_parameters": lambda value: isinstance(value, dict),
}
_INNER: dict[str, Callable[[Any], bool]] = {
    "rank": lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    "scale": lambda value: (number(value) or 0) > 0,
    "dropout": lambda value: 0 <= (-1 if number(value) is None else float(value)) < 1,
    "keys": lambda value: isinstance(value, list) and bool(value) and all(isinstance(key, str) for key in value),
}


def check_mlx(
    name: str, config: Mapping[str, Any], file: Path, header: Mapping[str, Tensor], base: Path | None = None
) -> tuple[int, float]:
    """Return its rank and scale. Every key is understood, every key of `keys` has both its matrices, of its rank, and
    no other tensor is there.

    mlx-vlm loads the tensors by name and leaves out, silently, what it does not know. Raises AdapterError.
    """
    inner = config.get("lora_parameters")
    odd = [key for key, value in config.items() if key not in _TOP or not _TOP[key](value)]
    if isinstance(inner, dict):
        odd += [f"lora_parameters.{key}" for key, value in inner.items() if key not in _INNER or not _INNER[key](value)]
        odd += [f"lora_parameters.{key} (missing)" for key in _INNER if key not in inner]
    if odd or not isinstance(inner, dict):
        raise AdapterError(
            f"{file} asks for {', '.join(odd)}: not a plain LoRA, and not computed here, so it is refused",
            "use the PEFT adapter that it was made from, or train it as a plain LoRA",
            code="lora-unsupported",
        )
    rank, shapes = inner["rank"], _shapes(name, header)
    wanted = {key.removeprefix("language_model.").removeprefix("model.") for key in inner["keys"]}
    if wanted != set(shapes):
        odd_key = sorted(wanted ^ set(shapes))[0]
        raise AdapterError(
            f"{name}: {odd_key} is only in {'its keys' if odd_key in wanted else 'its file'}",
            DAMAGED,
            code="keys-differ",
        )
    sizes = linear_sizes(base) if base is not None else {}
    for module, (a, b) in sorted(shapes.items()):
        if len(a) != 2 or len(b) != 2 or a[1] != rank or b[0] != rank:
            raise AdapterError(f"{name}: {module} has matrices {a} and {b}, not of rank {rank}", code="rank-differs")
        if base is not None and sizes.get(module) != (b[1], a[0]):
            expected = "not there" if module not in sizes else "{}×{}".format(*sizes[module])
            raise AdapterError(
                f"{name} does not fit the model in {base}: {module} is {expected}, the adapter is made for"
                f" {b[1]}×{a[0]}",
                "it belongs to another model",
                code="size-differs",
            )
    return rank, float(inner["scale"])


def _shapes(name: str, header: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    halves = paired(name, header, _TENSOR)
    return {module: (header[both["a"]].shape, header[both["b"]].shape) for module, both in halves.items()}
