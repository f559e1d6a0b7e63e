"""Binding a plan to the pictures it will judge, and freezing plans for the lab before any run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.example import read_questions
from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.plan import Bound, Plan, PlanError, scored_options
from vlmconsole.gates.samples import asked_hash, images_hash, options_hash, truth_hash
from vlmconsole.gates.verdict import Verdict
from vlmconsole.ledger.chain import Ledger, sha256_file
from vlmconsole.ledger.freezing import Frozen, freeze
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.scorers import read_truth


def bind(
    plan: Plan, datasets: list[Path], *, before_adapter: str | None = None, base_sha256: str | None = None
) -> Plan:
    """Return the plan with every picture, question and truth of its groups by hash, from made dataset folders.

    `before_adapter` and `base_sha256` (hex, of the base's weights) are what the comparison starts from, where known.

    The first folder must be of one of the plan's recipes; groups that it does not hold are looked for in the others.
    Raises PlanError for a group without pictures, of another number, or of a split that is no test.
    """
    manifests = {folder: read_manifest(folder) for folder in datasets}
    names = [manifest["name"] for manifest in manifests.values()]
    if not names or names[0] not in plan.data.recipes:
        given = names[0] if names else "no dataset"
        raise PlanError(
            f"{plan.name} judges images of {' or '.join(plan.data.recipes)}, not of {given}.",
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
                id=example.id,
                picture_sha256=images_hash(example.image_sha256s),
                pixel_sha256=images_hash(example.pixel_sha256s),
                prompt_sha=asked_hash(example),
                truth_sha=truth_hash(read_truth(group.scorer, example.truth)),
                options_sha=options_hash(scored_options(group, example.scorer, example.options)),
            )
            for example in read_questions(path)
        )
        if len(rows) != group.n:
            raise PlanError(
                f"{folder.name}:{group.split} has {len(rows)} images, the plan needs {group.n}.", code="size-differs"
            )
        pictures[group.name] = rows
    digests = {manifest["name"]: manifest_digest(manifest) for manifest in manifests.values()}
    data = plan.data.model_copy(update={"digests": digests, "pictures": pictures})
    template = plan.template().sha256
    before = {"before_adapter": before_adapter or plan.before_adapter, "base_sha256": base_sha256 or plan.base_sha256}
    return plan.model_copy(update={"data": data, "template_sha256": template, **before})


def bound_plan(
    plan: Plan, frozen: bool, datasets: list[Path], before: str | None, base_sha256: str | None = None
) -> Plan:
    """Return a plan bound to these datasets and to what the comparison starts from: an adapter, on a base's weights.

    A `frozen` one that is bound already is taken as it is. Raises PlanError when it was bound to other data, or when
    before is another adapter, or stands on another base, than it names.
    """
    if not frozen or not plan.data.digests:  # its limits alone, frozen or not
        return bind(plan, datasets, before_adapter=before, base_sha256=base_sha256)
    _check_data(plan, datasets)
    wrong = other_before(plan, before, base_sha256)
    if wrong:
        raise PlanError(
            f"The frozen {wrong}.", "Judge what it was frozen for, or freeze another plan.", code="before-differs"
        )
    return plan


def other_before(plan: Plan, before: str | None, base_sha256: str | None) -> str:
    """Return why a bound plan does not compare with that adapter on that base; "" when it does."""
    if plan.before_adapter != before:  # none: it was frozen for the base itself
        return f"{plan.name} compares with {plan.before_adapter or 'the base'}, not with {before or 'the base'}"
    if plan.base_sha256 is not None and plan.base_sha256 != base_sha256:
        here = f"{base_sha256[:12]}…" if base_sha256 else "one whose weights are not on this machine"
        return f"{plan.name} is bound to the base {plan.base_sha256[:12]}…, and this one is {here}"
    return ""


def _check_data(plan: Plan, datasets: list[Path]) -> None:
    """Refuse (PlanError) when the data that a frozen plan is bound to are not these, or are not what they were."""
    now = bind(plan.template(), datasets, before_adapter=plan.before_adapter).data
    for name, digest in plan.data.digests.items():
        if name not in now.digests:
            raise PlanError(
                f"The frozen {plan.name} is bound to the dataset {name}, which is not among those given.",
                code="dataset-missing",
            )
        if now.digests[name] != digest:
            raise PlanError(
                f"The dataset {name} is {now.digests[name][:12]}… now; {plan.name} was frozen for {digest[:12]}….",
                "Data that a frozen plan names are never changed: restore them, or freeze a new plan before a new run.",
                code="dataset-changed",
            )
    for group, rows in plan.data.pictures.items():
        changed = [old.id for old, new in zip(rows, now.pictures[group], strict=True) if old != new]
        if changed:
            raise PlanError(f"{len(changed)} images of {group} are not those of the frozen {plan.name}: {changed[0]}….")


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
