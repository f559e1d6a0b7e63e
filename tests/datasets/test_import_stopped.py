"""An import that is stopped leaves nothing half made, and what was looked at is not looked at again."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.lab.imports import examples, imported, rows_of
from vlmconsole.data.importing import survey


def many_rows(folder: Path, n: int) -> Path:
    rows = []
    for number in range(n):
        Image.effect_noise((600, 400), 10 + number).convert("RGB").save(folder / f"{number}.jpg")
        rows.append({"image": f"{number}.jpg", "question": "What?", "answer": str(number)})
    return rows_of(folder, *rows)


def left_over(lab: Path) -> list[str]:
    return [path.name for path in lab.iterdir() if path.is_dir()] if lab.is_dir() else []


def test_a_full_disk_leaves_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vlmconsole.data import example

    path = many_rows(tmp_path, 6)
    written = example._HashedFile.write

    def full(self: Any, data: Any) -> int:
        if self.size > 50_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(example._HashedFile, "write", full)
        with pytest.raises(OSError, match="No space"):
            imported(path, tmp_path / "lab")
    assert left_over(tmp_path / "lab") == []
    assert len(examples(imported(path, tmp_path / "lab"))) == 6


def test_images_that_were_looked_at_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = many_rows(tmp_path, 5)
    with path.open("a") as file:
        file.write('{"image": "gone.jpg", "question": "?", "answer": "x"}\n')
    looked: list[str] = []
    look = survey.image_facts

    def counted(data: bytes, sha256: str = "") -> Any:
        looked.append(sha256)
        return look(data, sha256)

    monkeypatch.setattr(survey, "image_facts", counted)
    with pytest.raises(Exception, match="gone"):
        imported(path, tmp_path / "lab")
    assert len(looked) == 5
    imported(path, tmp_path / "lab", skip_bad=True)
    assert len(looked) == 5


def test_ctrl_c_leaves_no_dataset_and_the_same_command_goes_on(tmp_path: Path):
    path = many_rows(tmp_path, 150)
    command = [sys.executable, "-m", "vlmconsole", "data", "import", str(path), "--name", "own", "--json"]
    environment = {
        **os.environ,
        "VLMCONSOLE_HOME": str(tmp_path / "home"),
        "VLMCONSOLE_DEVICE_LOCKS": str(tmp_path / "l"),
    }
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    datasets = tmp_path / "home" / "datasets"
    end = time.monotonic() + 60
    while not (datasets / "looks.sqlite").exists() and time.monotonic() < end and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) != 0
    assert left_over(datasets) == []
    assert (
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    )
    assert left_over(datasets) == ["own"]
