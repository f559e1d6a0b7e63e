"""Which row goes into which split: by the source's own names, all into one, or by shares with images kept together."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.importing.survey import SurveyedRow
from vlmconsole.data.recipe import Role
from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.splits_named import role_of
from vlmconsole.data.splits import CROSSING, LeakError
from vlmconsole.text.counts import many


def split_rows(rows: Sequence[SurveyedRow], settings: ImportSettings, same: Mapping[str, str]) -> dict[int, str]:
    """Number of each row → its split. `same`: an image's hash → the one by which images of equal pixels are known.

    Raises DataError where a share would get no row.
    """
    if settings.role is not None:
        return {row.number: settings.role for row in rows}
    if not settings.shares:
        return {row.number: row.split or "train" for row in rows}
    splits = _by_shares(rows, settings.shares, settings.seed, same)
    missing = [split for split in settings.shares if split not in set(splits.values())]
    if missing and rows:
        groups = len(set(_groups(rows, same).values()))
        raise DataError(
            f"{many(len(rows), 'row')} in {many(groups, 'group')} that share no image: none is left for"
            f" {', '.join(missing)}.",
            "Give it a larger share, or import it from its own source.",
            code="split-empty",
        )
    return splits


def image_splits(
    rows: Sequence[SurveyedRow], splits: Mapping[int, str], named: Mapping[str, Role], same: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return an image's hash → the splits it is in. Raises LeakError where training and dev or test share one."""
    places: dict[str, dict[str, SurveyedRow]] = defaultdict(dict)
    for row in rows:
        for sha in row.images:
            places[same.get(sha, sha)].setdefault(splits[row.number], row)
    leaks = [
        f"{first[1].where} ({first[0]}) and {second[1].where} ({second[0]})"
        for at in places.values()
        for first, second in combinations(at.items(), 2)
        if named[second[0]] in CROSSING[named[first[0]]]
    ]
    if leaks:
        more = f" and {len(leaks) - 3} more" if len(leaks) > 3 else ""
        raise LeakError(
            f"{many(len(leaks), 'image is', 'images are')} in two splits: {'; '.join(leaks[:3])}{more}.",
            "Take them out of one, or divide the rows anew: --split train=80,dev=10,test=10.",
        )
    return {sha: set(at) for sha, at in places.items()}


def roles(splits: Mapping[int, str]) -> dict[str, Role]:
    """Split → role, in the order train, dev, test, then by name."""
    order = ("train", "dev", "test", "exploratory")
    named = {split: role_of(split) for split in set(splits.values())}
    return dict(sorted(named.items(), key=lambda entry: (order.index(entry[1]), entry[0])))


def _by_shares(
    rows: Sequence[SurveyedRow], shares: Mapping[Role, int], seed: int, same: Mapping[str, str]
) -> dict[int, str]:
    """Rows that share an image stay together; groups are drawn by seed, each for the split that is furthest behind."""
    groups = _groups(rows, same)
    members: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        members[groups[row.number]].append(row.number)
    drawn = sorted(members, key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest())
    drawn.sort(key=lambda group: -len(members[group]))  # the largest first, while every split still has room
    whole = sum(shares.values())
    wanted = {split: share * len(rows) / whole for split, share in shares.items()}
    filled: Counter[str] = Counter()
    splits: dict[int, str] = {}
    for group in drawn:
        split = max(wanted, key=lambda name: (wanted[name] - filled[name]) / wanted[name])
        splits |= dict.fromkeys(members[group], split)
        filled[split] += len(members[group])
    return splits


def _groups(rows: Sequence[SurveyedRow], same: Mapping[str, str]) -> dict[int, str]:
    """Row → name of its group: rows that share an image, directly or by way of others, are one group."""
    parent: dict[str, str] = {}

    def top(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = parent[above]
            name = above
        return name

    alone = {}
    for row in rows:
        images = [same.get(sha, sha) for sha in row.images]
        alone[row.number] = images[0] if images else f"row {row.id or row.number}"
        for image in images[1:]:
            first, second = sorted((top(images[0]), top(image)))
            parent[second] = first
    return {number: top(name) for number, name in alone.items()}
