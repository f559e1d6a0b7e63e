"""Isolation: no image stands in training and in dev or test, whatever its file's bytes; judged by pixels, exactly.

Two test sets may share images, and the same training images may come again under another name. What a deleted or a
replaced dataset held counts only where a run has used it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.data.example import read_examples
from vlmconsole.data.generations import generations
from vlmconsole.data.importing.alike import undecided
from vlmconsole.data.importing.image_facts import ImageFacts, image_facts
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.manifest import read_manifest
from vlmconsole.data.recipe import Role
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import CROSSING, Known, LeakError, PictureIndex
from vlmconsole.runs.folder import list_runs
from vlmconsole.text.counts import many
from vlmconsole.vision.images import open_picture

_SHOWN = 5
Decode = Callable[[set[str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class NewImage:
    """An image of the dataset that is being made: where it stands, and what is known of it."""

    facts: ImageFacts
    split: str
    role: Role
    id: str


def check_isolation(
    new: Iterable[NewImage], name: str, digest: str, datasets: Path, runs: Path, looks: LookStore, decode: Decode
) -> list[NewImage]:
    """Raise LeakError where a new image stands in a crossing role of another dataset; else the images, completed.

    `decode` gives the pixel hashes of new images by the hashes of their bytes, asked for only where it matters.
    """
    images = list(new)
    counting = _CountingEntries(name, digest, datasets, runs)
    roles = {image.role for image in images}
    entries = [entry for entry in counting.entries() if any(entry.role in CROSSING[role] for role in roles)]
    if not entries:
        return images
    images = _completed(images, entries, datasets, looks, decode)
    pixels = _entry_pixels(entries, looks)
    by_hash: dict[str, list[Known]] = defaultdict(list)
    for entry in entries:
        for value in {entry.sha256, entry.pixel_sha256 or pixels.get(entry.sha256, "")} - {""}:
            by_hash[value].append(entry)
    leaks = []
    for image in images:
        hashes = {image.facts.sha256, image.facts.sent_sha256, image.facts.pixel_sha256} - {""}
        known = [entry for value in hashes for entry in by_hash.get(value, ()) if entry.role in CROSSING[image.role]]
        if known:
            leaks.append((image, known[0]))
    if leaks:
        raise _leak(name, leaks)
    return images


def _leak(name: str, leaks: list[tuple[NewImage, Known]]) -> LeakError:
    shown = "; ".join(f"{image.id} (for {image.split}) is in {entry.place}" for image, entry in leaks[:_SHOWN])
    more = f" and {len(leaks) - _SHOWN} more" if len(leaks) > _SHOWN else ""
    return LeakError(
        f"{many(len(leaks), 'image')} of {name} would stand in training and in dev or test: {shown}{more}.",
        "Leave those rows out, or import them into a split of the same role (--as).",
    )


def _completed(
    images: list[NewImage], entries: list[Known], datasets: Path, looks: LookStore, decode: Decode
) -> list[NewImage]:
    """The images with pixel hashes wherever one of an entry's image may equal them; the entries' are stored too."""
    if not any(not image.facts.pixel_sha256 for image in images) and all(entry.pixel_sha256 for entry in entries):
        return images
    missing = [entry for entry in entries if looks.get(entry.sha256) is None]
    gone = _look_again(missing, datasets, looks)
    known = {
        entry.sha256: replace(look, pixel_sha256=look.pixel_sha256 or entry.pixel_sha256)
        for entry in entries
        if (look := looks.get(entry.sha256)) is not None
    }
    ours = {image.facts.sha256: image.facts for image in images}
    wanted = undecided(list(ours.values()), list(known.values()))
    if gone:  # an image that cannot be looked at any more has only its pixel hash: all must have one to be compared
        wanted |= {sha for sha, facts in ours.items() if not facts.pixel_sha256}
    own = wanted & set(ours)
    pixels = decode(own) if own else {}
    images = [
        replace(image, facts=replace(image.facts, pixel_sha256=pixels[image.facts.sha256]))
        if image.facts.sha256 in pixels
        else image
        for image in images
    ]
    looks.add_all({image.facts.sha256: image.facts for image in images if image.facts.sha256 in pixels}.values())
    _decode_entries([entry for entry in entries if entry.sha256 in wanted], datasets, looks)
    return images


def _entry_pixels(entries: Iterable[Known], looks: LookStore) -> dict[str, str]:
    """File hash → pixel hash of the entries that came without one and have one by now."""
    return {
        entry.sha256: look.pixel_sha256
        for entry in entries
        if not entry.pixel_sha256 and (look := looks.get(entry.sha256)) is not None
    }


def _look_again(entries: list[Known], datasets: Path, looks: LookStore) -> bool:
    """Look at images of which only hashes are known; whether some could not be found any more."""
    left = {entry.sha256 for entry in entries}
    for sha, data in _stored(entries, datasets):
        looks.add(replace(image_facts(data, sha), sent_sha256=sha))
        left.discard(sha)
    looks.flush()
    return bool(left)


def _decode_entries(entries: list[Known], datasets: Path, looks: LookStore) -> None:
    for sha, data in _stored(entries, datasets):
        picture = open_picture(data, name="the image")
        if (look := looks.get(sha)) is not None:
            looks.add(replace(look, pixel_sha256=picture.pixel_sha256))
    looks.flush()


def _stored(entries: Iterable[Known], datasets: Path) -> Iterator[tuple[str, bytes]]:
    """(hash, bytes) of images of the index, from the datasets that hold them."""
    wanted: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for entry in entries:
        wanted[entry.dataset, entry.digest, entry.split].add(entry.sha256)
    for (dataset, digest, split), shas in wanted.items():
        folder = next((path for path in generations(datasets, dataset) if _recipe(path) == digest), None)
        path = folder / f"{split}.parquet" if folder else None
        if path is None or not path.is_file():
            continue
        for example in read_examples(path):
            for sha, data in zip(example.image_sha256s, example.images, strict=True):
                if sha in shas:
                    shas.discard(sha)
                    yield sha, data
            if not shas:
                break


class _CountingEntries:
    """The entries of the lab's index that count against a new dataset."""

    def __init__(self, name: str, digest: str, datasets: Path, runs: Path) -> None:
        self._name, self._digest, self._datasets, self._runs = name, digest, datasets, runs
        self._used: set[str] | None = None
        self._judged: dict[tuple[str, str], bool] = {}

    def entries(self) -> Iterator[Known]:
        for entry in PictureIndex(self._datasets).all():
            key = (entry.dataset, entry.digest)
            if key not in self._judged:
                self._judged[key] = self._counts(*key)
            if self._judged[key]:
                yield entry

    def _counts(self, dataset: str, digest: str) -> bool:
        if digest == self._digest:
            return False
        alive = any(_recipe(path) == digest for path in generations(self._datasets, dataset))
        if alive and dataset != self._name:
            return True
        return dataset in self.used()

    def used(self) -> set[str]:
        """Names of datasets that a run's settings hold."""
        if self._used is None:
            self._used = {
                text.partition(":")[0].partition("@")[0]
                for run in list_runs(self._runs)
                for text in _texts(run.job().get("spec"))
            }
        return self._used


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _recipe(folder: Path) -> str:
    try:
        return str(read_manifest(folder).get("recipe_sha256"))
    except DataError:
        return ""
