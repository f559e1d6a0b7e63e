"""Notes on single answers and examples, made in reading them: a misread letter, the wrong target, the wrong scope.

They lie beside the runs and datasets, not in them: what is sealed is never written again, and no score or rule ever
reads them.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.events import append_line, parse_line
from vlmconsole.runs.folder import RunFolder

FOLDER = "notes"
OF_DATASETS = "datasets"  # the folder of notes on examples, within FOLDER
SIDES = ("after", "before", "diagnostic")
EXAMPLE = "example"  # the side of a note on an example itself
_TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")


class NoteError(LabError):
    """The note cannot be added; the message says why."""

    exit_status = 2


@dataclass(frozen=True)
class ReadingNote:
    """One note; `t` is wall time (seconds). Notes are only ever added: a later one does not replace an earlier.

    `sample` is the id of the sample or example, `side` EXAMPLE for an example itself.
    """

    t: float
    side: str
    sample: str
    tag: str
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def add_note(home: Path, run: RunFolder, sample: str, tag: str, text: str = "", side: str = "") -> ReadingNote:
    """Append one note on a sample of a run. Raises NoteError for a sample that the run does not hold, or a bad tag."""
    tag = _checked(tag)
    if side and side not in SIDES:
        raise NoteError(f"There is no side {side!r}: it is {', '.join(SIDES)}.")
    holder = next((name for name in ([side] if side else SIDES) if _holds(run, name, sample)), None)
    if holder is None:
        raise NoteError(f"{run.name} holds no sample {sample}{f' on the side {side}' if side else ''}.")
    return _append(notes_path(home, run.name), ReadingNote(round(time.time(), 3), holder, sample, tag, text))


def add_example_note(home: Path, dataset: str, example: str, tag: str, text: str = "") -> ReadingNote:
    """Append one note on an example of a dataset; that it has one is the caller's care. Raises NoteError for a tag."""
    note = ReadingNote(round(time.time(), 3), EXAMPLE, example, _checked(tag), text)
    return _append(example_notes_path(home, dataset), note)


def read_example_notes(home: Path, dataset: str) -> list[ReadingNote]:
    """Return the notes on a dataset's examples, whatever their generation, as `read_notes`."""
    return _read(example_notes_path(home, dataset))


def read_notes(home: Path, run: RunFolder) -> list[ReadingNote]:
    """Return the notes on a run's samples, in the order of their writing; torn or foreign lines are left out."""
    return _read(notes_path(home, run.name))


def _checked(tag: str) -> str:
    tag = tag.strip().lower()
    if not _TAG.fullmatch(tag):
        raise NoteError(
            "A tag is one to forty letters, digits, spaces, - or _.", "For example: misread letter", code="tag-invalid"
        )
    return tag


def _append(path: Path, note: ReadingNote) -> ReadingNote:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    append_line(path, note.to_json())
    return note


def _read(path: Path) -> list[ReadingNote]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    notes = []
    for line in lines:
        value = parse_line(line) or {}
        try:
            notes.append(ReadingNote(float(value["t"]), *(str(value[k]) for k in ("side", "sample", "tag", "text"))))
        except (KeyError, TypeError, ValueError):
            continue  # no note: nothing is made up for it
    return notes


def notes_path(home: Path, run: str) -> Path:
    """Return the file of the notes on a run's samples."""
    return home / FOLDER / f"{run}.jsonl"


def example_notes_path(home: Path, dataset: str) -> Path:
    """Return the file of the notes on a dataset's examples. Of all generations one file: an id stays the user's own."""
    return home / FOLDER / OF_DATASETS / f"{dataset.partition('@')[0]}.jsonl"


def _holds(run: RunFolder, side: str, sample: str) -> bool:
    return any(line.get("id") == sample for line in run.read_jsonl(f"{side}.jsonl"))
