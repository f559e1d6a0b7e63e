"""The verdict on a run: PASS, FAIL or CANNOT JUDGE for each frozen gate and for the whole, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from vlmconsole.gates.claims import Claims, claims
from vlmconsole.gates.evidence import (
    BLIND,
    PLAN,
    FrozenWhen,
    Problem,
    check_blind,
    check_conditions,
    check_frozen,
    check_generations,
    check_group,
)
from vlmconsole.gates.measures import Measures, PairedInterval, exact, paired
from vlmconsole.gates.plan import Gate, Group, Plan, PlanError, parse_plan
from vlmconsole.gates.samples import Side, read_side
from vlmconsole.gates.trained import Freezing, freezing_of
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.scoring.bounded import paired_bounds
from vlmconsole.scoring.intervals import paired_interval
from vlmconsole.text.signs import LATE_PASS

Word = Literal["PASS", "FAIL", "CANNOT JUDGE"]
ORDER: dict[str, int] = {"FAIL": 0, "CANNOT JUDGE": 1, "PASS": 2}


@dataclass(frozen=True)
class Judged:
    """One gate's verdict. `measured` and `margin` are in the gate's unit and None when it cannot be judged."""

    gate: Gate
    verdict: Word
    measured: float | None = None
    margin: float | None = None
    before: float | None = None
    after: float | None = None
    interval: tuple[float, float] | None = None  # of the score's difference
    why: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def limit_text(self) -> str:
        """The limit for people: `≥ 80 %`, `≤ 5 points`, `> 0`."""
        return self.gate.limit_text

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.gate.name,
            "group": self.gate.group,
            "metric": self.gate.metric,
            "limit": self.gate.limit,
            "sign": self.gate.sign,
            "unit": self.gate.definition.form.unit,
            "limit_text": self.limit_text,
            "measured": self.measured,
            "before": self.before,
            "after": self.after,
            "interval": list(self.interval) if self.interval else None,
            "margin": self.margin,
            "verdict": self.verdict,
            "why": self.why,
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True)
class Verdict:
    """The whole: `gates` with failing ones first; `problems` say what the evidence lacks.

    `freezing` is when the plan was frozen against its training; None where either is not known.
    """

    verdict: Word
    run: str
    gates: tuple[Judged, ...]
    plan: Plan | None = None
    frozen: FrozenWhen | None = None
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    measures: dict[str, Measures] | None = None
    freezing: Freezing | None = None

    @property
    def late(self) -> bool:
        """Whether the plan was frozen after its training began: the verdict is then no preregistered one."""
        return self.freezing is not None and self.freezing.late

    @property
    def label(self) -> str:
        """The verdict for people: a PASS by a late plan is never a plain one."""
        return LATE_PASS if self.verdict == "PASS" and self.late else self.verdict

    @property
    def counts(self) -> dict[Word, int]:
        """How many gates have which verdict."""
        words: tuple[Word, ...] = ("PASS", "FAIL", "CANNOT JUDGE")
        return {word: sum(gate.verdict == word for gate in self.gates) for word in words}

    @property
    def claims(self) -> Claims:
        """What may and may not be claimed of this run."""
        passed = {judged.gate.name for judged in self.gates if judged.verdict == "PASS"}
        late = self.freezing.text if self.freezing is not None and self.freezing.late else ""
        return claims(self.plan, self.verdict, passed, late)

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `gates check --json`."""
        return {
            "verdict": self.verdict,
            "label": self.label,
            "frozen_late": self.late,
            "run": self.run,
            "plan": self.plan.name if self.plan else None,
            "plan_sha256": self.frozen.sha256 if self.frozen else None,
            "frozen": self.frozen.t if self.frozen else None,
            "limits_frozen": self.frozen.limits if self.frozen else None,
            "counts": self.counts,
            "gates": [judged.to_json() for judged in self.gates],
            "problems": [problem.to_json() for problem in self.problems],
            "remarks": list(self.remarks),
            "groups": {name: m.to_json() for name, m in (self.measures or {}).items()},
            "claims": self.claims.to_json(),
        }


def judge(run: RunFolder, ledger: Ledger) -> Verdict:
    """Judge a run by the plan frozen before its first sample. Never raises for what is wrong with the run.

    A gate fails only on whole evidence: all that `Evidence` lists makes it CANNOT JUDGE. The whole is FAIL as soon as
    one gate is, since no missing evidence could turn that around.
    """
    try:
        plan = parse_plan(_plan_value(run), PLAN)
    except PlanError as error:
        return Verdict("CANNOT JUDGE", run.name, (), problems=(Problem(None, error.message),))
    evidence = examine(run, ledger, plan)
    measures, judged = {}, []
    for group in plan.groups:
        measured = _measure(plan, group, evidence) if not evidence.problems_of(group) else None
        if measured is not None:
            measures[group.name] = measured
        why = evidence.cannot_judge(group, measured)
        for gate in (gate for gate in plan.gates if gate.group == group.name):
            judged.append(_judge(gate, measured, why or evidence.without_blind(gate)))
    # Failing first; within a verdict the plan's own order stays.
    judged.sort(key=lambda one: ORDER[one.verdict])
    word = min((one.verdict for one in judged), key=lambda verdict: ORDER[verdict])
    return Verdict(
        word,
        run.name,
        tuple(judged),
        plan,
        evidence.frozen,
        evidence.problems,
        evidence.remarks,
        measures,
        evidence.freezing,
    )


