"""Audit of datasets: every picture read from its file again, its objects from its pixels, and where else it stands.

Written apart from what made the data and from what learns from it: it reads Parquet, pixels and manifests itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from vlmconsole.counting.pixels import SURE, Found, find_objects
from vlmconsole.data.example import Example, from_columns
from vlmconsole.data.findings import Finding, finding
from vlmconsole.data.labels import unreadable
from vlmconsole.data.manifest import IMPORTED
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import PictureIndex
from vlmconsole.gates.samples import asked_hash, images_hash
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.system.reading import read_json
from vlmconsole.text.counts import many

Tick = Callable[[str], None]
READERS = ("train", "dev")  # roles of splits that a training has looked at
NEAR = 4.0  # pixels between a listed centre and the area seen there


class AuditDataError(Exception):
    """A file cannot be read at all; the message is a sentence."""


@dataclass(frozen=True)
class Seen:
    """One example as it stands in the file. `hashes` (hex) are each image's: of its bytes, and of its RGB pixels."""

    example: Example
    hashes: tuple[tuple[str, str], ...]

    @property
    def uid(self) -> str:
        return self.example.id

    @property
    def sha256(self) -> str:
        """One hash for all image files, as samples carry it."""
        return images_hash([file for file, _ in self.hashes])

    @property
    def pixel_sha256(self) -> str:
        """The same of their pixels."""
        return images_hash([pixels for _, pixels in self.hashes])

    @property
    def prompt_sha(self) -> str:
        return asked_hash(self.example)

    @property
    def question(self) -> str:
        return self.example.question

    @property
    def truth(self) -> Any:
        return self.example.truth

    @property
    def source(self) -> str:
        return self.example.source

    @property
    def data(self) -> bytes:
        """The first image's bytes; a drawn scene has that one."""
        return self.example.images[0]

    def image(self) -> Image.Image:
        return Image.open(io.BytesIO(self.data)).convert("RGB")

    def questions(self) -> Iterator[Seen]:
        """Yield the example's questions, as an evaluation asks them."""
        for question in self.example.questions():
            yield Seen(question, self.hashes[: sum(turn.images for turn in question.turns)])


def _hashed(image: bytes) -> tuple[str, str]:
    pixels = Image.open(io.BytesIO(image)).convert("RGB").tobytes()
    return hashlib.sha256(image).hexdigest(), hashlib.sha256(pixels).hexdigest()


