"""What can be known of an evaluation before it runs: whether its plan could judge it at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.generations import generation
from vlmconsole.data.names import Promised, Source, look_up, promised
from vlmconsole.data.rows import DataError
from vlmconsole.data.textvqa import NAME as TEXTVQA
from vlmconsole.data.textvqa import PICTURES
from vlmconsole.errors import LabError
from vlmconsole.evaluation.items import DIAGNOSTIC
from vlmconsole.evaluation.plan_choice import before_base, identity_of, other_before
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.frozen import is_frozen, read_frozen_plan
from vlmconsole.gates.plan import Plan, load_plan
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

LATER = "${"  # of a result that an earlier step of a flow will give


def foreseen(settings: EvaluateSettings, places: Places, alone: bool) -> list[str]:
    """Sentences on why the plan named could judge nothing of this evaluation; [] when nothing is known against it.

    `alone`: no step of a flow runs before it, so that a dataset that is not there will not be there.
    """
    name = settings.plan
    if not name or LATER in name:
        return []
    try:
        frozen = is_frozen(name)
        plan = read_frozen_plan(name, places.home, Ledger(places.ledger)) if frozen else load_plan(name)
    except LabError as error:
        return [error.told]
    return [
        *of_data(plan, settings.data, places, alone, textvqa=bool(settings.textvqa)),
        *_of_conditions(plan, settings),
        *_of_generations(plan, settings, places),
        *_of_before(plan, settings, places),
    ]


def of_data(plan: Plan, data: Sequence[str], places: Places, alone: bool, *, textvqa: bool = False) -> Iterator[str]:
    """What these datasets lack of the pictures that the plan judges. `textvqa`: TextVQA64 is made of its shards."""
    splits: dict[str, tuple[str, Promised]] = {}
    names: list[str] = []
    unknown = False
    for given in data:
        if given == TEXTVQA and textvqa and not (places.datasets / TEXTVQA).exists():
            names.append(TEXTVQA)  # made of the shards when it starts
            splits.setdefault(TEXTVQA, (TEXTVQA, Promised("test", PICTURES)))
            continue
        try:
            source = look_up(given, places.datasets)
            names.append(source.name)
            for split, about in promised(given, places.datasets).items():
                splits.setdefault(split, (source.name, about))
        except LabError as error:
            if alone or not isinstance(error, DataError):
                yield error.told
            unknown = True
            continue
        yield from _changed(plan, source)
    if names and not unknown and names[0] not in plan.data.recipes:
        yield f"{plan.name} judges pictures of {' or '.join(plan.data.recipes)}, not of {names[0]}"
        return
    for group in plan.groups:
        if group.split not in splits:
            if not unknown:
                there = ", ".join(names)
                yield f"the group {group.name} of {plan.name} needs the split {group.split}, which {there} lacks"
            continue
        dataset, found = splits[group.split]
        if found.role != "test":
            yield f"{dataset}:{group.split} is a {found.role} split: gates judge on tests only"
        elif found.n is not None and found.n != group.n:
            yield f"{dataset}:{group.split} has {found.n} pictures, {plan.name} wants {group.n}"


def _changed(plan: Plan, source: Source) -> Iterator[str]:
    wanted = plan.data.digests.get(source.name)
    if wanted is not None and source.folder is not None:
        now = manifest_digest(read_manifest(source.folder))
        if now != wanted:
            earlier = generation(source.folder.parent, source.name, wanted)
            bound = f"{wanted[:12]}…" + (f", which is {earlier.name}" if "@" in earlier.name else "")
            yield f"the dataset {source.name} is {now[:12]}… now, the frozen {plan.name} is bound to {bound}"


def _of_conditions(plan: Plan, settings: EvaluateSettings) -> Iterator[str]:
    given = {"seed": settings.seed, "max_tokens": settings.max_new_tokens, "temperature": 0.0}
    for key, wanted in plan.conditions.items():
        if key in given and given[key] != wanted:
            yield f"{plan.name} wants {key} = {wanted}, this evaluation would have {given[key]}"


def _of_generations(plan: Plan, settings: EvaluateSettings, places: Places) -> Iterator[str]:
    wanted = plan.generations.training_diagnostic
    if settings.diagnostic and not wanted:
        yield f"{plan.name} promises no answers about training pictures, and a diagnostic of {DIAGNOSTIC} is set"
    elif settings.diagnostic:
        name, _, split = settings.diagnostic.partition(":")
        try:
            found = promised(name, places.datasets).get(split)
        except LabError:
            found = None  # told with the data, or made by an earlier step
        if found is not None and found.n is not None and found.n < wanted:
            yield f"{settings.diagnostic} has {found.n} pictures, {plan.name} promises {wanted} diagnostic answers"
    wanted = plan.generations.development
    made = _developed(settings, places) if wanted else 0
    if made and made != wanted:
        yield f"the training of {settings.after_adapter} left {made} development answers, {plan.name} promises {wanted}"


def _developed(settings: EvaluateSettings, places: Places) -> int:
    """Development answers that the training of the tested adapter left in this lab; 0 where that is not known."""
    from vlmconsole.training.adapters.store import AdapterError, find_adapter

    if not settings.after_adapter or LATER in settings.after_adapter:
        return 0
    try:
        origin = find_adapter(places, settings.after_adapter).provenance
    except AdapterError:
        return 0
    run = RunFolder(places.runs / origin.run) if origin is not None and origin.run else None
    paths = sorted(run.path.glob("dev-epoch*.jsonl")) if run is not None else []
    return sum(1 for path in paths for _ in RunFolder(path.parent).read_jsonl(path.name))


def _of_before(plan: Plan, settings: EvaluateSettings, places: Places) -> Iterator[str]:
    later = (settings.before_adapter, settings.before_model, settings.base)
    if not plan.data.digests or any(LATER in one for one in later):  # not bound yet, or not known yet
        return
    try:
        base = before_base(settings, places) if plan.base_sha256 else None
    except LabError as error:
        yield error.told
        return
    if wrong := other_before(plan, identity_of(settings.before_adapter, places), base):
        yield f"the frozen {wrong}"
