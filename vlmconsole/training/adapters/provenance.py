"""Where an adapter comes from: which base, at which precision, from which data, by which run.

An adapter's numbers mean something only on the weights that they were trained on, so its folder says which those were.
Nothing here needs torch: screens and commands read it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.conditions import BARE_PROMPT
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.reading import UnreadableError, read_json

FILE = "provenance.json"
KINDS = ("sft", "grpo", "repair")


class ProvenanceError(LabError):
    """A provenance file that cannot be believed, or weights that are not there; says which and what to do."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Provenance:
    """One adapter's origin. Hashes are of weights (`weights_sha256`); `data` maps a data set to its manifest's digest.

    `precision` is the base's while training ("float32", "bfloat16"). `parent_sha256` is the adapter that this one
    continues (None: a fresh one). `resumable`: the run kept the optimizer's state beside these weights.
    `prompt_sha256` is of the prompt form that it was trained on; None in older ones, which had turns alone.
    """

    kind: str
    base: str
    base_sha256: str
    precision: str
    rank: int
    alpha: int
    data: dict[str, str]
    run: str
    parent_sha256: str | None = None
    step: int | None = None
    epoch: int | None = None
    seed: int | None = None
    resumable: bool = False
    prompt_sha256: str | None = None
    created: str = field(default_factory=_now)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the shape of `provenance.json`."""
        return asdict(self)


def other_prompt(origin: Provenance | None, prompt_sha256: str) -> str:
    """Return what is to be said where an adapter is asked in another prompt form than it was trained on; "" where it
    is not.

    A foreign adapter says nothing of it.
    """
    trained = None if origin is None else origin.prompt_sha256 or BARE_PROMPT
    if trained is None or trained == prompt_sha256:
        return ""
    return f"was trained on another prompt form ({trained[:12]}…) than it is asked in ({prompt_sha256[:12]}…)"


def weights_sha256(folder: Path) -> str:
    """SHA-256 (hex) of a model's or an adapter's weights: every `*.safetensors` of the folder, by name, then content.

    Raises ProvenanceError when there are none (weights in another format have no identity here).
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ProvenanceError(
            f"{folder} holds no *.safetensors file", "point at the folder that holds the weights themselves"
        )
    total = hashlib.sha256()
    for path in files:
        inner = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    inner.update(block)
        except OSError as error:
            raise ProvenanceError(f"{path} cannot be read: {error.strerror}") from None
        # The name belongs to it: shards that swapped their names are another model.
        total.update(f"{path.name}\0{inner.hexdigest()}\n".encode())
    return total.hexdigest()


def write_provenance(adapter: Path, origin: Provenance) -> Path:
    """Write `provenance.json` into the adapter's folder, atomically. Raises ValueError for an unknown kind."""
    if origin.kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}, not {origin.kind!r}")
    path = adapter / FILE
    write_atomic(path, to_json(origin.to_json()))
    return path


def read_provenance(adapter: Path) -> Provenance | None:
    """Return the adapter's origin; None for a foreign adapter, which says nothing. Raises ProvenanceError for a bad
    file.
    """
    path = adapter / FILE
    try:
        value = read_json(path)
    except UnreadableError as error:
        if error.missing:
            return None
        raise ProvenanceError(error.message, "restore it, or remove it: the adapter is then foreign") from None
    fault = _fault(value)
    if fault:
        raise ProvenanceError(
            f"{path}: {fault}", "restore it, or remove it: the adapter is then foreign", code="provenance-damaged"
        )
    names = {f.name for f in fields(Provenance)}
    return Provenance(**{key: item for key, item in value.items() if key in names})


_TEXT = ("kind", "base", "base_sha256", "precision", "run")
_WHOLE = ("rank", "alpha")


def _fault(value: Any) -> str:
    """What is wrong with a provenance file's content, "" for nothing. Unknown keys are a later version's, and fine."""
    if not isinstance(value, dict):
        return "is not a JSON object"
    for key in _TEXT:
        if not isinstance(value.get(key), str):
            return f"{key} is missing or not a text"
    for key in _WHOLE:
        if not isinstance(value.get(key), int) or isinstance(value.get(key), bool):
            return f"{key} is missing or not a whole number"
    data = value.get("data")
    if not isinstance(data, dict) or not all(isinstance(item, str) for item in data.values()):
        return "data is missing or does not map names to digests"
    for key in ("step", "epoch", "seed"):
        if value.get(key) is not None and not isinstance(value[key], int):
            return f"{key} is not a whole number"
    for key in ("parent_sha256", "prompt_sha256"):
        if value.get(key) is not None and not isinstance(value[key], str):
            return f"{key} is not a text"
    return "" if isinstance(value.get("created", ""), str) else "created is not a text"
