"""The audit of a run: section by section, recomputed from files, each item `ok`, `wrong` or `not verifiable`.

An evaluation's audit takes in the training that made its adapter and every dataset that either used.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vlmconsole.audit.evaluation import audit_evaluation, audit_freezing, audit_models
from vlmconsole.audit.images import Shelves, Tick, audit_dataset, isolation
from vlmconsole.audit.lineage import audit_parents, audit_replay
from vlmconsole.audit.training import audit_policy, audit_training
from vlmconsole.audit.weights import AuditWeightsError, weights_hash
from vlmconsole.data.findings import Finding, finding
from vlmconsole.errors import LabError
from vlmconsole.gates.tamper_check import AUDITS
from vlmconsole.gates.trained import evaluated_adapter, training_of
from vlmconsole.ledger.chain import Chain, Ledger
from vlmconsole.runs.folder import RunFolder, to_json, write_atomic
from vlmconsole.runs.places import Places

Word = Literal["PASS", "FAIL", "CANNOT JUDGE"]
FILE = "audit.json"
#: Evidence that nobody can give: its absence is said, and is no fault of the run.
BY_NATURE = ("input tensors", "labels of such groups")


class AuditError(LabError):
    """A run of a kind that has nothing to audit."""

    exit_status = 2


@dataclass(frozen=True)
class Audit:
    """What an audit found. `t` is wall seconds; `about` are the runs and datasets looked at."""

    run: str
    kind: str
    t: float
    findings: tuple[Finding, ...]
    about: dict[str, list[str]] = field(default_factory=dict)

    @property
    def verdict(self) -> Word:
        """FAIL: something is wrong. CANNOT JUDGE: nothing is, but evidence that could be there is missing."""
        if any(finding.state == "wrong" for finding in self.findings):
            return "FAIL"
        missing = [
            finding
            for finding in self.findings
            if finding.state == "not verifiable" and not finding.name.endswith(BY_NATURE)
        ]
        return "CANNOT JUDGE" if missing else "PASS"

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `audit.json`."""
        states = [finding.state for finding in self.findings]
        return {
            "run": self.run,
            "kind": self.kind,
            "t": self.t,
            "verdict": self.verdict,
            "counts": {state: states.count(state) for state in ("ok", "wrong", "not verifiable")},
            "about": self.about,
            "findings": [finding.to_json() for finding in self.findings],
        }


def audit(run: RunFolder, places: Places, *, tick: Tick = lambda _: None) -> Audit:
    """Audit one run. `tick(text)` is called now and then, and may raise to stop it. Raises AuditError.

    Never raises for what is wrong with the run.
    """
    kind = str(run.job().get("kind", ""))
    # Sweeps and tunings freeze a plan as well: samples are what makes an evaluation.
    trainings = ("sft", "repair", "grpo")
    evaluated = kind not in trainings and (kind == "evaluate" or run.file("before.jsonl").exists())
    if kind not in trainings and not evaluated:
        raise AuditError(
            f"{run.name} is a run of the kind {kind or 'unknown'}: only trainings and evaluations are audited.",
            "vlmconsole verify checks any run against its seal.",
        )
    now = run.state().get("state")
    if now in ("queued", "starting", "running"):
        raise AuditError(f"{run.name} is {now}: an audit looks at a run that has ended.", "Audit it once it is done.")
    ledger = Ledger(places.ledger)
    chain = ledger.read()
    shelves = Shelves(places.datasets, tick)
    findings: list[Finding] = []
    trained: RunFolder | None = run
    datasets: dict[str, str | None] = {}
    if evaluated:
        tick("samples and plan")
        findings += audit_evaluation(run, chain, ledger, shelves)
        findings += audit_models(run, lambda side: evaluated_adapter(run, side, places))
        findings += _evaluated_base(run)
        plan = run.read_json("plan.json")
        digests = plan["data"]["digests"] if isinstance(plan, dict) and isinstance(plan.get("data"), dict) else {}
        datasets |= {str(name): str(digest) for name, digest in dict(digests).items()}
        trained = training_of(run, places)
        if trained is None and (_spec(run).get("after_adapter") or _spec(run).get("after_model")):
            findings.append(
                Finding("training", "not verifiable", "the run that made the tested weights is not in this lab")
            )
    if trained is not None:
        tick(f"the training {trained.name}")
        if evaluated:
            findings += audit_freezing(run, chain, trained)
        findings += _training(trained, chain, shelves, datasets)
        findings += audit_parents(trained, places)
    for name, digest in sorted(datasets.items()):
        findings += [*audit_dataset(shelves, name, digest), *audit_replay(shelves, name, digest)]
    runs = [part for part in (run, trained) if part is not None]
    runs = list({part.name: part for part in runs}.values())
    findings += _ledger(ledger, chain, runs)
    about = {"runs": [part.name for part in runs], "datasets": sorted(datasets)}
    return Audit(run.name, kind, round(time.time(), 3), tuple(findings), about)


