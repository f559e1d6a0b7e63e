"""What a job names and cannot do without: whether it is there, told when the job is planned and not after an hour.

Each function returns sentences for people, none where nothing is known against it. A result of an earlier step
(`${train.adapter}`) is not there yet; where an earlier job may still make a thing (not `alone`) it is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vlmconsole.data.browse import BrowsedSplit
from vlmconsole.data.example import Example, ScoredTruth
from vlmconsole.data.manifest import IMPORTED, read_manifest
from vlmconsole.data.names import Promised, look_up, promised, truths_of
from vlmconsole.data.rows import DataError
from vlmconsole.data.scored import check_scorable
from vlmconsole.errors import LabError
from vlmconsole.evaluation.settings import LATER as LATER
from vlmconsole.runs.places import Places
from vlmconsole.scoring.python_scorer import PythonScorer
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.scoring.rewards import RewardPart
from vlmconsole.scoring.scorers import fitting_scorers, read_truth
from vlmconsole.scoring.trial import TRIED, trial

if TYPE_CHECKING:
    from vlmconsole.training.adapters.store import Adapter

AFTER = "Where a job before it makes that, queue this one with --after ID."


def base(name: str) -> list[str]:
    """Return a model's folder ("" is the bundled one). No earlier job makes one at a place that could be written
    down.
    """
    from vlmconsole.training.bases import base_folder

    if LATER in name:
        return []
    try:
        base_folder(name)
    except LabError as error:
        return [error.full_message]
    return []


def loadable(name: str) -> list[str]:
    """Return a base that is to be asked in a job's own process: whole, of the known family, with a template that
    works.
    """
    from vlmconsole.training.bases import answering_base

    if LATER in name:
        return []
    try:
        answering_base(name)
    except LabError as error:
        return [error.full_message]
    return []


def adapter(
    name: str, places: Places, alone: bool, *, served: bool = False, find: Callable[[], Adapter] | None = None
) -> list[str]:
    """Return an adapter by path or name; "" is none. `served`: a server may know it that this lab does not.

    `find`: for one who has looked the name up.
    """
    from vlmconsole.training.adapters.config import SeveralAdaptersError
    from vlmconsole.training.adapters.store import AdapterError, find_adapter, refused

    if not name or LATER in name:
        return []
    try:
        reason = refused(find() if find is not None else find_adapter(places, name))
        return [reason] if reason else []
    except SeveralAdaptersError as error:
        return [error.full_message]
    except AdapterError as error:
        return [f"{error.full_message.rstrip('.')}. {AFTER}"] if alone and not served else []


def data(names: Sequence[str], places: Places, alone: bool, splits: Sequence[str] = ()) -> list[str]:
    """Datasets: made, or to be made of a recipe; `splits` are what the first must have."""
    failures: list[str] = []
    for number, name in enumerate(names):
        if LATER in name:
            continue
        if not name:
            failures.append("no data: --set data=NAME (`vlmconsole data list` shows them)")
            continue
        try:
            promised_splits = promised(name, places.datasets)
        except LabError as error:
            if alone or not isinstance(error, DataError):  # a recipe that is wrong stays so
                failures.append(error.full_message)
            continue
        if number == 0:
            has = ", ".join(promised_splits)
            failures += [
                f"{name} has no split “{split}” (there are: {has})" for split in splits if split not in promised_splits
            ]
    return failures


def role(name: str, wanted: Sequence[str], places: Places) -> list[str]:
    """Return whether a dataset has exactly one split of each role."""
    if LATER in name:
        return []
    try:
        promised_splits: list[Promised] = list(promised(name, places.datasets).values())
    except LabError:
        return []  # told by `data`
    counts = {name_of_role: sum(split.role == name_of_role for split in promised_splits) for name_of_role in wanted}
    return [
        f"{name} has {n} splits for {name_of_role}, and exactly one is needed"
        for name_of_role, n in counts.items()
        if n != 1
    ]


def scorer(
    name: str,
    wanted: str,
    places: Places,
    *,
    splits: Sequence[str] = (),
    roles: Sequence[str] = (),
    check: Callable[[Example], None] = check_scorable,
) -> list[str]:
    """Return whether a scorer ("": each one's own, by `check`) can judge the truths of these splits, by name or by
    role.
    """
    parts = [RewardPart.model_construct(scorer=wanted)]
    return rewards(name, parts, places, splits=splits, roles=roles, check=check)


def rewards(
    name: str,
    parts: Sequence[RewardPart],
    places: Places,
    *,
    splits: Sequence[str] = (),
    roles: Sequence[str] = (),
    check: Callable[[Example], None] = check_scorable,
) -> list[str]:
    """Return whether each part of a reward can judge every truth of these splits; a function in a file is tried on the
    first.

    A function runs in a process of its own, within its limit.
    """
    if LATER in name or any(LATER in part.scorer for part in parts):
        return []
    failures = [reason for part in parts if (reason := _unusable(part))]
    if any(not part.scorer for part in parts):
        failures += islice(refused_questions(name, places, check, splits=splits, roles=roles), 1)
    named = [part for part in parts if part.scorer]
    try:
        truths = [] if failures else list(truths_of(name, places.datasets))
    except LabError:
        return failures  # told by `data`
    for split, role_of, held in truths:
        if named and (split in splits or role_of in roles):
            failures += _misfits(f"{name}:{split}", named, held)
    return failures


def refused_questions(
    name: str,
    places: Places,
    check: Callable[[Example], None],
    *,
    splits: Sequence[str] = (),
    roles: Sequence[str] = (),
) -> Iterator[str]:
    """Yield why `check` refuses questions of an imported dataset's splits (by name or by role); no image is read.

    Drawn scenes are of one form, which needs no look.
    """
    try:
        folder = look_up(name, places.datasets).folder
        manifest = read_manifest(folder) if folder is not None else {}
        if folder is None or manifest.get("format") != IMPORTED:
            return
        for split, about in manifest["splits"].items():
            if split not in splits and about["role"] not in roles:
                continue
            for example in BrowsedSplit(folder / f"{split}.parquet").examples:
                for question in example.questions():
                    try:
                        check(question)
                    except LabError as error:
                        yield f"{name}:{split}: {error.full_message}"
    except LabError:
        return  # told by `data`


def _unusable(part: RewardPart) -> str:
    try:
        if part.scorer:
            find_scorer(part.scorer).parse(part.options)
    except LabError as error:
        return error.full_message
    return ""


def _misfits(where: str, parts: Sequence[RewardPart], held: Iterable[ScoredTruth]) -> list[str]:
    """The first truth of a split that each part cannot judge, in words."""
    failures: dict[int, str] = {}
    tried: list[ScoredTruth] = []
    for truth in held:
        if len(tried) < TRIED:
            tried.append(truth)
        for at, part in enumerate(parts):
            if at not in failures and (reason := _misfit(part, truth)):
                failures[at] = f"{where}: the scorer {part.scorer} cannot judge {truth.id}: {reason}"
    for at, part in enumerate(parts):
        rule = find_scorer(part.scorer)
        if isinstance(rule, PythonScorer) and (reason := trial(rule, part.options, part.limit, tried)):
            failures[at] = f"{where}: {rule.label} cannot judge {reason}"
    return list(failures.values())


def _misfit(part: RewardPart, held: ScoredTruth) -> str:
    """Why a part with a scorer of its own cannot judge a truth, and a scorer that could; "" when it can."""
    wanted = part.scorer
    options = {**(held.options if wanted == held.scorer else {}), **part.options}
    try:
        reason = find_scorer(wanted).check(read_truth(wanted, held.truth), options)
    except LabError as error:
        reason = error.phrase
    if not reason:
        return ""
    fits = fitting_scorers(held.truth)
    return f"{reason}{f'; scorer = {fits[0]} can' if fits else ''}"
