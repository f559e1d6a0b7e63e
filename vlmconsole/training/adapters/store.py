"""The lab's adapters: where they are, whether they are whole, and whether they belong to a base.

Finding and checking needs no torch, so commands and screens can do it. Loading one into a model does (`load_peft`).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vlmconsole.models.weights import Tensor, WeightsError, as_float, read_arrays, read_header
from vlmconsole.runs.folder import list_runs
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import UnreadableError, read_json
from vlmconsole.system.typed_paths import named
from vlmconsole.training.adapters.config import AdapterError as AdapterError
from vlmconsole.training.adapters.config import LoraSettings, SeveralAdaptersError, lora_settings
from vlmconsole.training.adapters.mlx import check_mlx
from vlmconsole.training.adapters.names import names_for
from vlmconsole.training.adapters.provenance import Provenance, ProvenanceError, read_provenance, weights_sha256
from vlmconsole.training.adapters.tensors import DAMAGED, Layer, Product, check_matrices, check_numbers, lora_layers

if TYPE_CHECKING:
    from vlmconsole.training.model import Loaded

CONFIG = "adapter_config.json"
FILES = {"peft": "adapter_model.safetensors", "mlx": "adapters.safetensors"}
OTHER_MODEL = "another model, needs its own evaluation"
"""What an adapter on another base or at another precision is called, wherever it is used by override."""

_PARAMETER = re.compile(r"(?:^|\.)language_model\.(layers\.\d+\.(?:self_attn|mlp)\.\w+)\.lora_([AB])\.\w+\.weight$")
"""A matrix as PEFT names it inside a model."""


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

    @cached_property
    def identity(self) -> str:
        """Of weights and configuration: what the adapter computes. Kept forms and servers' names go by it."""
        return hashlib.sha256(self.sha256.encode() + (self.path / CONFIG).read_bytes()).hexdigest()

    @property
    def weights(self) -> Path:
        return self.path / FILES[self.format]

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its configuration file. Raises AdapterError."""
        return _config(self.path)

    @cached_property
    def header(self) -> dict[str, Tensor]:
        """Names, types and shapes of its tensors. Raises AdapterError for a damaged file."""
        try:
            return dict(read_header(self.weights))
        except WeightsError as error:
            raise AdapterError(error.message, DAMAGED, code=error.code) from None

    @cached_property
    def settings(self) -> LoraSettings:
        """What a PEFT adapter's configuration asks for. Raises AdapterError for what is not computed here, by name."""
        settings = lora_settings(self.config, self.path / CONFIG)
        _check_origin(self, settings.rank, settings.alpha if settings.plain else math.nan)
        return settings

    @cached_property
    def layers(self) -> list[Layer]:
        """The adapted layers of a PEFT adapter. Raises AdapterError for a tensor that is no language-side LoRA's."""
        return lora_layers(self.weights, self.header)


def open_adapter(path: Path, name: str = "") -> Adapter:
    """Return the adapter in a folder. Raises AdapterError when it holds none, or a bad provenance file."""
    config = _config(path)
    for kind, file in FILES.items():
        if (path / file).is_file():
            wanted = "lora_parameters" if kind == "mlx" else "peft_type"
            if wanted in config:
                try:
                    origin = read_provenance(path)
                except ProvenanceError as error:
                    raise AdapterError(error.message, error.hint, code=error.code) from None
                return Adapter(name or path.name, path, "mlx" if kind == "mlx" else "peft", origin)
    names = " or ".join(FILES.values())
    raise AdapterError(
        f"{path} holds no adapter: {names} with its {CONFIG} is missing", _instead(path), code="adapter-missing"
    )


def _instead(path: Path) -> str:
    """What a folder holds that is nearly an adapter, and what to do about it; "" for nothing."""
    names = sorted(file.name for file in path.iterdir())
    if any(name.startswith("adapter_model") and name.endswith((".bin", ".pt", ".pth")) for name in names):
        return (
            "its weights are a pickle, which runs code when it is read and is never opened here: save them as"
            " safetensors (PEFT: save_pretrained(…, safe_serialization=True))"
        )
    if any(name.startswith("adapter_model-") or name.endswith(".safetensors.index.json") for name in names):
        return "an adapter in several files cannot be used: save it as one"
    return ""


def _config(path: Path) -> dict[str, Any]:
    file = path / CONFIG
    try:
        value = read_json(file)
    except UnreadableError as error:
        missing = f"{path} holds no adapter: there is no {CONFIG}"
        below = [inner.name for inner in _inside(path) if (inner / CONFIG).is_file()]
        hint = f"there are adapters in its folders {', '.join(below[:4])}: name one of them" if below else ""
        raise AdapterError(missing if error.missing else error.message, hint, code="adapter-missing") from None
    if not isinstance(value, dict):
        raise AdapterError(f"{file} is not a JSON object")
    return value


