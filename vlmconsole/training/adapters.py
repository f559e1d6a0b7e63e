"""The lab's adapters: where they are, whether they are whole, and whether they belong to a base.

Finding and checking needs no torch, so commands and screens can do it. Loading one into a model does (`load_peft`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vlmconsole.errors import LabError
from vlmconsole.runs.folder import list_runs
from vlmconsole.runs.named import named
from vlmconsole.runs.pace import number
from vlmconsole.runs.places import Places
from vlmconsole.runs.reading import UnreadableError, read_json
from vlmconsole.training.provenance import Provenance, ProvenanceError, read_provenance, weights_sha256
from vlmconsole.training.weights import WeightsError, as_float, read_arrays, read_header

if TYPE_CHECKING:
    from vlmconsole.training.model import Loaded

CONFIG = "adapter_config.json"
FILES = {"peft": "adapter_model.safetensors", "mlx": "adapters.safetensors"}
OTHER_MODEL = "another model, needs its own evaluation"
"""What an adapter on another base or at another precision is called, wherever it is used by override."""

_PART = re.compile(r"(?:^|\.)(layers\.\d+\.(?:self_attn|mlp)\.\w+)\.lora_([AB])(?:\.\w+)?\.weight$")
_LINEAR = re.compile(r"(?:^|\.)(layers\.\d+\.(?:self_attn|mlp)\.\w+)\.weight$")


class AdapterError(LabError):
    """An adapter that is not there, damaged, of another shape, or of another base; says which and what to do."""


@dataclass(frozen=True)
class Adapter:
    """One adapter's folder. `name` finds it again; `provenance` is None for a foreign one."""

    name: str
    path: Path
    format: Literal["peft", "mlx"]
    provenance: Provenance | None

    @cached_property
    def sha256(self) -> str:
        """Of its weights (`weights_sha256`); read when first asked for."""
        return weights_sha256(self.path)

    @property
    def weights(self) -> Path:
        return self.path / FILES[self.format]


@dataclass(frozen=True)
class Layer:
    """One adapted linear layer: its name within the language half, and its two halves' tensor names."""

    module: str
    a: str
    b: str


def open_adapter(path: Path, name: str = "") -> Adapter:
    """The adapter in a folder. Raises AdapterError when it holds none, or a bad provenance file."""
    config = _config(path)
    for kind, file in FILES.items():
        if (path / file).is_file():
            wanted = "lora_parameters" if kind == "mlx" else "peft_type"
            if wanted in config:
                try:
                    origin = read_provenance(path)
                except ProvenanceError as error:
                    raise AdapterError(error.message, error.hint) from None
                return Adapter(name or path.name, path, "mlx" if kind == "mlx" else "peft", origin)
    names = " or ".join(FILES.values())
    raise AdapterError(f"{path} holds no adapter: {names} with its {CONFIG} is missing")


def _config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        value = read_json(file)
    except UnreadableError as error:
        missing = f"{path} holds no adapter: there is no {CONFIG}"
        raise AdapterError(missing if error.missing else error.message) from None
    if not isinstance(value, dict):
        raise AdapterError(f"{file} is not a JSON object")
    return value


def list_adapters(places: Places, problems: list[str] | None = None) -> list[Adapter]:
    """Every adapter of the lab: its own folder first, then the runs', newest first. Bad ones go into `problems`."""
    folders = [(path.name, path) for path in _inside(places.adapters)]
    for run in list_runs(places.runs):
        inner = [path for path in _inside(run.path) if path.name == "adapter" or path.name.startswith("epoch-")]
        folders += [(f"{run.name}/{path.name}", path) for path in inner]
    found = []
    for name, path in folders:
        if not (path / CONFIG).exists():
            continue
        try:
            found.append(open_adapter(path, name))
        except AdapterError as error:
            if problems is not None:
                problems.append(error.message)
    return found


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_dir())
    return []


