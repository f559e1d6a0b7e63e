"""Message and hint of an error in one line."""

from pathlib import Path

import pytest
from vlmconsole.jobs import there

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places


@pytest.mark.parametrize(
    ("message", "hint", "told"),
    [
        ("It broke.", "", "It broke."),
        ("It broke.", "Mend it.", "It broke. Mend it."),
        (
            "there is no job 7",
            "`vlmconsole jobs list` shows them",
            "there is no job 7; `vlmconsole jobs list` shows them",
        ),
        ("../data is no folder..", "Look.", "../data is no folder.. Look."),
    ],
)
def test_message_and_hint_make_sentences(message: str, hint: str, told: str) -> None:
    assert LabError(message, hint).told == told


def test_a_missing_adapter_is_told_in_whole_sentences_and_its_name_stays(tmp_path: Path) -> None:
    (said,) = there.adapter("../no..where", Places(tmp_path).ensure(), alone=True)
    assert "../no..where" in said and said.endswith(f". {there.AFTER}") and "none yet; a supervised" in said
