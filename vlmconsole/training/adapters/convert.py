"""An adapter in another form: for MLX's servers, or merged into a copy of its base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmconsole.models.weights import NUMPY, as_float, read_header, to_bytes, write_header
from vlmconsole.runs.folder import to_json
from vlmconsole.system.atomic_folder import making
from vlmconsole.system.reading import read_json
from vlmconsole.training.adapters import provenance
from vlmconsole.training.adapters.config import LANGUAGE
from vlmconsole.training.adapters.provenance import write_provenance
from vlmconsole.training.adapters.store import (
    CONFIG,
    FILES,
    Adapter,
    AdapterError,
    check_whole,
    products,
)
from vlmconsole.training.adapters.tensors import PREFIX, Product, module_of

ORIGIN = "converted.json"
"""Beside a converted adapter or a merged model: what it was made from."""
MERGED = "merged.json"


def convert_to_mlx(adapter: Adapter, out: Path, base: Path | None = None) -> Path:
    """Write the MLX form of a PEFT adapter as the new folder `out`; a plain LoRA's numbers are copied bit by bit.

    MLX multiplies from the other side, so both matrices are transposed; its `scale` is alpha / rank. Layers with a
    rank or scale of their own are brought to one (`uniform`). With `base` the sizes are checked first. `out` appears
    whole or not at all. Raises AdapterError, also when it exists already.
    """
    if adapter.format == "mlx":
        raise AdapterError(f"{adapter.name} is in MLX's format already")
    check_whole(adapter, base)
    rank, scale, changes = uniform(products(adapter))
    keys, tensors = [], {}
    for module, product in changes.items():
        key = f"language_model.model.{module}"
        keys.append(key)
        for name, (kind, values) in (("lora_a", product.a), ("lora_b", product.b)):
            tensors[f"{key}.{name}"] = (kind, np.ascontiguousarray(values.T))
    config = {
        "fine_tune_type": "lora",
        "num_layers": -1,
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys},
    }

    def fill(folder: Path) -> None:
        (folder / FILES["mlx"]).write_bytes(to_bytes(tensors, {"format": "mlx"}))
        (folder / CONFIG).write_text(to_json(config), "utf-8")
        (folder / ORIGIN).write_text(to_json({"from": adapter.name, "sha256": adapter.sha256}), "utf-8")
        if adapter.provenance is not None:
            write_provenance(folder, adapter.provenance)

    return _whole_folder(out, fill)


def uniform(changes: Mapping[str, Product]) -> tuple[int, float, dict[str, Product]]:
    """Return the same changes with one rank and one scale, which is all that servers know: (rank, scale, changes).

    Where they have that already, the numbers stay bit by bit. Else smaller ranks are filled up with zeros, and the
    quotient of the scales goes into B, in float32 (an error of half a unit in the last place).
    """
    ranks, scales = ({product.a[1].shape[0] for product in changes.values()}, [p.scale for p in changes.values()])
    rank, scale = max(ranks), max(set(scales), key=lambda each: (scales.count(each), each))
    if len(ranks) == 1 and len(set(scales)) == 1:
        return rank, scale, dict(changes)
    return rank, scale, {module: _brought_to(product, rank, scale) for module, product in changes.items()}


def _brought_to(product: Product, rank: int, scale: float) -> Product:
    a, b = as_float(*product.a), as_float(*product.b) * np.float32(product.scale / scale)
    empty = rank - a.shape[0]
    return Product(scale, ("F32", np.pad(a, ((0, empty), (0, 0)))), ("F32", np.pad(b, ((0, 0), (0, empty)))))


def merge(base: Path, adapter: Adapter, out: Path, label: str = "") -> Path:
    """Write a copy of `base` with the adapter's change added to its weights, as the new folder `out`.

    The sum is made in float32 and rounded once to the base's own type, tensor by tensor. Whether the adapter belongs to
    the base is `adapters.check_fits`'s to say; `label` is what it said. Raises AdapterError, also for shapes.
    """
    if adapter.format == "mlx":
        raise AdapterError(f"{adapter.name} is in MLX's format", "merge the PEFT adapter that it was made from")
    check_whole(adapter, base)
    wanted = products(adapter)
    met: set[str] = set()

    def changed(name: str, kind: str, values: NDArray[Any]) -> NDArray[Any]:
        module = module_of(name).removeprefix(LANGUAGE)
        product = wanted.get(module) if name.endswith(".weight") else None
        if product is None:
            return values
        if kind not in ("F32", "F16", "BF16"):
            raise AdapterError(
                f"{base} holds {module} as {kind}", "merge into the base before it was quantised", code="base-quantised"
            )
        met.add(module)
        with np.errstate(over="ignore", invalid="ignore"):
            made = _rounded(as_float(kind, values) + product.change(), kind)
        if not np.isfinite(as_float(kind, made)).all():
            raise AdapterError(
                f"{adapter.name}: {module} would become infinite or NaN in {kind}",
                "do not use it",
                code="number-infinite",
            )
        return made

    def fill(folder: Path) -> None:
        for path in sorted(base.iterdir()):
            if path.suffix == ".safetensors":
                _rewrite(path, folder / path.name, changed)
            elif path.is_file():
                shutil.copyfile(path, folder / path.name)
        if met != set(wanted):
            raise AdapterError(
                f"{base} has no plain numbers of {sorted(set(wanted) - met)[0]}, which {adapter.name} adapts",
                "merge into the base before it was quantised",
            )
        card = {
            "base": str(base),
            "base_sha256": provenance.weights_sha256(base),
            "adapter": adapter.name,
            "adapter_sha256": adapter.sha256,
            "label": label or None,
        }
        (folder / MERGED).write_text(to_json(card), "utf-8")

    return _whole_folder(out, fill)


def served_by_mlx(adapter: Adapter, cache: Path, base: Path | None = None) -> Path:
    """Return the folder that mlx-vlm can load: its MLX form, or a copy of one that is in it, made once and kept in
    `cache`.

    The kept form is named by `Adapter.identity`, so a changed adapter is converted again, also where only its
    configuration changed; a server goes by the folder's name and would answer with what it has loaded. Raises
    AdapterError.
    """
    out = cache / "adapters" / f"{adapter.identity[:32]}-mlx"
    try:
        made = read_json(out / ORIGIN)
    except (OSError, ValueError):
        made = {}
    if made.get("sha256") == adapter.sha256 and (out / FILES["mlx"]).is_file():
        return out
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return convert_to_mlx(adapter, out, base) if adapter.format == "peft" else _copied(adapter, out, base)


def _copied(adapter: Adapter, out: Path, base: Path | None) -> Path:
    check_whole(adapter, base)

    def fill(folder: Path) -> None:
        for name in (FILES["mlx"], CONFIG):
            shutil.copyfile(adapter.path / name, folder / name)
        (folder / ORIGIN).write_text(to_json({"from": adapter.name, "sha256": adapter.sha256}), "utf-8")
        if adapter.provenance is not None:
            write_provenance(folder, adapter.provenance)

    return _whole_folder(out, fill)


def served_by_sglang(adapter: Adapter, cache: Path, base: Path | None = None) -> Path:
    """Return the folder that SGLang can load: the adapter's own, or a copy as a plain LoRA that names its layers in a
    list.

    Ours are chosen by a pattern, since a list would reach the vision tower too; SGLang takes no pattern, and reads
    the layers off the weights. It knows one rank and one scale, too. Kept in `cache` by `Adapter.identity`. Raises
    AdapterError.
    """
    check_whole(adapter, base)
    settings = adapter.settings
    # Tensors under an older name, or with PEFT's word for "the one adapter" in it, are written anew.
    named = all(layer.a == f"{PREFIX}{layer.module}.lora_A.weight" for layer in adapter.layers)
    if settings.plain and named and not isinstance(settings.targets, str):
        return adapter.path
    out = cache / "adapters" / f"{adapter.identity[:32]}-sglang"
    if (out / CONFIG).is_file() and (out / FILES["peft"]).is_file():
        return out
    rank, scale, changes = uniform(products(adapter))
    config = read_json(adapter.path / CONFIG) | {
        "target_modules": sorted({module.rpartition(".")[2] for module in changes}),
        "r": rank,
        "lora_alpha": settings.alpha if settings.plain else scale * rank,
        **dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern", "eva_config")),
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
    }
    halves = ((module, half, pair) for module, p in changes.items() for half, pair in (("A", p.a), ("B", p.b)))
    tensors = {f"{PREFIX}{module}.lora_{half}.weight": pair for module, half, pair in halves}

    def fill(folder: Path) -> None:
        if settings.plain and named:
            shutil.copyfile(adapter.weights, folder / FILES["peft"])
        else:
            (folder / FILES["peft"]).write_bytes(to_bytes(tensors, {"format": "pt"}))
        (folder / CONFIG).write_text(to_json(config), "utf-8")
        (folder / ORIGIN).write_text(to_json({"from": adapter.name, "sha256": adapter.sha256}), "utf-8")

    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _whole_folder(out, fill)


def _whole_folder(out: Path, fill: Callable[[Path], None]) -> Path:
    """Make `out` by filling a folder beside it and renaming that, so nobody sees half of it."""
    if out.exists():
        raise AdapterError(f"{out} exists already", "name another folder, or remove it", code="folder-exists")
    try:
        with making(out) as partial:
            fill(partial)
            partial.rename(out)
    except OSError as error:
        if (out / CONFIG).exists():  # somebody else made the same in the meantime
            return out
        raise AdapterError(f"{out} cannot be written: {error.strerror or error}") from None
    return out


def _rewrite(source: Path, target: Path, change: Callable[[str, str, NDArray[Any]], NDArray[Any]]) -> None:
    """Copy a safetensors file tensor by tensor, so that a shard of gigabytes never lies in memory as a whole."""
    header = read_header(source)
    with source.open("rb") as read, target.open("wb") as write:
        names = sorted(header, key=lambda name: header[name].start)
        write.write(write_header({name: header[name] for name in names}, {"format": "pt"}))
        for name in names:
            tensor = header[name]
            read.seek(tensor.start)
            data = read.read(tensor.end - tensor.start)
            if tensor.kind in NUMPY:
                values = np.frombuffer(data, NUMPY[tensor.kind]).reshape(tensor.shape)
                data = np.ascontiguousarray(change(name, tensor.kind, values)).tobytes()
            write.write(data)
        write.flush()
        os.fsync(write.fileno())


def _rounded(values: NDArray[np.float32], kind: str) -> NDArray[Any]:
    """float32 numbers in a file's own type; to bfloat16 by round-half-to-even, as torch does."""
    if kind != "BF16":
        return values.astype(NUMPY[kind])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
