"""The tensors of a PEFT adapter against its configuration and its base: every matrix where it belongs, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vlmconsole.models.weights import Tensor, WeightsError, as_float, read_arrays, read_header
from vlmconsole.system.reading import read_json
from vlmconsole.training.adapters.config import LANGUAGE, AdapterError, LoraSettings

KINDS = ("F32", "F16", "BF16")
"""Types of a matrix; the half ones are widened exactly, as PEFT does when it loads them."""

PREFIX, OLD_PREFIX = "base_model.model.model.language_model.", "base_model.model.model."
"""Before the layer's name: of today's transformers, and of those before 4.52, whose adapters are the same numbers."""

_TENSOR = re.compile(
    rf"(?P<prefix>{re.escape(OLD_PREFIX)}(?:language_model\.)?)"
    r"(?P<module>layers\.\d+\.(?:self_attn|mlp)\.\w+)\.lora_(?P<half>[AB])(?:\.default)?\.weight"
)
DAMAGED = "the adapter is damaged: take it from its run again"


@dataclass(frozen=True)
class Layer:
    """One adapted linear layer: its name within the language half, and its two halves' tensor names."""

    module: str
    a: str
    b: str

    @property
    def name(self) -> str:
        """The whole name, as a configuration's patterns see it."""
        return LANGUAGE + self.module


@dataclass(frozen=True)
class Product:
    """One layer's change, `scale · b @ a`, in the file's own types: a is (rank, in), b is (out, rank)."""

    scale: float
    a: tuple[str, NDArray[np.generic]]
    b: tuple[str, NDArray[np.generic]]

    def change(self) -> NDArray[np.float32]:
        """Return the numbers that are added to the layer's weights, (out, in)."""
        return np.float32(self.scale) * (as_float(*self.b) @ as_float(*self.a))


def lora_layers(file: Path, header: Mapping[str, Tensor]) -> list[Layer]:
    """Return the layers that a file's tensors adapt. Raises AdapterError for a tensor that is no language-side
    LoRA's.
    """
    halves = paired(file, header, _TENSOR, _why)
    return [Layer(module, both["A"], both["B"]) for module, both in sorted(halves.items())]


def paired(
    name: Path | str, header: Mapping[str, Tensor], pattern: re.Pattern[str], why: Callable[[str], str] = lambda _: ""
) -> dict[str, dict[str, str]]:
    """Find each module's two matrices: module → half → tensor's name, both read by `pattern`.

    `name` is what errors call the adapter, `why` what they add of a tensor that the pattern does not know. Raises
    AdapterError for such a tensor, a type that is none of a matrix, a half that is there twice or lacks, and for none.
    """
    halves: dict[str, dict[str, str]] = {}
    for tensor, facts in header.items():
        part = pattern.fullmatch(tensor)
        if part is None:
            raise AdapterError(
                f"{name} holds {tensor}: only a language-side LoRA can be used here{why(tensor)}", code="tensor-foreign"
            )
        if facts.kind not in KINDS:
            raise AdapterError(
                f"{name}: {tensor} is of type {facts.kind}; a matrix is one of {', '.join(KINDS)}", code="tensor-type"
            )
        both = halves.setdefault(part["module"], {})
        if part["half"] in both:
            raise AdapterError(
                f"{name} holds {part['module']} twice: {both[part['half']]} and {tensor}", code="tensor-twice"
            )
        both[part["half"]] = tensor
    lonely = sorted(module for module, both in halves.items() if len(both) < 2)
    if lonely or not halves:
        what = f"{lonely[0]} has only one of its two matrices" if lonely else "it holds no tensors"
        raise AdapterError(f"{name} is not whole: {what}", DAMAGED, code="tensor-missing")
    return halves


def _why(tensor: str) -> str:
    name = re.search(r"\.lora_[AB]\.(\w+)\.weight$", tensor)
    if name is not None and name[1] != "default":
        return f" (it is the matrix of an adapter named “{name[1]}”: save that one by itself)"
    if "visual" in tensor or not tensor.startswith(OLD_PREFIX):
        return f"; its tensors are named {PREFIX}layers.…"
    return ""


def check_matrices(
    name: str, settings: LoraSettings, layers: list[Layer], header: Mapping[str, Tensor], base: Path | None = None
) -> None:
    """Every matrix has the rank that the configuration gives it, in a layer that it chooses and that `base` has.

    Raises AdapterError.
    """
    for layer in layers:
        if not settings.chooses(layer.name):
            raise AdapterError(
                f"{name}: its target_modules do not choose {layer.name}, of which it holds matrices",
                "PEFT would leave them out; the configuration is not the one that it was trained with",
                code="module-unchosen",
            )
        a, b, rank = header[layer.a].shape, header[layer.b].shape, settings.rank_of(layer.name)
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            turned = len(a) == len(b) == 2 and a[1] == rank == b[0]
            raise AdapterError(
                f"{name}: {layer.module} has matrices {a} and {b}, not of rank {rank}"
                + (": they are transposed" if turned else ""),
                code="rank-differs",
            )
    if base is not None:
        _check_base(name, settings, layers, header, base)


