"""Binding a plan to the pictures it will judge, and freezing plans for the lab before any run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.rows import read_rows
from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.plan import Bound, Plan, PlanError
from vlmconsole.gates.samples import prompt_hash, truth_hash
from vlmconsole.gates.verdict import Verdict
from vlmconsole.ledger.chain import Ledger, sha256_file
from vlmconsole.ledger.freezing import Frozen, freeze
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.scorers import read_truth


def bind(
    plan: Plan, datasets: list[Path], *, before_adapter: str | None = None, base_sha256: str | None = None
) -> Plan:
    """The plan with every picture, question and truth of its groups by hash, from made dataset folders.

    `before_adapter` and `base_sha256` (hex, of the base's weights) are what the comparison starts from, where known.

    The first folder must be of one of the plan's recipes; groups that it does not hold are looked for in the others.
    Raises PlanError for a group without pictures, of another number, or of a split that is no test.
    """
    manifests = {folder: read_manifest(folder) for folder in datasets}
    names = [manifest["name"] for manifest in manifests.values()]
    if not names or names[0] not in plan.data.recipes:
        given = names[0] if names else "no dataset"
        raise PlanError(
            f"{plan.name} judges pictures of {' or '.join(plan.data.recipes)}, not of {given}.",
            f"Make them (vlmconsole data make {plan.data.recipes[-1]}) and name that folder first.",
            code="dataset-differs",
        )
    pictures: dict[str, tuple[Bound, ...]] = {}
    for group in plan.groups:
        folder = next((f for f, manifest in manifests.items() if group.split in manifest["splits"]), None)
        if folder is None:
            raise PlanError(
                f"No dataset given holds the split {group.split} of the group {group.name}.", code="split-missing"
            )
        described = manifests[folder]["splits"][group.split]
        if described["role"] != "test":
            raise PlanError(
                f"{folder.name}:{group.split} is a {described['role']} split: gates judge on tests only.",
                code="split-untested",
            )
        path = folder / f"{group.split}.parquet"
        if sha256_file(path) != manifests[folder]["files"][path.name]["sha256"]:
            raise PlanError(
                f"{path} was changed after it was made.",
                "vlmconsole data check shows what is wrong.",
                code="dataset-changed",
            )
        rows = tuple(
            Bound(
                id=row.uid,
                picture_sha256=row.sha256,
                pixel_sha256=row.pixel_sha256,
                prompt_sha=prompt_hash(row.question),
                truth_sha=truth_hash(read_truth(group.scorer, row.truth)),
            )
            for row in read_rows(path)
        )
        if len(rows) != group.n:
            raise PlanError(
                f"{folder.name}:{group.split} has {len(rows)} pictures, the plan wants {group.n}.", code="size-differs"
            )
        pictures[group.name] = rows
    digests = {manifest["name"]: manifest_digest(manifest) for manifest in manifests.values()}
    data = plan.data.model_copy(update={"digests": digests, "pictures": pictures})
    template = plan.template().sha256
    before = {"before_adapter": before_adapter or plan.before_adapter, "base_sha256": base_sha256 or plan.base_sha256}
    return plan.model_copy(update={"data": data, "template_sha256": template, **before})


def freeze_for_lab(plan: Plan, home: Path, ledger: Ledger) -> Frozen:
    """Freeze a plan in the lab's own folder of plans, before there is any run. The same plan again changes nothing."""
    folder = home / PLANS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return freeze(RunFolder(folder), f"{plan.name}-{plan.sha256[:12]}.json", plan.value(), ledger)


def freeze_for_run(plan: Plan, run: RunFolder, home: Path, ledger: Ledger) -> Frozen:
    """Freeze a plan as the run's own, before its first sample; its unbound limits are frozen for the lab as well."""
    if plan.template_sha256:
        freeze_for_lab(plan.template(), home, ledger)
    return freeze(run, PLAN, plan.value(), ledger)


def record(verdict: Verdict, run: RunFolder, ledger: Ledger) -> bool:
    """Chain a verdict into the ledger, once for the same plan, evidence and outcome. Says whether it was added.

    Earlier verdicts stay: the ledger holds each that was ever given.
    """
    if verdict.frozen is None:
        return False
    digest = hashlib.sha256()
    for name in ("before.jsonl", "after.jsonl", "conditions.json"):
        digest.update(sha256_file(run.file(name)).encode() if run.file(name).exists() else b"missing")
    fields = {"plan": verdict.frozen.sha256, "verdict": verdict.verdict, "evidence": digest.hexdigest()}
    fields["gates"] = " ".join(f"{n} {word}" for word, n in verdict.counts.items())
    last = ledger.read().last("verdict", run.name)
    if last is not None and all(last.get(key) == value for key, value in fields.items()):
        return False
    ledger.append("verdict", run=run.name, **fields)
    return True