def list_adapters(places: Places, problems: list[str] | None = None) -> list[Adapter]:
    """Return every adapter of the lab: its own folder first, then the runs', newest first. Bad ones go into
    `problems`.
    """
    folders = [(path.name, path) for path in _inside(places.adapters)]
    for run in list_runs(places.runs):
        inner = [path for path in _inside(run.path) if path.name == "adapter" or path.name.startswith("epoch-")]
        folders += [(f"{run.name}/{path.name}", path) for path in inner]
    adapters = []
    for name, path in folders:
        if not (path / CONFIG).exists():
            continue
        try:
            adapters.append(open_adapter(path, name))
        except AdapterError as error:
            if problems is not None:
                problems.append(error.message)
    return adapters


def _at(path: Path) -> Path | None:
    """The adapter that a path means: the folder itself, or a run's chosen one."""
    return next((folder for folder in (path, path / "adapter") if (folder / CONFIG).is_file()), None)


def exact_adapter(places: Places, name: str) -> Path | None:
    """Return the folder of the adapter that `list_adapters` calls `name`; None where there is none of exactly that
    name.
    """
    run, _, inner = name.partition("/")
    if not run or Path(run).name != run or Path(inner).name != inner or run.startswith("."):
        return None
    folder = places.runs / run / inner if inner else places.adapters / run
    return folder if (folder / CONFIG).is_file() else None


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_dir())
    return []


def find_adapter(places: Places, name: str | Path) -> Adapter:
    """Return the adapter at a path, called `name`, of a run, or of a preset's newest finished run (`names_for`).

    Raises AdapterError, naming what there is, and SeveralAdaptersError.
    """
    path, text = named(name), str(name)
    bare = "/" not in text  # then a whole name of the lab's goes before a folder that happens to lie here
    known = list_adapters(places) if bare or not _at(path) else []
    names = names_for(text, [adapter.name for adapter in known], places)
    if (here := _at(path)) is not None and not (bare and names.whole):
        return open_adapter(here.absolute(), "" if here == path else f"{path.name}/adapter")
    chosen = [adapter for adapter in known if adapter.name in names.fitting]
    if len(chosen) == 1:
        return chosen[0]
    unfinished = f"; no run of it is finished: {', '.join(names.unfinished[:4])}" if names.unfinished else ""
    if chosen:
        message = f"“{text}” fits {len(chosen)} adapters, of {_named(chosen)}{unfinished}"
        hint = "give more of the name, or a preset's name for its newest finished run"
        raise SeveralAdaptersError(message, hint).named()
    if unfinished:
        raise AdapterError(
            f"no adapter “{text}”{unfinished}", "a run's own name means what it has", code="run-unfinished"
        ).named()
    if text and path.is_dir():
        try:
            open_adapter(path)
        except AdapterError as error:
            raise error.named() from None
    if not known:
        hint = "a supervised training makes one, as `vlmconsole run sft-expand-tiny` does"
        raise AdapterError(f"no adapter “{text}”: there are none yet", hint, code="adapter-missing").named()
    hint = "`vlmconsole adapters list` shows them all"
    raise AdapterError(f"no adapter “{text}”: there are those of {_named(known)}", hint, code="adapter-missing").named()


def _named(some: Sequence[Adapter]) -> str:
    """The runs (or folders) that adapters belong to, a few of them: a run's name is enough to mean its chosen one."""
    names = list(dict.fromkeys(a.name.rpartition("/")[0] or a.name for a in some))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _check_origin(adapter: Adapter, rank: int, alpha: float) -> None:
    """Rank and alpha are those that the adapter was trained with, where its provenance tells. Raises AdapterError."""
    origin = adapter.provenance
    if origin is None or not origin.rank or (rank == origin.rank and math.isclose(alpha, origin.alpha)):
        return
    scaled = f"rank {rank} and alpha {alpha:g}" if math.isfinite(alpha) else "another scale for its layers"
    raise AdapterError(
        f"{adapter.path / CONFIG} says {scaled}, but provenance.json that it was trained with rank {origin.rank} and"
        f" alpha {origin.alpha}",
        "one of the two files was changed: take the adapter from its run again",
        code="provenance-differs",
    )


def products(adapter: Adapter) -> dict[str, Product]:
    """Return every layer's change, by its name from `layers.` on. Call `check_whole` first. Raises WeightsError."""
    settings, arrays = adapter.settings, read_arrays(adapter.weights)
    return {
        layer.module: Product(settings.scale_of(layer.name), arrays[layer.a], arrays[layer.b])
        for layer in adapter.layers
    }


def check_understood(adapter: Adapter, base: Path | None = None) -> None:
    """Configuration and tensors' names, types and ranks: is this an adapter that is computed here as it was trained?

    The one door for every use. With a base's folder also whether every layer has its own size there, and none is
    missing. Reads no numbers. Raises AdapterError naming what is not understood.
    """
    stray = sorted(path.name for path in adapter.path.glob("*.safetensors") if path.name not in FILES.values())
    if stray:
        raise AdapterError(
            f"{adapter.path} holds {stray[0]} beside the adapter, which would not be used",
            "take it away if it is not part of the adapter; an adapter in several files cannot be used",
        )
    if adapter.format == "mlx":
        rank, scale = check_mlx(adapter.name, adapter.config, adapter.path / CONFIG, adapter.header, base)
        _check_origin(adapter, rank, scale * rank)
    else:
        check_matrices(adapter.name, adapter.settings, adapter.layers, adapter.header, base)


