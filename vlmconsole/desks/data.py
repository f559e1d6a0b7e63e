"""What there is to see of datasets in one lab: which there are, one of them opened, and what was answered to it.

The Data screen and `vlmconsole data` read through here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vlmconsole.data.browse import BrowsedSplit
from vlmconsole.data.example import Example
from vlmconsole.data.manifest import MANIFEST, manifest_digest, read_manifest
from vlmconsole.data.rows import DataError
from vlmconsole.data.thumbnails import Thumbnails, make_thumbnail
from vlmconsole.evaluation.example_query import Answered, ExampleQuery, parse_query, states_of
from vlmconsole.evaluation.notes import ReadingNote, example_notes_path, notes_path, read_example_notes, read_notes
from vlmconsole.evaluation.predictions import PredictionReader, Predictions, plain_name
from vlmconsole.ledger.chain import sha256_file
from vlmconsole.reports.examples import ExportedExample
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system.file_system import file_stamp

CHECKED = 64 * 1024**2  # bytes of a dataset up to which its files are hashed without being asked
OPENED = 3  # datasets held open


@dataclass(frozen=True)
class DatasetSplit:
    """One split as the manifest has it."""

    name: str
    role: str
    n: int


@dataclass(frozen=True)
class DatasetEntry:
    """One line of the list. `state`: intact, changed, missing, unchecked; `why` names the file. `fault` says why its
    manifest cannot be read. `runs` are those that used it, newest first.
    """

    name: str
    path: Path
    title: str = ""
    digest: str = ""
    scorer: str = ""
    form: str = ""
    splits: tuple[DatasetSplit, ...] = ()
    runs: tuple[str, ...] = ()
    state: str = "unchecked"
    why: str = ""
    fault: str = ""

    @property
    def n(self) -> int:
        """Examples of all splits."""
        return sum(split.n for split in self.splits)

    @property
    def plain_name(self) -> str:
        """The name without the digest that an earlier generation carries."""
        return plain_name(self.name)


class OpenedDataset:
    """A dataset's splits, open, as one row of examples. Safe under several threads."""

    def __init__(self, entry: DatasetEntry, splits: Sequence[BrowsedSplit], keys: Sequence[str]) -> None:
        self.entry = entry
        self._splits, self._keys = tuple(splits), tuple(keys)
        self.examples: tuple[Example, ...] = tuple(example for split in splits for example in split.examples)
        self._places = [(number, at) for number, split in enumerate(splits) for at in range(len(split))]

    @property
    def scorers(self) -> tuple[str, ...]:
        """What its examples are scored by."""
        return tuple(sorted({example.scorer for example in self.examples if example.scorer}))

    def example(self, index: int) -> Example:
        """Return an example with its images. Raises DataError."""
        split, at = self._places[index]
        return self._splits[split].example(at)

    def key(self, index: int) -> str:
        """Return what its first image is called among thumbnails: the hash of its file, and its row."""
        split, at = self._places[index]
        return f"{self._keys[split]}:{at}"

    def close(self) -> None:
        for split in self._splits:
            split.close()


@dataclass(frozen=True)
class ExamplesView:
    """An opened dataset as a filter leaves it: `shown` are places among its examples, in order."""

    opened: OpenedDataset
    query: ExampleQuery
    shown: tuple[int, ...]
    predictions: Predictions = field(default_factory=Predictions)
    notes: dict[str, tuple[ReadingNote, ...]] = field(default_factory=dict)
    query_text: str = ""

    def answered(self, index: int) -> Answered:
        """Return the answers to an example that the filter's `run:` lets count."""
        example = self.opened.examples[index]
        every = self.predictions.of(example.split, example.id)
        return [pair for pair in every if self.query.counts(pair[0])]

    def notes_on(self, index: int) -> tuple[ReadingNote, ...]:
        """Return the notes on an example and on answers to it, oldest first."""
        return self.notes.get(self.opened.examples[index].id, ())

    def exported(self, places: Sequence[int], desk: DataDesk) -> list[ExportedExample]:
        """Some of its examples with answers and notes, for a report."""
        return [
            ExportedExample(
                self.opened.examples[place],
                self.answered(place),
                self.notes_on(place),
                partial(desk.thumbnail, self.opened, place),
            )
            for place in places
        ]

    def state_counts(self) -> dict[str, int]:
        """Return how many of all examples each `is:` and `tag:` would leave."""
        counts: Counter[str] = Counter()
        for index in range(len(self.opened.examples)):
            notes = self.notes_on(index)
            counts.update(f"is:{state}" for state in states_of(self.answered(index), notes))
            counts.update({f"tag:{note.tag.replace(' ', '_')}" for note in notes})
        return dict(counts)


