"""What can be known of an evaluation before it runs: whether its plan could judge it at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.generations import generation
from vlmconsole.data.names import DataSource, Promised, look_up, promised
from vlmconsole.data.rows import DataError
from vlmconsole.data.textvqa import NAME as TEXTVQA
from vlmconsole.data.textvqa import PICTURES
from vlmconsole.errors import LabError
from vlmconsole.evaluation.items import DIAGNOSTIC
from vlmconsole.evaluation.resolve import Resolved, ResolvedSide
from vlmconsole.evaluation.settings import LATER, EvaluateSettings
from vlmconsole.evaluation.whole_model import served_folder, with_model
from vlmconsole.gates.binding import other_before
from vlmconsole.gates.plan import Plan
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


def plan_problems(resolved: Resolved, alone: bool) -> list[str]:
    """Sentences on why the plan named could judge nothing of this evaluation; [] when nothing is known against it.

    `alone`: no step of a flow runs before it, so that a dataset that is not there will not be there.
    """
    settings, places = resolved.settings, resolved.places
    try:
        plan = resolved.plan
    except LabError as error:
        return [error.full_message]
    if plan is None:
        return []
    return [
        *of_data(plan, settings.data, places, alone, textvqa=bool(settings.textvqa)),
        *_of_conditions(plan, settings),
        *_of_generations(plan, resolved),
        *_of_before(plan, resolved),
    ]


def unknown_groups(settings: EvaluateSettings, places: Places) -> list[str]:
    """Return a sentence for the groups or splits named that no dataset has; [] where a dataset is not known yet."""
    splits: list[str] = []
    try:
        for name in settings.data:
            splits += promised(name, places.datasets)
    except LabError:
        return []  # told with the data, or made by an earlier step
    names = {*splits, *(split.removeprefix("test-") for split in splits)}
    missing = [group for group in settings.groups if group not in names]
    return [f"no dataset given has {', '.join(missing)}: there are {', '.join(splits)}"] if missing else []


def of_side(side: ResolvedSide) -> list[str]:
    """Sentences on why a side's model could not answer: its folder, or its server's profile with that model."""
    from vlmconsole.engines.launch_lines import refuse_untrusted
    from vlmconsole.engines.profile import model_folder

    try:
        if side.settings.backend == "in-process":
            if LATER not in side.model:
                _ = side.answering_folder
        elif LATER not in side.server:
            profile, model = side.profile, side.own_model
            if model and LATER not in model:  # whether it is there is only known when its server starts
                profile = with_model(profile, served_folder(model, profile) or model_folder(model))
            if profile.launch is not None:
                refuse_untrusted(profile)
    except LabError as error:
        return [error.full_message]
    return []


def of_data(plan: Plan, data: Sequence[str], places: Places, alone: bool, *, textvqa: bool = False) -> Iterator[str]:
    """Yield what these datasets lack of the pictures that the plan judges. `textvqa`: TextVQA64 is made of its
    shards.
    """
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
                yield error.full_message
            unknown = True
            continue
        yield from _changed(plan, source)
    if names and not unknown and names[0] not in plan.data.recipes:
        yield f"{plan.name} judges images of {' or '.join(plan.data.recipes)}, not of {names[0]}"
        return
    for group in plan.groups:
        if group.split not in splits:
            if not unknown:
                known = ", ".join(names)
                yield f"the group {group.name} of {plan.name} needs the split {group.split}, which {known} lacks"
            continue
        dataset, rows_known = splits[group.split]
        if rows_known.role != "test":
            yield f"{dataset}:{group.split} is a {rows_known.role} split: gates judge on tests only"
        elif rows_known.n is not None and rows_known.n != group.n:
            yield f"{dataset}:{group.split} has {rows_known.n} images, {plan.name} needs {group.n}"


def _changed(plan: Plan, source: DataSource) -> Iterator[str]:
    wanted = plan.data.digests.get(source.name)
    if wanted is not None and source.folder is not None:
        now = manifest_digest(read_manifest(source.folder))
        if now != wanted:
            earlier = generation(source.folder.parent, source.name, wanted)
            bound = f"{wanted[:12]}…" + (f", which is {earlier.name}" if "@" in earlier.name else "")
            yield f"the dataset {source.name} is {now[:12]}… now, the frozen {plan.name} is bound to {bound}"


def _of_conditions(plan: Plan, settings: EvaluateSettings) -> Iterator[str]:
    if settings.blind is not None and settings.blind != plan.blind:
        promised_how = f"by {plan.blind}" if plan.blind else "none"
        yield f"{plan.name} wants blind answers {promised_how}, this evaluation would make them by {settings.blind}"
    given = {"seed": settings.seed, "max_tokens": settings.max_new_tokens, "temperature": 0.0}
    for key, wanted in plan.conditions.items():
        if key in given and given[key] != wanted:
            yield f"{plan.name} wants {key} = {wanted}, this evaluation would have {given[key]}"


def _of_generations(plan: Plan, resolved: Resolved) -> Iterator[str]:
    settings = resolved.settings
    wanted = plan.generations.training_diagnostic
    if settings.diagnostic and not wanted:
        yield f"{plan.name} promises no answers about training images, and a diagnostic of {DIAGNOSTIC} is set"
    elif settings.diagnostic:
        name, _, split = settings.diagnostic.partition(":")
        try:
            promise = promised(name, resolved.places.datasets).get(split)
        except LabError:
            promise = None  # told with the data, or made by an earlier step
        if promise is not None and promise.n is not None and promise.n < wanted:
            yield f"{settings.diagnostic} has {promise.n} images, {plan.name} promises {wanted} diagnostic answers"
    wanted = plan.generations.development
    paths = resolved.after.adapter.development if wanted else ()
    made = sum(1 for path in paths for _ in RunFolder(path.parent).read_jsonl(path.name))
    if made and made != wanted:
        yield f"the training of {settings.after_adapter} left {made} development answers, {plan.name} promises {wanted}"


def _of_before(plan: Plan, resolved: Resolved) -> Iterator[str]:
    settings = resolved.settings
    later = (settings.before_adapter, settings.before_model, settings.base)
    if not plan.data.digests or any(LATER in name for name in later):  # not bound yet, or not known yet
        return
    try:
        base = resolved.before.weights_sha256 if plan.base_sha256 else None
    except LabError as error:
        yield error.full_message
        return
    if wrong := other_before(plan, resolved.before.adapter.identity, base):
        yield f"the frozen {wrong}"
