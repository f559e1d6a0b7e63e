"""The plan that an evaluation is judged by: one frozen earlier, or one bound and frozen now, and what before is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vlmconsole.errors import LabError
from vlmconsole.evaluation.answerer import Who
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.binding import bind
from vlmconsole.gates.frozen import check_bound, is_frozen, read_frozen_plan
from vlmconsole.gates.plan import Plan, PlanError, load_plan
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named

if TYPE_CHECKING:
    from vlmconsole.engines.profile import ServerProfile


def identity_of(name: str, places: Places) -> str | None:
    """An adapter as conditions and bound plans name it, with the hash of its weights where this lab has it."""
    from vlmconsole.training.adapters.store import AdapterError, find_adapter

    if not name:
        return None
    try:
        adapter = find_adapter(places, name)
    except AdapterError:
        return Who("", adapter=name).identity  # whoever answers with it says what is wrong, if anything is
    return Who("", adapter=adapter.name, adapter_sha256=adapter.sha256).identity


def base_of(name: str) -> str:
    """Hash (hex) of the weights of a base by name ("": the bundled model). Raises LabError when it is not here."""
    from vlmconsole.training.adapters.store import base_sha256
    from vlmconsole.training.bases import base_folder

    return base_sha256(base_folder(name))


def before_base(settings: EvaluateSettings, places: Places) -> str | None:
    """Hash (hex) of the weights that before is, or stands on; None where a server keeps them elsewhere."""
    if settings.backend == "in-process":
        return base_of(settings.model("before") or settings.base)
    from vlmconsole.engines.profile import load_profiles
    from vlmconsole.training.adapters.store import base_sha256

    profile = load_profiles(places.servers, problems=[]).get(settings.server_of("before"))
    if profile is None:
        return None
    if settings.model("before"):
        beside = served_folder(settings.model("before"), profile)
        try:
            return base_sha256(beside) if beside is not None else base_of(settings.model("before"))
        except LabError:
            return None
    folder = profile.model_dir() if profile.engine != "openai" else None
    return base_sha256(folder) if folder is not None else None


def served_folder(model: str, profile: ServerProfile) -> Path | None:
    """A model's folder as its launch line means it: a relative one lies where the server is started from."""
    if profile.launch is None:
        return None
    beside = named(profile.launch.folder) / model
    return beside if (beside / "config.json").is_file() else None


def plan_for(
    name: str, datasets: list[Path], before_adapter: str, places: Places, base_sha256: str | None = None
) -> Plan:
    """The plan called `name`, bound to these datasets and to what the comparison starts from.

    One that was frozen earlier (by hash or file) is taken as it is. Raises PlanError and FrozenError when it was
    changed, when its data were, or when before is another adapter, or stands on another base, than it names.
    """
    before = identity_of(before_adapter, places)
    if not is_frozen(name):
        return bind(load_plan(name), datasets, before_adapter=before, base_sha256=base_sha256)
    plan = read_frozen_plan(name, places.home, Ledger(places.ledger))
    if not plan.data.digests:  # its limits alone were frozen
        return bind(plan, datasets, before_adapter=before, base_sha256=base_sha256)
    check_bound(plan, datasets)
    wrong = other_before(plan, before, base_sha256)
    if wrong:
        raise PlanError(
            f"The frozen {wrong}.", "Judge what it was frozen for, or freeze another plan.", code="before-differs"
        )
    return plan


def other_before(plan: Plan, before: str | None, base_sha256: str | None) -> str:
    """Why a bound plan does not compare with that adapter on that base; "" when it does."""
    if plan.before_adapter != before:  # none: it was frozen for the base itself
        return f"{plan.name} compares with {plan.before_adapter or 'the base'}, not with {before or 'the base'}"
    if plan.base_sha256 is not None and plan.base_sha256 != base_sha256:
        here = f"{base_sha256[:12]}…" if base_sha256 else "one whose weights are not on this machine"
        return f"{plan.name} is bound to the base {plan.base_sha256[:12]}…, and this one is {here}"
    return ""
