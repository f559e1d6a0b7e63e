"""The safetensors format, read and written with numpy alone, so that adapters can be checked without torch.

bfloat16 has no numpy type: such tensors come as uint16 with the name "BF16", and are copied bit by bit.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmconsole.errors import LabError

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1"}
LARGEST_HEADER = 100_000_000


class WeightsError(LabError):
    """A weights file that is damaged or not one; the message says which file and what is wrong."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its type as the file names it ("F32", "BF16", …), shape, and where its bytes lie."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file without their content. Raises WeightsError for anything that is not
    whole.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
            if not 2 <= length <= min(LARGEST_HEADER, size - 8):
                raise WeightsError(f"{path} is not a whole safetensors file: its header is cut off or missing")
            header = json.loads(file.read(length))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise WeightsError(f"{path} is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is not a safetensors file: its header is not a JSON object")
    base, tensors = 8 + length, {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensors[name] = _tensor(path, name, entry, base, size)
    return tensors


def _tensor(path: Path, name: str, entry: Any, base: int, size: int) -> Tensor:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, start, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise WeightsError(f"{path}: the header's entry for {name} is malformed")
    if base + end > size or start > end:
        raise WeightsError(f"{path} is cut off: {name} should end at byte {base + end}, the file has {size}")
    wanted = math.prod(shape) * np.dtype(NUMPY[kind]).itemsize if kind in NUMPY else end - start
    if wanted != end - start:
        raise WeightsError(f"{path}: {name} has {end - start} bytes where its shape needs {wanted}")
    return Tensor(kind, shape, base + start, base + end)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, tuple[str, NDArray[Any]]]:
    """{name: (type as the file names it, array)} of the given tensors, all by default. Raises WeightsError."""
    header, arrays = read_header(path), {}
    with path.open("rb") as file:
        for name in header if names is None else names:
            tensor = header[name]
            if tensor.kind not in NUMPY:
                raise WeightsError(f"{path}: {name} is of type {tensor.kind}, which adapters do not use")
            file.seek(tensor.start)
            data = file.read(tensor.end - tensor.start)
            arrays[name] = (tensor.kind, np.frombuffer(data, NUMPY[tensor.kind]).reshape(tensor.shape))
    return arrays


def as_float(kind: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the numbers themselves as float32; bfloat16 is widened exactly."""
    if kind == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def to_bytes(tensors: Mapping[str, tuple[str, NDArray[Any]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file of (type, array) pairs, in the order of their names. Raises ValueError for a wrong
    type.
    """
    names, entries = sorted(tensors), {}
    for name in names:
        kind, values = tensors[name]
        if values.dtype != np.dtype(NUMPY[kind]):
            raise ValueError(f"{name}: {values.dtype} is not {kind}")
        entries[name] = Tensor(kind, values.shape, 0, values.nbytes)
    body = [np.ascontiguousarray(tensors[name][1]).tobytes() for name in names]
    return write_header(entries, metadata) + b"".join(body)


def write_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the header of a file whose tensors' bytes follow one another in the given order (only their sizes
    count).
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.end - tensor.start
        header[name] = {"dtype": tensor.kind, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the file: the numbers begin at a multiple of eight
    return struct.pack("<Q", len(text)) + text
