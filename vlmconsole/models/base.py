"""What a model folder is: family, precision, quantisation, adapter; and why it cannot be loaded here.

Read from its JSON files and the headers of its weights, without torch and without a byte of the weights themselves.
Training, in-process evaluation, merging, chat, bench and conditions all ask here; what is not known is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.errors import LabError
from vlmconsole.models import qwen2_5_vl
from vlmconsole.models.quantization import Quantization, quantization_of
from vlmconsole.system.reading import UnreadableError, read_json

if TYPE_CHECKING:
    from vlmconsole.models.weights import Tensor

FAMILY = "qwen2_5_vl"
"""The one architecture that training and in-process evaluation know."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PRECISIONS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "*.gguf", "*.npz")


class BaseReadError(LabError):
    """A model folder that cannot be read, or is nothing that can be loaded here; says why and what to do."""


@dataclass(frozen=True)
class Base:
    """A model folder as its own files describe it. `family` is `model_type`."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def family(self) -> str | None:
        value = self.config.get("model_type")
        return value if isinstance(value, str) and value else None

    @cached_property
    def quantization(self) -> Quantization | None:
        return quantization_of(self.config)

    @property
    def adapter(self) -> bool:
        """Whether an adapter lies in the folder: transformers would load it along, unasked."""
        return (self.folder / "adapter_config.json").exists()

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the weights that transformers would load, by the names in the files. Raises BaseReadError."""
        from vlmconsole.models.weights import WeightsError, read_header

        tensors: dict[str, Tensor] = {}
        for file, wanted in _files(self.folder).items():
            try:
                header = read_header(self.folder / file)
            except WeightsError as error:
                raise BaseReadError(error.message, "Take the model from its source again.", code=error.code) from None
            absent = sorted(wanted - header.keys())
            if absent:
                raise BaseReadError(
                    f"{self.folder / file} lacks {absent[0]}, which {INDEX} says is there{_more(absent)}.",
                    "Take the model from its source again.",
                )
            tensors |= {name: header[name] for name in (wanted or header)}
        return tensors

    @property
    def precision(self) -> str | None:
        """The type that most numbers have, or the quantisation in words; None where the weights cannot be read."""
        if self.quantization is not None:
            return self.quantization.label
        sizes: dict[str, int] = {}
        try:
            for tensor in self.tensors.values():
                sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.end - tensor.start
        except BaseReadError:
            return None
        most = max(sizes, key=lambda kind: sizes[kind], default="")
        return PRECISIONS.get(most)


def read_base(folder: Path) -> Base:
    """Return the base in a folder. Raises BaseReadError when its `config.json` is missing or no JSON object."""
    path = folder / "config.json"
    try:
        config = read_json(path)
    except UnreadableError as error:
        missing = f"no model at “{folder}”: config.json is missing."
        raise BaseReadError(missing if error.missing else f"{error.phrase}.", _SOURCE) from None
    if not isinstance(config, dict):
        raise BaseReadError(f"{path} is not a JSON object.", _SOURCE)
    return Base(folder, config)


def check_loadable(base: Base) -> None:
    """Raise BaseReadError unless the folder is a whole Qwen2.5-VL in plain numbers, each weight where it belongs.

    What transformers does with another one is load it with weights drawn at random, and say so in a log.
    """
    for reason in (_family(base), _numbers(base)):
        if reason:
            raise BaseReadError(f"{base.folder}: {reason}", _WHAT)
    if base.adapter:
        raise BaseReadError(
            f"{base.folder} holds an adapter too (adapter_config.json), which would be loaded along unasked.",
            "Move adapter and base into folders of their own.",
        )
    try:
        wanted = qwen2_5_vl.weights(base.config)
    except ValueError as error:
        raise BaseReadError(f"{base.folder / 'config.json'}: {error}.", _SOURCE) from None
    _compare(base, wanted)


_SOURCE = "Give the folder that holds the whole model, as it was published."
_WHAT = "Training, in-process evaluation and merging take unquantised Qwen2.5-VL models."


def _family(base: Base) -> str:
    kinds: list[tuple[Mapping[str, Any], str, Sequence[str | None]]] = [(base.config, "model_type", (FAMILY,))]
    text, eyes = qwen2_5_vl.text_config(base.config), qwen2_5_vl.vision_config(base.config)
    if text is not base.config:
        kinds.append((text, "text_config.model_type", (*qwen2_5_vl.TEXT_TYPES, None)))
    kinds.append((eyes, "vision_config.model_type", (*qwen2_5_vl.VISION_TYPES, None)))
    for values, where, known in kinds:
        kind = values.get("model_type")
        if kind not in known:
            what = f"its {where} is {json.dumps(kind)}" if kind is not None else f"it has no {where}"
            return f"{what}, and only {FAMILY} can be loaded here."
    return ""


def _numbers(base: Base) -> str:
    if base.quantization is not None:
        return f"its weights are {base.quantization.label}, and there is no way here to train or merge such a model."
    odd = sorted({tensor.kind for tensor in base.tensors.values()} - PRECISIONS.keys())
    if odd:
        names = [name for name, tensor in base.tensors.items() if tensor.kind in odd]
        return f"{names[0]}{_more(names)} is of type {odd[0]}: packed or quantised, though its config does not say so."
    return ""


def _compare(base: Base, wanted: Mapping[str, tuple[int, ...]]) -> None:
    have = {qwen2_5_vl.canonical(name): tensor.shape for name, tensor in base.tensors.items()}
    missing = sorted(wanted.keys() - have.keys())
    strange = sorted(name for name in have.keys() - wanted.keys() if not qwen2_5_vl.HARMLESS.search(name))
    other = sorted(name for name in wanted.keys() & have.keys() if tuple(have[name]) != wanted[name])
    faults = []
    if missing:
        faults.append(f"{len(missing)} weights are missing ({missing[0]}{_more(missing)})")
    if strange:
        faults.append(f"{len(strange)} belong to another model ({strange[0]}{_more(strange)})")
    if other:
        first = other[0]
        faults.append(
            f"{len(other)} have another shape than the config says"
            f" ({first}: {_shape(have[first])}, not {_shape(wanted[first])})"
        )
    if faults:
        raise BaseReadError(
            f"{base.folder} is no whole {FAMILY}: {'; '.join(faults)}. What is missing would be drawn at random.",
            _SOURCE,
        )


def _files(folder: Path) -> dict[str, set[str]]:
    """The weight files that transformers would load, each with the tensors it is to give (none named: all)."""
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    try:
        index = read_json(folder / INDEX)
    except UnreadableError as error:
        if not error.missing:
            raise BaseReadError(f"{error.phrase}.", "Take the model from its source again.") from None
        others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
        instead = f"; {others[0]} is of a kind that is not read here" if others else ""
        raise BaseReadError(f"{folder} holds no {SINGLE} and no {INDEX}{instead}.", _SOURCE) from None
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(file, str) for file in names.values()):
        raise BaseReadError(f"{folder / INDEX} has no weight_map of names and files.", _SOURCE)
    files: dict[str, set[str]] = {}
    for name, file in names.items():
        if Path(file).name != file:
            raise BaseReadError(f"{folder / INDEX} names {file}, which is outside the folder.", _SOURCE)
        files.setdefault(file, set()).add(name)
    absent = sorted(file for file in files if not (folder / file).is_file())
    if absent:
        raise BaseReadError(
            f"{folder / INDEX} names {absent[0]}{_more(absent)}, which is not there.",
            "The download is not whole: take the model from its source again.",
        )
    return files


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
