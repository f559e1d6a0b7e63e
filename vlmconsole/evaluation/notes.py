"""Notes on single answers, found in reading them one by one: a misread letter, the wrong target, the wrong scope.

They lie beside the runs, not in them: a sealed run is never written again, and no score or rule ever reads them.
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
SIDES = ("after", "before", "diagnostic")
_TAG = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")


class NoteError(LabError):
    """The note cannot be added; the message says why."""

    exit_status = 2


@dataclass(frozen=True)
class ReadingNote:
    """One note; `t` is wall time (seconds). Notes are only ever added: a later one does not replace an earlier."""

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
    tag = tag.strip().lower()
    if not _TAG.fullmatch(tag):
        raise NoteError("A tag is one to forty letters, digits, spaces, - or _.", "For example: misread letter")
    if side and side not in SIDES:
        raise NoteError(f"There is no side {side!r}: it is {', '.join(SIDES)}.")
    holder = next((name for name in ([side] if side else SIDES) if _holds(run, name, sample)), None)
    if holder is None:
        raise NoteError(f"{run.name} holds no sample {sample}{f' on the side {side}' if side else ''}.")
    note = ReadingNote(round(time.time(), 3), holder, sample, tag, text)
    path = _path(home, run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    append_line(path, note.to_json())
    return note


def read_notes(home: Path, run: RunFolder) -> list[ReadingNote]:
    """The notes on a run's samples, in the order of their writing; torn or foreign lines are left out."""
    try:
        lines = _path(home, run).read_bytes().split(b"\n")
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


def _path(home: Path, run: RunFolder) -> Path:
    return home / FOLDER / f"{run.name}.jsonl"


def _holds(run: RunFolder, side: str, sample: str) -> bool:
    return any(line.get("id") == sample for line in run.read_jsonl(f"{side}.jsonl"))
