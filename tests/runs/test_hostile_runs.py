"""Run folders that somebody else made: odd values, devices and names that are no text. One line each, never a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.reports import save
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

JOB = {"kind": "bench", "preset": "x", "title": "t", "spec": {"a": 1}, "created": 1.0}
ODD = {"state": ["x"], "reason": {"a": 1}, "started": "soon", "ended": float("nan"), "attempt": "one"}


def folder(home: Path, name: str = "20260101-000000-odd-abcd", **files: object) -> RunFolder:
    path = home / "runs" / name
    path.mkdir(parents=True)
    for file, value in {"job.json": JOB, "state.json": {"state": "done"}, **files}.items():
        (path / file).write_text(json.dumps(value))
    return RunFolder(path)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    said = capsys.readouterr()
    assert "fault of vlmconsole" not in said.err, said.err
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize("spec", [["no"], 3, None, "x"])
def test_odd_values_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: object) -> None:
    files = {"job.json": {**JOB, "spec": spec}, "state.json": ODD, "summary.json": ["x"]}
    run = folder(tmp_path, **files)
    assert told(capsys, "--home", str(tmp_path), "runs", "list")[0] == 0
    code, said = told(capsys, "--home", str(tmp_path), "runs", "show", run.name)
    assert code == 0 and "settings = cannot be read" in said and mentions(said, "summary.json is damaged")
    assert told(capsys, "--home", str(tmp_path), "runs", "show", run.name, "--json")[0] == 0


@pytest.mark.parametrize("name", ["summary.json", "conditions.json", "state.json"])
@pytest.mark.parametrize("data", [b"", b'{"n": 1', b"[1]", b"\xff\xfe", b"[" * 100_000, None])
def test_a_damaged_file_of_a_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes | None
) -> None:
    """Such a run was only "done": nothing said that its figures are gone. None: a link to nowhere."""
    run = folder(tmp_path, **{"summary.json": {"n": 1}})
    run.file(name).unlink(missing_ok=True)
    run.file(name).symlink_to("nowhere") if data is None else run.file(name).write_bytes(data)
    code, said = told(capsys, "--home", str(tmp_path), "runs", "show", run.name)
    assert code == 0 and mentions(said, f"{name} is damaged")
    said = told(capsys, "--home", str(tmp_path), "runs", "show", run.name, "--json")[1]
    assert json.loads(said)["unreadable"] == [name]
    if name == "summary.json":
        assert "cannot be read" in told(capsys, "--home", str(tmp_path), "runs", "list")[1]
        run.file(name).unlink()
        assert "summary.json is missing" in told(capsys, "--home", str(tmp_path), "runs", "show", run.name)[1]


def test_answers_without_a_name_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder(tmp_path, **{"after.jsonl": {"reward": 1}})
    assert told(capsys, "--home", str(tmp_path), "audit", "replay", run.name)[0] == 3


def test_devices_and_pipes_in_a_run_folder_are_not_read(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.file("requests.jsonl").symlink_to("/dev/zero")
    run.file("summary.json").symlink_to("/dev/zero")
    os.mkfifo(run.file("events.jsonl"))
    assert list(run.read_jsonl("requests.jsonl")) == []
    assert run.read_json("summary.json", "none") == "none"
    assert EventTail(run.file("events.jsonl")).read() == []


def test_a_run_whose_name_is_no_text_can_be_reported(tmp_path: Path) -> None:
    run = folder(tmp_path, os.fsdecode(b"20260101-\xff"))
    assert save.save([run], Places(tmp_path), "html").stat().st_size > 1000


def test_a_report_never_takes_the_place_of_a_device(tmp_path: Path) -> None:
    run, pipe = folder(tmp_path), tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path("/")):
        with refused("file-irreplaceable", str(place)):
            save.save([run], Places(tmp_path), "csv", place)
    assert pipe.is_fifo()
