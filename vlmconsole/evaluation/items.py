"""What is asked: the questions of examples, with truth, scorer and group, from datasets in a fixed order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vlmconsole.data.dataset import read_manifest
from vlmconsole.data.example import Example, read_questions
from vlmconsole.data.names import ready
from vlmconsole.data.rows import DataError
from vlmconsole.data.scored import check_askable
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.plan import Plan
from vlmconsole.gates.samples import asked_hash, images_hash, truth_hash
from vlmconsole.ledger.freezing import digest
from vlmconsole.scoring.scorers import read_truth

DIAGNOSTIC = 128  # training pictures, unless the plan promises another number


@dataclass(frozen=True)
class Item:
    """The last question of an example, with the images and turns before it, and how its answer is scored: by `scorer`,
    "" for one without a truth, whose answer nothing scores.

    Hashes are hex, of what is seen and of what is asked (`gates.samples`).
    """

    id: str
    group: str
    scorer: str
    dataset: str
    split: str
    example: Example
    picture_sha256: str
    pixel_sha256: str
    prompt_sha: str
    truth: Any
    options: Mapping[str, Any] = field(default_factory=dict)


def choose(settings: EvaluateSettings, folders: list[Path], plan: Plan | None) -> list[Item]:
    """Return every item to be asked, group after group, in the datasets' own order. Raises DataError when there is
    none.
    """
    if plan is not None:
        wanted = [(group.name, _holding(folders, group.split), group.split, group.scorer) for group in plan.groups]
    else:
        wanted = list(_wanted(settings, folders))
    options = {group.name: group.options for group in plan.groups} if plan is not None else {}
    items = []
    owners = {name: (folder, split) for name, folder, split, _ in wanted}  # whose examples a group's name means
    for name, folder, split, scorer in wanted:
        taken: Counter[str] = Counter()
        for example in read_questions(folder / f"{split}.parquet"):
            group = name if plan is not None else _group(example, name, (folder, split), owners)
            taken[group] += 1
            if settings.limit is None or taken[group] <= settings.limit:
                items.append(_item(example, group, scorer, folder.name, options.get(group, {})))
    if not items:
        raise DataError("No images left to ask about.", "vlmconsole data show lists a dataset's splits.")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(f"Two images share the id {item.id}.")
        seen.add(item.id)
    if 0 < (unscored := sum(not item.scorer for item in items)) < len(items):
        raise DataError(
            f"{unscored} of {len(items)} examples have no truth, and the others have one.",
            "Evaluate those with a truth: name their splits or groups.",
            code="truth-missing",
        )
    return items if settings.sample is None else _drawn(items, settings.sample, settings.seed)


def _drawn(items: list[Item], n: int, seed: int) -> list[Item]:
    """So many of the items, drawn by the seed and each one's id, in the items' own order."""
    chances = {item.id: hashlib.sha256(f"{seed}:{item.id}".encode()).digest() for item in items}
    chosen = set(sorted(chances, key=lambda name: chances[name])[:n])
    return [item for item in items if item.id in chosen]


def _wanted(settings: EvaluateSettings, folders: list[Path]) -> Iterator[tuple[str, Path, str, str]]:
    """(group, folder, split, scorer) of what the settings name without a plan."""
    left = set(settings.groups)
    names: set[str] = set()
    for folder in folders:
        splits = read_manifest(folder)["splits"]
        roles = {described["role"] for described in splits.values()}
        role = "test" if "test" in roles else "exploratory"
        for split, described in splits.items():
            group = split.removeprefix("test-")
            if settings.groups:
                if not {split, group} & set(settings.groups):
                    continue
                left -= {split, group}
            elif described["role"] != role:
                continue
            group = f"{folder.name}/{group}" if group in names else group
            names.add(group)
            yield group, folder, split, settings.scorer
    if left:
        known = [split for folder in folders for split in read_manifest(folder)["splits"]]
        raise DataError(
            f"No dataset given holds {', '.join(sorted(left))}.",
            f"There are: {', '.join(known)}.",
            code="group-missing",
        )


def _holding(folders: list[Path], split: str) -> Path:
    for folder in folders:
        if split in read_manifest(folder)["splits"]:
            return folder
    raise DataError(f"No dataset given holds the split {split}.")


def _group(example: Example, name: str, place: tuple[Path, str], owners: dict[str, tuple[Path, str]]) -> str:
    """The example's own group, else its split's; a name that stands for another split's gets its place before it."""
    if not example.group:
        return name
    longer = (example.group, f"{place[1]}/{example.group}", f"{place[0].name}/{place[1]}/{example.group}")
    return next(group for group in longer if owners.setdefault(group, place) == place)


def _item(
    example: Example, group: str, scorer: str, dataset: str, options: Mapping[str, Any] = MappingProxyType({})
) -> Item:
    check_askable(example, scorer, options)
    own = not scorer or scorer == example.scorer
    scorer = scorer or example.scorer
    return Item(
        id=example.id,
        group=group,
        scorer=scorer,
        dataset=dataset,
        split=example.split,
        example=example,
        picture_sha256=images_hash(example.image_sha256s),
        pixel_sha256=images_hash(example.pixel_sha256s),
        prompt_sha=asked_hash(example),
        truth=read_truth(scorer, example.truth) if scorer else None,
        options={**(example.options if own else {}), **options},
    )


def diagnostic_items(settings: EvaluateSettings, datasets: Path, plan: Plan | None) -> list[Item]:
    """Training pictures for the diagnostic: the first of the split, as many as the plan promises."""
    if not settings.diagnostic:
        return []
    name, _, split = settings.diagnostic.partition(":")
    folder = ready(name, datasets)
    if split not in read_manifest(folder)["splits"]:
        raise DataError(f"{name} has no split {split}.")
    n = plan.generations.training_diagnostic if plan is not None else 0
    examples = islice(read_questions(folder / f"{split}.parquet"), settings.limit or n or DIAGNOSTIC)
    return [_item(example, "training images", settings.scorer, folder.name) for example in examples]


def items_digest(items: Iterable[Item]) -> str:
    """Hash (hex) of what is asked, in order: the same digest means the same questions about the same pictures."""
    return digest(
        [
            [
                *(i.id, i.group, i.scorer, i.picture_sha256, i.prompt_sha, truth_hash(i.truth)),
                *([dict(i.options)] if i.options else []),
            ]
            for i in items
        ]
    )


def batches(items: list[Item], size: int) -> list[tuple[str, list[Item]]]:
    """(name, members): items of one group, `size` at a time. Fixed beforehand, so that a resumed run has the same."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return [
        (f"{group}-{start // size}", members[start : start + size])
        for group, members in groups.items()
        for start in range(0, len(members), size)
    ]