def _spec(run: RunFolder) -> dict[str, Any]:
    spec = run.job().get("spec")
    return spec if isinstance(spec, dict) else {}


def _training(run: RunFolder, chain: Chain, shelves: Shelves, datasets: dict[str, str | None]) -> list[Finding]:
    """Checks of a training; its datasets are added to those to be looked at."""
    name = str(_spec(run).get("base") or "")
    policy = run.job().get("kind") == "grpo"
    origin = run.read_json("model/provenance.json" if policy else "adapter/provenance.json")
    base_hash = origin.get("base_sha256") if isinstance(origin, dict) else None
    other = other_base(name, base_hash, f"the {'model' if policy else 'adapter'} was trained on")
    base = _base(name) if other is None else None  # another one's tokens and tensors say nothing of this training
    findings = audit_policy(run, base) if policy else audit_training(run, chain, shelves, base)
    if other is not None:
        findings = [*(finding for finding in findings if finding.name != other.name), other]
    data = origin.get("data") if isinstance(origin, dict) else None
    for name, digest in (data if isinstance(data, dict) else {}).items():
        datasets.setdefault(str(name), str(digest))
        for role, what in (("train", "training images"), ("dev", "development images")):
            rows = [(row.uid, row.sha256, row.pixel_sha256) for row in shelves.split(str(name), role, digest)]
            if rows or not policy:
                findings.append(isolation(shelves, rows, role, f"{what} of {name}"))
    return findings


def _evaluated_base(run: RunFolder) -> list[Finding]:
    """The base of an in-process evaluation is still the one that answered; [] where it says nothing of it."""
    conditions, spec = run.read_json("conditions.json"), _spec(run)
    before = conditions.get("before") if isinstance(conditions, dict) else None
    stored = before.get("model_sha256") if isinstance(before, dict) else None
    if spec.get("before_model") or spec.get("backend") == "server" or not stored:
        return []  # a whole model is checked as one; a server's lies elsewhere
    other = other_base(str(spec.get("base") or ""), stored, "it answered with", "evaluated base")
    return [other or Finding("evaluated base", "ok", f"before answered with {str(stored)[:12]}…, as it is here")]


def other_base(name: str, stored: Any, did: str, title: str = "base model") -> Finding | None:
    """Return whether the base of that name is another one here than was used; None when it is the same, or not here at
    all.

    The bundled model comes with the program: a newer one is no fault of the run. Any other was changed.
    """
    from vlmconsole.training.bases import is_bundled

    folder = _base(name)
    if folder is None or not isinstance(stored, str):
        return None
    try:
        now = weights_hash(folder)
    except AuditWeightsError as error:
        return Finding(title, "not verifiable", str(error))
    if now == stored:
        return None
    text = f"{now[:12]}… is here, {did} {stored[:12]}…"
    if is_bundled(name):
        return Finding(title, "not verifiable", f"another bundled model came with the program since: {text}")
    return finding(title, "", [f"{folder.name} was changed: {text}"])


def _ledger(ledger: Ledger, chain: Chain, runs: list[RunFolder]) -> list[Finding]:
    broken = [chain.broken] if chain.broken else []
    findings = [finding("ledger", f"{len(chain.entries)} entries, each following on the one before", broken)]
    wrong, left = [], []
    for run in runs:
        seal = ledger.verify(run, chain)
        if seal.status in ("changed", "missing"):
            wrong.append(f"{run.name}: {seal.why}")
        elif seal.status == "not sealed":
            left.append(run.name)
    if left and not wrong:
        return [
            *findings,
            Finding("seal", "not verifiable", f"not sealed, so later edits would not show: {', '.join(left)}"),
        ]
    return [*findings, finding("seal", f"{len(runs)} run{'s' * (len(runs) != 1)} as sealed", wrong)]


def _base(name: str) -> Path | None:
    from vlmconsole.training.bases import base_folder

    try:
        return base_folder(name)
    except LabError:
        return None


def keep(result: Audit, places: Places) -> Path:
    """Put the audit where the Gates screen finds it, its hash into the ledger. Raises OSError.

    It lies beside the runs, not inside: a sealed run is never written to again.
    """
    folder = places.home / AUDITS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{result.run}.json"
    data = to_json(result.to_json())
    write_atomic(path, data)

    sha = hashlib.sha256(data.encode()).hexdigest()
    Ledger(places.ledger).append("audit", run=result.run, verdict=result.verdict, sha256=sha)
    return path
