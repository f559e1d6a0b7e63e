"""Freezing: a rule or plan is written canonically, with its hash in the ledger, before the first sample."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.ledger.chain import Chain, Ledger, sha256_file
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.system.reading import read_json

# Files that hold what was measured: once one of them has content it is too late to freeze a rule.
SAMPLES = ("requests.jsonl", "samples.jsonl", "before.jsonl", "after.jsonl")


class FrozenError(LabError):
    """Something frozen is not what it was, or comes too late; the message is for people."""


@dataclass(frozen=True)
class Frozen:
    """A frozen file: its content, SHA-256 (hex) and when it was frozen (wall seconds)."""

    path: Path
    sha256: str
    t: float
    value: Any


def digest(value: Any) -> str:
    """Return the hash under which `value` would be frozen."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def freeze(run: RunFolder, name: str, value: Any, ledger: Ledger) -> Frozen:
    """Write `value` as `name` into the run and chain its hash. Freezing the same value again changes nothing.

    Raises FrozenError when another value is already frozen there, or when the run already holds samples.
    """
    data = canonical_json(value)
    sha = hashlib.sha256(data).hexdigest()
    path = run.file(name)
    earlier = find_frozen(ledger.read(), run.name, name)
    if earlier is not None:
        if earlier["sha256"] != sha:
            raise FrozenError(
                f"{name} of {run.name} is frozen as {earlier['sha256'][:12]}… and never edited: start a new run",
                code="plan-frozen",
            )
        return read_frozen(run, name, ledger)
    late = [sample for sample in SAMPLES if run.file(sample).exists() and run.file(sample).stat().st_size]
    if late:
        raise FrozenError(
            f"{run.name} already holds samples ({late[0]}): {name} must be frozen before the first",
            code="freezing-late",
        )
    write_atomic(path, data)
    entry = ledger.append("frozen", run=run.name, file=name, sha256=sha)
    return Frozen(path, sha, entry["t"], value)


def read_frozen(run: RunFolder, name: str, ledger: Ledger) -> Frozen:
    """Return the frozen value, checked against the ledger. Raises FrozenError when it is missing, changed or
    unknown.
    """
    chain = ledger.read()
    if chain.broken:
        raise FrozenError(f"the ledger is broken, so nothing frozen can be trusted: {chain.broken}")
    entry = find_frozen(chain, run.name, name)
    if entry is None:
        raise FrozenError(f"{name} of {run.name} was never frozen", code="freeze-missing")
    path = run.file(name)
    if not path.exists():
        raise FrozenError(f"{path} was frozen and is now missing", code="freeze-missing")
    actual = sha256_file(path)
    if actual != entry["sha256"]:
        raise FrozenError(
            f"{path} was changed after freezing (frozen {entry['sha256'][:12]}…, now {actual[:12]}…)",
            code="freeze-changed",
        )
    return Frozen(path, actual, entry["t"], read_json(path))


def find_frozen(chain: Chain, run: str, name: str) -> dict[str, Any] | None:
    """Return the first freezing of `name` in `run`: later ones can never replace it."""
    for entry in chain.entries:
        if entry.get("kind") == "frozen" and entry.get("run") == run and entry.get("file") == name:
            return entry
    return None


def frozen_when(chain: Chain, sha256: str) -> float | None:
    """When the value of that hash was first frozen, for a run or for the lab; None when it never was."""
    times = [e["t"] for e in chain.entries if e.get("kind") == "frozen" and e.get("sha256") == sha256]
    return min(times, default=None)