def read_split(path: Path) -> Iterator[Seen]:
    """Yield every example of a split. Raises AuditDataError naming the file and the row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=64):
                for value in batch.to_pylist():
                    number += 1
                    example = from_columns(value, f"row {number}")
                    yield Seen(example, tuple(_hashed(image) for image in example.images))
    except DataError as error:
        raise AuditDataError(f"{path.name}: {error.message}") from None
    except (OSError, SyntaxError, pa.ArrowException, KeyError, TypeError, IndexError, ValueError) as error:
        raise AuditDataError(f"{path.name} cannot be read after row {number}: {error}") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a dataset's manifest. Raises AuditDataError."""
    try:
        value = read_json(folder / "manifest.json")
        splits = value["splits"]
        key, kind = ("n", int) if value.get("format") == IMPORTED else ("pictures", list)
        if not all(isinstance(split["role"], str) and isinstance(split[key], kind) for split in splits.values()):
            raise ValueError(f"its splits have no roles or no {key}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditDataError(f"{folder / 'manifest.json'} cannot be read: {error}") from None
    return dict(value)


def digest_of(manifest: dict[str, Any]) -> str:
    """Hash (hex) by which plans and adapters name a dataset: everything in its manifest but the time of making."""
    return hashlib.sha256(canonical_json({k: v for k, v in manifest.items() if k != "made"})).hexdigest()


@dataclass(frozen=True)
class Place:
    """Where a picture stands: dataset, split, the split's role, and its uid there."""

    dataset: str
    split: str
    role: str
    uid: str

    def __str__(self) -> str:
        return f"{self.dataset}:{self.split} {self.uid} ({self.role})"


class Shelves:
    """Every picture of every dataset of the lab, by file and by pixel hash, read from the files themselves.

    Deleted datasets are known by the lab's index alone. Each file is read once; rows are handed out again by split.
    """

    def __init__(self, datasets: Path, tick: Tick = lambda _: None) -> None:
        self.datasets, self.tick = datasets, tick
        self.problems: list[str] = []
        self.manifests: dict[str, dict[str, Any]] = {}
        self.rows: dict[tuple[str, str], list[Seen]] = {}
        self._places: dict[str, set[Place]] = defaultdict(set)
        self._several: dict[str, tuple[tuple[str, str], ...]] = {}  # one hash of several images → theirs
        self._read()

    def _read(self) -> None:
        for folder in sorted(self.datasets.iterdir()) if self.datasets.is_dir() else ():
            if folder.name.startswith(".") or not (folder / "manifest.json").exists():
                continue
            try:
                manifest = self.manifests[folder.name] = read_manifest(folder)
            except AuditDataError as error:
                self.problems.append(str(error))
                continue
            for split, described in manifest["splits"].items():
                self.tick(f"hashing {folder.name}:{split}")
                try:
                    rows = list(read_split(folder / f"{split}.parquet"))
                except AuditDataError as error:
                    self.problems.append(f"{folder.name}: {error}")
                    continue
                if manifest.get("format") == IMPORTED:  # nothing is looked for in its pixels, and it may be large
                    rows = [Seen(replace(row.example, images=()), row.hashes) for row in rows]
                self.rows[folder.name, split] = rows
                for row in rows:
                    self._several |= {q.sha256: q.hashes for q in row.questions() if len(q.hashes) != 1}
                    place = Place(folder.name, split, str(described["role"]), row.uid)
                    for value in {value for hashes in row.hashes for value in hashes}:
                        self._places[value].add(place)
        for known in PictureIndex(self.datasets).all():
            for value in (known.sha256, known.pixel_sha256):
                self._places[value].add(Place(known.dataset, known.split, known.role, known.uid))

    def images(self, sha256: str, pixel_sha256: str) -> tuple[tuple[str, str], ...]:
        """Return the hashes (file, pixels) of each image behind the one hash that a sample carries; of one image the
        same.
        """
        return self._several.get(sha256, ((sha256, pixel_sha256),))

    def places(self, *hashes: str) -> list[Place]:
        """Return every place of a picture with one of these hashes, in a fixed order."""
        places = {place for value in hashes for place in self._places.get(value, ())}
        return sorted(places, key=lambda place: (place.dataset, place.split, place.uid))

    def called(self, dataset: str, digest: Any = None) -> str:
        """Return the folder's name of the generation of a dataset with that digest; the newest's where there is none
        such.
        """
        if not digest or digest_of(self.manifests.get(dataset, {})) == digest:
            return dataset
        earlier = (name for name in self.manifests if name.startswith(f"{dataset}@"))
        return next((name for name in earlier if digest_of(self.manifests[name]) == digest), dataset)

    def split(self, dataset: str, role: str, digest: Any = None) -> list[Seen]:
        """Return the rows of all splits of that role, of the generation with that digest where the lab has it."""
        dataset = self.called(dataset, digest)
        splits = self.manifests.get(dataset, {}).get("splits", {})
        return [
            row for name, facts in splits.items() if facts["role"] == role for row in self.rows.get((dataset, name), ())
        ]


def isolation(shelves: Shelves, rows: Iterable[tuple[str, str, str]], role: str, what: str) -> Finding:
    """Return whether pictures (uid, file hash, pixel hash) of this role stand in no split of another kind, lab-wide.

    A tested picture may be in no training or development split; a training picture in no other split; and so on.
    """
    forbidden = {"test": READERS, "train": ("dev", "test", "exploratory"), "dev": ("train", "test", "exploratory")}[
        role
    ]
    leaks, n = [], 0
    for uid, sha, pixels in rows:
        n += 1
        hashes = [value for pair in shelves.images(sha, pixels) for value in pair]
        bad = [place for place in shelves.places(*hashes) if place.role in forbidden]
        if bad:
            leaks.append(f"{uid} is the same image as {bad[0]}")
    sets = len(shelves.manifests)
    good = f"{many(n, 'image')}, none in a {' or '.join(forbidden)} split of {sets} dataset{'s' * (sets != 1)}"
    return finding(f"isolation: {what}", good, leaks)


def audit_dataset(shelves: Shelves, name: str, expected: str | None) -> list[Finding]:
    """Files, hashes, labels, visibility, overlap and coverage of a dataset; `expected` is the digest it must have."""
    name = shelves.called(name, expected)
    manifest = shelves.manifests.get(name)
    if manifest is None:
        return [Finding(f"{name}: there", "not verifiable", f"the dataset {name} is not in this lab any more")]
    if manifest.get("format") == IMPORTED:
        return _imported(shelves, name, manifest, expected)
    return _ImageInspector(shelves, name, manifest).findings(expected)


def _imported(shelves: Shelves, name: str, manifest: dict[str, Any], expected: str | None) -> list[Finding]:
    """What can be said of an imported dataset: that it is the one named, its files, and that every row is there."""
    digest = digest_of(manifest)
    swapped = [f"the dataset is {digest[:12]}… now, {expected[:12]}… was named: it was swapped"] if expected else []
    wrong = []
    for split, described in manifest["splits"].items():
        uids = [row.uid for row in shelves.rows.get((name, split), [])]
        if len(uids) != described["n"] or len(set(uids)) != len(uids):
            wrong.append(f"{split} has {len(set(uids))} examples, {described['n']} were imported")
    n = sum(len(rows) for (dataset, _), rows in shelves.rows.items() if dataset == name)
    files = [*_changed_files(shelves, name, manifest)]
    return [
        finding(f"{name}: identity", f"digest {digest[:12]}…", swapped if digest != expected else []),
        finding(f"{name}: hashes", f"{many(len(manifest.get('files', {})), 'file')} as they were made", files),
        finding(f"{name}: examples", f"{many(n, 'example')}, each image and conversation whole", wrong),
        Finding(f"{name}: labels", "not verifiable", "the answers are the source's; nothing here can check them"),
    ]


def _changed_files(shelves: Shelves, name: str, manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a dataset's files, against the hashes of its manifest."""
    for file, entry in manifest.get("files", {}).items():
        path = shelves.datasets / name / file
        if not path.is_file():
            yield f"{file} is missing"
        else:
            with path.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != entry.get("sha256"):
                    yield f"{file} was changed after it was made"
    yield from (text for text in shelves.problems if text.startswith(f"{name}: "))


class _ImageInspector:
    def __init__(self, shelves: Shelves, name: str, manifest: dict[str, Any]) -> None:
        self.shelves, self.name, self.manifest = shelves, name, manifest
        self.folder = shelves.datasets / name
        self.wrong: dict[str, list[str]] = defaultdict(list)
        self.looked = self.blind = 0

    def findings(self, expected: str | None) -> list[Finding]:
        n = sum(len(rows) for (dataset, _), rows in self.shelves.rows.items() if dataset == self.name)
        self._identity(expected)
        for split, described in self.manifest["splits"].items():
            self.shelves.tick(f"looking at {self.name}:{split}")
            self._split(split, described)
        good = {
            "identity": f"digest {digest_of(self.manifest)[:12]}…"
            + ("" if expected is None else ", the one that is named"),
            "hashes": f"{many(n, 'image')}: file bytes and pixels as in the manifest; every file as it was made",
            "labels": f"{self.looked} images: their pixels show what their truth says",
            "non-overlap": f"{self.looked} images: every area is one whole shape, and listed ones lie apart",
            "visibility": f"{self.looked} images: every listed object is seen where it is listed, and no other",
            "truth's place": f"{many(n, 'row')}: no truth inside an image file or a question",
            "coverage": "every combination of counts as often as the recipe says",
        }
        findings = [finding(f"{self.name}: {key}", text, self.wrong[key]) for key, text in good.items()]
        if self.blind:
            text = f"{self.blind} images whose objects cannot be told apart by their colour (overlap, photos)"
            findings.append(Finding(f"{self.name}: labels of such groups", "not verifiable", text))
        return findings

    def _identity(self, expected: str | None) -> None:
        digest = digest_of(self.manifest)
        if expected is not None and digest != expected:
            self.wrong["identity"].append(
                f"the dataset is {digest[:12]}… now, {expected[:12]}… was named: it was swapped"
            )
        self.wrong["hashes"] += _changed_files(self.shelves, self.name, self.manifest)

    def _split(self, split: str, described: dict[str, Any]) -> None:
        listed = {entry[0]: entry for entry in described["pictures"]}
        rows = self.shelves.rows.get((self.name, split), [])
        facts = self._facts(split)
        seen: Counter[tuple[str, int, int]] = Counter()
        questions: set[str] = set()  # one for all counting pictures, so that it cannot tell the truth
        for row in rows:
            entry = listed.get(row.uid)
            if entry is None or (row.sha256, row.pixel_sha256) != (entry[1], entry[2]):
                self.wrong["hashes"].append(f"{row.uid} is not the image that was made")
            if Image.open(io.BytesIO(row.data)).info and not row.source.startswith("own/") and "counting" in row.source:
                self.wrong["truth's place"].append(f"{row.uid}: the image file carries text or other data")
            if row.source.startswith("own/"):
                pass  # a user's question may hold its answer among others, and be worded otherwise
            elif row.source.endswith("/counting"):
                questions.add(row.question)
            elif row.truth.lower() in row.question.lower().replace("?", " ").replace(".", " ").split():
                self.wrong["truth's place"].append(f"{row.uid}: the truth stands in the question")
            fact = facts.get(row.uid)
            if fact is None:
                if row.source.startswith("vlmconsole/"):
                    self.wrong["visibility"].append(f"{row.uid} is in no object list")
                else:
                    self.blind += 1
                continue
            own = row.source.startswith("own/")  # of which the recipe promises no combinations
            if row.source.endswith("/counting") and not own and entry is not None and entry[3] is None:
                counts = _counts(row.truth)
                if counts is not None:
                    seen[(str(fact.get("group")), *counts)] += 1
            self._look(row, fact)
        if len(rows) != described.get("n") or set(listed) != {row.uid for row in rows}:
            self.wrong["hashes"].append(f"{split} has {len(rows)} rows, {described.get('n')} were made")
        if len(questions) > 1:
            self.wrong["truth's place"].append(f"{split} asks {len(questions)} different counting questions")
        self._coverage(split, seen)

    def _facts(self, split: str) -> dict[str, dict[str, Any]]:
        try:
            lines = (self.folder / f"{split}.objects.jsonl").read_bytes().split(b"\n")
            return {fact["uid"]: fact for fact in (json.loads(line) for line in lines if line.strip())}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _look(self, row: Seen, fact: dict[str, Any]) -> None:
        """Compare the pixels with the truth and the object list."""
        if unreadable(str(fact.get("group"))):
            self.blind += 1
            return
        self.looked += 1
        seen = find_objects(row.image())
        torn = [each for each in seen if each.fit < SURE]
        if torn:
            at = f"{torn[0].x:.0f},{torn[0].y:.0f}"
            self.wrong["non-overlap"].append(f"{row.uid}: the {torn[0].colour} area at {at} is no single whole shape")
        objects = [thing for thing in fact.get("objects", []) if isinstance(thing, dict)]
        close = _touching(objects)
        if close:
            self.wrong["non-overlap"].append(f"{row.uid}: {close}")
        if torn:
            return  # what an area of two objects is called means nothing
        lost = _unseen(seen, objects)
        if lost:
            self.wrong["visibility"].append(f"{row.uid}: {lost}")
        wrong = _label(row, seen)
        if wrong:
            self.wrong["labels"].append(f"{row.uid}: {wrong}")

    def _coverage(self, split: str, seen: Counter[tuple[str, int, int]]) -> None:
        parts: list[dict[str, Any]] = next(
            (s["parts"] for s in self.manifest.get("recipe", {}).get("splits", []) if s["name"] == split), []
        )
        least: Counter[tuple[str, int, int]] = Counter()
        most: Counter[tuple[str, int, int]] = Counter()
        for part in parts:
            if part.get("group") in (None, "naming"):
                continue
            span = range(part["low"], part["high"] + 1)
            cells = [(red, blue) for red in span for blue in span]
            share = part["every"] if part.get("every") else part["count"] / len(cells)
            styles = part.get("styles") or [part["group"]]
            for red, blue in cells:
                for bound, times in ((least, math.floor(share)), (most, math.ceil(share))):
                    for k in range(times):
                        bound[(styles[k % len(styles)], red, blue)] += 1
        for cell in sorted(set(most) | set(seen)):
            if not least[cell] <= seen[cell] <= most[cell]:
                wanted = f"{least[cell]}" if least[cell] == most[cell] else f"{least[cell]} to {most[cell]}"
                where = f"{split}: {cell[1]} red circles and {cell[2]} blue squares ({cell[0]})"
                self.wrong["coverage"].append(f"{where} {seen[cell]} times, not {wanted}")


def _counts(truth: str) -> tuple[int, int] | None:
    try:
        value = json.loads(truth)
        return int(value["red_circles"]), int(value["blue_squares"])
    except (ValueError, KeyError, TypeError):
        return None


def _label(row: Seen, objects: list[Found]) -> str:
    """What the pixels say against the truth; "" when they agree."""
    if row.source.endswith("/counting"):
        counts = _counts(row.truth)
        seen = tuple(
            sum((o.colour, o.shape) == kind for o in objects) for kind in (("red", "circle"), ("blue", "square"))
        )
        if counts is None:
            return f"the truth is no pair of counts: {row.truth[:60]!r}"
        return "" if seen == counts else f"the truth says {counts[0]}/{counts[1]}, the pixels show {seen[0]}/{seen[1]}"
    words = set(row.question.lower().replace("?", " ").split())
    named = [o for o in objects if o.shape in words or o.colour in words]
    answers = {o.colour if o.shape in words else o.shape for o in named}
    right = len(named) == 1 and answers == {row.truth}
    return "" if right else f"{row.question!r} is answered {row.truth!r}, the pixels say {sorted(answers)}"


def _touching(objects: list[dict[str, Any]]) -> str:
    """Two listed objects whose circumscribed circles meet; "" when none do."""
    for i, first in enumerate(objects):
        for other in objects[:i]:
            apart = math.hypot(first["x"] - other["x"], first["y"] - other["y"])
            if apart < first["radius"] + other["radius"]:
                return f"the objects listed at {other['x']},{other['y']} and {first['x']},{first['y']} overlap"
    return ""


def _unseen(seen: list[Found], objects: list[dict[str, Any]]) -> str:
    """A listed object that is not seen, or a seen one that is not listed; "" when all agree."""
    left = list(seen)
    for thing in objects:
        near = [f for f in left if math.hypot(f.x - thing["x"], f.y - thing["y"]) <= NEAR]
        hit = next((f for f in near if (f.colour, f.shape) == (thing["colour"], thing["shape"])), None)
        if hit is None:
            return f"the listed {thing['colour']} {thing['shape']} at {thing['x']},{thing['y']} is not seen"
        left.remove(hit)
    return f"a {left[0].name} at {left[0].x:.0f},{left[0].y:.0f} is not listed" if left else ""