class DataDesk:
    """Reads one lab home. Use it from one thread at a time; `thumbnail` from any."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._entries: dict[Path, tuple[Any, DatasetEntry, dict[str, Any]]] = {}
        self._checked: dict[Path, tuple[Any, tuple[str, str]]] = {}
        self._opened: dict[Path, tuple[Any, OpenedDataset]] = {}
        self._view: tuple[Any, ExamplesView] | None = None
        self._reader = PredictionReader(places)
        self._thumbnails = Thumbnails(places.cache)

    def close(self) -> None:
        self._thumbnails.close()
        for _, opened in self._opened.values():
            opened.close()
        self._opened.clear()

    # -- the list ------------------------------------------------------------------------------------------

    def listing(self, *, check: bool = True) -> list[DatasetEntry]:
        """Return every dataset of the lab by name, each with its earlier generations after it; `check`: hash small
        ones.
        """
        runs = self._reader.runs()
        budget, entries = CHECKED, []
        for path in sorted(path.parent for path in self.places.datasets.glob(f"*/{MANIFEST}")):
            entry, files = self._entry(path)
            budget -= self._check(path, files, budget) if check else 0
            users = (run.name for run, data in runs if data.get(entry.plain_name, "other") in ("", entry.digest))
            entries.append(self._complete(replace(entry, runs=tuple(users))))
        return entries

    def verify(self, entry: DatasetEntry) -> DatasetEntry:
        """Hash all files of a dataset now, however large."""
        self._checked.pop(entry.path, None)
        self._check(entry.path, self._entry(entry.path)[1], None)
        return self._complete(entry)

    def _entry(self, path: Path) -> tuple[DatasetEntry, dict[str, Any]]:
        """A dataset as its manifest has it, and the manifest's files."""
        stamp = file_stamp(path / MANIFEST)
        if path not in self._entries or self._entries[path][0] != stamp:
            self._entries[path] = (stamp, *_read_entry(path))
        return self._entries[path][1:]

    def _complete(self, entry: DatasetEntry) -> DatasetEntry:
        state, why = self._checked.get(entry.path, (None, ("unchecked", "")))[1]
        return replace(entry, state=state, why=why)

    def _check(self, path: Path, files: dict[str, Any], budget: int | None) -> int:
        """Look whether the files are as the manifest has them; the bytes hashed. `budget` None: however many."""
        stamp = tuple((name, file_stamp(path / name)) for name in files)
        if path in self._checked and self._checked[path][0] == stamp:
            return 0
        size = sum(moved[1] for _, moved in stamp if moved is not None)
        if budget is not None and size > budget:
            self._checked.pop(path, None)
            return 0
        self._checked[path] = (stamp, _check_files(path, files))
        return size

    # -- one of them ---------------------------------------------------------------------------------------

    def view(self, entry: DatasetEntry, words: str = "") -> ExamplesView:
        """Return a dataset as the filter `words` leaves it; the same object while nothing moved.

        Raises DataError for a file that cannot be read, QueryError for a filter that means nothing.
        """
        query = parse_query(words)
        opened = self.open(entry)
        predictions = self._reader.of(entry.plain_name, entry.digest)
        notes_stamp = self._notes_stamp(entry, predictions)
        stamp = (id(opened), words, id(predictions), notes_stamp)
        if self._view is None or self._view[0] != stamp:
            notes = self._notes(entry, predictions)
            everything = ExamplesView(opened, query, (), predictions, notes)
            shown = tuple(index for index in range(len(opened.examples)) if _wanted(everything, index))
            if query.sort:
                shown = tuple(sorted(shown, key=partial(_order, everything)))
            self._view = (stamp, ExamplesView(opened, query, shown, predictions, notes, words.strip()))
        return self._view[1]

    def open(self, entry: DatasetEntry) -> OpenedDataset:
        """Open a dataset's splits; the last few remain open. Raises DataError."""
        files = [entry.path / f"{split.name}.parquet" for split in entry.splits]
        stamp = (entry.digest, tuple(file_stamp(path) for path in files))
        if entry.path in self._opened and self._opened[entry.path][0] != stamp:
            self._opened.pop(entry.path)[1].close()
        if entry.path not in self._opened:
            known = self._entry(entry.path)[1]
            # The time of change, too: a file that was tampered with has other images under the manifest's hash.
            keys = [f"{known.get(path.name, {}).get('sha256')}:{file_stamp(path)}" for path in files]
            opened = OpenedDataset(entry, [BrowsedSplit(path) for path in files], keys)
            while len(self._opened) >= OPENED:
                self._opened.pop(next(iter(self._opened)))[1].close()
            self._opened[entry.path] = (stamp, opened)
        return self._opened[entry.path][1]

    def thumbnail(self, opened: OpenedDataset, index: int) -> bytes | None:
        """Return an example's first image, small (JPEG); b"" for one that is no image, None where it has none.

        Raises DataError where the dataset's file is damaged.
        """
        key = opened.key(index)
        data = self._thumbnails.get(key)
        if data is None:
            images = opened.example(index).images
            if not images:
                return None
            data = make_thumbnail(images[0])
            self._thumbnails.put(key, data)
        return data

    def _notes_stamp(self, entry: DatasetEntry, predictions: Predictions) -> tuple[Any, ...]:
        home = self.places.home
        runs = dict.fromkeys(source.run for source in predictions.sources)
        return (
            file_stamp(example_notes_path(home, entry.name)),
            *(file_stamp(notes_path(home, run)) for run in runs),
        )

    def _notes(self, entry: DatasetEntry, predictions: Predictions) -> dict[str, tuple[ReadingNote, ...]]:
        home = self.places.home
        notes = read_example_notes(home, entry.name)
        for run in dict.fromkeys(source.run for source in predictions.sources):
            notes += read_notes(home, RunFolder(self.places.runs / run))
        by_id: dict[str, tuple[ReadingNote, ...]] = {}
        for note in sorted(notes, key=lambda note: note.t):
            by_id[note.sample] = (*by_id.get(note.sample, ()), note)
        return by_id


