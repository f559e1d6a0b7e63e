"""Numbers with the word they count, in the singular and the plural."""

from __future__ import annotations

import pytest

from vlmconsole.runs.pace import Progress
from vlmconsole.text.counts import many, of_many


def test_one_is_one_and_none_are_many() -> None:
    assert [many(n, "picture") for n in (0, 1, 2, 1500000)] == [
        "0 pictures", "1 picture", "2 pictures", "1,500,000 pictures",
    ]  # fmt: skip
    assert many(2, "entry", "entries") == "2 entries" and many(1, "entry", "entries") == "1 entry"


@pytest.mark.parametrize(
    ("done", "total", "unit", "said"),
    [
        (12, 64, "picture", "12 of 64 pictures"),
        (12, 64, "pictures", "12 of 64 pictures"),
        (1, 1, "requests", "1 of 1 request"),
        (1, None, "steps", "1 step"),
        (3, None, "", "3"),
        (3, 4, "", "3 of 4"),
    ],
)
def test_progress_in_words_whatever_way_its_job_named_the_unit(
    done: float, total: float | None, unit: str, said: str
) -> None:
    assert of_many(done, total, unit) == said
    if total:
        assert Progress(0.0, done, total, unit, "", None).counted() == said