def _check_base(
    name: str, settings: LoraSettings, layers: list[Layer], header: Mapping[str, Tensor], base: Path
) -> None:
    """The matrices fit the layers of the model in `base`, and none that it chooses is missing. Raises AdapterError."""
    names = base_modules(base)
    sizes = linear_sizes(base, names)
    for layer in layers:
        if layer.module not in sizes:
            raise AdapterError(
                f"{name} adapts {layer.module}, which the model in {base} does not have", code="module-unknown"
            )
        (out, into), made = sizes[layer.module], (header[layer.b].shape[0], header[layer.a].shape[1])
        if made != (out, into):
            raise AdapterError(
                f"{name} does not fit the model in {base}: {layer.module} is {out}×{into} there,"
                f" the adapter is made for {made[0]}×{made[1]}",
                "it belongs to another model",
                code="size-differs",
            )
    held = {layer.name for layer in layers}
    missing = sorted(module for module in names if module not in held and settings.chooses(module))
    if missing:
        raise AdapterError(
            f"{name} is not whole: its target_modules choose {missing[0]}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, of which it holds no matrices",
            "it was cut, or its adapter_config.json is another one's",
            code="module-missing",
        )


def check_numbers(name: str, file: Path) -> None:
    """Every number is finite. Raises AdapterError with the first tensor that holds another."""
    try:
        arrays = read_arrays(file)
    except WeightsError as error:
        raise AdapterError(error.message, DAMAGED, code=error.code) from None
    for tensor, (kind, values) in arrays.items():
        if not np.isfinite(as_float(kind, values)).all():
            raise AdapterError(
                f"{name}: {tensor} holds NaN or infinity", "its training broke; do not use it", code="number-infinite"
            )


def base_modules(base: Path) -> dict[str, tuple[int, ...]]:
    """Return the weighted modules of a model folder as transformers names them, each with its weight's shape.

    MLX packs quantised numbers into words of 32 bits; the shape is the one that they stand for.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(base.glob("*.safetensors")):
        try:
            header = read_header(file)
        except WeightsError as error:
            raise AdapterError(error.message, "the base model is damaged") from None
        for tensor, facts in header.items():
            # Norms have one dimension, and no adapter.
            if tensor.endswith(".weight") and len(facts.shape) > 1:
                shape = facts.shape
                if f"{tensor.removesuffix('.weight')}.scales" in header:
                    shape = (shape[0], shape[1] * 32 // _bits(base, tensor))
                shapes[module_of(tensor)] = shape
    return shapes


def _bits(base: Path, tensor: str) -> int:
    """Bits of a quantised number, by a model folder's configuration; a layer may have its own."""
    config = read_json(base / "config.json")
    facts = config.get("quantization") if isinstance(config, dict) else None
    own = facts.get(tensor.removesuffix(".weight")) if isinstance(facts, dict) else None
    bits = (own if isinstance(own, dict) else facts or {}).get("bits") if isinstance(facts, dict) else None
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 16:
        raise AdapterError(
            f"{base} is quantised, and its config.json does not say with how many bits", code="bits-unknown"
        )
    return bits


def module_of(tensor: str) -> str:
    """Return the module of a base's tensor, as transformers names it today; files hold older names
    (`model.layers.…`).
    """
    module = tensor.removesuffix(".weight")
    eyes = re.fullmatch(r"(?:model\.)?(?:visual|vision_tower)\.(.+)", module)
    if eyes is not None:
        return f"model.visual.{eyes[1]}"
    tongue = re.fullmatch(r"(?:model\.language_model|language_model\.model|model)\.(.+)", module)
    return LANGUAGE + tongue[1] if tongue is not None else module


def linear_sizes(base: Path, names: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear layer in a model folder's language half, by name from `layers.` on."""
    shapes = base_modules(base) if names is None else names
    sizes = {
        name.removeprefix(LANGUAGE): (shape[0], shape[1])
        for name, shape in shapes.items()
        if name.startswith(f"{LANGUAGE}layers.") and len(shape) == 2
    }
    if not sizes:
        raise AdapterError(f"{base} holds no language layers in safetensors")
    return sizes
