"""Audit of a paired evaluation: plan, test set, pairs, scores, models, and the verdict that was given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmconsole.audit.images import Seen, Shelves, digest_of, isolation
from vlmconsole.audit.score import scored_again
from vlmconsole.audit.weights import AuditWeightsError, weights_hash
from vlmconsole.data.findings import Finding, finding
from vlmconsole.gates.evidence import PLAN
from vlmconsole.gates.plan import Plan, PlanError, parse_plan
from vlmconsole.gates.samples import Sample, Side, read_side
from vlmconsole.gates.trained import Freezing, earlier_attempts, first_step
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.chain import Chain, Ledger, sha256_file
from vlmconsole.ledger.freezing import find_frozen, frozen_when
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many

SIDES = ("before", "after")


def audit_evaluation(run: RunFolder, chain: Chain, ledger: Ledger, shelves: Shelves) -> list[Finding]:
    """Return every check of one evaluation but those of its adapter's training."""
    spec = run.job().get("spec")
    alone = isinstance(spec, dict) and spec.get("paired") is False
    sides = [read_side(run.file(f"{side}.jsonl")) for side in (SIDES[:1] if alone else SIDES)]
    plan = _plan_of(run)
    findings = [_frozen(run, chain, plan, sides)]
    if plan is not None:
        findings.append(_test_set(plan, sides, shelves))
    findings += [_pictures(sides, shelves, _digests(run, plan)), _pairs(sides), _tensors(sides), _scores(sides, plan)]
    rows = {s.id: (s.id, s.picture_sha256, s.pixel_sha256) for side in sides for s in side.samples.values()}
    findings.append(isolation(shelves, rows.values(), "test", "tested images"))
    return [*findings, _verdict(run, chain, ledger, plan)]


def _plan_of(run: RunFolder) -> Plan | None:
    try:
        return parse_plan(run.read_json(PLAN), PLAN) if run.file(PLAN).exists() else None
    except PlanError:
        return None


def _frozen(run: RunFolder, chain: Chain, plan: Plan | None, sides: list[Side]) -> Finding:
    name = "plan frozen"
    if plan is None:
        return Finding(name, "not verifiable", f"there is no {PLAN} that can be read: nothing was judged by a plan")
    own = [
        (at, e)
        for at, e in enumerate(chain.entries)
        if (e.get("kind"), e.get("run"), e.get("file")) == ("frozen", run.name, PLAN)
    ]
    if not own:
        return finding(name, "", [f"{PLAN} was never frozen for this run"])
    at, entry = own[0]
    wrong = []
    sha = sha256_file(run.file(PLAN))
    if entry["sha256"] != sha:
        wrong.append(f"{PLAN} was changed after it was frozen ({str(entry['sha256'])[:12]}…, now {sha[:12]}…)")
    firsts = [side.first for side in sides if side.first is not None]
    # Answers that were taken over after a kill stand under the same plan as their own attempt froze it.
    attempts = [frozen for attempt in earlier_attempts(run) if (frozen := find_frozen(chain, attempt.name, PLAN))]
    when = min(attempt["t"] for attempt in (entry, *attempts) if attempt["sha256"] == entry["sha256"])
    if firsts and when >= min(firsts):
        wrong.append(f"it was frozen {when - min(firsts):.0f} s after the first answer, not before it")
    sealed = [i for i, e in enumerate(chain.entries) if (e.get("kind"), e.get("run")) == ("sealed", run.name)]
    if sealed and sealed[0] < at:
        wrong.append("the run was sealed before its plan was frozen")
    if plan.template_sha256 and plan.template().sha256 != plan.template_sha256:
        wrong.append("its limits are not those of the plan that it was bound from")
    return finding(name, f"{plan.name}, {sha[:12]}…, before the first answer", wrong)


def audit_freezing(run: RunFolder, chain: Chain, trained: RunFolder) -> list[Finding]:
    """Return the plan against the training that made the tested weights: frozen before it, and naming the rule it
    chose by.
    """
    plan, began = _plan_of(run), first_step(trained)
    if plan is None:
        return []  # said already
    name, when = "plan before training", frozen_when(chain, sha256_file(run.file(PLAN)))
    if when is None or began is None:
        what = "when the plan was frozen" if when is None else f"when {trained.name} made its first step"
        return [Finding(name, "not verifiable", f"it is not known {what}"), *_rule(plan, trained)]
    limits = frozen_when(chain, plan.template_sha256) if plan.template_sha256 else when
    freezing = Freezing(trained.name, when, began, limits)
    return [
        finding(name, f"{plan.name} {freezing.text}", [f"it was {freezing.text}"] * freezing.late),
        *_rule(plan, trained),
    ]


