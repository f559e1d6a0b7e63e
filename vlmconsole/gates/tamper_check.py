"""What lies in a lab home outside its sealed runs and is not as the ledger, or a frozen plan, has it.

Plans frozen for the lab, the data that a plan names, and the audits that were kept: a sentence for each change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.generations import generation
from vlmconsole.errors import LabError
from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.frozen import changed_plans, place_of
from vlmconsole.ledger.chain import Chain, sha256_file
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import read_json

AUDITS = "audits"  # folder of the lab home: one audit a run, as the run itself may be sealed


def altered(places: Places, chain: Chain) -> dict[str, list[str]]:
    """Sentences by kind: `plans`, `data`, `audits`. Data that are gone are left to the audit, which needs them."""
    return {
        "plans": changed_plans(places.home, chain),
        "data": list(_data(places, chain)),
        "audits": list(_audits(places, chain)),
    }


def _data(places: Places, chain: Chain) -> Iterator[str]:
    """Each dataset is still the one that the frozen plans name, and its test splits are those of its manifest."""
    named: dict[str, dict[str, str]] = {}  # dataset → digest → the plan's name
    splits: dict[str, set[str]] = {}
    for entry in chain.entries:
        if entry.get("kind") != "frozen" or (entry.get("run") != PLANS and entry.get("file") != PLAN):
            continue
        plan = _bound(place_of(entry, places.home), str(entry["sha256"]))
        for name, digest in plan.get("data", {}).get("digests", {}).items():
            named.setdefault(name, {})[digest] = str(plan.get("name"))
            splits.setdefault(name, set()).update(str(group.get("split")) for group in plan.get("groups", []))
    for name, wanted in sorted(named.items()):
        for digest, plan_name in wanted.items():
            yield from _dataset(generation(places.datasets, name, digest), name, digest, plan_name, splits[name])


def _dataset(folder: Path, name: str, digest: str, plan_name: str, splits: set[str]) -> Iterator[str]:
    if not folder.is_dir():
        return
    try:
        manifest = read_manifest(folder)
    except LabError as error:
        yield f"the dataset {name} cannot be read: {error.message}"
        return
    now = manifest_digest(manifest)
    if digest != now:
        yield f"the dataset {name} is {now[:12]}… now, the frozen {plan_name} names {digest[:12]}…"
    for split in sorted(splits & set(manifest["splits"])):
        path = folder / f"{split}.parquet"
        if not path.is_file():
            yield f"{name}/{path.name} is gone"
        elif sha256_file(path) != manifest["files"][path.name]["sha256"]:
            yield f"{name}/{path.name} was changed after it was made"


def _bound(path: Path, sha: str) -> dict[str, Any]:
    """The plan in a file that still is what was frozen; nothing for another, which is named elsewhere."""
    try:
        value = read_json(path) if path.is_file() and sha256_file(path) == sha else {}
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("data"), dict) else {}


def _audits(places: Places, chain: Chain) -> Iterator[str]:
    kept = {path.stem for path in (places.home / AUDITS).glob("*.json")}
    recorded = {str(e["run"]) for e in chain.entries if e.get("kind") == "audit"}
    for run in sorted(kept | recorded):
        if wrong := altered_audit(places, chain, run):
            yield wrong


def altered_audit(places: Places, chain: Chain, run: str) -> str:
    """Return why a run's kept audit is not the one that was made; "" for one as it was, and where there is none."""
    path, entry = places.home / AUDITS / f"{run}.json", chain.last("audit", run)
    if entry is None:
        return f"the audit of {run} stands in no line of the ledger" if path.is_file() else ""
    if not path.is_file():
        return f"the audit of {run} is gone: the ledger holds that it was {entry.get('verdict')}"
    sha = sha256_file(path)
    if sha != entry.get("sha256"):
        made = f"made {str(entry.get('sha256'))[:12]}…, now {sha[:12]}…"
        return f"the audit of {run} was changed after it was made ({made}): it was {entry.get('verdict')}"
    return ""
