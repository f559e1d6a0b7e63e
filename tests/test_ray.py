"""The same preset here and on a real Ray cluster of this machine: same summary, followed live, cancelled, mourned.

Opt-in, as it needs the extra ``ray`` and half a minute: ``pytest -m optin tests/test_ray.py``.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.runs.folder import RunFolder

pytestmark = [pytest.mark.optin, pytest.mark.timeout(600)]
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


STARTS = 3  # Ray ends itself when its own agent takes more than 15 s to start, as it does beside other work


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The dashboard's address of a one-machine cluster that ends with the tests."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    for _ in range(STARTS):
        head, address = start_head()
        try:
            deadline = time.monotonic() + 240
            while head.poll() is None and not takes_jobs(address):
                assert time.monotonic() < deadline, "the Ray head did not get ready"
                time.sleep(0.5)
            if head.poll() is None:
                yield address
                return
        finally:
            end(head)
    pytest.fail(f"the Ray head ended by itself, {STARTS} times: see Ray's session logs")


def start_head() -> tuple[subprocess.Popen[bytes], str]:
    port, board = free_port(), free_port()
    words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}"]
    words += [f"--dashboard-port={board}", "--dashboard-host=127.0.0.1", "--num-cpus=2", "--disable-usage-stats"]
    head = subprocess.Popen(
        words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    return head, f"http://127.0.0.1:{board}"


def end(head: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGTERM)
    try:
        head.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)


def takes_jobs(address: str) -> bool:
    """Whether the cluster runs a job to its end: the dashboard listens long before it can."""
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        name = client.submit_job(entrypoint="true")
        deadline = time.monotonic() + 120
        while (status := client.get_job_status(name).value) in ("PENDING", "RUNNING"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
    except Exception:  # Ray raises whatever its transport does while it comes up
        return False
    return bool(status == "SUCCEEDED")


@pytest.fixture
def home(tmp_path: Path, cluster: str) -> Path:
    (tmp_path / "presets").mkdir()
    here = 'kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 12\nseconds = 0.05\n'
    there = f'{here}[queue.ray]\naddress = "{cluster}"\npython = "{sys.executable}"\n'
    (tmp_path / "presets" / "count.toml").write_text(here)
    (tmp_path / "presets" / "count-ray.toml").write_text(there)
    return tmp_path


def call(home: Path, *words: str) -> tuple[int, Any]:
    command = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(home), *words, "--json"]
    env = {**os.environ, "PYTHONPATH": str(HERE), "VLMCONSOLE_SUPERVISOR_IDLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    return done.returncode, json.loads(done.stdout)


def run_of(home: Path, number: int, step: int) -> RunFolder:
    """The run of a job once it has come to that step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = call(home, "jobs", "show", str(number))[1]["run"]
        if path and any(row.get("step", 0) >= step for row in RunFolder(Path(path)).read_jsonl("samples.jsonl")):
            return RunFolder(Path(path))
        time.sleep(0.3)
    raise AssertionError("it did not come so far")


def test_the_same_preset_here_and_there_gives_the_same_summary(home: Path) -> None:
    code, here = call(home, "run", "count")
    assert code == 0
    code, there = call(home, "run", "count-ray")
    assert code == 0 and there["summary"] == here["summary"]
    one, two = RunFolder(Path(here["path"])), RunFolder(Path(there["path"]))
    assert [row["step"] for row in two.read_jsonl("samples.jsonl")] == [
        row["step"] for row in one.read_jsonl("samples.jsonl")
    ]
    assert "counting from 0" in two.log.read_text()
    plan = call(home, "jobs", "add", "count-ray", "--plan")[1]["jobs"][0]
    assert plan["devices"] == []
    assert call(home, "verify")[1]["intact"]


def test_cancelled_there_it_keeps_what_it_made(home: Path) -> None:
    number = call(home, "jobs", "add", "count-ray", "--set", "steps=600")[1]["id"]
    run_of(home, number, 3)
    call(home, "jobs", "cancel", str(number))
    code, now = call(home, "jobs", "wait", str(number))
    assert code == 1 and now["state"] == "cancelled"
    summary = RunFolder(Path(now["run"])).read_json("summary.json")
    assert summary["partial"] and summary["steps"] >= 3


def test_a_worker_killed_here_leaves_nothing_working_there(home: Path, cluster: str) -> None:
    from ray.job_submission import JobSubmissionClient

    number = call(home, "jobs", "add", "count-ray", "--set", "steps=4000")[1]["id"]
    run = run_of(home, number, 2)
    os.kill(run.state()["pid"], signal.SIGKILL)
    code, now = call(home, "jobs", "wait", str(number))
    assert code == 1 and now["state"] == "lost"
    client, name = JobSubmissionClient(cluster), run.read_json("ray.json")["submission"]
    deadline = time.monotonic() + 90
    while client.get_job_status(name).value not in ("STOPPED", "FAILED"):
        assert time.monotonic() < deadline, "the Ray job goes on"
        time.sleep(0.5)
