"""Where the trace of a fault of our own goes: into the lab home, else into a private file of its own."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from vlmconsole.cli import main
from vlmconsole.ledger import chain


def crash(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, broken_home: bool = False
) -> Path:
    """Where the trace went."""

    def broken(*_: object) -> None:
        raise RuntimeError("a fault to be told")

    monkeypatch.setattr(chain.Ledger, "read", broken)
    if broken_home:
        monkeypatch.setattr("vlmconsole.lab.read_settings", broken)
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home), "gates", "list"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "a fault to be told" in said
    found = re.search(r"The trace is in (\S+)\.\n", said)
    assert found, said
    return Path(found[1])


def test_a_broken_home_leaves_the_trace_in_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    (shared / "crash.log").symlink_to(tmp_path / "laid by somebody else")
    logs = [crash(tmp_path / "home", monkeypatch, capsys, broken_home=True) for _ in range(2)]
    assert logs[0] != logs[1] and not (tmp_path / "laid by somebody else").exists()
    for log in logs:
        assert log.parent == shared and log.stat().st_mode & 0o777 == 0o600
        assert "RuntimeError: a fault to be told" in log.read_text()


def test_the_trace_is_added_to_the_homes_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        log = crash(tmp_path, monkeypatch, capsys)
    assert log == tmp_path / "logs" / "crash.log" and log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().count("RuntimeError: a fault") == 2


@pytest.mark.parametrize("laid", ["link", "fifo", "folder"])
def test_the_homes_log_is_an_ordinary_file_or_another_is_taken(
    laid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = tmp_path / "home"
    (home / "logs").mkdir(parents=True)
    log = home / "logs" / "crash.log"
    if laid == "link":
        log.symlink_to(tmp_path / "elsewhere")
    elif laid == "fifo":
        os.mkfifo(log)
    else:
        log.mkdir()
    assert crash(home, monkeypatch, capsys).parent == tmp_path
    assert not (tmp_path / "elsewhere").exists()
