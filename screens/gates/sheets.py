"""A condition and a picture's two answers in full, as headed parts of text."""

from __future__ import annotations

from vlmconsole.data.example import truth_text
from vlmconsole.desks.gates import OpenedEntry
from vlmconsole.gates.figures import figures, group_figures
from vlmconsole.gates.plan import Gate, Plan
from vlmconsole.gates.samples import Case, Sample
from vlmconsole.gates.verdict import Judged
from vlmconsole.runs.titles import title
from vlmconsole.scoring.intervals import CONFIDENCE
from vlmconsole.text.numbers import signed
from vlmconsole.text.times import moment

Parts = list[tuple[str, str]]


def _when(t: float | None) -> str:
    return moment(t) if t is not None else "unknown"


def _method(plan: Plan) -> str:
    """How the plan's intervals are made."""
    if plan.intervals == "bounded":
        return f"Gaffke's bounds over images, seed {plan.seeds.bootstrap}"
    return f"paired bootstrap over images, {plan.resamples} times, seed {plan.seeds.bootstrap}"


def gate_parts(opened: OpenedEntry, item: Judged | Gate | None) -> Parts:
    """Return the condition with all its figures, its group's flips, the plan, the conditions, faults and past
    verdicts.
    """
    parts: Parts = []
    if isinstance(item, Judged):
        shown = figures(item)
        lines = [f"{item.gate.name} {item.limit_text}: {item.verdict}"]
        lines += [f"{key:<9} {shown[key]}" for key in ("before", "after", "measured", "margin")]
        if item.interval is not None and opened.plan is not None:
            low, high = item.interval
            lines.append(
                f"interval  {signed(low)} … {signed(high)}, {opened.plan.confidence * 100:g} %, of the score's"
                f" difference; {_method(opened.plan)}"
            )
        lines += [text for text in (item.why, *item.remarks) if text]
        parts.append(("Condition", "\n".join(lines)))
    gate = item.gate if isinstance(item, Judged) else item
    if gate is not None and (power := opened.power_of(gate)) is not None:
        parts.append(("Power", f"{gate.name} {gate.limit_text}: {power.text}"))
    measures = (opened.verdict.measures or {}) if opened.verdict else {}
    if gate is not None and gate.group in measures:
        confidence = opened.plan.confidence if opened.plan is not None else CONFIDENCE
        rows = group_figures(measures[gate.group], confidence)
        parts.append((f"Group {gate.group}", "\n".join(f"{name:<24} {value}" for name, value in rows)))
    if opened.verdict is not None and opened.verdict.problems:
        parts.append(
            ("Missing evidence", "\n".join(f"{p.group or 'the run'}: {p.text}" for p in opened.verdict.problems))
        )
    plan = opened.plan
    if plan is not None:
        limits = opened.verdict.frozen.limits if opened.verdict and opened.verdict.frozen else None
        facts = [
            plan.title, f"plan by: {plan.whose}", f"before: {plan.before}",
            f"frozen {_when(opened.frozen)}, sha256 {opened.sha256}",
            f"its limits first frozen {_when(limits)}" if limits else "",
            opened.freezing.text if opened.freezing else "",
            f"recipes {', '.join(plan.data.recipes)}; {sum(map(len, plan.data.pictures.values()))} images by hash",
            "conditions: " + ", ".join(f"{title(key)} {value}" for key, value in plan.conditions.items()),
        ]  # fmt: skip
        parts.append(("Plan", "\n".join(fact for fact in facts if fact)))
    if opened.seal is not None:
        parts.append(("Seal", f"{opened.seal.status}: {opened.seal.why}"))
    if opened.earlier:
        parts.append(
            (
                "Verdicts in the ledger",
                "\n".join(f"{_when(e['t'])}  {e['verdict']}  ({e.get('gates', '')})" for e in opened.earlier),
            )
        )
    return parts


def case_parts(case: Case) -> Parts:
    """Both samples as they stand in the run."""
    truth = case.after.truth
    return [
        ("Truth", "\n".join(map(truth_text, truth if isinstance(truth, list) else [truth]))),
        ("Before", _sample(case.before)),
        ("After", _sample(case.after)),
        ("Hashes", _hashes(case.after)),
    ]


def _sample(sample: Sample) -> str:
    ids = " ".join(map(str, sample.token_ids)) if sample.token_ids is not None else "not reported by the server"
    return (
        f"{sample.answer if sample.answer is not None else 'no answer'}\n\n"
        f"all correct {'yes' if sample.all_correct else 'no'} · partial {sample.partial:g} · reward {sample.reward:g}"
        f" · valid {'yes' if sample.valid else 'no'} · batch {sample.batch} · {_when(sample.t)}\ntoken ids {ids}"
    )


def _hashes(sample: Sample) -> str:
    return (
        f"image file    {sample.picture_sha256}\npixels        {sample.pixel_sha256}\n"
        f"input tensor  {sample.tensor_sha256 or 'not reported by the server'}\nquestion      {sample.prompt_sha}"
    )
