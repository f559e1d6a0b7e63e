"""The kind `freeze`: a gate plan bound to its pictures and frozen, before the training that it will judge."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vlmconsole.errors import LabError
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobKind, Spec
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import PathOrName

UNBOUND = "unbound"  # in place of a base: the plan names none


class FreezeSpec(Spec):
    """What is frozen. Its hash goes to the evaluation as the setting plan."""

    plan: PathOrName = Field(description="Gate plan: a shipped one or a TOML file")
    data: list[PathOrName] = Field(min_length=1, description="Datasets (recipes are made first); the plan's own first")
    before_adapter: PathOrName = Field("", description="Adapter that the comparison will start from; empty: the base")
    base: PathOrName = Field(
        "", description=f"Model below it; empty: the bundled one; {UNBOUND}: its weights are not here"
    )
    limits: list[PathOrName] = Field(
        [], description="Plans of later rounds whose limits are frozen now, without images"
    )


def run(context: Context, spec: FreezeSpec) -> dict[str, Any]:
    """Make the data, name every picture in the plan, and put its hash into the ledger."""
    from vlmconsole.evaluation.resolve import NamedAdapter, base_of
    from vlmconsole.gates.bases import bases
    from vlmconsole.gates.binding import bind, freeze_for_lab
    from vlmconsole.gates.plan import load_plan
    from vlmconsole.gates.power import power, refuse_weak_intervals
    from vlmconsole.jobs.data import course, ready
    from vlmconsole.ledger.chain import Ledger

    places = context.places
    ledger = Ledger(places.ledger)
    plan, later = load_plan(spec.plan), [load_plan(name) for name in spec.limits]
    refuse_weak_intervals(plan)
    for plan_to_freeze in {plan_to_freeze.sha256: plan_to_freeze for plan_to_freeze in (plan, *later)}.values():
        limits = freeze_for_lab(plan_to_freeze, places.home, ledger)
        context.events.note(f"the limits of {plan_to_freeze.name} are frozen: {limits.sha256[:12]}…")
    course(context, spec.data, {"freezing": 1.0})
    folders = [ready(context, name) for name in spec.data]
    base = None if spec.base == UNBOUND else base_of(spec.base)
    before = NamedAdapter(spec.before_adapter, places).identity
    plan = bind(plan, folders, before_adapter=before, base_sha256=base)
    context.check_stop()
    frozen = freeze_for_lab(plan, places.home, ledger)
    pictures = sum(len(rows) for rows in plan.data.pictures.values())
    context.events.note(f"{plan.name} is frozen for {pictures} images by hash: {frozen.sha256[:12]}…")
    powers = power(plan, bases(plan, places))
    for each in powers:
        context.events.note(f"{each.gate.name}: {each.text}", "warning" if each.state and each.source else "info")
    return {
        "frozen": frozen.sha256,
        "t": frozen.t,
        "plan": plan.name,
        "path": str(frozen.path),
        "gates": len(plan.gates),
        "pictures": pictures,
        "data": plan.data.digests,
        "before_adapter": plan.before_adapter,
        "base_sha256": plan.base_sha256,
        "selection": plan.value()["selection"],
        "power": [each.to_json() for each in powers],
        "limits": {plan_to_freeze.name: plan_to_freeze.sha256 for plan_to_freeze in (plan.template(), *later)},
    }


def _estimate(spec: FreezeSpec) -> Estimate:
    return Estimate(note="seconds, and those of making the datasets that are not there yet")


def _problems(spec: FreezeSpec, places: Places, alone: bool) -> list[str]:
    from vlmconsole.evaluation.preflight import of_data
    from vlmconsole.gates.plan import load_plan

    failures: list[str] = []
    for number, name in enumerate((spec.plan, *spec.limits)):
        try:
            if preflight.LATER not in name:
                plan = load_plan(name)
                if number == 0 and not any(preflight.LATER in dataset for dataset in spec.data):
                    failures += of_data(plan, spec.data, places, alone)
        except LabError as error:
            failures.append(error.full_message)
    failures += [dataset for dataset in preflight.data(spec.data, places, alone) if dataset not in failures]
    return failures if spec.base == UNBOUND else failures + preflight.base(spec.base)


KIND = JobKind("freeze", "Freeze a gate plan for its images", FreezeSpec, run, estimate=_estimate, problems=_problems)
