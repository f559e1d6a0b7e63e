"""The worker contract, on real processes: ends, stops, failures, full disks, resuming, leftovers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from folders import HELPERS

from vlmconsole.jobs import closing, owned_server
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.heartbeat import Heartbeat, rotate
from vlmconsole.jobs.launch import create_run, log_tail, start_worker
from vlmconsole.jobs.presets import Preset, overlay
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes as launch
from vlmconsole.system import processes


@pytest.fixture(autouse=True)
def _kinds_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))


def make(home: Path, earlier: RunFolder | None = None, **spec: Any) -> RunFolder:
    preset = Preset("count", "job_kinds:COUNT", "Counts", spec)
    return create_run(Places(home), preset, overlay(preset), earlier)


def wait_for_step(run: RunFolder, step: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any(row["step"] >= step for row in run.read_jsonl("samples.jsonl")):
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step}: {run.state()} {log_tail(run)}")


def test_a_job_runs_to_its_end_and_is_sealed(tmp_path: Path) -> None:
    run = make(tmp_path, steps=3)
    worker = start_worker(run)
    assert worker.wait(30) == 0
    state = run.state()
    assert state["state"] == "done" and state["reason"] is None
    assert state["pid"] == worker.pid and state["pid_started"] and state["ended"] >= state["started"]
    assert run.read_json("summary.json") == {"steps": 3, "started_at": 0}
    assert "counting from 0" in run.log.read_text()
    kinds = [event["kind"] for event in run.read_jsonl("events.jsonl")]
    assert kinds[0] == "state" and kinds[-1] == "state" and kinds.count("progress") == 3
    assert Ledger(Places(tmp_path).ledger).verify(run).status == "intact"
    assert not run.file("reserve").exists()
    assert start_worker(run).wait(30) == 2  # an ended run is never run again
    assert run.state()["state"] == "done"


def test_sigterm_is_a_clean_stop_that_keeps_what_was_made_and_resumes(tmp_path: Path) -> None:
    run = make(tmp_path, steps=500, seconds=0.02)
    worker = start_worker(run)
    wait_for_step(run, 2)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(20) == 3
    assert run.state()["state"] == "cancelled"
    made = run.read_json("summary.json")
    assert made["partial"] is True and made["steps"] >= 2
    ledger = Ledger(Places(tmp_path).ledger)
    assert ledger.verify(run).status == "intact"
    again = make(tmp_path, earlier=run, steps=made["steps"] + 2)
    assert again.state()["attempt"] == 2
    assert start_worker(again).wait(30) == 0
    assert again.read_json("summary.json")["started_at"] == made["steps"]
    assert ledger.verify(run).status == "intact"  # the first attempt was only read


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("raise", "RuntimeError: shapes 2 and 3"),
        ("job-error", "picture is gone"),
    ],
)
def test_a_failure_gives_its_reason_and_leaves_the_trace_to_the_log(tmp_path: Path, mode: str, reason: str) -> None:
    run = make(tmp_path, mode=mode)
    assert start_worker(run).wait(30) == 1
    assert run.state()["state"] == "failed" and reason in run.state()["reason"]
    assert ("Traceback" in run.log.read_text()) == (mode == "raise")
    assert "Traceback" not in run.file("state.json").read_text()
    assert [row["step"] for row in run.read_jsonl("samples.jsonl")] == [1, 2]
    assert Ledger(Places(tmp_path).ledger).verify(run).status == "intact"


def test_a_wrong_spec_or_kind_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write_json("job.json", run.job() | {"spec": {"stepz": 3}})
    assert start_worker(run).wait(30) == 1
    assert "did you mean “steps”" in run.state()["reason"]
    other = make(tmp_path)
    other.write_json("job.json", other.job() | {"kind": "no_such_module_here:KIND"})
    assert start_worker(other).wait(30) == 1
    assert "cannot be imported" in other.state()["reason"]


def test_a_run_never_runs_twice_at_once(tmp_path: Path) -> None:
    run = make(tmp_path, steps=500, seconds=0.02)
    first = start_worker(run)
    wait_for_step(run, 1)
    assert start_worker(run).wait(20) == 2
    assert first.poll() is None
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(20) == 3
    assert {row["pid"] for row in run.read_jsonl("samples.jsonl")} == {first.pid}


def test_children_do_not_outlive_the_job(tmp_path: Path) -> None:
    run = make(tmp_path, mode="child", steps=2)
    worker = start_worker(run)
    assert worker.wait(30) == 0
    assert processes.family(worker.pid, run.path) == []
    assert "left behind" in run.log.read_text()


def test_killing_takes_the_whole_family(tmp_path: Path) -> None:
    run = make(tmp_path, mode="child", steps=500, seconds=0.02)
    worker = start_worker(run)
    wait_for_step(run, 1)
    assert len(processes.family(worker.pid, run.path)) == 2  # one of them in a session of its own
    assert processes.kill_family(worker.pid, run.path) == []
    assert worker.wait(10) == -signal.SIGKILL
    assert processes.family(worker.pid, run.path) == []


def test_a_full_disk_is_told_as_the_reason(tmp_path: Path) -> None:
    """On a real small filesystem where we may mount one, else under a file-size limit."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        run = make(disk, steps=100, size=256 * 1024)
        assert start_worker(run).wait(30) == 1
        state = run.state()
        assert state["state"] == "failed" and "disk is full" in state["reason"], state
        said = run.log.read_text()  # its end is shown where the job failed: a person has no use for a trace
        assert "disk is full" in said and "Traceback" not in said, said
        assert Ledger(Places(disk).ledger).verify(run).status == "intact"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_the_log_rotates_and_children_go_on_in_the_new_one(tmp_path: Path) -> None:
    run = make(tmp_path)
    with run.log.open("ab") as writer:
        for number in range(3):
            writer.write(b"%d" % number * 2000)
            writer.flush()
            assert rotate(run, limit=1000)
        writer.write(b"new")
        writer.flush()
    assert run.log.read_bytes() == b"new"
    assert run.file("log.1.txt").read_bytes()[:1] == b"2" and run.file("log.2.txt").read_bytes()[:1] == b"1"
    assert not rotate(run, limit=1000)


