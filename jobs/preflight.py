"""What a job names and cannot do without: whether it is there, told when the job is planned and not after an hour.

Each function returns sentences for people, none where nothing is known against it. A result of an earlier step
(`${train.adapter}`) is not there yet; where an earlier job may still make a thing (not `alone`) it is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vlmconsole.data.browse import BrowsedSplit
from vlmconsole.data.example import Example
from vlmconsole.data.manifest import IMPORTED, read_manifest
from vlmconsole.data.names import Promised, look_up, promised, truths_of
from vlmconsole.data.rows import DataError
from vlmconsole.data.scored import check_scorable
from vlmconsole.errors import LabError
from vlmconsole.evaluation.settings import LATER as LATER
from vlmconsole.runs.places import Places
from vlmconsole.scoring.scorers import ScoringError, fitting_scorers, read_truth, score

if TYPE_CHECKING:
    from vlmconsole.training.adapters.store import Adapter

AFTER = "Where a job before it makes that, queue this one with --after ID."


def base(name: str) -> list[str]:
    """A model's folder ("" is the bundled one). No earlier job makes one at a place that could be written down."""
    from vlmconsole.training.bases import base_folder

    if LATER in name:
        return []
    try:
        base_folder(name)
    except LabError as error:
        return [error.full_message]
    return []


def loadable(name: str) -> list[str]:
    """A base that is to be asked in a job's own process: whole, of the known family, with a template that works."""
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
    """An adapter by path or name; "" is none. `served`: a server may know it that this lab does not.

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
    """Whether a dataset has exactly one split of each role."""
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
    """Whether a scorer ("": each one's own, by `check`) can judge the truths of these splits, by name or by role."""
    if LATER in name or LATER in wanted:
        return []
    if not wanted:
        return list(islice(refused_questions(name, places, check, splits=splits, roles=roles), 1))
    try:
        truths = truths_of(name, places.datasets)
    except LabError:
        return []  # told by `data`
    for split, role_of, held in truths:
        if split not in splits and role_of not in roles:
            continue
        for uid, truth in held:
            try:
                score(wanted, "", read_truth(wanted, truth))
            except ScoringError as error:
                fits = fitting_scorers(truth)
                hint = f"; scorer = {fits[0]} can" if fits else ""
                return [f"{name}:{split}: the scorer {wanted} cannot judge {uid}: {error.phrase}{hint}"]
    return []


def refused_questions(
    name: str,
    places: Places,
    check: Callable[[Example], None],
    *,
    splits: Sequence[str] = (),
    roles: Sequence[str] = (),
) -> Iterator[str]:
    """Why `check` refuses questions of an imported dataset's splits (by name or by role); no image is read.

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