def find_adapter(places: Places, name: str | Path) -> Adapter:
    """The adapter at a path, called `name`, or of the run `name` (its selected one); a unique part is enough.

    Raises AdapterError, naming what there is.
    """
    path = named(name)
    if (path / CONFIG).is_file():
        return open_adapter(path.absolute())
    if (path / "adapter" / CONFIG).is_file():
        return open_adapter((path / "adapter").absolute(), f"{path.name}/adapter")
    text, known = str(name), list_adapters(places)
    exact = [a for a in known if a.name in (text, f"{text}/adapter")]
    chosen = [a for a in known if text and text in a.name]
    selected = [a for a in chosen if not a.name.rpartition("/")[2].startswith("epoch-")]
    for found in (exact, selected, chosen):
        if len(found) == 1:
            return found[0]
    if chosen:
        there = _named(chosen)
        raise AdapterError(f"“{text}” fits {len(chosen)} adapters, of {there}", "give more of the name").named()
    if text and path.is_dir():
        raise AdapterError(f"{path} holds no adapter: there is no {CONFIG}").named()
    if not known:
        hint = "a supervised training makes one, as `vlmconsole run sft-expand-tiny` does"
        raise AdapterError(f"no adapter “{text}”: there are none yet", hint).named()
    hint = "`vlmconsole adapters list` shows them all"
    raise AdapterError(f"no adapter “{text}”: there are those of {_named(known)}", hint).named()


def _named(some: Sequence[Adapter]) -> str:
    """The runs (or folders) that adapters belong to, a few of them: a run's name is enough to mean its chosen one."""
    names = list(dict.fromkeys(a.name.rpartition("/")[0] or a.name for a in some))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def layers(adapter: Adapter) -> list[Layer]:
    """The adapted layers of a PEFT adapter. Raises AdapterError for a tensor that is no language-side LoRA's."""
    halves: dict[str, dict[str, str]] = {}
    for tensor in _header(adapter):
        part = _PART.search(tensor)
        if part is None or "visual" in tensor:
            raise AdapterError(f"{adapter.weights} holds {tensor}: only a language-side LoRA can be used here")
        halves.setdefault(part[1], {})[part[2]] = tensor
    lonely = sorted(module for module, both in halves.items() if len(both) < 2)
    if lonely or not halves:
        what = f"{lonely[0]} has only one of its two matrices" if lonely else "it holds no tensors"
        raise AdapterError(f"{adapter.weights} is not whole: {what}")
    return [Layer(module, both["A"], both["B"]) for module, both in sorted(halves.items())]


def _header(adapter: Adapter) -> dict[str, Any]:
    try:
        return dict(read_header(adapter.weights))
    except WeightsError as error:
        raise AdapterError(error.message, "the adapter is damaged: take it from its run again") from None


def rank_and_alpha(adapter: Adapter) -> tuple[int, float]:
    """Rank and alpha of a PEFT adapter. Raises AdapterError for settings that change what the matrices mean."""
    config = _config(adapter.path)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    # NaN is a number to JSON and True one to Python: either would silently make other weights of the same matrices.
    scale = number(alpha)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1 or scale is None or scale <= 0:
        raise AdapterError(f"{adapter.path / CONFIG}: r and lora_alpha must be numbers above zero")
    odd = [
        key for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save") if config.get(key)
    ]
    if config.get("bias", "none") != "none":
        odd.append("bias")
    if odd:
        raise AdapterError(f"{adapter.path / CONFIG} uses {', '.join(odd)}, which a plain LoRA here does not have")
    return rank, scale


def check_whole(adapter: Adapter, base: Path | None = None) -> None:
    """Every matrix has the rank, finite numbers, and (with a base's folder) the layer's own size.

    Raises AdapterError with the first fault.
    """
    if adapter.format != "peft":
        _header(adapter)
        return
    rank, _ = rank_and_alpha(adapter)
    header, sizes = _header(adapter), linear_sizes(base) if base is not None else {}
    for layer in layers(adapter):
        a, b = header[layer.a].shape, header[layer.b].shape
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            raise AdapterError(f"{adapter.name}: {layer.module} has matrices {a} and {b}, not of rank {rank}")
        if base is None:
            continue
        if layer.module not in sizes:
            raise AdapterError(f"{adapter.name} adapts {layer.module}, which the model in {base} does not have")
        if (b[0], a[1]) != sizes[layer.module]:
            out, into = sizes[layer.module]
            raise AdapterError(
                f"{adapter.name} does not fit the model in {base}: {layer.module} is {out}×{into} there,"
                f" the adapter is made for {b[0]}×{a[1]}",
                "it belongs to another model",
            )
    try:
        arrays = read_arrays(adapter.weights)
    except WeightsError as error:
        raise AdapterError(error.message, "the adapter is damaged: take it from its run again") from None
    for name, (kind, values) in arrays.items():
        if not np.isfinite(as_float(kind, values)).all():
            raise AdapterError(f"{adapter.name}: {name} holds NaN or infinity", "its training broke; do not use it")