def _wanted(view: ExamplesView, index: int) -> bool:
    return view.query.matches(view.opened.examples[index], view.answered(index), view.notes_on(index))


def _order(view: ExamplesView, index: int) -> tuple[bool, Any]:
    return view.query.order(view.opened.examples[index], view.answered(index))


def _read_entry(path: Path) -> tuple[DatasetEntry, dict[str, Any]]:
    try:
        manifest = read_manifest(path)
    except DataError as error:
        return DatasetEntry(path.name, path, fault=error.full_message), {}
    recipe = manifest.get("recipe")
    title = recipe.get("title", "") if isinstance(recipe, dict) else ""
    entry = DatasetEntry(
        path.name,
        path,
        title=str(manifest.get("title") or title),
        digest=manifest_digest(manifest),
        scorer=str(manifest.get("scorer") or ""),
        form=str(manifest.get("source_format") or ("recipe" if isinstance(recipe, dict) else "")),
        splits=tuple(
            DatasetSplit(name, str(about["role"]), int(about["n"])) for name, about in manifest["splits"].items()
        ),
    )
    return entry, manifest["files"]


def _check_files(folder: Path, files: dict[str, Any]) -> tuple[str, str]:
    """(state, why) of a dataset's files."""
    for name, about in files.items():
        try:
            if sha256_file(folder / name) != about.get("sha256"):
                return "changed", f"{name} is not the file that was made"
        except OSError as error:
            return "missing", f"{name}: {error.strerror}"
    return "intact", ""
