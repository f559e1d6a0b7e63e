"""The same preset here and on a real Ray cluster of this machine: same summary, followed live, cancelled, mourned.

In both modes that Ray knows, open and with a token. Opt-in, as it needs the extra `ray` and some minutes:
`pytest -m optin tests/jobs/test_ray.py`.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from folders import HELPERS

from vlmconsole.jobs.kinds import TRUSTED_VARIABLE
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

pytestmark = [pytest.mark.optin, pytest.mark.timeout(600)]
Call = Callable[..., tuple[int, Any]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


STARTS = 3  # Ray ends itself when its own agent takes more than 15 s to start, as it does beside other work


class Cluster:
    """A one-machine cluster; `token` is the file of its token, None where it wants none."""

    def __init__(self, token: Path | None) -> None:
        self.token = token
        self.address = f"http://127.0.0.1:{free_port()}"
        words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={free_port()}"]
        words += [f"--dashboard-port={self.address.rpartition(':')[2]}", "--dashboard-host=127.0.0.1"]
        self.head = subprocess.Popen(
            [*words, "--num-cpus=2", "--disable-usage-stats"], start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**plain(), **self.variables(), "PYTHONPATH": str(HELPERS)},
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """What Ray reads of how one is let in."""
        if self.token is None:
            return {"RAY_AUTH_MODE": "disabled"}
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}

    def client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        key = f"Bearer {self.token.read_text()}" if self.token is not None else ""
        return JobSubmissionClient(self.address, headers={"Authorization": key} if key else None)


def plain() -> dict[str, str]:
    """This environment without anything of Ray's."""
    return {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}


@pytest.fixture(scope="module", params=["open", "token"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that ends with the tests."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    token = None
    if request.param == "token":
        token = tmp_path_factory.mktemp("ray") / "token"
        token.write_text(secrets.token_hex(32))
    for _ in range(STARTS):
        made = Cluster(token)
        try:
            deadline = time.monotonic() + 240
            while made.head.poll() is None and not takes_jobs(made):
                assert time.monotonic() < deadline, "the Ray head did not get ready"
                time.sleep(0.5)
            if made.head.poll() is None:
                yield made
                return
        finally:
            end(made.head)
    pytest.fail(f"the Ray head ended by itself, {STARTS} times: see Ray's session logs")


def end(head: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGTERM)
    try:
        head.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)


def takes_jobs(cluster: Cluster) -> bool:
    """Whether the cluster runs a job to its end: the dashboard listens long before it can."""
    try:
        client = cluster.client()
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
def home(tmp_path: Path, cluster: Cluster) -> Path:
    return made_home(tmp_path, cluster.address)


def made_home(home: Path, address: str) -> Path:
    (home / "presets").mkdir()
    here = 'kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 12\nseconds = 0.05\n'
    there = f'{here}[queue.ray]\naddress = "{address}"\npython = "{sys.executable}"\n'
    (home / "presets" / "count.toml").write_text(here)
    (home / "presets" / "count-ray.toml").write_text(there)
    return home


@pytest.fixture
def call(cluster: Cluster) -> Call:
    """A command of someone who has what the cluster wants in their environment."""

    def as_known(home: Path, *words: str) -> tuple[int, Any]:
        return call_with(cluster.variables(), home, *words)

    return as_known


def call_with(variables: dict[str, str], home: Path, *words: str) -> tuple[int, Any]:
    command = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(home), *words, "--json"]
    env = {
        **plain(), **variables, "PYTHONPATH": str(HELPERS), "VLMCONSOLE_SUPERVISOR_IDLE": "1",
        TRUSTED_VARIABLE: f"job_kinds,{sys.executable},{variables.get('RAY_AUTH_TOKEN_PATH', '')}",
    }  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    return done.returncode, json.loads(done.stdout)


