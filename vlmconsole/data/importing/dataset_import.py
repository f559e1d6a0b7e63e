"""Someone's data taken in: surveyed, split, and written as an immutable folder that every command reads.

Twice the source is read: first every row and image is looked at and nothing written, then what was found fit is
written beside its place and appears whole. An image that changes in between stops it.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, ExampleWriter
from vlmconsole.data.formats.raw_example import ColumnNames, RawExample, RowFormat
from vlmconsole.data.formats.registry import find_format, recognise
from vlmconsole.data.generations import aside
from vlmconsole.data.importing.alike import NEAR_BITS, near_duplicates, same_pixels, undecided
from vlmconsole.data.importing.isolation import NewImage, check_isolation
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.importing.proposed_scorer import scorer_options
from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.importing.splitting import image_splits, roles, split_rows
from vlmconsole.data.importing.survey import (
    ReadRow,
    RowProblem,
    Survey,
    SurveyedRow,
    pixel_hashes,
    read_source,
    survey_source,
)
from vlmconsole.data.maker_lock import alone
from vlmconsole.data.manifest import IMPORTED, MANIFEST, manifest_digest, read_manifest
from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.opened import open_source
from vlmconsole.data.sources.source import Source, files_sha256
from vlmconsole.data.splits import Known, PictureIndex
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.atomic_folder import making
from vlmconsole.text.counts import many
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.limits import PictureError, read_picture_bytes

_PREVIEW = 200  # rows by which a format is recognised
SHOWN = 3
NEAR_SHOWN = 50  # near-duplicates named in the manifest


@dataclass(frozen=True)
class ImportPreview:
    """What a source was taken for, before it is read whole: its format, kind, and the first examples."""

    source: Source
    form: RowFormat
    examples: list[RawExample]


class UnusableRowsError(DataError):
    """Rows that cannot be used, each in `problems`; the import goes on only without them."""

    code = "rows-invalid"

    def __init__(self, problems: list[RowProblem], rows: int) -> None:
        first = "; ".join(str(problem) for problem in problems[:3])
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        super().__init__(
            f"{len(problems)} of {many(rows, 'row')} cannot be used: {first}{more}.",
            "Mend them, or leave them out with --skip-bad.",
            code=self.code,
        )
        self.problems = problems


def preview(path: Path, settings: ImportSettings) -> ImportPreview:
    """Say what a source is taken for. Raises DataError for what no format fits."""
    source = open_source(path)
    if source.question_needed and not settings.columns.prompt:
        raise DataError(
            f"{path} holds images and no question.", 'Ask one of all: --prompt "What is this?"', code="prompt-missing"
        )
    rows = [row.value for row in itertools.islice(source.rows(), _PREVIEW)]
    plain = [row for row in rows if not isinstance(row, DataError)]
    settings.columns.check(column for row in plain for column in row)
    if not rows:
        raise DataError(f"{path} holds no row.", code="source-empty")
    if not plain:
        place = next(source.rows()).where
        raise DataError(f"No row of {path} can be read; {place}: {rows[0]}", code="rows-invalid")
    form = recognise(plain, settings.columns) if settings.format == "auto" else find_format(settings.format)
    examples = []
    for row in plain:
        try:
            examples.append(form.read(row, settings.columns))
        except DataError:
            continue
        if len(examples) == SHOWN:
            break
    return ImportPreview(source, form, examples)


@dataclass(frozen=True)
class ImportedDataset:
    """The folder of an imported dataset, its manifest, and whether this import made it."""

    folder: Path
    manifest: dict[str, Any]
    new: bool


def import_dataset(
    seen: ImportPreview,
    settings: ImportSettings,
    datasets: Path,
    *,
    runs: Path,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    waiting: Callable[[], None] | None = None,
) -> ImportedDataset:
    """Import a source under a name. The same bytes and settings again make nothing.

    `on_progress` gets what is done, how many rows of how many (0: not known yet). Raises UnusableRowsError, DataError
    for a name that is taken by other bytes, LeakError, PictureError, OSError.
    """
    with LookStore(datasets) as looks:
        survey = survey_source(
            seen.source, seen.form, settings, looks, on_progress=lambda done: on_progress("rows checked", done, 0)
        )
        if survey.problems and not settings.skip_bad:
            raise UnusableRowsError(survey.problems, len(survey.rows) + len(survey.problems))
        if not survey.rows:
            raise DataError(f"{seen.source.root}: no row is left to import.", code="source-empty")
        content = _Content(seen, settings, survey)
        folder = datasets / settings.name
        if earlier := _earlier(folder, content, replace=settings.replace):
            return earlier
        with alone(datasets, waiting):
            if earlier := _earlier(folder, content, replace=settings.replace):
                return earlier
            manifest = _write(folder, content, runs, looks, on_progress)
    return ImportedDataset(folder, manifest, True)


class _Content:
    """What will be in the dataset, and the hash that decides whether it is there already."""

    def __init__(self, seen: ImportPreview, settings: ImportSettings, survey: Survey) -> None:
        self.seen, self.settings, self.survey = seen, settings, survey
        self.same: dict[str, str] = {}  # an image's hash → the hash by which all of equal pixels are known
        if settings.shares or len({row.split for row in survey.rows}) > 1:
            self.decode(undecided(list(survey.facts.values())))
            self.same = same_pixels(survey.facts)
        self.splits = split_rows(survey.rows, settings, self.same)
        self.roles = roles(self.splits)
        self.image_splits = image_splits(survey.rows, self.splits, self.roles, self.same)
        self.near = near_duplicates(survey.facts, self.image_splits) if len(self.roles) > 1 else []
        files = seen.source.files()
        rows = Counter(self.splits.values())
        self.sizes = {split: rows[split] for split in self.roles}
        self.sources = [
            {"file": str(file.path.absolute()), "sha256": sha}
            for file, sha in zip(files, files_sha256(files), strict=True)
        ] or [{"file": str(seen.source.root.absolute()), "sha256": survey.images_sha256}]
        self.sha256 = hashlib.sha256(
            canonical_json([survey.images_sha256, *(source["sha256"] for source in self.sources)])
        ).hexdigest()
        self.recipe_sha256 = hashlib.sha256(
            canonical_json(
                {"content": self.sha256, "format": seen.form.name, **settings.deciding, "scorer": survey.scorer}
            )
        ).hexdigest()

    def decode(self, wanted: set[str]) -> Mapping[str, str]:
        """Give the images of those hashes their pixel hashes."""
        pixels = pixel_hashes(self.seen.source, self.seen.form, self.settings, self.survey, wanted)
        for sha, pixel in pixels.items():
            self.survey.facts[sha] = replace(self.survey.facts[sha], pixel_sha256=pixel)
        return pixels

    def new_images(self) -> list[NewImage]:
        """Each distinct image once for each split that it is in."""
        images: dict[tuple[str, str], NewImage] = {}
        for row in self.survey.rows:
            split = self.splits[row.number]
            for at, sha in enumerate(row.images):
                shown = self.row_id(row) if not at else f"{self.row_id(row)} image {at + 1}"
                images.setdefault((sha, split), NewImage(self.survey.facts[sha], split, self.roles[split], shown))
        return list(images.values())

    def row_id(self, row: SurveyedRow) -> str:
        """The user's own id, else one by the row's number."""
        return row.id or f"{self.settings.name}-{row.number + 1:05d}"

    def near_json(self) -> dict[str, Any]:
        """What the manifest says of near-duplicates across splits."""
        ids: dict[str, str] = {}
        for image in self.new_images():
            ids.setdefault(image.facts.sha256, f"{image.split} {image.id}")
        pairs = [{"first": ids[a], "second": ids[b], "bits": bits} for a, b, bits in self.near[:NEAR_SHOWN]]
        return {"rule": f"dHash of 64 bits, at most {NEAR_BITS} differ", "pairs": len(self.near), "nearest": pairs}

    def manifest(self, files: Mapping[str, Any], generation: int) -> dict[str, Any]:
        """Everything that is said of the dataset; image hashes stand in its Parquet files."""
        survey, settings = self.survey, self.settings
        return {
            "format": IMPORTED,
            "name": settings.name,
            "title": f"imported from {self.seen.source.root.name}",
            "generation": generation,
            "source_format": self.seen.form.name,
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


def _earlier(folder: Path, content: _Content, *, replace: bool) -> ImportedDataset | None:
    """The dataset that holds exactly this already; None where the name is free or to be replaced. Raises DataError."""
    if not folder.exists():
        return None
    manifest = read_manifest(folder)
    if manifest.get("recipe_sha256") == content.recipe_sha256:
        return ImportedDataset(folder, manifest, False)
    if replace:
        return None
    before, now = str(manifest.get("content_sha256") or manifest_digest(manifest)), content.sha256
    if before == now:
        what = f"{folder.name} was made of these bytes ({now[:12]}…) with other settings"
    else:
        what = f"{folder.name} was made of other bytes: {before[:12]}… then, {now[:12]}… now"
    raise DataError(
        f"{what}.",
        f"--replace makes generation {_generation(manifest) + 1} (runs keep the old one); or give another --name.",
        code="dataset-exists",
    )


def _write(
    folder: Path, content: _Content, runs: Path, looks: LookStore, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    name, digest, datasets = content.settings.name, content.recipe_sha256, folder.parent
    images = check_isolation(content.new_images(), name, digest, datasets, runs, looks, content.decode)
    known = [
        Known(image.facts.sent_sha256, image.facts.pixel_sha256, name, digest, image.split, image.role, image.id)
        for image in images
    ]
    generation = _generation(read_manifest(folder)) + 1 if folder.exists() else 1
    with making(folder) as building:
        files = _write_splits(building, content, on_progress)
        manifest = content.manifest(files, generation)
        write_atomic(building / MANIFEST, to_json(manifest))
        with PictureIndex(datasets).adding(known, isolated=True):
            if folder.exists():
                folder.rename(aside(folder))
            building.rename(folder)
    return manifest


def _generation(manifest: Mapping[str, Any]) -> int:
    return int(manifest.get("generation") or 1)


def _write_splits(
    building: Path, content: _Content, on_progress: Callable[[str, int, int], None]
) -> dict[str, dict[str, Any]]:
    """Write each split's Parquet file; return name → hash and size."""
    survey, settings = content.survey, content.settings
    rows = {row.number: row for row in survey.rows}
    indexes: Counter[str] = Counter()
    with ExitStack() as stack:
        writers = {split: ExampleWriter(building / f"{split}.parquet") for split in content.roles}
        for writer in writers.values():
            stack.enter_context(writer)
        for read in read_source(content.seen.source, content.seen.form, settings):
            row = rows.get(read.number)
            if row is None:
                continue
            images = _images(read, row.images)
            raw, value = read.raw, read.row.value
            assert isinstance(raw, RawExample) and not isinstance(value, DataError)
            split = content.splits[row.number]
            writers[split].add(
                Example(
                    id=content.row_id(row),
                    images=tuple(
                        _sent(data, sha, content.survey) for data, sha in zip(images, row.images, strict=True)
                    ),
                    turns=raw.turns,
                    truth=raw.truth,
                    scorer=survey.scorer,
                    options=scorer_options(survey.scorer, settings.options, raw),
                    group=raw.group,
                    split=split,
                    index=indexes[split],
                    metadata={str(key): plain_metadata(cell) for key, cell in value.items() if key not in raw.used},
                )
            )
            indexes[split] += 1
            on_progress("rows written", sum(indexes.values()), len(rows))
    if dict(indexes) != content.sizes:
        raise DataError(
            f"{content.seen.source.root} was changed while it was read.", "Import it again.", code="source-changed"
        )
    return {f"{split}.parquet": {"sha256": w.sha256, "size": w.size} for split, w in writers.items()}


def _images(read: ReadRow, hashes: tuple[str, ...]) -> list[bytes]:
    """The images' bytes, as they were surveyed. Raises DataError where a row or an image is another now."""
    try:
        images = [place if isinstance(place, bytes) else read_picture_bytes(place) for place in read.places]
    except PictureError as error:
        raise DataError(f"{read.row.where}: {error}, since it was checked", code="source-changed") from None
    if isinstance(read.raw, DataError) or tuple(hashlib.sha256(data).hexdigest() for data in images) != hashes:
        raise DataError(f"{read.row.where} was changed while it was read.", "Import it again.", code="source-changed")
    return images


def _sent(data: bytes, sha: str, survey: Survey) -> bytes:
    """The bytes that will be sent: the file's own where they are plain, else a lossless PNG."""
    return data if survey.facts[sha].sent_sha256 == sha else open_picture(data, name="the image").data


def plain_metadata(value: Any) -> Any:
    """A cell that nothing uses, as JSON; bytes only by their number."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return {str(key): plain_metadata(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_metadata(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


def columns_named(**names: str | None) -> ColumnNames:
    """Column names as a command gives them, None for those that it leaves out."""
    return ColumnNames(**{key: value for key, value in names.items() if value})
