"""Run folders: atomic state, append-only events, torn lines, odd values."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.runs.conditions import Conditions, canonical_json
from vlmconsole.runs.events import EventTail, EventWriter
from vlmconsole.runs.folder import NoRunError, RunFolder, find_run, list_runs, write_atomic
from vlmconsole.runs.places import Places
from vlmconsole.system import processes


def make(tmp_path: Path, preset: str = "count-tiny") -> RunFolder:
    return RunFolder.create(
        tmp_path / "runs", kind="count", preset=preset, spec={"steps": 3}, title="Counts", home=tmp_path
    )


def test_a_new_run_is_named_queued_and_private(tmp_path: Path) -> None:
    run = make(tmp_path, "sft/odd name")
    assert "-sft-odd-name-" in run.name
    assert run.state()["state"] == "queued"
    assert run.job()["spec"] == {"steps": 3} and run.job()["home"] == str(tmp_path)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert run.file("state.json").stat().st_mode & 0o777 == 0o600


def test_state_keeps_what_is_not_replaced(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.set_state("running", pid=7, started=1.5)
    run.set_state(None, heartbeat=2.5)
    run.set_state("failed", "no disk")
    assert run.state() == {
        "state": "failed", "reason": "no disk", "pid": 7, "started": 1.5, "heartbeat": 2.5, "attempt": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match="no such state"):
        run.set_state("sleeping")


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomic(target, "old")
    target_folder = tmp_path / "folder"
    target_folder.mkdir()
    with pytest.raises(OSError):
        write_atomic(target_folder, "cannot replace a folder")
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "folder"]


def test_tail_waits_for_a_torn_line_and_skips_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    path.write_bytes(b'{"kind": "note", "text": "a"}\nnot json\n[1]\n{"kind": "no')
    assert [event["text"] for event in tail.read()] == ["a"]
    assert tail.bad == 2 and tail.read() == []
    with path.open("ab") as file:
        file.write(b'te", "text": "b"}\n')
    assert [event["text"] for event in tail.read()] == ["b"]
    path.write_bytes(b'{"kind": "note", "text": "anew"}\n')
    assert [event["text"] for event in tail.read()] == ["anew"]


def test_a_writer_closes_the_line_that_a_crash_left_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "progress", "done": 1')
    EventWriter(path).note("after the crash")
    tail = EventTail(path)
    assert [event["text"] for event in tail.read()] == ["after the crash"]
    assert tail.bad == 1


def test_events_are_strict_json_even_with_nan_and_odd_text(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    writer.metric("loss", math.nan, 3, "nat")
    writer.note("a\u2028b\x85c \udcff", "warning")
    for line in path.read_bytes().rstrip(b"\n").split(b"\n"):
        json.loads(line, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    loss, note = EventTail(path).read()
    assert loss["value"] == "NaN" and loss["step"] == 3
    assert note["text"] == "a\u2028b\x85c \udcff"


@given(st.lists(st.binary(max_size=40).filter(lambda data: b"\n" not in data), max_size=8), st.integers(1, 9))
def test_tail_by_any_cut_gives_the_same_events(lines: list[bytes], step: int) -> None:
    import tempfile

    whole = b"".join(b'{"kind": "note", "n": %d}\n' % number + line + b"\n" for number, line in enumerate(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.touch()
        tail, events = EventTail(path), []
        for start in range(0, len(whole), step * 7):
            with path.open("ab") as file:
                file.write(whole[start : start + step * 7])
            events += tail.read(limit=step * 16)
        while tail.offset < len(whole):
            events += tail.read(limit=step * 16)
        assert [event["n"] for event in events if event.get("kind") == "note" and "n" in event] == list(
            range(len(lines))
        )


def test_read_jsonl_survives_torn_and_missing(tmp_path: Path) -> None:
    run = make(tmp_path)
    assert list(run.read_jsonl("samples.jsonl")) == []
    run.append_jsonl("samples.jsonl", {"a": 1})
    with run.file("samples.jsonl").open("ab") as file:
        file.write(b'{"a": 2')
    assert list(run.read_jsonl("samples.jsonl")) == [{"a": 1}]


def test_finding_runs(tmp_path: Path) -> None:
    first, second = make(tmp_path, "alpha"), make(tmp_path, "beta")
    parent = Places(tmp_path).runs
    assert {run.name for run in list_runs(parent)} == {first.name, second.name}
    assert find_run(parent, "alpha").name == first.name
    assert find_run(parent, str(second.path)).name == second.name
    with pytest.raises(NoRunError, match="fits 2 runs"):
        find_run(parent, "-")
    with pytest.raises(NoRunError, match="no run"):
        find_run(parent, "gamma")


def test_conditions_have_one_digest_and_refuse_unknown_fields() -> None:
    one = Conditions(model="m", client_concurrency=4, running_limit=1)
    same = Conditions(running_limit=1, model="m", client_concurrency=4)
    other = Conditions(model="m", client_concurrency=1, running_limit=4)
    assert one.digest() == same.digest() != other.digest()
    assert one.known() == {"model": "m", "client_concurrency": 4, "running_limit": 1}
    with pytest.raises(ValueError, match="concurrency"):
        Conditions.model_validate({"concurrency": 4})
    with pytest.raises(ValueError):
        canonical_json({"x": math.inf})


def test_a_pid_alone_is_not_a_process() -> None:
    mine = processes.started(os.getpid())
    assert processes.alive(os.getpid(), mine)
    assert not processes.alive(os.getpid(), "another start")
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    token = processes.started(child.pid)
    while processes.started(child.pid) is not None:  # a zombie until waited for: ended, and not alive
        pass
    assert not processes.alive(child.pid, token)
    child.wait()
    assert "python" in processes.describe(os.getpid())


def test_a_relative_home_means_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = Places(Path("lab")).ensure()
    assert places.home == tmp_path / "lab" and places.config == tmp_path / "lab" / "config.toml"
    assert places.state.stat().st_mode & 0o777 == 0o700


def test_runs_of_one_second_are_listed_in_the_order_they_were_made(tmp_path: Path) -> None:
    made = [
        RunFolder.create(tmp_path, kind="k", preset="same", spec={}, title="T", home=tmp_path).name for _ in range(8)
    ]
    assert [run.name for run in list_runs(tmp_path)] == made[::-1]
    assert find_run(tmp_path, "last").name == made[-1]


def test_runs_are_ordered_by_the_instant_and_not_by_the_local_time_in_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two time zones, and in the hour that autumn repeats, the older run was `last`."""
    made = []
    for zone in ("Pacific/Kiritimati", "UTC", "America/Los_Angeles"):  # each earlier by its clock than the one before
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        run = RunFolder.create(tmp_path, kind="k", preset="p", spec={}, title="t", home=tmp_path)
        made.append(run.name)
    monkeypatch.undo()
    time.tzset()
    assert sorted(made, reverse=True) == made  # by name the newest would be the last
    assert [run.name for run in list_runs(tmp_path)] == made[::-1] and find_run(tmp_path, "last").name == made[-1]


@pytest.mark.parametrize("created", [1_792_888_200, 1_792_888_200.5, "yesterday", None, True, 1e300, -5, []])
def test_the_repeated_hour_and_a_damaged_instant(tmp_path: Path, created: object) -> None:
    names = ("20261025-025900-p-aaaa", "20261025-020100-p-bbbb")  # 00:59 and 01:01 UTC in Berlin
    for name, instant in zip(names, (created, 1_792_890_060), strict=True):
        run = RunFolder.create(tmp_path, kind="k", preset="p", spec={}, title="t", home=tmp_path, name=name)
        run.write_json("job.json", {**run.job(), "created": instant})
        os.utime(run.file("job.json"), (1_792_889_940, 1_792_889_940))
    assert find_run(tmp_path, "last").name == names[1]


def test_last_is_no_servers_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="bench", preset="b", spec={}, title="t", home=tmp_path)
    RunFolder.create(tmp_path, kind="serve", preset="serve-demo", spec={}, title="t", home=tmp_path)
    assert find_run(tmp_path, "last").name == run.name
    assert list_runs(tmp_path)[0].job()["kind"] == "serve"
    with pytest.raises(NoRunError):
        find_run(tmp_path / "none", "last")