def test_a_log_without_end_is_kept_small_and_says_what_is_not_kept(tmp_path: Path) -> None:
    """One of 1 GB was copied whole, and hashed; one of a job of a few seconds was never looked at."""
    run = make(tmp_path)
    run.log.write_bytes(b"old\n" * 1_000_000 + b"the last words\n")  # all of it between two looks
    heart = Heartbeat(run, log_limit=10_000)
    heart.stop()
    kept = run.file("log.1.txt").read_bytes()
    assert kept.startswith(b"[3.8 MiB of this log") and kept.endswith(b"the last words\n") and len(kept) < 20_100
    assert heart.dropped == 4_000_015 - 20_000 and run.log.read_bytes() == b""
    (note,) = [event for event in run.read_jsonl("events.jsonl") if event["kind"] == "note"]
    assert "3.8 MiB" in note["text"] and note["level"] == "warning"
    for _ in range(3):  # what was moved on twice is dropped, and counted
        run.log.write_bytes(b"x" * 15_000)
        assert (moved := rotate(run, 10_000)) is not None
    assert moved.dropped == 15_000 and sum(path.stat().st_size for path in run.path.glob("log*")) == 30_000


def test_a_servers_log_in_its_run_is_kept_small_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_server, "LOG_LIMIT", 1000)
    places = Places(tmp_path).ensure()
    folder = launch.folder(places)
    folder.mkdir(parents=True, exist_ok=True)
    run = make(tmp_path)
    for text in (b"early\n" * 1_000_000 + b"why it died\n", b"second start\n"):
        (folder / "own.log").write_bytes(text)
        owned_server._keep_log(Context(run, places), folder / "own.log", "b4", moved=True)
    kept = run.file("server-b4.log").read_bytes()
    assert (
        kept.startswith(b"[5.72 MiB of this log") and kept.endswith(b"why it died\nsecond start\n") and len(kept) < 1100
    )


@pytest.mark.slow
def test_a_job_that_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    run = make(tmp_path, steps=3, seconds=0.0, prints=4 * 16 * 1024**2)
    assert start_worker(run).wait(60) == 0
    sizes = {path.name: path.stat().st_size for path in run.path.glob("log*")}
    assert sum(sizes.values()) < 6 * 16 * 1024**2 and len(sizes) > 1, sizes
    assert any("are not kept" in event.get("text", "") for event in run.read_jsonl("events.jsonl"))
    assert Ledger(Places(tmp_path).ledger).verify(run).status == "intact"


