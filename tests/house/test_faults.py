"""A short round of random kills, and deaths at chosen changes of a file; `make faults` plays the long rounds."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import FAULTS


@pytest.mark.slow
def test_a_round_of_random_kills_leaves_the_books_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAULTS))
    import chaos

    theirs = (chaos.process.LOCKS_VARIABLE, chaos.process.SLOTS_VARIABLE, chaos.process.IDLE_VARIABLE, chaos.CLOCK)
    for name in ("PYTHONPATH", *theirs):
        monkeypatch.setenv(name, "")
    chaos.prepare_environment(tmp_path)
    figures = chaos.Chaos(tmp_path, seed=4, jobs=6, faults=9, patience=200, minute=1.0).play()
    assert figures["attempts"]["done"] == 6 and sum(figures["faults"].values()) > 0


def deaths(points: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("it preloads a library of its own: Linux, with a C compiler")
    monkeypatch.syspath_prepend(str(FAULTS))
    import deaths

    return deaths.sweep(points)


def test_a_death_at_some_changes_of_a_file_leaves_the_books_right(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = deaths(2, monkeypatch)
    assert figures["wrong"] == [] and set(figures["by role"]) == {"add", "supervisor", "worker"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_death_at_every_change_of_a_file_leaves_the_books_right(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = deaths(0, monkeypatch)
    assert figures["wrong"] == [] and min(figures["by role"].values()) > 40, figures