def refused(adapter: Adapter) -> str:
    """Return why an adapter cannot be used, "" when it can as far as can be seen without its base and its numbers."""
    try:
        check_understood(adapter)
    except AdapterError as error:
        return error.message
    return ""


def check_whole(adapter: Adapter, base: Path | None = None) -> None:
    """`check_understood`, and finite numbers. Raises AdapterError with the first fault."""
    check_understood(adapter, base)
    check_numbers(adapter.name, adapter.weights)


def base_sha256(folder: Path) -> str:
    """`weights_sha256` of a base, remembered while its files stay as they are (7 GB take seconds)."""
    stamp = tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.glob("*.safetensors")))
    return _remembered(folder, stamp)


@lru_cache(maxsize=16)
def _remembered(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    return weights_sha256(folder)


def check_fits(adapter: Adapter, base: Path, precision: str | None, override: bool = False) -> str:
    """Return whether the adapter belongs to the weights in `base` at `precision`: "" when it does.

    Otherwise AdapterError, or with `override` the label that everything made with it must carry. A wrong shape cannot
    be overridden. precision: as transformers names it ("float32", "bfloat16"); None: not known, so not compared.
    """
    check_whole(adapter, base)
    origin = adapter.provenance
    if origin is None:
        named = adapter.config.get("base_model_name_or_path")
        code, fault = (
            "base-unknown",
            "does not say which base it was trained on"
            + (f" (only its name, “{named}”, and no hash of its weights)" if isinstance(named, str) and named else ""),
        )
    elif base_sha256(base) != origin.base_sha256:
        code, fault = "base-differs", f"was trained on another base ({origin.base}, weights {origin.base_sha256[:12]}…)"
    elif precision is not None and precision != origin.precision:
        code, fault = "precision-differs", f"was trained on its base in {origin.precision}, not {precision}"
    else:
        return ""
    if override:
        return OTHER_MODEL
    raise AdapterError(
        f"adapter {adapter.name} {fault}",
        f"on this one it would be {OTHER_MODEL}; to use it all the same, say so (--other-base)",
        code=code,
    )


def load_peft(loaded: Loaded, folder: Path, *, trainable: bool = False) -> Any:
    """Return the model with the adapter of `folder` in it, in float32; `loaded.model` itself answers with it from then
    on.

    Undo with `unload(...)` of the returned model. Raises AdapterError for a damaged or misfitting adapter, and when
    one is in the model already.
    """
    from peft import PeftModel

    adapter = open_adapter(folder)
    if adapter.format != "peft":
        raise AdapterError(f"{folder} is in MLX's format", "training and evaluation here take the PEFT folder")
    if any(hasattr(module, "lora_A") for module in loaded.model.modules()):
        raise AdapterError("an adapter is in this model already", "unload it first, or load the base again")
    check_whole(adapter, loaded.folder)
    try:
        model = PeftModel.from_pretrained(
            loaded.model,
            str(folder),
            is_trainable=trainable,
            autocast_adapter_dtype=True,
            # Adapters of transformers before 4.52; PEFT itself would leave their tensors out, with a warning.
            key_mapping={r"^model\.layers\.": "model.language_model.layers."},
        )
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise AdapterError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    _check_arrived(adapter, model)
    return model if trainable else model.eval()


def _check_arrived(adapter: Adapter, model: Any) -> None:
    """Every number and every scale is in the model: PEFT only warns of names that it does not recognise."""
    import torch

    inside = {}
    for name, value in model.named_parameters():
        part = _PARAMETER.search(name)
        if part is not None:
            inside[part[1], part[2]] = value.detach().float().cpu()
    scales = {
        name.rpartition("language_model.")[2]: module.scaling[model.active_adapter]
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and "language_model." in name
    }
    made = products(adapter)
    for module, product in made.items():
        for half, (kind, values) in (("A", product.a), ("B", product.b)):
            wanted = torch.from_numpy(as_float(kind, values).copy())
            have = inside.get((module, half))
            if have is None or not torch.equal(have, wanted):
                raise AdapterError(
                    f"{adapter.path}: lora_{half} of {module} did not arrive in the model",
                    "it belongs to another model",
                )
        if not np.isclose(scales[module], product.scale, rtol=1e-9, atol=0.0):
            raise AdapterError(
                f"{adapter.path}: PEFT scales {module} by {scales[module]:g}, its configuration by {product.scale:g}",
                "this PEFT reads the configuration otherwise; install the release that is named in pyproject.toml",
            )
    foreign = sorted(module for module, _ in inside if module not in made)
    if foreign:
        raise AdapterError(f"{adapter.path}: PEFT put matrices into {foreign[0]}, of which the file holds none")