@dataclass(frozen=True)
class VerdictEvidence:
    """What a run is judged on, as examined: its sides, and every reason why a gate of it is CANNOT JUDGE.

    - of the whole run (`run`): the plan was not frozen before the first sample, was changed, or is bound to other
      limits than it says; the ledger or the run's seal is broken; the plan came after the training and forbids that;
      a side is missing or torn; conditions are off, or the sides compare other models than the plan; other numbers of
      answers than promised (without a readable plan there is no evidence at all: `judge`)
    - of one group (`groups`): samples missing, failed, rescored, unpaired, or of other pictures than the plan's
    - of one guard (`cannot_judge`): before is under the base that the guard stands on
    - of one gate on what the images are worth (`without_blind`): blind answers missing, failed or unpaired
    """

    before: Side
    after: Side
    run: tuple[Problem, ...]
    groups: dict[str, tuple[Problem, ...]]
    remarks: tuple[str, ...]
    frozen: FrozenWhen | None
    freezing: Freezing | None
    blind: Side | None = None
    unseen: dict[str, tuple[Problem, ...]] = field(default_factory=dict)  # faults of the blind answers, by group

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All of them: the run's, then each group's in the plan's order, then those of its blind answers."""
        several = (*self.groups.values(), *self.unseen.values())
        return (*self.run, *(problem for some in several for problem in some))

    def without_blind(self, gate: Gate) -> str:
        """Return why a gate that needs blind answers cannot be judged; "" when it can, or needs none."""
        problems = self.unseen.get(gate.group, ()) if gate.definition.blind else ()
        return problems[0].text if problems else ""

    def blind_of(self, group: Group) -> Side | None:
        """Return the blind answers where all of the group's are there."""
        return None if self.unseen.get(group.name) else self.blind

    def problems_of(self, group: Group) -> tuple[Problem, ...]:
        """Return those that keep this group from being measured."""
        return (*self.run, *self.groups[group.name])

    def cannot_judge(self, group: Group, measured: Measures | None) -> str:
        """Return why the gates of this group cannot be judged; "" when they can."""
        if measured is None:
            return self.problems_of(group)[0].text
        floor = group.base_at_least
        if floor is not None and measured.partial[0] < exact(floor):
            return f"the guard needs a score of at least {floor:g} before; it is only {float(measured.partial[0]):.4g}"
        return ""


def examine(run: RunFolder, ledger: Ledger, plan: Plan) -> VerdictEvidence:
    """Examine a run's evidence under its plan."""
    before, after = read_side(run.file("before.jsonl")), read_side(run.file("after.jsonl"))
    blind = read_side(run.file(BLIND)) if plan.blind else None
    starts = [side.first for side in (before, after) if side.first is not None]
    frozen, texts = check_frozen(run, ledger, plan, min(starts, default=None))
    freezing = freezing_of(run, Places(ledger.path.parent), frozen)
    if plan.frozen_late == "cannot judge" and freezing is not None and freezing.late:
        texts.append(f"the plan must be frozen before the training; it was {freezing.text}")
    wrong, remarks = check_generations(run, plan, before, after, blind)
    texts += [*before.problems, *after.problems, *check_conditions(run, plan), *wrong]
    texts += blind.problems if blind is not None else ()
    if not plan.data.digests:
        remarks.append("the plan names a recipe, not images: it was frozen before they were made")
    elif plan.base_sha256 is None:
        remarks.append("base not bound: the plan does not name the base weights")
    if before.samples and all(sample.tensor_sha256 is None for sample in before.samples.values()):
        remarks.append("no input-tensor hashes from the server: images compared as sent")
    return VerdictEvidence(
        before,
        after,
        run=tuple(Problem(None, text) for text in texts),
        groups={group.name: tuple(check_group(plan, group, before, after)) for group in plan.groups},
        remarks=tuple(remarks),
        frozen=frozen,
        freezing=freezing,
        blind=blind,
        unseen={group.name: tuple(check_blind(group, after, blind)) for group in plan.groups} if blind else {},
    )


def _plan_value(run: RunFolder) -> Any:
    path = run.file(PLAN)
    if not path.exists():
        raise PlanError(f"the run has no {PLAN}: it was not made under a frozen plan")
    value = run.read_json(PLAN)
    if not isinstance(value, dict):
        raise PlanError(f"{PLAN} cannot be read")
    return value


def _measure(plan: Plan, group: Group, evidence: VerdictEvidence) -> Measures:
    """A group's figures under the plan's own seed, resamples and confidence."""
    before, after = evidence.before.samples, evidence.after.samples
    blind = evidence.blind_of(group)
    ids = sorted(i for i, sample in before.items() if sample.group == group.name)
    return paired(
        [before[i] for i in ids],
        [after[i] for i in ids],
        interval=_interval(plan),
        blind=[blind.samples[i] for i in ids] if blind is not None else None,
    )


def _interval(plan: Plan) -> PairedInterval:
    """The interval of a difference as the plan wants it."""
    if plan.intervals == "bounded":
        return partial(paired_bounds, seed=plan.seeds.bootstrap, confidence=plan.confidence)
    return partial(paired_interval, seed=plan.seeds.bootstrap, resamples=plan.resamples, confidence=plan.confidence)


def _judge(gate: Gate, measured: Measures | None, why: str) -> Judged:
    if measured is None or (gate.definition.blind and measured.sight is None):
        return Judged(gate, "CANNOT JUDGE", why=why)
    metric = gate.definition
    value, (before, after) = metric.value(measured), metric.sides(measured)
    margin = gate.margin(value)
    word: Word = "CANNOT JUDGE" if why else "PASS" if gate.passes(value) else "FAIL"
    close = ("within one image of the limit",) if abs(margin) < metric.step(measured.n) else ()
    return Judged(
        gate,
        word,
        float(value),
        float(margin),
        float(before),
        float(after),
        (metric.interval(measured).low, metric.interval(measured).high),
        why=why,
        remarks=() if why else (*close, *metric.remarks(measured)),
    )