def run_of(call: Call, home: Path, number: int, step: int) -> RunFolder:
    """The run of a job once it has come to that step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = call(home, "jobs", "show", str(number))[1]["run"]
        if path and any(row.get("step", 0) >= step for row in RunFolder(Path(path)).read_jsonl("samples.jsonl")):
            return RunFolder(Path(path))
        time.sleep(0.3)
    raise AssertionError("it did not come so far")


def test_the_same_preset_here_and_there_gives_the_same_summary(home: Path, call: Call) -> None:
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


def test_cancelled_there_it_keeps_what_it_made(home: Path, call: Call) -> None:
    number = call(home, "jobs", "add", "count-ray", "--set", "steps=600")[1]["id"]
    run_of(call, home, number, 3)
    call(home, "jobs", "cancel", str(number))
    code, now = call(home, "jobs", "wait", str(number))
    assert code == 1 and now["state"] == "cancelled"
    summary = RunFolder(Path(now["run"])).read_json("summary.json")
    assert summary["partial"] and summary["steps"] >= 3


def test_a_worker_killed_here_leaves_nothing_working_there(home: Path, cluster: Cluster, call: Call) -> None:
    number = call(home, "jobs", "add", "count-ray", "--set", "steps=4000")[1]["id"]
    run = run_of(call, home, number, 2)
    os.kill(run.state()["pid"], signal.SIGKILL)
    code, now = call(home, "jobs", "wait", str(number))
    assert code == 1 and now["state"] == "lost"
    client, name = cluster.client(), run.read_json("ray.json")["submission"]
    deadline = time.monotonic() + 90
    while client.get_job_status(name).value not in ("STOPPED", "FAILED"):
        assert time.monotonic() < deadline, "the Ray job goes on"
        time.sleep(0.5)


def test_whoever_has_not_what_the_cluster_wants_reads_what_to_do(home: Path, cluster: Cluster, tmp_path: Path) -> None:
    if cluster.token is None:
        code, there = call_with({}, home, "run", "count-ray")  # nothing is wanted, nothing need be said
        assert code == 0
        return
    code, there = call_with({}, home, "run", "count-ray")
    assert code == 1 and "authentication required" in there["reason"] and "RAY_AUTH_MODE" in there["reason"]
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    code, there = call_with({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(wrong)}, home, "run", "count-ray")
    assert code == 1 and "authentication failed" in there["reason"] and str(wrong) in there["reason"]
    preset = home / "presets" / "count-ray.toml"
    preset.write_text(preset.read_text() + f'auth = "token"\ntoken_file = "{cluster.token}"\n')
    trusted = {TRUSTED_VARIABLE: f"job_kinds,{sys.executable},{cluster.token}"}
    command = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(home), "run", "count-ray", "--json"]
    env = {**plain(), **trusted, "PYTHONPATH": str(HELPERS), "VLMCONSOLE_SUPERVISOR_IDLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    token = cluster.token.read_bytes()
    assert not [path for path in home.rglob("*") if path.is_file() and token in path.read_bytes()]


class Answers(BaseHTTPRequestHandler):
    """A dashboard that knows no agent, for the first so many jobs."""

    refusals = 0

    def _answer(self, status: int, value: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def do_GET(self) -> None:
        self._answer(200, b'{"version": "4", "ray_version": "2.60.0", "ray_commit": "x"}')

    def do_PUT(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Answers.refusals -= 1
        if Answers.refusals >= 0:
            self._answer(500, b"No available agent to submit job, please try again later.")
        else:
            self._answer(500, b"another fault")

    def log_message(self, *words: Any) -> None:
        pass


@pytest.mark.parametrize(("refusals", "words"), [(2, "another fault"), (10**6, "had no agent")])
def test_a_cluster_without_an_agent_is_asked_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, words: str
) -> None:
    """The real client against a dashboard that has no agent: its answer's words are Ray's own."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from vlmconsole.jobs import on_ray
    from vlmconsole.jobs.contract import Context, JobError

    monkeypatch.setattr(on_ray, "AGENT", 1.0)
    monkeypatch.setattr(on_ray, "AGAIN", 0.2)
    monkeypatch.setattr(Answers, "refusals", refusals)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    places = Places(tmp_path / "home").ensure()
    run = RunFolder.create(places.runs, kind="k", preset="p", spec={}, title="t", home=places.home)
    options = {"address": address, "cpus": 1.0, "gpus": 0.0, "python": "python"}
    with pytest.raises(JobError, match=words):
        on_ray.run_on_ray(Context(run, places), {"ray": options})
    notes = [event["text"] for event in run.read_jsonl("events.jsonl") if event["kind"] == "note"]
    assert len(notes) == 1 and "no agent yet" in notes[0]
    server.shutdown()