def _rule(plan: Plan, trained: RunFolder) -> list[Finding]:
    """The training chose its epoch by the rule that the plan names."""
    rule = trained.read_json("selection.json")
    if plan.selection is None or not isinstance(rule, dict):
        return []
    wanted = plan.selection
    epochs = wanted.epochs.get(str(rule.get("dataset")))
    wrong = [
        f"the plan says {key} = {promised}, the training chose by {rule.get(key)}"
        for key, promised in (("split", wanted.split), ("metric", wanted.metric), ("tie", wanted.tie))
        if rule.get(key) != promised
    ]
    if wanted.scorer:
        scorer, by = find_scorer(wanted.scorer).label, rule.get("scorers")
        if by is not None and by != [scorer]:
            wrong.append(f"the plan says rewards of {scorer}, the training chose by {', '.join(map(str, by))}")
    if epochs is None:
        wrong.append(f"the plan names no candidates for the data {rule.get('dataset')}")
    elif list(epochs) != rule.get("epochs"):
        wrong.append(f"the plan's candidates are the epochs {list(epochs)}, the training's {rule.get('epochs')}")
    return [finding("selection rule of the plan", f"the training chose by it, among {rule.get('epochs')}", wrong)]


def _test_set(plan: Plan, sides: list[Side], shelves: Shelves) -> Finding:
    """The tested pictures are those that the plan names, in the datasets that the plan names."""
    wrong = []
    for name, digest in sorted(plan.data.digests.items()):
        manifest = shelves.manifests.get(shelves.called(name, digest))
        if manifest is not None and digest_of(manifest) != digest:
            wrong.append(f"the dataset {name} is {digest_of(manifest)[:12]}… now, the plan was bound to {digest[:12]}…")
    bound = {row.id: row for rows in plan.data.pictures.values() for row in rows}
    if not bound:
        return Finding("test set", "not verifiable", "the plan names no images: it was frozen before they were made")
    for side in sides:
        odd = sorted(side.samples.keys() ^ bound.keys())
        if odd:
            wrong.append(f"{side.name} and the plan differ in {len(odd)} images ({odd[0]}…)")
        swapped = [
            i for i, s in sorted(side.samples.items()) if i in bound and s.picture_sha256 != bound[i].picture_sha256
        ]
        wrong += [f"{side.name}: {i} was another image than the plan names" for i in swapped]
    return finding("test set", f"the {len(bound)} images that the plan names, by hash", wrong)


def _digests(run: RunFolder, plan: Plan | None) -> dict[str, str]:
    """Dataset → digest of what was asked about: by the plan, else by the run's own account."""
    if plan is not None:
        return plan.data.digests
    summary = run.read_json("summary.json")
    data = summary.get("data") if isinstance(summary, dict) else None
    return {str(name): str(digest) for name, digest in data.items()} if isinstance(data, dict) else {}


def _pictures(sides: list[Side], shelves: Shelves, digests: dict[str, str]) -> Finding:
    """Each sample's picture, question and truth are those of the dataset's file."""
    # Generations of a dataset share their names: the last of this order counts, the ones that are named.
    asked = {shelves.called(*item) for item in digests.items()}
    shelved = sorted(shelves.rows, key=lambda place: (place[0] in asked, "@" not in place[0]))
    rows: dict[str, list[Seen]] = {}
    every = (row for place in shelved for row in shelves.rows[place])
    for seen in (question for row in every for question in row.questions()):
        rows.setdefault(seen.uid, []).append(seen)
    wrong, n = [], 0
    for side in sides:
        for sample in side.samples.values():
            known = rows.get(sample.id, [])
            # A run that names no digests was asked about any generation that has exactly this.
            exact = [image for image in known if _is(image, sample)] if not digests else []
            row = next(iter([*exact, *known[-1:]]), None)
            if row is None:
                wrong.append(f"{sample.id} is in no dataset of this lab")
                continue
            n += 1
            if (row.sha256, row.pixel_sha256) != (sample.picture_sha256, sample.pixel_sha256):
                wrong.append(f"{side.name}: {sample.id} is another image than in its dataset")
            if row.prompt_sha != sample.prompt_sha:
                wrong.append(f"{side.name}: {sample.id} was asked another question")
            if sample.truth != row.truth:
                wrong.append(f"{side.name}: {sample.id} has the truth {sample.truth}, its dataset says {row.truth}")
    if not n and not wrong:
        return Finding("samples", "not verifiable", "there are no samples")
    return finding("samples", f"{many(n, 'answer')} about the images, questions and truths of their datasets", wrong)


