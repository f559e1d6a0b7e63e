"""An imported dataset checked: its files' bytes, rows, images, truths and isolation, none by the manifest's word."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, read_examples
from vlmconsole.data.findings import Finding, files_finding, finding
from vlmconsole.data.importing.alike import same_pixels, undecided
from vlmconsole.data.importing.image_facts import ImageFacts, image_facts
from vlmconsole.data.importing.isolation import NewImage, check_isolation
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import CROSSING, LeakError
from vlmconsole.errors import LabError
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.text.counts import many
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.limits import PictureError

Progress = Callable[[int, int], None]


def check_imported(
    folder: Path, manifest: Mapping[str, Any], datasets: Path, runs: Path, on_progress: Progress | None = None
) -> list[Finding]:
    """Return everything that can be checked of an imported dataset."""
    with LookStore(datasets) as looks:
        return _ImportedCheck(folder, manifest, datasets, runs, looks, on_progress).findings()


class _ImportedCheck:
    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        datasets: Path,
        runs: Path,
        looks: LookStore,
        on_progress: Progress | None,
    ) -> None:
        self.folder, self.manifest, self.datasets, self.runs, self.looks = folder, manifest, datasets, runs, looks
        self._progress = on_progress
        self.images: dict[tuple[str, str], NewImage] = {}  # hash of the bytes, split
        self.wrong: dict[str, list[str]] = {"rows": [], "images": [], "truths": []}
        self.read = 0

    def findings(self) -> list[Finding]:
        first = [files_finding(self.folder, self.manifest["files"]), self._sources()]
        for split, about in self.manifest["splits"].items():
            self._split(split, about)
        scorer = str(self.manifest.get("scorer") or "")
        fit = f"{many(self.read, 'row')}: each can be scored by {scorer}" if scorer else "no row has an answer"
        return [
            *first,
            finding("rows", f"{many(self.read, 'row')}, each id once, an image for each tag", self.wrong["rows"]),
            finding(
                "images",
                f"{many(len(self.images), 'different image')}, each can be decoded and sent",
                self.wrong["images"],
            ),
            finding("truths", fit, self.wrong["truths"]),
            self._isolation(),
        ]

    def _sources(self) -> Finding:
        changed = []
        sources = self.manifest.get("sources") or []
        for source in sources:
            path = Path(str(source.get("file")))
            if path.is_dir():
                continue
            if not path.is_file():
                changed.append(f"{path} is not there any more")
                continue
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != source.get("sha256"):
                    changed.append(f"{path} holds other bytes now: data import --replace makes a new generation")
        if changed:
            return Finding("source", "not verifiable", "; ".join(changed[:5]), tuple(changed))
        return Finding("source", "ok", f"{many(len(sources), 'file')} as imported")

    def _split(self, split: str, about: Mapping[str, Any]) -> None:
        path = self.folder / f"{split}.parquet"
        ids: set[str] = set()
        n = 0
        try:
            for example in read_examples(path):
                n += 1
                if example.id in ids:
                    self.wrong["rows"].append(f"{split}: the id {example.id} is there twice")
                ids.add(example.id)
                self._example(example, split, about)
                self.read += 1
                if self._progress is not None:
                    self._progress(self.read, sum(entry["n"] for entry in self.manifest["splits"].values()))
        except DataError as error:
            self.wrong["rows"].append(error.message)
        if n != about["n"]:
            self.wrong["rows"].append(f"{split} has {many(n, 'row')}, {about['n']} were imported")

    def _example(self, example: Example, split: str, about: Mapping[str, Any]) -> None:
        try:
            example.check()
        except DataError as error:
            self.wrong["rows"].append(error.message)
        if example.scorer:
            try:
                misfit = find_scorer(example.scorer).check(example.truth, example.options)
            except LabError as error:
                misfit = error.message
            if misfit:
                self.wrong["truths"].append(f"{example.id}: {misfit}")
        for at, data in enumerate(example.images):
            sha = hashlib.sha256(data).hexdigest()
            if (sha, split) in self.images:
                continue
            try:
                facts = image_facts(data, sha)
            except PictureError as error:
                self.wrong["images"].append(f"{example.id}: {error}")
                continue
            shown = example.id if not at else f"{example.id} image {at + 1}"
            self.images[sha, split] = NewImage(facts, split, about["role"], shown)

    def _isolation(self) -> Finding:
        roles = {image.role for image in self.images.values()}
        if len(roles) > 1:
            self._decode(undecided([image.facts for image in self.images.values()]))
        same = same_pixels(self._facts())
        first: dict[str, NewImage] = {}
        leaks = []
        for image in self.images.values():
            other = first.setdefault(same.get(image.facts.sha256, image.facts.sha256), image)
            if image.role in CROSSING[other.role]:
                leaks.append(f"{image.id} ({image.split}) shows the same pixels as {other.id} ({other.split})")
        try:
            name, digest = str(self.manifest.get("name")), str(self.manifest.get("recipe_sha256"))
            images = list(self.images.values())
            check_isolation(images, name, digest, self.datasets, self.runs, self.looks, self._decode)
        except LeakError as error:
            leaks.append(error.message)
        return finding("isolation", f"{many(len(self.images), 'image')}, none in training and in dev or test", leaks)

    def _facts(self) -> dict[str, ImageFacts]:
        return {image.facts.sha256: image.facts for image in self.images.values()}

    def _decode(self, wanted: set[str]) -> Mapping[str, str]:
        pixels = {sha: open_picture(data).pixel_sha256 for sha, data in self._stored(wanted)}
        for key, image in self.images.items():
            if pixel := pixels.get(image.facts.sha256):
                self.images[key] = replace(image, facts=replace(image.facts, pixel_sha256=pixel))
        return pixels

    def _stored(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        left = set(wanted)
        for split in self.manifest["splits"] if left else ():
            for example in read_examples(self.folder / f"{split}.parquet"):
                for data in example.images:
                    if (sha := hashlib.sha256(data).hexdigest()) in left:
                        left.discard(sha)
                        yield sha, data
