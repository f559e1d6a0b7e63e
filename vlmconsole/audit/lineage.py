"""Audit of where a round comes from: the chain of adapters behind a repair, and the pictures that it replays."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from vlmconsole.audit.images import Shelves, digest_of
from vlmconsole.audit.weights import AuditWeightsError, tensors, weights_hash
from vlmconsole.data.findings import Finding, finding
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


def audit_parents(run: RunFolder, places: Places) -> list[Finding]:
    """Return each training started from the very adapter that the one before it chose; [] for one that starts
    afresh.
    """
    name, chain = "parent adapters", [run.name]
    wrong: list[str] = []
    made = _chosen(places)
    while True:
        parent = _object(run, "adapter/provenance.json").get("parent_sha256")
        if not parent:
            break
        before = made.get(str(parent))
        if before is None:
            if len(chain) == 1 and not wrong:
                text = f"{run.name} started from {str(parent)[:12]}…, which no training of this lab chose"
                return [Finding(name, "not verifiable", text)]
            break
        if before.name in chain:
            wrong.append(f"{before.name} is its own forebear")
            break
        chain.append(before.name)
        wrong += _started(run, before)
        run = before
    if len(chain) == 1:
        return []
    return [finding(name, f"{' from '.join(chain)}, each from the adapter chosen before it, tensor by tensor", wrong)]


def _chosen(places: Places) -> dict[str, RunFolder]:
    """The training that chose an adapter, by the hash of the weights that lie there now."""
    runs: dict[str, RunFolder] = {}
    for path in sorted(places.runs.glob("*/adapter")):
        try:
            runs.setdefault(weights_hash(path), RunFolder(path.parent))
        except AuditWeightsError:
            continue  # its own audit says so
    return runs


def _started(run: RunFolder, parent: RunFolder) -> list[str]:
    """Whether the tensors that `run` started from are those of its parent's chosen adapter."""
    try:
        old, start = tensors(parent.file("adapter")), tensors(run.file("start"))
    except AuditWeightsError as error:
        return [str(error)]
    if set(old) != set(start):
        return [f"{run.name} started from other tensors than {parent.name} chose"]
    other = [key for key, (_, values) in start.items() if not np.array_equal(values, old[key][1])]
    return [f"{run.name} did not start from what {parent.name} chose: {len(other)} tensors differ"] if other else []


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    value = run.read_json(name)
    return value if isinstance(value, dict) else {}


def audit_replay(shelves: Shelves, name: str, digest: str | None = None) -> list[Finding]:
    """Return a dataset's replayed pictures, drawn again by its recipe's seed from the earlier training splits; [] for
    none.
    """
    manifest = shelves.manifests.get(shelves.called(name, digest), {})
    recipe = manifest.get("recipe")
    wrong: list[str] = []
    notes: list[str] = []
    for split in recipe.get("splits", []) if isinstance(recipe, dict) else []:
        replayed = Counter(
            (entry[3], entry[1])
            for entry in manifest["splits"].get(split["name"], {}).get("pictures", [])
            if entry[3] is not None
        )
        for part in split.get("parts", []):
            source = part.get("replay")
            if source:
                notes.append(f"{part['count']} of {source}")
                wrong += _drawn(shelves, manifest, split["name"], part, replayed)
                replayed = Counter({key: n for key, n in replayed.items() if key[0] != source})
        wrong += [f"{split['name']}: {n} images of {place}, which the recipe does not replay"
                  for place, n in Counter(key[0] for key in replayed.elements()).items()]  # fmt: skip
    if not notes and not wrong:
        return []
    missing = [text for text in wrong if text.endswith("is not in this lab")]
    if missing and len(missing) == len(wrong):
        return [Finding(f"{name}: replay", "not verifiable", "; ".join(missing))]
    return [finding(f"{name}: replay", f"{', '.join(notes)}: the same images when drawn again by the seed", wrong)]


def _drawn(
    shelves: Shelves, manifest: dict[str, Any], split: str, part: dict[str, Any], replayed: Counter[tuple[Any, Any]]
) -> list[str]:
    source = str(part["replay"])
    dataset, _, source_split = source.partition(":")
    called = shelves.called(dataset, manifest.get("sources", {}).get(dataset))
    rows = shelves.rows.get((called, source_split))
    earlier = shelves.manifests.get(called)
    if rows is None or earlier is None:
        return [f"{source} is not in this lab"]
    wrong = []
    if earlier["splits"][source_split]["role"] != "train":
        wrong.append(f"{source} is no training split")
    named = manifest.get("sources", {}).get(dataset)
    if named != digest_of(earlier):
        wrong.append(f"{dataset} is {digest_of(earlier)[:12]}… now, it replayed from {str(named)[:12]}…")
    if int(part["count"]) > len(rows):
        return [*wrong, f"{source} has {len(rows)} images, {part['count']} are replayed"]
    rng = random.Random(f"{manifest.get('seed')}:{split}:replay:{source}")
    drawn = Counter((source, rows[at].sha256) for at in rng.sample(range(len(rows)), int(part["count"])))
    available = Counter({key: n for key, n in replayed.items() if key[0] == source})
    if drawn != available:
        wrong.append(f"{split}: not the drawn images of {source} are replayed: {sum((available - drawn).values())}")
    return wrong
