"""What must hold before a limit is even looked at: frozen plan, whole and paired samples, like conditions.

Every fault found is a Problem. One without a group concerns the whole run, so that no gate can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vlmconsole.gates.plan import Group, Plan
from vlmconsole.gates.samples import Sample, Side
from vlmconsole.ledger.chain import Ledger, sha256_file
from vlmconsole.ledger.freezing import frozen_when
from vlmconsole.runs.conditions import same_prompt
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.scorers import ScoringError, score

PLAN = "plan.json"
PLANS = "plans"  # the folder (and ledger name) of plans frozen for the lab rather than for one run
CONDITIONS = "conditions.json"
BLIND = "blind.jsonl"  # the tested model's answers without the images
SHOWN = 3
# What may differ between before and after: the model under test, and what follows from its answers.
MAY_DIFFER = frozenset(
    {"model", "model_sha256", "adapter", "output_tokens", "client_error", "notes", "template_sha256"}
)
MAY_DIFFER_IN_SETTINGS = frozenset({"model_path", "model", "served_model_name", "lora_paths", "adapter_path"})


@dataclass(frozen=True)
class Problem:
    """One fault of the evidence: which group (None: the whole run), a sentence, and the samples concerned."""

    group: str | None
    text: str
    ids: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"group": self.group, "text": self.text, "ids": list(self.ids)}


@dataclass(frozen=True)
class FrozenWhen:
    """When a plan was frozen (wall seconds) and its hash; `limits` is when its unbound form first was, if known."""

    sha256: str
    t: float
    limits: float | None = None


def first_few(ids: Iterable[str]) -> str:
    """Return the first few ids, and how many more."""
    several = sorted(ids)
    more = f" and {len(several) - SHOWN} more" if len(several) > SHOWN else ""
    return ", ".join(several[:SHOWN]) + more


def check_frozen(
    run: RunFolder, ledger: Ledger, plan: Plan, first: float | None
) -> tuple[FrozenWhen | None, list[str]]:
    """Return whether the run's plan is the frozen one, and older than the run's first sample (wall seconds)."""
    chain = ledger.read()
    if chain.broken:
        return None, [f"ledger broken, frozen plans cannot be trusted: {chain.broken}"]
    sha = sha256_file(run.file(PLAN))
    own = [e for e in chain.entries if e.get("kind") == "frozen" and e.get("run") == run.name and e.get("file") == PLAN]
    if own and own[0]["sha256"] != sha:
        return None, [f"{PLAN} was changed after freezing (frozen {own[0]['sha256'][:12]}…, now {sha[:12]}…)"]
    when = frozen_when(chain, sha)
    if when is None:
        return None, [f"{PLAN} was never frozen"]
    limits = frozen_when(chain, plan.template_sha256) if plan.template_sha256 else when
    wrong = []
    if first is not None and when >= first:
        wrong.append(f"the plan was frozen {when - first:.0f} s after the first sample, not before it")
    if plan.template_sha256 and plan.template().sha256 != plan.template_sha256:
        wrong.append("the bound plan has other limits than the plan it says it was bound from")
    seal = ledger.verify(run, chain)
    if seal.status in ("changed", "missing"):
        wrong.append(f"the run is not as it was sealed: {seal.why}")
    return FrozenWhen(sha, when, limits), wrong


def check_conditions(run: RunFolder, plan: Plan) -> list[str]:
    """Return whether both sides ran under the plan's conditions and under like ones; only model and adapter may
    differ.
    """
    value = run.read_json(CONDITIONS)
    if not isinstance(value, dict) or not all(isinstance(value.get(side), dict) for side in ("before", "after")):
        return [f"{CONDITIONS} does not say under which conditions before and after were measured"]
    before, after = value["before"], value["after"]
    wrong = unlike(before, after)
    for key, wanted in plan.conditions.items():
        for side, conditions in (("before", before), ("after", after)):
            actual = conditions.get(key, (conditions.get("settings") or {}).get(key))
            if actual != wanted:
                wrong.append(f"off condition: the plan wants {key} = {wanted!r}, {side} had {actual!r}")
    bound = plan.before_adapter is not None or bool(plan.data.digests)
    if bound and before.get("adapter") != plan.before_adapter:  # a bound plan that names none compares with the base
        was, wanted = before.get("adapter") or "the base", plan.before_adapter or "the base"
        wrong.append(f"before is {was}, the plan compares with {wanted}")
    return wrong + _other_base(plan, before, after)


def _other_base(plan: Plan, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Whether before is, or stands on, the base that the plan is bound to, and a tested adapter on the same one."""
    wrong = []
    first, second = before.get("model_sha256"), after.get("model_sha256")
    if plan.base_sha256 is not None and first != plan.base_sha256:
        was = f"{before.get('model')} {first[:12]}…" if isinstance(first, str) else "one whose weights are not known"
        wrong.append(f"the base of before is {was}, the plan is bound to the base {plan.base_sha256[:12]}…")
    if after.get("adapter") and first != second:  # a whole model under test is another model by its nature
        wrong.append("after is an adapter on another base than before's: two things differ")
    return wrong


