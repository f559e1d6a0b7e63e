"""What an import will make: splits, roles, the manifest, and the hash that decides whether it is there already."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vlmconsole.data.formats.raw_example import RowFormat
from vlmconsole.data.importing.alike import NEAR_BITS, near_duplicates, same_pixels, undecided
from vlmconsole.data.importing.isolation import NewImage
from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.importing.splitting import image_splits, roles, split_rows
from vlmconsole.data.importing.survey import Survey, SurveyedRow, pixel_hashes
from vlmconsole.data.manifest import IMPORTED
from vlmconsole.data.sources.source import Source, files_sha256
from vlmconsole.runs.conditions import canonical_json

NEAR_SHOWN = 50  # near-duplicates named in the manifest


class ImportContent:
    """What will be in the dataset, and the hash that decides whether it is there already."""

    def __init__(self, source: Source, form: RowFormat, settings: ImportSettings, survey: Survey) -> None:
        self.source, self.form, self.settings, self.survey = source, form, settings, survey
        self.same: dict[str, str] = {}  # an image's hash → the hash by which all of equal pixels are known
        if settings.shares or len({row.split for row in survey.rows}) > 1:
            self.decode(undecided(list(survey.facts.values())))
            self.same = same_pixels(survey.facts)
        self.splits = split_rows(survey.rows, settings, self.same)
        self.roles = roles(self.splits)
        self.near: list[tuple[str, str, int]] = []
        if len(self.roles) > 1:
            self.near = near_duplicates(survey.facts, image_splits(survey.rows, self.splits, self.roles, self.same))
        files = source.files()
        rows = Counter(self.splits.values())
        self.sizes = {split: rows[split] for split in self.roles}
        self.sources = [
            {"file": str(file.path.absolute()), "sha256": sha, "rows": survey.by_file[file.path]}
            for file, sha in zip(files, files_sha256(files), strict=True)
        ] or [{"file": str(source.root.absolute()), "sha256": survey.texts.hexdigest(), "rows": len(survey.rows)}]
        self.sha256 = hashlib.sha256(
            canonical_json([survey.images_sha256, *(source["sha256"] for source in self.sources)])
        ).hexdigest()
        recipe = {"content": self.sha256, "format": form.name, **settings.deciding, "scorer": survey.scorer}
        if survey.split_column and set(self.splits.values()) != {"train"}:  # all in train is what it was without it
            recipe["split_column"] = survey.split_column
        self.recipe_sha256 = hashlib.sha256(canonical_json(recipe)).hexdigest()

    def decode(self, wanted: set[str]) -> Mapping[str, str]:
        """Give the images of those hashes their pixel hashes."""
        pixels = pixel_hashes(self.source, self.form, self.settings, self.survey, wanted)
        for sha, pixel in pixels.items():
            self.survey.facts[sha] = replace(self.survey.facts[sha], pixel_sha256=pixel)
        return pixels

    def new_images(self) -> Iterator[NewImage]:
        """Yield each distinct image once for each split that it is in."""
        given: set[tuple[str, str]] = set()
        for row in self.survey.rows:
            split = self.splits[row.number]
            for at, sha in enumerate(row.images):
                if (sha, split) not in given:
                    given.add((sha, split))
                    shown = self.row_id(row) if not at else f"{self.row_id(row)} image {at + 1}"
                    yield NewImage(self.survey.facts[sha], split, self.roles[split], shown)

    def row_id(self, row: SurveyedRow) -> str:
        """Return the user's own id, else one by the row's number."""
        return row.id or f"{self.settings.name}-{row.number + 1:05d}"

    def near_json(self) -> dict[str, Any]:
        """Return what the manifest says of near-duplicates across splits."""
        wanted = {sha for first, second, _ in self.near[:NEAR_SHOWN] for sha in (first, second)}
        ids: dict[str, str] = {}
        for image in self.new_images() if wanted else ():
            if image.facts.sha256 in wanted:
                ids.setdefault(image.facts.sha256, f"{image.split} {image.id}")
        pairs = [{"first": ids[a], "second": ids[b], "bits": bits} for a, b, bits in self.near[:NEAR_SHOWN]]
        return {"rule": f"dHash of 64 bits, at most {NEAR_BITS} differ", "pairs": len(self.near), "nearest": pairs}

    def manifest(self, files: Mapping[str, Any], generation: int) -> dict[str, Any]:
        """Return everything that is said of the dataset; image hashes stand in its Parquet files."""
        survey, settings = self.survey, self.settings
        return {
            "format": IMPORTED,
            "name": settings.name,
            "title": f"imported from {self.source.label}",
            "generation": generation,
            "source_format": self.form.name,
            "sources": self.sources,
            "content_sha256": self.sha256,
            "rows": len(survey.rows),
            "used_columns": dict(sorted(survey.used.items())),
            "ignored_columns": dict(sorted(survey.ignored.items())),
            "notes": dict(sorted(survey.notes.items())),
            "scorer": survey.scorer,
            "options": dict(settings.options),
            "prompt": settings.columns.prompt,
            "columns": {key: value for key, value in vars(settings.columns).items() if value and key != "prompt"},
            "skipped": [problem.to_json() for problem in survey.problems],
            "seed": settings.seed,
            "shares": dict(settings.shares),
            "splits": {split: {"role": role, "n": self.sizes[split]} for split, role in self.roles.items()},
            "near_duplicates": self.near_json(),
            "files": dict(files),
            "recipe_sha256": self.recipe_sha256,
            "made": round(time.time(), 3),
        }
