"""One question over many images, as a dataset of examples without a truth: what a contact sheet asks.

It is exploratory, and not entered among the images that isolation counts: asking about an image teaches nothing.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, ExampleTurn, ExampleWriter
from vlmconsole.data.manifest import IMPORTED, MANIFEST, read_manifest
from vlmconsole.data.rows import IMAGE_TAG, DataError
from vlmconsole.data.sources.source import IMAGE_SUFFIXES
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.atomic_folder import making
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.limits import PictureError

FORM = "contact sheet"  # `source_format` of its manifest
SPLIT = "all"
_DIGITS = 8  # of the content's hash, in a name


@dataclass(frozen=True)
class SheetImage:
    """What is asked about under one id: the bytes of its images as they are sent; or why it cannot be asked."""

    id: str
    images: tuple[bytes, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class ContactSheet:
    """The dataset's folder, its manifest, and whether it was made now."""

    folder: Path
    manifest: dict[str, Any]
    new: bool

    @property
    def skipped(self) -> list[dict[str, str]]:
        """Images that could not be read, with the reason."""
        return list(self.manifest["skipped"])


def folder_images(folder: Path) -> Iterator[SheetImage]:
    """Yield the images right in a folder, by name; files that are no images are passed over. Raises DataError for
    none.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}", code="folder-unreadable") from None
    paths = [path for path in paths if not path.name.startswith(".")]
    if not paths:
        raise DataError(f"{folder} holds no image.", "Name a folder of images, or a dataset.", code="source-empty")
    for path in paths:
        try:
            yield SheetImage(path.name, (open_picture(path).data,))
        except PictureError as error:
            yield SheetImage(path.name, reason=error.full_message)


def dataset_images(examples: Iterable[Example]) -> Iterator[SheetImage]:
    """Yield the images of a dataset's examples, under their ids; those without an image cannot be asked about one."""
    for example in examples:
        yield SheetImage(example.id, example.images, "" if example.images else "it has no image")


def write_sheet(
    question: str, images: Iterable[SheetImage], origin: str, datasets: Path, name: str = ""
) -> ContactSheet:
    """Write the dataset, called `name` or after `origin` and its content; the same again makes nothing.

    Raises DataError where no image can be asked about, or another dataset has the name; OSError.
    """
    question = question.strip()
    if not question:
        raise DataError("There is no question to ask.", code="question-missing")
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", origin).strip("-._")[:40] or "images"
    content, skipped = hashlib.sha256(canonical_json([question])), list[dict[str, str]]()
    with making(datasets / f"sheet-{slug}") as building:
        path = building / f"{SPLIT}.parquet"
        with ExampleWriter(path) as writer:
            for image in images:
                if image.reason:
                    skipped.append({"where": origin, "id": image.id, "reason": image.reason})
                    continue
                example = _example(question, image, writer.n)
                content.update(canonical_json([example.id, list(example.image_sha256s)]))
                writer.add(example)
        if not writer.n:
            reasons = "; ".join(f"{entry['id']}: {entry['reason']}" for entry in skipped[:3])
            raise DataError(f"No image of {origin} can be asked about: {reasons}.", code="source-empty")
        sha = content.hexdigest()
        folder = datasets / (name or f"sheet-{slug}-{sha[:_DIGITS]}")
        files = {path.name: {"sha256": writer.sha256, "size": writer.size}}
        manifest = _manifest(folder.name, question, origin, sha, writer.n, skipped, files)
        if folder.exists():
            earlier = read_manifest(folder)
            if earlier.get("recipe_sha256") != manifest["recipe_sha256"]:
                raise DataError(
                    f"{folder.name} is another dataset.", "Give the sheet another name: --name.", code="dataset-exists"
                )
            return ContactSheet(folder, earlier, False)
        write_atomic(building / MANIFEST, to_json(manifest))
        building.rename(folder)
    return ContactSheet(folder, manifest, True)


def _example(question: str, image: SheetImage, index: int) -> Example:
    turns = (ExampleTurn("user", IMAGE_TAG * len(image.images) + question),)
    return Example(image.id, image.images, turns, split=SPLIT, index=index)


def _manifest(
    name: str, question: str, origin: str, sha: str, n: int, skipped: list[dict[str, str]], files: dict[str, Any]
) -> dict[str, Any]:
    return {
        "format": IMPORTED,
        "name": name,
        "title": question,
        "generation": 1,
        "source_format": FORM,
        "sources": [{"file": origin, "sha256": sha}],
        "content_sha256": sha,
        "rows": n,
        "used_columns": {},
        "ignored_columns": {},
        "notes": {},
        "scorer": "",
        "options": {},
        "prompt": question,
        "columns": {},
        "skipped": skipped,
        "seed": 0,
        "shares": {},
        "splits": {SPLIT: {"role": "exploratory", "n": n}},
        "near_duplicates": {},
        "files": files,
        "recipe_sha256": hashlib.sha256(canonical_json({"format": FORM, "content": sha})).hexdigest(),
        "made": round(time.time(), 3),
    }
