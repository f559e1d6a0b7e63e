"""The bundled own-task examples: small, what their maker makes, written only into an empty folder."""

from __future__ import annotations

import csv
import runpy
import zipfile
from pathlib import Path

import pytest
from folders import ROOT
from PIL import Image
from refusals import refused

from vlmconsole.data.bundled_tasks import TASKS, write_task

ARCHIVES = ROOT / "assets" / "examples"


def test_they_are_small_and_what_their_maker_makes() -> None:
    maker = runpy.run_path(str(ROOT / "tests" / "tools" / "own_tasks.py"))
    assert set(maker["TASKS"]) == set(TASKS) == {path.stem for path in ARCHIVES.glob("*.zip")}
    assert sum(path.stat().st_size for path in ARCHIVES.glob("*.zip")) < 2_000_000
    for name in TASKS:
        with zipfile.ZipFile(ARCHIVES / f"{name}.zip") as archive:
            made = dict(maker["members"](name))
            assert set(archive.namelist()) == set(made)
            # Pixels and sheet, not bytes: another Pillow may compress otherwise.
            assert archive.read("labels.csv") == made["labels.csv"]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_an_example_is_a_folder_of_images_and_a_sheet(name: str, tmp_path: Path) -> None:
    assert write_task(name, tmp_path / "own") == 240
    with (tmp_path / "own" / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240 and len({row["image"] for row in rows}) == 240
    assert len({row[TASKS[name].answer] for row in rows}) >= 5
    for row in rows[:5]:
        with Image.open(tmp_path / "own" / row["image"]) as image:
            assert image.size == (448, 448)
    with refused("folder-in-use", "empty"):
        write_task(name, tmp_path / "own")
    with refused("example-missing", name):
        write_task(name[:-1], tmp_path / "other")
