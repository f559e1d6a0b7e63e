"""Whole numbers that no database can hold, as someone may type them: no such thing, and bad usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmconsole.cli import main

LONG = "99999999999999999999"


@pytest.mark.parametrize("number", [LONG, f"-{LONG}"])
@pytest.mark.parametrize(
    "command",
    ["chats export", "chats delete", "chats delete --undo", "jobs show", "jobs logs", "jobs cancel", "jobs retry",
     "jobs clone", "jobs wait", "jobs hand-over"],
)  # fmt: skip
def test_a_number_of_too_many_bits_names_nothing(
    tmp_path: Path, command: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(tmp_path), *command.split(), "--", number])
    said = capsys.readouterr().err
    assert (ended.value.code, "fault" in said) == (2, False)
    assert "no such" in said
