"""What is asked: pictures with question, truth and group, taken from made datasets in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vlmconsole.data.dataset import read_manifest
from vlmconsole.data.names import ready
from vlmconsole.data.rows import DataError, Row, read_rows
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.plan import Plan
from vlmconsole.gates.samples import prompt_hash, truth_hash
from vlmconsole.ledger.freezing import digest
from vlmconsole.scoring.scorers import read_truth

DIAGNOSTIC = 128  # training pictures, unless the plan promises another number
_SCORERS = {"counting": "counting", "naming": "naming", "textvqa": "textvqa", "text": "naming"}


@dataclass(frozen=True)
class Item:
    """One picture and its question. Hashes are hex; `truth` is text, or the human answers of TextVQA."""

    id: str
    group: str
    scorer: str
    dataset: str
    split: str
    picture: bytes
    picture_sha256: str
    pixel_sha256: str
    question: str
    truth: str | tuple[str, ...]


def choose(settings: EvaluateSettings, folders: list[Path], plan: Plan | None) -> list[Item]:
    """Every item to be asked, group after group, in the datasets' own order. Raises DataError when there is none."""
    if plan is not None:
        wanted = [(group.name, _holding(folders, group.split), group.split, group.scorer) for group in plan.groups]
    else:
        wanted = list(_wanted(settings, folders))
    items = []
    for group, folder, split, scorer in wanted:
        rows = read_rows(folder / f"{split}.parquet")
        examples = [_item(row, group, scorer, folder.name) for row in rows]
        items += examples[: settings.limit]
    if not items:
        raise DataError("No images left to ask about.", "vlmconsole data show lists a dataset's splits.")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(f"Two images share the id {item.id}.")
        seen.add(item.id)
    return items


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


def _item(row: Row, group: str, scorer: str, dataset: str) -> Item:
    scorer = scorer or _SCORERS.get(row.source.rpartition("/")[2], "")
    if not scorer:
        raise DataError(f"{row.uid}: no scorer is known for {row.source}.", "Name one in the setting scorer.")
    return Item(
        id=row.uid,
        group=group,
        scorer=scorer,
        dataset=dataset,
        split=row.split,
        picture=row.picture,
        picture_sha256=row.sha256,
        pixel_sha256=row.pixel_sha256,
        question=row.question,
        truth=read_truth(scorer, row.truth),
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
    rows = list(read_rows(folder / f"{split}.parquet"))[: settings.limit or n or DIAGNOSTIC]
    return [_item(row, "training pictures", settings.scorer, folder.name) for row in rows]


def items_digest(items: Iterable[Item]) -> str:
    """Hash (hex) of what is asked, in order: the same digest means the same questions about the same pictures."""
    return digest(
        [[i.id, i.group, i.scorer, i.picture_sha256, prompt_hash(i.question), truth_hash(i.truth)] for i in items]
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
