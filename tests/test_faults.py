"""A short round of random kills; `make faults` plays the long ones."""

from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults"


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