def _is(row: Seen, sample: Sample) -> bool:
    same = (row.sha256, row.pixel_sha256) == (sample.picture_sha256, sample.pixel_sha256)
    return same and row.prompt_sha == sample.prompt_sha and row.truth == sample.truth


def _pairs(sides: list[Side]) -> Finding:
    wrong = [text for side in sides for text in side.problems]
    if len(sides) == 1:
        n = many(len(sides[0].samples), "answer")
        return finding("pairs", f"{n} of one side alone, as it was asked for", wrong)
    first, second = (side.samples for side in sides)
    wrong += [f"{i} was answered on one side only" for i in sorted(first.keys() ^ second.keys())]
    for i in sorted(first.keys() & second.keys()):
        for key, what in (("picture_sha256", "image"), ("prompt_sha", "question"), ("truth", "truth")):
            if getattr(first[i], key) != getattr(second[i], key):
                wrong.append(f"{i}: another {what} before than after")
    return finding("pairs", f"{many(len(first), 'image')}, each answered before and after", wrong)


def _tensors(sides: list[Side]) -> Finding:
    """Equal input tensors picture by picture; equal pictures and questions have equal tensors anywhere."""
    first, second = sides[0].samples, sides[-1].samples  # of one side alone, with itself
    both = sorted(first.keys() & second.keys())
    hashed = [i for i in both if first[i].tensor_sha256 and second[i].tensor_sha256]
    wrong = [
        f"{i}: other input tensor before than after"
        for i in hashed
        if first[i].tensor_sha256 != second[i].tensor_sha256
    ]
    wrong += [
        f"{i}: its input tensor is told on one side only"
        for i in both
        if bool(first[i].tensor_sha256) != bool(second[i].tensor_sha256)
    ]
    same: dict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in (sample for side in sides for sample in side.samples.values()):
        if sample.tensor_sha256:
            same[sample.pixel_sha256, sample.prompt_sha].add(sample.tensor_sha256)
    wrong += [
        f"the image {key[0][:12]}… became {len(values)} different tensors"
        for key, values in same.items()
        if len(values) > 1
    ]
    if not hashed and not wrong:
        return Finding("input tensors", "not verifiable", "the server keeps its input tensors to itself")
    if len(sides) == 1:
        return finding("input tensors", f"{many(len(hashed), 'answer')}, equal questions with equal tensors", wrong)
    return finding(
        "input tensors", f"{many(len(hashed), 'pair')}, each with the same input tensor before and after", wrong
    )


def _scores(sides: list[Side], plan: Plan | None) -> Finding:
    wrong, n, others = [], 0, 0
    scorers = {group.name: group.scorer for group in plan.groups} if plan is not None else {}
    for side in sides:
        for sample in side.samples.values():
            scorer = scorers.get(sample.group) or sample.scorer or _told_by_truth(sample)
            mark = scored_again(scorer, sample.answer, sample.truth, sample.options)
            if mark is None:
                others += 1
                continue
            n += 1
            same = (mark.valid, mark.all_correct) == (sample.valid, sample.all_correct)
            off = max(abs(float(mark.partial) - sample.partial), abs(float(mark.reward) - sample.reward))
            if sample.http_ok and (not same or off > 1e-6):
                given = f"{sample.partial:g}{'' if sample.all_correct else ' (not all correct)'}"
                wrong.append(f"{side.name}: {sample.id} has {given}, its answer gives {float(mark.partial):g}")
    more = f"; {others} of another scorer not" if others else ""
    if not n and not wrong:
        return Finding("scores", "not verifiable", "no sample has a scorer that can be repeated here")
    return finding("scores", f"{many(n, 'answer')} scored again from the rules{more}", wrong)


