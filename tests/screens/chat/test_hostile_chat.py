"""`chat` and the console under servers that never end, pack, nest or drip: bounded memory, and a stop that is heard."""

from pathlib import Path

import pytest
from benchmarks.hostile_chat import MANNERS, command, console
from hostile_server import hostile

MOST_MB = 300


def test_an_endless_answer_ends_the_command_with_bounded_memory(tmp_path: Path) -> None:
    with hostile() as url:
        seen = command(url, "endless-text", str(tmp_path), patience=60)
    assert seen.rss_mb < MOST_MB and seen.heard_s is None and seen.words.startswith("1: error: ")
    assert "passed" in seen.words


@pytest.mark.slow
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("measure", [command, console])
def test_no_manner_takes_more_than_300_mb(measure: object, manner: str, tmp_path: Path) -> None:
    with hostile() as url:
        seen = measure(url, manner, str(tmp_path), patience=4)  # type: ignore[operator]
    assert 0 < seen.rss_mb < MOST_MB, seen
    assert seen.heard_s is None or seen.heard_s < 10, seen
    assert seen.lag_s is None or seen.lag_s < 5, seen
    assert "Traceback" not in seen.words