@pytest.mark.parametrize("adopted", [False, True])
def test_a_disk_full_to_the_end_is_named_and_no_job_is_lost_to_it(tmp_path: Path, adopted: bool) -> None:
    """Its own reserve is taken by another program, so that the worker cannot even write how it ended."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        run = make(disk, steps=4000, seconds=0.01)
        worker = start_worker(run)
        wait_for_step(run, 1)
        run.file("reserve").unlink()
        with (disk / "other").open("ab", buffering=0) as other:
            while worker.poll() is None:
                with contextlib.suppress(OSError):
                    other.write(b"x" * 4096)
        (disk / "other").unlink()
        assert worker.poll() == closing.DISK_FULL and run.state()["state"] == "running"
        state, reason = closing.cause(run, "the worker is gone" if adopted else closing.death(worker.poll()))
        assert state == "failed" and "disk was full" in reason
        assert closing.bury(run, state, reason) == (state, reason)
        assert Ledger(Places(disk).ledger).verify(run).status == "intact"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_the_heart_beats_and_samples(tmp_path: Path) -> None:
    run = make(tmp_path)
    heart = Heartbeat(run, beat=0.05)
    heart.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        samples = [event for event in run.read_jsonl("events.jsonl") if event["kind"] == "sample"]
        if len(samples) >= 2:
            break
        time.sleep(0.02)
    heart.stop()
    assert run.state()["heartbeat"] and samples[0]["rss_bytes"] > 1_000_000 and heart.missed == 0
    before = run.file("state.json").read_bytes()
    time.sleep(0.2)
    assert run.file("state.json").read_bytes() == before


def test_log_tail_shows_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.log.write_bytes(b"start\n" + b"\r".join(b" %d%%" % n for n in range(101)) + b"\r\n\xff odd\n")
    assert log_tail(run, 3) == ["start", " 100%", "\ufffd odd"]


def test_a_worker_needs_only_the_base_install(tmp_path: Path) -> None:
    """Neither Textual nor torch nor numpy is imported to run a job (a job may, inside its run)."""
    code = (
        "import sys, vlmconsole.jobs.worker\n"
        "heavy = {'textual', 'torch', 'transformers', 'peft', 'mlx', 'scipy', 'numpy', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_hostile_folders_do_not_get_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vlmconsole", "jobs", "presets", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hostile')")
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path / "home", steps=1)
    assert start_worker(run).wait(30) == 0


def command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "vlmconsole", "--home", str(home), *words]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "count.toml").write_text(
        'kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 4  # steps\n'
    )
    return tmp_path


def test_run_in_the_foreground(lab: Path) -> None:
    done = subprocess.run(
        command(lab, "run", "count", "--set", "steps=3", "--json"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["state"] == "done" and value["summary"]["steps"] == 3
    shown = subprocess.run(command(lab, "runs", "list", "--json"), capture_output=True, text=True, timeout=60)
    assert [one["run"] for one in json.loads(shown.stdout)["runs"]] == [value["run"]]
    one = subprocess.run(command(lab, "runs", "show", "last", "--json"), capture_output=True, text=True, timeout=60)
    assert json.loads(one.stdout)["spec"]["steps"] == 3


def test_run_says_what_is_wrong_and_exits_2(lab: Path) -> None:
    for words, expected in (
        (("run", "cont"), "Did you mean “count”?"),
        (("run", "count", "--set", "stepz=3"), "did you mean “steps”?"),
        (("run", "count", "--set", "steps=none"), "“steps” is 'none'"),
        (("run", "count", "--set", "mode=fast"), "'fine', 'raise'"),
    ):
        done = subprocess.run(command(lab, *words), capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_run_fails_with_code_1_and_the_reason(lab: Path) -> None:
    done = subprocess.run(
        command(lab, "run", "count", "--set", "mode=exit"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "exit code 7" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["fine", pytest.param("deaf", marks=pytest.mark.slow)])
def test_ctrl_c_stops_the_job_though_its_reader_died_of_it(lab: Path, mode: str) -> None:
    """`vlmconsole run X 2>&1 | tee log`: the terminal's Ctrl-C ends tee as well, so nothing more can be said."""
    read, write = os.pipe()
    process = subprocess.Popen(
        command(lab, "run", "count", "--set", "steps=200", "--set", "seconds=0.02", "--set", f"mode={mode}"),
        stdout=write, stderr=write, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    os.close(write)
    deadline = time.monotonic() + 30
    while not (runs := list((lab / "runs").glob("*/samples.jsonl"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    run = RunFolder(runs[0].parent)
    os.close(read)
    process.send_signal(signal.SIGINT)
    if mode == "deaf":
        time.sleep(0.7)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    process.wait(30)
    assert run.state()["state"] == "cancelled"
    assert not processes.alive(run.state()["pid"], run.state()["pid_started"])


@pytest.mark.parametrize("mode", [pytest.param("fine", marks=pytest.mark.slow), "deaf"])
def test_ctrl_c_stops_cleanly_and_a_second_one_kills(lab: Path, mode: str) -> None:
    process = subprocess.Popen(
        command(lab, "run", "count", "--set", "steps=200", "--set", "seconds=0.02", "--set", f"mode={mode}", "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Started in the background, these tests inherit an ignored SIGINT; a person's shell never hands one on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not (runs := list((lab / "runs").glob("*/samples.jsonl"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    run = RunFolder(runs[0].parent)
    process.send_signal(signal.SIGINT)
    if mode == "deaf":
        time.sleep(0.7)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert json.loads(out)["state"] == "cancelled" == run.state()["state"]
    assert not processes.alive(run.state()["pid"], run.state()["pid_started"])
    assert Ledger(Places(lab).ledger).verify(run).status == "intact"
    if mode == "fine":
        resumed = subprocess.run(
            command(lab, "run", "--resume", run.name, "--json"),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert resumed.returncode == 0, resumed.stderr
        assert json.loads(resumed.stdout)["summary"]["started_at"] >= 1