def unlike(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return every condition that differs and is neither model nor adapter, nor follows from the answers; a sentence
    each.
    """
    wrong = []
    for key in sorted((set(before) | set(after)) - MAY_DIFFER - {"settings"}):
        if key == "prompt_sha256" and same_prompt(before, after):
            continue  # older runs recorded none
        if before.get(key) != after.get(key):
            wrong.append(f"off condition: {key} is {before.get(key)!r} before and {after.get(key)!r} after")
    first, second = before.get("settings") or {}, after.get("settings") or {}
    for key in sorted((set(first) | set(second)) - MAY_DIFFER_IN_SETTINGS):
        if first.get(key) != second.get(key):
            wrong.append(f"off condition: the setting {key} is {first.get(key)!r} before and {second.get(key)!r} after")
    return wrong


def check_group(plan: Plan, group: Group, before: Side, after: Side) -> list[Problem]:
    """Return whether a group's samples are all there, scored as their answers say, and pairs of the same pictures."""
    problems: list[Problem] = []

    def add(text: str, ids: Iterable[str]) -> None:
        named = tuple(sorted(ids))
        if named:
            problems.append(Problem(group.name, f"{len(named)} {text}: {first_few(named)}", named))

    sides = {side.name: {i: s for i, s in side.samples.items() if s.group == group.name} for side in (before, after)}
    first, second = sides.values()
    for name, samples in sides.items():
        if len(samples) != group.n:
            problems.append(Problem(group.name, f"{name} has {len(samples)} samples, the plan wants {group.n}"))
        add(f"requests of {name} failed (not wrong answers)", (i for i, s in samples.items() if not s.http_ok))
        add(f"samples of {name} hold no answer", (i for i, s in samples.items() if s.http_ok and s.answer is None))
        add(f"scores in {name} are not what the answers give", (i for i, s in samples.items() if not _scored(group, s)))
    add("samples are only before", first.keys() - second.keys())
    add("samples are only after", second.keys() - first.keys())
    both = first.keys() & second.keys()
    for key, what in (
        ("picture_sha256", "image"),
        ("pixel_sha256", "image's pixels"),
        ("tensor_sha256", "input tensor"),
        ("prompt_sha", "question"),
        ("truth", "truth"),
        ("options", "scorer's options"),
    ):
        add(f"pairs differ in the {what}", (i for i in both if getattr(first[i], key) != getattr(second[i], key)))
    bound = {row.id: row for row in plan.data.pictures.get(group.name, ())}
    if plan.data.digests:
        add("samples of images outside the plan", (first.keys() | second.keys()) - bound.keys())
        add("images of the plan without a sample", bound.keys() - both)
        for key, what in (
            ("picture_sha256", "image is"),
            ("pixel_sha256", "image's pixels are"),
            ("prompt_sha", "question is"),
            ("truth_sha", "truth is"),
            ("options_sha", "scorer's options are"),
        ):
            off = (i for i in both & bound.keys() if getattr(first[i], key) != getattr(bound[i], key))
            add(f"samples whose {what} not the frozen one", off)
    return problems


def check_blind(group: Group, after: Side, blind: Side) -> list[Problem]:
    """Return whether each answer of after has its blind one: the same question and truth, and not the same image."""
    first = {i: s for i, s in after.samples.items() if s.group == group.name}
    second = {i: s for i, s in blind.samples.items() if s.group == group.name}
    both = first.keys() & second.keys()
    failures = [
        ("samples have no blind answer", first.keys() - second.keys()),
        ("blind answers have no sample", second.keys() - first.keys()),
        ("blind requests failed", {i for i, s in second.items() if not s.http_ok or s.answer is None}),
        ("blind answers saw the image", {i for i in both if first[i].picture_sha256 == second[i].picture_sha256}),
        ("blind answers are to another question", {i for i in both if first[i].prompt_sha != second[i].prompt_sha}),
        ("blind answers have another truth", {i for i in both if first[i].truth_sha != second[i].truth_sha}),
        ("blind scores are not what the answers give", {i for i, s in second.items() if not _scored(group, s)}),
    ]
    return [
        Problem(group.name, f"{len(ids)} {text}: {first_few(ids)}", tuple(sorted(ids))) for text, ids in failures if ids
    ]


def _scored(group: Group, sample: Sample) -> bool:
    """Whether the stored score is the one that the answer gives now."""
    if not sample.http_ok or sample.answer is None:
        return True  # said elsewhere
    try:
        now = score(group.scorer, sample.answer, sample.truth, sample.options)
    except ScoringError:
        return False
    return (now.valid, now.all_correct) == (sample.valid, sample.all_correct) and (
        max(abs(now.partial - sample.partial), abs(now.reward - sample.reward)) < 1e-6
    )


def check_generations(
    run: RunFolder, plan: Plan, before: Side, after: Side, blind: Side | None = None
) -> tuple[list[str], list[str]]:
    """(problems, remarks) of how many answers were promised and made."""
    made = len(before.samples) + len(after.samples)
    wrong, remarks = [], []
    if blind is not None and len(blind.samples) != plan.generations.blind:
        wrong.append(f"{len(blind.samples)} blind samples, the plan promised {plan.generations.blind}")
    if made != plan.generations.evaluation:
        wrong.append(f"{made} evaluation samples, the plan promised {plan.generations.evaluation}")
    strange = {s.group for side in (before, after) for s in side.samples.values()} - {g.name for g in plan.groups}
    if strange:
        wrong.append(f"samples of groups that the plan does not have: {first_few(strange)}")
    for pattern, promised, what in (
        ("dev-epoch*.jsonl", plan.generations.development, "development"),
        ("diagnostic*.jsonl", plan.generations.training_diagnostic, "training-image diagnostic"),
    ):
        paths = sorted(run.path.glob(pattern))
        count = sum(1 for path in paths for _ in run.read_jsonl(path.name))
        if paths and count != promised:
            wrong.append(f"{count} {what} samples, the plan promised {promised}")
        elif promised and not paths:
            remarks.append(f"{promised} {what} samples are promised and are not in this run folder")
    return wrong, remarks
