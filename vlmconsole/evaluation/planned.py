"""The plan that an evaluation is judged by: one frozen earlier, or one bound and frozen now."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.evaluation.answerer import Who
from vlmconsole.gates.bind import bind
from vlmconsole.gates.frozen import check_bound, is_frozen, read_frozen_plan
from vlmconsole.gates.ledger import Ledger
from vlmconsole.gates.rules import Plan, PlanError, load_plan
from vlmconsole.runs.places import Places


def identity_of(name: str, places: Places) -> str | None:
    """An adapter as conditions and bound plans name it, with the hash of its weights where this lab has it."""
    from vlmconsole.training.adapters import AdapterError, find_adapter

    if not name:
        return None
    try:
        adapter = find_adapter(places, name)
    except AdapterError:
        return Who("", adapter=name).identity  # whoever answers with it says what is wrong, if anything is
    return Who("", adapter=adapter.name, adapter_sha256=adapter.sha256).identity


def plan_for(name: str, datasets: list[Path], before_adapter: str, places: Places) -> Plan:
    """The plan called `name`, bound to these datasets and to what the comparison starts from.

    One that was frozen earlier (by hash or file) is taken as it is. Raises PlanError and FrozenError when it was
    changed, when its data were, or when before is another adapter than it names.
    """
    before = identity_of(before_adapter, places)
    if not is_frozen(name):
        return bind(load_plan(name), datasets, before_adapter=before)
    plan = read_frozen_plan(name, places.home, Ledger(places.ledger))
    if not plan.data.digests:  # its limits alone were frozen
        return bind(plan, datasets, before_adapter=before)
    check_bound(plan, datasets)
    if plan.before_adapter != before:  # none: it was frozen for the base itself
        wanted = plan.before_adapter or "the base"
        raise PlanError(f"The frozen {plan.name} compares with {wanted}, not with {before or 'the base'}.")
    return plan
