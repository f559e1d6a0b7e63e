"""Writing a report where it was asked for, or among the lab's reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.reports import book, flat
from vlmconsole.runs.folder import RunFolder, folder_for_user, to_json, write_for_user
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import new_file

FORMS = ("html", "csv", "json")


def save(runs: Sequence[RunFolder], places: Places, form: str, path: Path | None = None) -> Path:
    """Write the runs as `form` (one of FORMS) to `path`, by default into the lab's `reports` folder; the path.

    Raises LabError when it cannot be written or the extra for reports is missing.
    """
    path = new_file(path) if path else usual(runs, places, form)
    if form == "html":
        text = book.html(runs, places, beside=path)
    else:
        text = flat.as_csv(runs) if form == "csv" else to_json(flat.as_json(runs, places))
    try:
        folder_for_user(path.parent)
        write_for_user(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}.", "Name another file or make room.") from None
    return path


def usual(runs: Sequence[RunFolder], places: Places, form: str) -> Path:
    """Return where a report goes that was given no place: named after its run, or the first of several."""
    more = f"-and-{len(runs) - 1}" if len(runs) > 1 else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", runs[0].name)
    return places.home / "reports" / f"{name}{more}.{form}"
