"""The first reading of a source: every row as an example, every image looked at, every problem named."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from vlmconsole.data.example import Example
from vlmconsole.data.formats.raw_example import RawExample, RowFormat, checked_text, checked_truth, held
from vlmconsole.data.importing.image_facts import ImageFacts, image_facts
from vlmconsole.data.importing.image_places import image_place
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.importing.proposed_scorer import ScorerChoice
from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.importing.split_column import SplitColumns
from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.source import Source
from vlmconsole.data.sources.source_row import SourceRow
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.vision.images import pixel_sha256
from vlmconsole.vision.limits import PictureError, read_picture_bytes

WORKERS = min(4, os.cpu_count() or 1)
AHEAD = 24  # rows whose images are looked at while the next ones are read
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that cannot be used: its place, its id ("" where it has none) and why."""

    where: str
    id: str
    reason: str
    code: str

    def to_json(self) -> dict[str, str]:
        """As commands and manifests tell it."""
        return {"where": self.where, "id": self.id, "reason": self.reason}

    def __str__(self) -> str:
        return row_problem_text(self.to_json())


def row_problem_text(problem: Mapping[str, str]) -> str:
    """`a.jsonl line 3 (id 7): the answer is empty`."""
    given = f" (id {problem['id']})" if problem["id"] else ""
    return f"{problem['where']}{given}: {problem['reason']}"


@dataclass(frozen=True, slots=True)
class SurveyedRow:
    """A row that can be used: its number in the source (from 0), place, id, split of the source, images' hashes."""

    number: int
    where: str
    id: str
    split: str
    images: tuple[str, ...]


@dataclass
class Survey:
    """What a source holds. `facts`: hash (hex) of an image's file → what is known of it."""

    rows: list[SurveyedRow] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)  # column → rows in which it was read
    ignored: Counter[str] = field(default_factory=Counter)  # column → rows in which it holds something
    notes: Counter[str] = field(default_factory=Counter)  # what was altered → rows
    facts: dict[str, ImageFacts] = field(default_factory=dict)
    by_file: Counter[Path] = field(default_factory=Counter)  # rows of each file
    answered: int = 0  # rows with a truth
    scorer: str = ""
    split_column: str = ""  # the column that named the rows' splits
    texts: Any = field(default_factory=hashlib.sha256)  # hash of every usable row's id, split, turns and truth

    @property
    def images_sha256(self) -> str:
        """Hash (hex) of all images' file hashes, in the order of the rows."""
        whole = hashlib.sha256()
        for row in self.rows:
            whole.update(b"".join(bytes.fromhex(sha) for sha in row.images) + b"|")
        return whole.hexdigest()


@dataclass(frozen=True)
class ReadRow:
    """A row with its example or why it gives none, and where its images are."""

    number: int
    row: SourceRow
    raw: RawExample | DataError
    places: tuple[Path | bytes, ...] = ()


def read_source(source: Source, form: RowFormat, settings: ImportSettings) -> Iterator[ReadRow]:
    """Yield every row of a source as an example, no image opened yet. Raises DataError for an unreadable file."""
    for number, row in enumerate(source.rows()):
        if isinstance(row.value, DataError):
            yield ReadRow(number, row, row.value)
            continue
        try:
            raw = form.read(row.value, settings.columns)
            checked_text(raw.turns)
            checked_truth(raw.truth)
            places = tuple(image_place(image, row.folder, source.root, settings.images) for image in raw.images)
            if any(isinstance(image, str) and image.startswith("/") for image in raw.images):
                raw = replace(raw, notes=(*raw.notes, "images taken by an absolute path"))
            Example("its turns", (b"",) * len(places), raw.turns).check()
        except DataError as error:
            yield ReadRow(number, row, error)
        else:
            yield ReadRow(number, row, raw, places)


