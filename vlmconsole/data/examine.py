"""Checking a dataset against its manifest, its recipe, its own pixels and everything the lab ever made."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import ValidationError

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.data import textvqa
from vlmconsole.data.dataset import MANIFEST, read_manifest, read_objects
from vlmconsole.data.findings import Finding, files_finding, finding
from vlmconsole.data.importing.check import check_imported
from vlmconsole.data.labels import unreadable, wrong_label
from vlmconsole.data.manifest import IMPORTED
from vlmconsole.data.recipe import NAMING, Recipe
from vlmconsole.data.rows import DataError, Row, read_rows, schema
from vlmconsole.data.splits import CROSSING, Known, PictureIndex
from vlmconsole.text.counts import many

Progress = Callable[[int, int], None]


def check_dataset(folder: Path, datasets: Path, *, on_progress: Progress | None = None) -> list[Finding]:
    """Return everything that can be checked of the dataset in `folder`; `datasets` holds the lab's picture index.

    Hashes, schema, truth's place, labels (from pixels), coverage, replay and isolation are recomputed, none
    is taken from the manifest's word. Raises DataError when the folder is no dataset.
    """
    manifest = read_manifest(folder)
    if manifest.get("format") == IMPORTED:
        return check_imported(folder, manifest, datasets, datasets.parent / "runs", on_progress)
    if manifest.get("name") == textvqa.NAME:
        return textvqa.textvqa_findings(folder, manifest, datasets)
    try:
        recipe = Recipe.model_validate(manifest["recipe"])
    except (KeyError, ValidationError) as error:
        raise DataError(f"{folder / MANIFEST} holds no recipe that can be read: {error}") from None
    inspector = _Inspector(folder, manifest, recipe, PictureIndex(datasets), on_progress)
    return inspector.findings()


class _Inspector:
    def __init__(
        self, folder: Path, manifest: dict[str, Any], recipe: Recipe, index: PictureIndex, on_progress: Progress | None
    ) -> None:
        self.folder, self.manifest, self.recipe = folder, manifest, recipe
        self.known: dict[str, list[Known]] = {}  # file or pixel hash → where it stands in the lab
        for image in index.all():
            for value in {image.sha256, image.pixel_sha256}:
                self.known.setdefault(value, []).append(image)
        self._progress = on_progress
        self.problems: dict[str, list[str]] = {
            name: [] for name in ("schema", "image hashes", "truth's place", "labels", "coverage", "replay")
        }
        self.unverifiable: Counter[str] = Counter()
        self.read: dict[str, int] = {}
        self.labelled = 0
        self.hashes: dict[str, tuple[str, str]] = {}  # file or pixel hash → split, uid

    def findings(self) -> list[Finding]:
        first = [files_finding(self.folder, self.manifest.get("files", {})), self._recipe()]
        leaks: list[str] = []
        for name in self.manifest["splits"]:
            leaks += self._split(name)
        n = sum(self.read.values())
        messages = {
            "schema": f"{many(n, 'row')} as verl reads them",
            "image hashes": f"{many(n, 'image')}, file bytes and pixels as in the manifest",
            "truth's place": "in the reward field only: not in a question, not inside an image file",
            "labels": f"{many(self.labelled, 'image')}: the objects found in the pixels are the listed ones, "
            "apart and whole",
            "coverage": "every combination as often as the recipe says",
            "replay": "every replayed image comes from an earlier training split",
        }
        middle = [finding(name, messages[name], wrong) for name, wrong in self.problems.items()]
        for group, count in self.unverifiable.items():
            middle.append(
                Finding(
                    f"labels: {group}", "not verifiable", f"{many(count, 'image')} whose objects cannot be told apart"
                )
            )
        return [
            *first,
            *middle,
            finding("isolation", f"{many(n, 'image')}, each in one split only, of all datasets", leaks),
        ]

    def _recipe(self) -> Finding:
        wrong = []
        if self.recipe.sha256 != self.manifest.get("recipe_sha256"):
            wrong.append("the recipe in the manifest is not the one that was hashed")
        missing = {s.name for s in self.recipe.splits} ^ set(self.manifest["splits"])
        wrong += [f"split {name} is in the recipe or the manifest only" for name in sorted(missing)]
        return finding("recipe", f"{self.recipe.name}, seed {self.recipe.seed}, {self.recipe.sha256[:12]}…", wrong)

    def _split(self, name: str) -> list[str]:
        """Look at every row of one split; returns its leaks."""
        described = self.manifest["splits"][name]
        listed = {entry[0]: entry for entry in described["pictures"]}
        path = self.folder / f"{name}.parquet"
        leaks: list[str] = []
        rows = 0
        try:
            self._schema(path)
            facts = {fact["uid"]: fact for fact in read_objects(self.folder, name)}
            seen: Counter[tuple[str, int, int]] = Counter()
            for row in read_rows(path):
                rows += 1
                entry = listed.get(row.uid)
                if entry is None:
                    self.problems["image hashes"].append(f"{row.uid} is in no manifest")
                    continue
                pixels = self._picture(row, entry)
                if not pixels:
                    continue  # nothing can be said of what it shows
                self._question(row)
                self._label(row, facts.get(row.uid), entry[3], seen)
                leaks += self._isolation(row, name, described["role"], entry[3], pixels)
                if self._progress is not None:
                    self._progress(
                        sum(self.read.values()) + rows, sum(s["n"] for s in self.manifest["splits"].values())
                    )
            if rows != described["n"] or rows != len(listed):
                self.problems["schema"].append(f"{name} has {many(rows, 'row')}, {described['n']} were made")
            self._coverage(name, seen)
        except DataError as error:
            self.problems["schema"].append(error.message)
        self.read[name] = rows
        return leaks

    def _schema(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with path.open("rb") as file:
                actual = pq.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path.name} cannot be read as Parquet: {error}") from None
        if not actual.remove_metadata().equals(schema()):
            self.problems["schema"].append(f"{path.name} has other columns than verl's schema")

    def _picture(self, row: Row, entry: list[Any]) -> str:
        """Compare the picture with the manifest; returns its pixel hash, "" when it cannot be decoded."""
        try:
            pixels = row.pixel_sha256
        except DataError as error:
            self.problems["image hashes"].append(error.message.rstrip("."))
            return ""
        if row.sha256 != entry[1]:
            self.problems["image hashes"].append(f"{row.uid}: other bytes than were made")
        if pixels != entry[2]:
            self.problems["image hashes"].append(f"{row.uid}: other pixels than were made")
        return pixels

    def _question(self, row: Row) -> None:
        words = row.question.lower().replace("?", " ").replace(".", " ").split()
        if row.question != COUNT_PROMPT and not row.source.startswith("own/") and row.truth.lower() in words:
            self.problems["truth's place"].append(f"{row.uid}: the answer stands in the question")
        info = Image.open(io.BytesIO(row.picture)).info
        if not row.source.startswith("own/") and info:
            self.problems["truth's place"].append(f"{row.uid}: the image file carries {', '.join(map(str, info))}")

    def _label(
        self, row: Row, facts: dict[str, Any] | None, replay: str | None, seen: Counter[tuple[str, int, int]]
    ) -> None:
        if facts is None:
            self.problems["labels"].append(f"{row.uid} is not in the object list")
            return
        group = str(facts["group"])
        if group != NAMING and "label" in facts and replay is None:
            try:
                counts = json.loads(row.truth)
                seen[(group, counts["red_circles"], counts["blue_squares"])] += 1
            except (ValueError, KeyError, TypeError):
                self.problems["labels"].append(f"{row.uid}: the truth is not two counts")
                return
        if unreadable(group):
            self.unverifiable[group] += 1
            return
        self.labelled += 1
        wrong = wrong_label(row, facts)
        if wrong:
            self.problems["labels"].append(f"{row.uid}: {wrong}")

    def _isolation(self, row: Row, split: str, role: str, replay: str | None, pixels: str) -> list[str]:
        leaks = []
        for value in {row.sha256, pixels}:
            earlier = self.hashes.setdefault(value, (split, row.uid))
            if earlier[0] != split:
                leaks.append(f"{row.uid} is the same image as {earlier[0]} {earlier[1]}")
        known = [image for value in (row.sha256, pixels) for image in self.known.get(value, [])]
        if replay is not None:
            # A replayed picture may itself have been replayed: any earlier training split is fair.
            if role != "train" or not known or any(image.role != "train" for image in known):
                source = known[0].place if known else "no dataset of this lab"
                self.problems["replay"].append(f"{row.uid} was to come from {replay}, but comes from {source}")
            return leaks
        # A user's own images may be shared by splits of the same role; a drawn scene only by its generations.
        generations = (self.recipe.name, role)
        others = [k for k in known if k.digest != self.recipe.sha256 and (k.dataset, k.role) != generations]
        if row.source.startswith("own/"):
            others = [k for k in others if k.role in CROSSING[role]]
        leaks += [f"{row.uid} is the same image as {other.place}" for other in others[:1]]
        if not any(k.digest == self.recipe.sha256 and k.split == split for k in known):
            leaks.append(f"{row.uid} is not in this lab's index, so its isolation is not shown")
        return leaks

    def _coverage(self, name: str, seen: Counter[tuple[str, int, int]]) -> None:
        split = next((split for split in self.recipe.splits if split.name == name), None)
        if split is None:
            return
        least: Counter[tuple[str, int, int]] = Counter()
        most: Counter[tuple[str, int, int]] = Counter()
        total = 0
        for part in split.parts:
            if part.group in (None, NAMING):
                continue
            total += part.size or 0
            styles = part.styles or (str(part.group),)
            share = (part.size or 0) / len(part.combinations)
            for red, blue in part.combinations:
                for bound, times in ((least, math.floor(share)), (most, math.ceil(share))):
                    for k in range(times):
                        bound[(styles[k % len(styles)], red, blue)] += 1
        wrong = [
            f"{name}: {cell[1]} red circles, {cell[2]} blue squares ({cell[0]}) {seen[cell]} times, "
            f"not {least[cell]}{'' if least[cell] == most[cell] else f' to {most[cell]}'}"
            for cell in sorted(set(most) | set(seen))
            if not least[cell] <= seen[cell] <= most[cell]
        ]
        if sum(seen.values()) != total:
            wrong.append(f"{name} has {sum(seen.values())} new counting images, the recipe says {total}")
        self.problems["coverage"] += wrong