def linear_sizes(base: Path) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear layer in a model folder's language half, by name from `layers.` on."""
    found: dict[str, tuple[int, int]] = {}
    for file in sorted(base.glob("*.safetensors")):
        try:
            header = read_header(file)
        except WeightsError as error:
            raise AdapterError(error.message, "the base model is damaged") from None
        for name, tensor in header.items():
            part = _LINEAR.search(name)
            if part is not None and "visual" not in name and len(tensor.shape) == 2:
                found[part[1]] = (tensor.shape[0], tensor.shape[1])
    if not found:
        raise AdapterError(f"{base} holds no language layers in safetensors")
    return found


def base_sha256(folder: Path) -> str:
    """`weights_sha256` of a base, remembered while its files stay as they are (7 GB take seconds)."""
    stamp = tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.glob("*.safetensors")))
    return _remembered(folder, stamp)


@lru_cache(maxsize=16)
def _remembered(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    return weights_sha256(folder)


def check_fits(adapter: Adapter, base: Path, precision: str | None, override: bool = False) -> str:
    """Whether the adapter belongs to the weights in `base` at `precision`: "" when it does.

    Otherwise AdapterError, or with `override` the label that everything made with it must carry. A wrong shape cannot
    be overridden. precision: as transformers names it ("float32", "bfloat16"); None: not known, so not compared.
    """
    check_whole(adapter, base)
    origin = adapter.provenance
    if origin is None:
        fault = "does not say which base it was trained on"
    elif base_sha256(base) != origin.base_sha256:
        fault = f"was trained on another base ({origin.base}, weights {origin.base_sha256[:12]}…)"
    elif precision is not None and precision != origin.precision:
        fault = f"was trained on its base in {origin.precision}, not {precision}"
    else:
        return ""
    if override:
        return OTHER_MODEL
    raise AdapterError(
        f"adapter {adapter.name} {fault}",
        f"on this one it would be {OTHER_MODEL}; to use it all the same, say so (--other-base)",
    )


def load_peft(loaded: Loaded, folder: Path, *, trainable: bool = False) -> Any:
    """The model with the adapter of `folder` in it, in float32; `loaded.model` itself answers with it from then on.

    Undo with `unload(...)` of the returned model. Raises AdapterError for a damaged or misfitting adapter, and when
    one is in the model already.
    """
    import torch
    from peft import PeftModel

    adapter = open_adapter(folder)
    if adapter.format != "peft":
        raise AdapterError(f"{folder} is in MLX's format", "training and evaluation here take the PEFT folder")
    if any(hasattr(module, "lora_A") for module in loaded.model.modules()):
        raise AdapterError("an adapter is in this model already", "unload it first, or load the base again")
    check_whole(adapter, loaded.folder)
    try:
        model = PeftModel.from_pretrained(
            loaded.model, str(folder), is_trainable=trainable, autocast_adapter_dtype=True
        )
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise AdapterError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    # Names that the library does not recognise are only warned about, and the layer then silently stays as it was.
    inside = {}
    for name, value in model.named_parameters():
        part = _PART.search(name)
        if part is not None:
            inside[part[1], part[2]] = value.detach().float().cpu()
    arrays = read_arrays(adapter.weights)
    for layer in layers(adapter):
        for half, tensor in (("A", layer.a), ("B", layer.b)):
            wanted = torch.from_numpy(as_float(*arrays[tensor]).copy())
            have = inside.get((layer.module, half))
            if have is None or not torch.equal(have, wanted):
                raise AdapterError(f"{folder}: {tensor} did not arrive in the model", "it belongs to another model")
    return model if trainable else model.eval()
