"""Someone's data taken in: surveyed, split, and written as an immutable folder that every command reads.

Twice the source is read: first every row and image is looked at and nothing written, then what was found fit is
written beside its place and appears whole. An image that changes in between stops it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.formats.raw_example import RawExample, RowFormat
from vlmconsole.data.formats.registry import find_format, recognise
from vlmconsole.data.generations import aside
from vlmconsole.data.importing.content import ImportContent
from vlmconsole.data.importing.isolation import check_isolation
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.importing.survey import (
    RowProblem,
    survey_source,
)
from vlmconsole.data.importing.writing import write_splits
from vlmconsole.data.maker_lock import alone
from vlmconsole.data.manifest import MANIFEST, manifest_digest, read_manifest
from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.opened import open_source
from vlmconsole.data.sources.source import Source
from vlmconsole.data.splits import Known, PictureIndex
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.atomic_folder import making
from vlmconsole.text.counts import many

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
        content = ImportContent(seen.source, seen.form, settings, survey)
        folder = datasets / settings.name
        if earlier := _earlier(folder, content, replace=settings.replace):
            return earlier
        with alone(datasets, waiting):
            if earlier := _earlier(folder, content, replace=settings.replace):
                return earlier
            manifest = _write(folder, content, runs, looks, on_progress)
    return ImportedDataset(folder, manifest, True)


def _earlier(folder: Path, content: ImportContent, *, replace: bool) -> ImportedDataset | None:
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
    folder: Path, content: ImportContent, runs: Path, looks: LookStore, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    name, digest, datasets = content.settings.name, content.recipe_sha256, folder.parent
    images = check_isolation(content.new_images(), name, digest, datasets, runs, looks, content.decode)
    known = (
        Known(image.facts.sent_sha256, image.facts.pixel_sha256, name, digest, image.split, image.role, image.id)
        for image in images
    )
    generation = _generation(read_manifest(folder)) + 1 if folder.exists() else 1
    with making(folder) as building:
        files = write_splits(building, content, on_progress)
        manifest = content.manifest(files, generation)
        write_atomic(building / MANIFEST, to_json(manifest))
        with PictureIndex(datasets).adding(known, isolated=True):
            if folder.exists():
                folder.rename(aside(folder))
            building.rename(folder)
    return manifest


def _generation(manifest: Mapping[str, Any]) -> int:
    return int(manifest.get("generation") or 1)
