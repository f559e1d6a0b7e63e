"""The bundled own-task examples: images and a sheet of questions, as anybody has them, to be written into a folder.

`tests/tools/own_tasks.py` makes the archives in `assets/examples`.
"""

from __future__ import annotations

import difflib
import io
import zipfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from vlmconsole.data.rows import DataError

SPLIT = "train=60,dev=15,test=25"


@dataclass(frozen=True)
class BundledTask:
    """One example: what is asked, the sheet's column with the answer, and what the bundled model makes of it."""

    name: str
    title: str
    answer: str
    about: str

    def import_command(self, folder: Path) -> list[str]:
        """Return the words of the command that imports it from `folder`."""
        words = ["vlmconsole", "data", "import", str(folder), "--name", self.name]
        return [*words, "--answer", self.answer, "--split", SPLIT]


TASKS = {
    task.name: task
    for task in (
        BundledTask(
            "colours",
            "Colour of the largest shape, 240 images",
            "colour",
            "the bundled model learns it in minutes",
        ),
        BundledTask(
            "segments",
            "Number on a seven-segment display, 240 images",
            "number",
            "the bundled model cannot learn it: its frozen vision never saw strokes",
        ),
    )
}


def find_task(name: str) -> BundledTask:
    """Return the example called `name`. Raises DataError with the nearest name."""
    if name in TASKS:
        return TASKS[name]
    close = difflib.get_close_matches(name, TASKS, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(TASKS)}."
    raise DataError(f"There is no example called {name!r}.", hint, code="example-missing").named()


def write_task(name: str, folder: Path) -> int:
    """Write the example's images and `labels.csv` into a new or empty `folder`; returns the number of images.

    Raises DataError where the folder holds something, OSError where it cannot be written.
    """
    task = find_task(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty.", "Name a new folder; nothing was written.", code="folder-in-use")
    data = (files("vlmconsole.assets") / "examples" / f"{task.name}.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        folder.mkdir(parents=True, exist_ok=True)
        archive.extractall(folder)
        return sum(member.startswith("images/") for member in archive.namelist())
