"""The second reading of a source: its usable rows written into the splits' files, images as they were surveyed."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, ExampleWriter
from vlmconsole.data.formats.raw_example import RawExample
from vlmconsole.data.importing.content import ImportContent
from vlmconsole.data.importing.proposed_scorer import scorer_options
from vlmconsole.data.importing.survey import AHEAD, WORKERS, ReadRow, Survey, SurveyedRow, read_source
from vlmconsole.data.rows import DataError
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.limits import PictureError, read_picture_bytes

Waiting = deque[tuple[ReadRow, SurveyedRow, Future[tuple[bytes, ...]]]]


def write_splits(
    building: Path, content: ImportContent, on_progress: Callable[[str, int, int], None]
) -> dict[str, dict[str, Any]]:
    """Write each split's Parquet file; return name → hash and size."""
    survey, settings = content.survey, content.settings
    rows = {row.number: row for row in survey.rows}
    indexes: Counter[str] = Counter()
    with ExitStack() as stack:
        writers = {split: ExampleWriter(building / f"{split}.parquet") for split in content.roles}
        for writer in writers.values():
            stack.enter_context(writer)
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        waiting: Waiting = deque()

        def write() -> None:
            read, row, images = waiting.popleft()
            split = content.splits[row.number]
            writers[split].add(_example(read, row, images.result(), split, indexes[split], content))
            indexes[split] += 1
            on_progress("rows written", sum(indexes.values()), len(rows))

        try:
            for read in read_source(content.source, content.form, settings):
                if row := rows.get(read.number):
                    waiting.append((read, row, pool.submit(_sent_images, read, row.images, survey)))
                if len(waiting) > AHEAD:
                    write()
            while waiting:
                write()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if dict(indexes) != content.sizes:
        raise DataError(
            f"{content.source.root} was changed while it was read.", "Import it again.", code="source-changed"
        )
    return {f"{split}.parquet": {"sha256": w.sha256, "size": w.size} for split, w in writers.items()}


def _example(
    read: ReadRow, row: SurveyedRow, images: tuple[bytes, ...], split: str, index: int, content: ImportContent
) -> Example:
    raw, value, survey = read.raw, read.row.value, content.survey
    assert isinstance(raw, RawExample) and not isinstance(value, DataError)
    return Example(
        id=content.row_id(row),
        images=images,
        turns=raw.turns,
        truth=raw.truth,
        scorer=survey.scorer,
        options=scorer_options(survey.scorer, content.settings.options, raw),
        group=raw.group,
        split=split,
        index=index,
        metadata={str(key): plain_metadata(cell) for key, cell in value.items() if key not in raw.used},
    )


def _sent_images(read: ReadRow, hashes: tuple[str, ...], survey: Survey) -> tuple[bytes, ...]:
    """The bytes that will be sent: a file's own where they are plain, else a lossless PNG.

    Raises DataError where a row or an image is another than was surveyed.
    """
    try:
        images = [place if isinstance(place, bytes) else read_picture_bytes(place) for place in read.places]
    except PictureError as error:
        raise DataError(f"{read.row.where}: {error}, since it was checked", code="source-changed") from None
    if isinstance(read.raw, DataError) or tuple(hashlib.sha256(data).hexdigest() for data in images) != hashes:
        raise DataError(f"{read.row.where} was changed while it was read.", "Import it again.", code="source-changed")
    return tuple(
        data if survey.facts[sha].sent_sha256 == sha else open_picture(data, name="the image").data
        for data, sha in zip(images, hashes, strict=True)
    )


def plain_metadata(value: Any) -> Any:
    """Return a cell that nothing uses, as JSON; bytes only by their number."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Mapping):
        return {str(key): plain_metadata(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_metadata(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)
