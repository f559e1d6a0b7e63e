"""What may be claimed of a judged run, and what may not: derived from its plan, never from its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmconsole.gates.plan import Plan


@dataclass(frozen=True)
class Claims:
    """Sentences for the Gates screen and the report."""

    may: tuple[str, ...] = ()
    may_not: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"may": list(self.may), "may_not": list(self.may_not)}


def claims(plan: Plan | None, verdict: str, passed: set[str], late: str = "") -> Claims:
    """Derive the claims of a run with this verdict.

    `passed` are the names of its passing gates; `late` says how long after the training began its plan was frozen.
    """
    if plan is None:
        return Claims(may_not=("anything: there is no plan that this run was judged by",))
    if verdict == "CANNOT JUDGE":
        return Claims(may_not=("anything about this run: its evidence is incomplete or invalid", *_limits(plan)))
    judged = sorted(
        {f"{group.name} (n = {group.n})" for group in plan.groups for gate in plan.gates if gate.group == group.name}
    )
    seeds = len(plan.seeds.training)
    counts = f"counts {plan.trained[0]}–{plan.trained[1]} trained, " if plan.trained else ""
    scope = f"{plan.pictures}, {counts}{'one training seed' if seeds == 1 else f'{seeds} training seeds'}"
    unregistered = (f"a preregistered result: the plan was {late}",) if late else ()
    if verdict == "PASS":
        result = f"all {len(plan.gates)} frozen gates of {plan.name} hold after the training, against: {plan.before}"
        return Claims((result, f"scope: {scope}; groups: {', '.join(judged)}"), (*unregistered, *_limits(plan)))
    held = [f"these frozen gates hold: {_by_group(passed)}"] if passed else []
    return Claims(
        (*held, f"scope: {scope}"),
        (f"that the round reached its goal: {plan.name} failed", *unregistered, *_limits(plan)),
    )


def _by_group(names: set[str]) -> str:
    """`dense: all correct · partial reward; hollow: …` of gates' names."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        group, _, measure = name.partition(": ")
        groups.setdefault(group, []).append(measure)
    return "; ".join(f"{group}: {' · '.join(measures)}" for group, measures in groups.items())


def _limits(plan: Plan) -> tuple[str, ...]:
    """What no verdict of this plan supports."""
    seeds = len(plan.seeds.training)
    scorers = {group.scorer for group in plan.groups}
    lines = [f"images, questions or scorers other than these: {plan.pictures}"]
    if plan.trained is not None:
        low, high = plan.trained
        lines = [
            "real photos, overlapping or hidden objects",
            f"counts above {high}, or extrapolation: the range trained on is {low}–{high}",
        ]
    lines += [
        f"stability over trainings: {'one seed was' if seeds == 1 else f'only {seeds} seeds were'} trained, "
        "and the intervals resample images",
        "a comparison with another round's figures: their images differ",
        "that nothing regressed: a held limit is an operational threshold",
        "another base model or precision: an adapter belongs to the base it was trained on",
    ]
    if plan.blind is None and plan.trained is None:
        lines.append("that answers come from looking: no blind answers were asked for")
    if plan.trained is not None and "textvqa" not in scorers:
        lines.append("reading text in images: no group of this plan measures it")
    return tuple(lines)