def survey_source(
    source: Source,
    form: RowFormat,
    settings: ImportSettings,
    looks: LookStore,
    on_progress: Progress = lambda done: None,
) -> Survey:
    """Look at every row and every image, a few images at a time. `looks`: what is known of images already.

    Raises DataError for a file that cannot be read, and for an unknown scorer or column.
    """
    survey = Survey()
    look = _ImageLook(survey.facts, looks)
    ids: dict[str, str] = {}
    choice, columns = ScorerChoice(settings.scorer, settings.options), SplitColumns()
    waiting: deque[tuple[ReadRow, list[Future[str]]]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            for read in read_source(source, form, settings):
                waiting.append((read, [pool.submit(look.sha256, place) for place in read.places]))
                if len(waiting) > AHEAD:
                    _take(survey, *waiting.popleft(), ids, choice, columns)
                    on_progress(len(survey.rows) + len(survey.problems))
            while waiting:
                _take(survey, *waiting.popleft(), ids, choice, columns)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    survey.scorer, unfit = choice.settle()
    for row in survey.rows:
        if row.number in unfit:
            survey.problems.append(RowProblem(row.where, row.id, unfit[row.number], "truth-unfit"))
    survey.rows = [row for row in survey.rows if row.number not in unfit]
    _follow(survey, columns, settings)
    return survey


def _follow(survey: Survey, columns: SplitColumns, settings: ImportSettings) -> None:
    """Give the rows the splits that a column of theirs names, and say so or why not."""
    named = any(row.split for row in survey.rows)
    name, splits, notes = columns.settle([row.number for row in survey.rows], settings, named=named)
    survey.notes.update(notes)
    if name:
        survey.split_column = name
        survey.rows = [replace(row, split=splits[row.number]) for row in survey.rows]
        survey.used[name] += survey.ignored.pop(name, 0)


def pixel_hashes(
    source: Source, form: RowFormat, settings: ImportSettings, survey: Survey, wanted: set[str]
) -> dict[str, str]:
    """Hash of each wanted image's bytes → hash (hex) of its pixels. The source is read once more for them."""
    if not wanted:
        return {}
    rows = {row.number: row for row in survey.rows if not wanted.isdisjoint(row.images)}
    left = set(wanted)
    waiting: deque[tuple[str, Future[str]]] = deque()
    pixels: dict[str, str] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for read in read_source(source, form, settings):
            row = rows.get(read.number)
            for sha, place in zip(row.images, read.places, strict=False) if row else ():
                if sha in left:
                    left.discard(sha)
                    waiting.append((sha, pool.submit(_pixels, place, sha)))
            while len(waiting) > AHEAD:
                _keep(pixels, waiting)
        while waiting:
            _keep(pixels, waiting)
    return pixels


def _keep(pixels: dict[str, str], waiting: deque[tuple[str, Future[str]]]) -> None:
    sha, pixel = waiting.popleft()
    pixels[sha] = pixel.result()


def _pixels(place: Path | bytes, sha: str) -> str:
    """Hash of the pixels of an image that is sent as it is. Raises DataError where it was changed meanwhile."""
    data = place if isinstance(place, bytes) else read_picture_bytes(place)
    if hashlib.sha256(data).hexdigest() != sha:
        raise DataError("An image was changed while it was read.", "Import it again.", code="source-changed")
    return pixel_sha256(Image.open(io.BytesIO(data)))


def _take(
    survey: Survey,
    read: ReadRow,
    images: list[Future[str]],
    ids: dict[str, str],
    choice: ScorerChoice,
    columns: SplitColumns,
) -> None:
    """Add one row to the survey, or what is wrong with it."""
    raw = read.raw
    given = raw.id if isinstance(raw, RawExample) else ""
    try:
        if isinstance(raw, DataError):
            raise raw
        hashes = tuple(image.result() for image in images)
        if given and given in ids:
            raise DataError(
                f"{ids[given]} has the same id; give each its own, or number the rows with --id none", code="id-twice"
            )
        sizes = [(facts.width, facts.height) for facts in map(survey.facts.__getitem__, hashes)]
        if reason := choice.add(read.number, raw, sizes):
            raise DataError(reason, code="truth-unfit")
    except (DataError, PictureError) as error:
        survey.problems.append(RowProblem(read.row.where, given, error.message, error.code))
        return
    if given:
        ids[given] = read.row.where
    assert not isinstance(read.row.value, DataError)
    survey.used.update(raw.used)
    survey.ignored.update(str(key) for key, value in read.row.value.items() if key not in raw.used and held(value))
    survey.notes.update(raw.notes)
    columns.add(read.number, read.row.value, raw.used)
    turns = [[turn.role, turn.text] for turn in raw.turns]
    survey.texts.update(canonical_json([given, read.row.split, turns, raw.truth]))
    if read.row.file is not None:
        survey.by_file[read.row.file] += 1
    survey.answered += raw.truth is not None
    survey.rows.append(SurveyedRow(read.number, read.row.where, given, read.row.split, hashes))


class _ImageLook:
    """Looks at images in several threads, each distinct one once (or at most a few times at the same moment)."""

    def __init__(self, facts: dict[str, ImageFacts], looks: LookStore) -> None:
        self._facts, self._looks = facts, looks
        self._paths: dict[str, str] = {}

    def sha256(self, place: Path | bytes) -> str:
        """Hash (hex) of an image's bytes, after it was found fit to be sent. Raises PictureError."""
        path = None if isinstance(place, bytes) else str(place)
        if path is not None and (sha := self._paths.get(path)):
            return sha
        data = place if isinstance(place, bytes) else read_picture_bytes(place)
        sha = hashlib.sha256(data).hexdigest()
        facts = self._facts.get(sha) or self._looks.get(sha)
        if facts is None:
            facts = image_facts(data, sha)
            self._looks.add(facts)
        sha = self._facts.setdefault(sha, facts).sha256  # one text in memory for each image
        if path is not None:
            self._paths[path] = sha
        return sha