def _told_by_truth(sample: Sample) -> str:
    """The scorer of an older sample that names none."""
    if not isinstance(sample.truth, str):
        return ""
    return "counting" if sample.truth.lstrip().startswith("{") else "naming"


def _verdict(run: RunFolder, chain: Chain, ledger: Ledger, plan: Plan | None) -> Finding:
    """The evidence carries a verdict, and it is the one in the ledger."""
    if plan is None:
        return Finding("verdict", "not verifiable", "no plan, no verdict")
    now = judge(run, ledger)
    wrong = [f"{p.group}: {p.text}" if p.group else p.text for p in now.problems]
    entries = [e for e in chain.entries if (e.get("kind"), e.get("run")) == ("verdict", run.name)]
    if entries and entries[-1].get("verdict") != now.verdict:
        wrong.append(f"the ledger holds {entries[-1].get('verdict')}, the evidence now gives {now.verdict}")
    counts = " · ".join(f"{n} {word}" for word, n in now.counts.items() if n)
    recorded = "as the ledger holds it" if entries else "not in the ledger yet"
    return finding("verdict", f"{now.verdict} again ({counts}), {recorded}", wrong)


def audit_models(run: RunFolder, find: Callable[[str], Path | None]) -> list[Finding]:
    """Return the weights of both sides are still those that were evaluated; before is what the training started from.

    `find` gives the folder of a side's adapter.
    """
    summary, spec, conditions = (
        value if isinstance(value, dict) else {}
        for value in (run.read_json("summary.json"), run.job().get("spec"), run.read_json("conditions.json"))
    )
    wrong: list[str] = []
    unchanged: list[str] = []
    shas: dict[str, Any] = {}
    for side in SIDES:
        claimed = summary.get(side)
        who: dict[str, Any] = claimed if isinstance(claimed, dict) else {}
        adapter = str(spec.get(f"{side}_adapter") or "")
        shas[side] = who.get("adapter_sha256")
        whole = named(str(spec.get(f"{side}_model") or "")) if spec.get(f"{side}_model") else None
        if whole is not None:
            try:
                model = weights_hash(whole)
            except AuditWeightsError as error:
                wrong.append(f"{side}: {error}")
                continue
            if model != who.get("model_sha256"):
                text = f"{model[:12]}… now, {str(who.get('model_sha256'))[:12]}… was evaluated"
                wrong.append(f"the model of {side} is {text}")
            unchanged.append(f"{side} {model[:12]}…")
        if not adapter:
            if who.get("adapter_sha256"):
                wrong.append(f"{side} ran with an adapter that the settings do not name")
            continue
        folder = find(side)
        if folder is None:
            wrong.append(f"the adapter {adapter} of {side} is not in this lab any more")
            continue
        try:
            now = weights_hash(folder)
        except AuditWeightsError as error:
            wrong.append(f"{side}: {error}")
            continue
        if now != who.get("adapter_sha256"):
            wrong.append(
                f"the adapter of {side} is {now[:12]}… now, {str(who.get('adapter_sha256'))[:12]}… was evaluated"
            )
        identity = (conditions.get(side) or {}).get("adapter")
        if not isinstance(identity, str) or not identity.endswith(f"sha256:{who.get('adapter_sha256')}"):
            wrong.append(f"the conditions of {side} name another adapter: {identity}")
        unchanged.append(f"{side} {now[:12]}…")
    findings = [finding("evaluated weights", f"unchanged since: {', '.join(unchanged) or 'none was used'}", wrong)]
    folder = find("after") if spec.get("after_adapter") else None
    origin = RunFolder(folder).read_json("provenance.json") if folder is not None else None
    if isinstance(origin, dict):
        parent = origin.get("parent_sha256")
        start = f"the adapter {str(parent)[:12]}…" if parent else "the base itself"
        off = (
            []
            if shas["before"] == parent
            else [f"after was trained from {start}, before is {str(shas['before'])[:12]}"]
        )
        findings.append(finding("before", f"it is what the training started from: {start}", off))
    return findings
