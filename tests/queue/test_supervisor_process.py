"""The supervisor as a process of its own, and the queue's command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from supervised import places_fixture  # noqa: F401

from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes


def command(places: Places, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_command_line_from_adding_to_verifying(places: Places) -> None:
    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 2\n')
    listed = command(places, "jobs", "presets")[1]["presets"]
    assert {"name": "count", "kind": "job_kinds:COUNT", "title": "Counts"} in listed
    assert command(places, "jobs", "add", "count", "--plan")[1]["jobs"][0]["devices"] == ["cpu"]
    code, first = command(places, "jobs", "add", "count")
    assert code == 0 and first["id"] == 1
    assert command(places, "jobs", "add", "count", "--after", "1", "--set", "mode=raise")[1]["after"] == [
        {"job": 1, "when": "ok"}
    ]
    assert command(places, "jobs", "wait", "1")[0] == 0
    code, second = command(places, "jobs", "wait", "2")
    assert code == 1 and second["why"].startswith("RuntimeError")
    listed = command(places, "jobs", "list")[1]["jobs"]
    assert {job["id"]: job["state"] for job in listed} == {1: "done", 2: "failed"}
    assert "counting from 0" in command(places, "jobs", "logs", "1")[1]["lines"][0]
    code, verdict = command(places, "verify")
    assert code == 0 and verdict["intact"] and [run["status"] for run in verdict["runs"]] == ["intact"] * 2
    RunFolder(Path(second["run"])).append_jsonl("samples.jsonl", {"step": 3})
    code, verdict = command(places, "verify")
    assert code == 1 and verdict["runs"][0]["changed"] == ["samples.jsonl"]
    assert command(places, "jobs", "add", "cuont")[0] == 2 and command(places, "jobs", "cancel", "7")[0] == 2
    deadline = time.monotonic() + 60
    while process.running(places) is not None:
        assert time.monotonic() < deadline, "an idle supervisor did not end"
        time.sleep(0.1)


def test_only_one_supervisor_and_it_outlives_whoever_started_it(places: Places) -> None:
    store = Store(places.queue)
    number = store.add(NewJob("count", "job_kinds:COUNT", "C", {"steps": 90_000, "seconds": 0.02}))
    code = (
        "import sys, pathlib; from vlmconsole.queue import process; from vlmconsole.runs.places import Places\n"
        "[process.ensure(Places(pathlib.Path(sys.argv[1]))) for _ in range(3)]"
    )
    starters = [subprocess.Popen([sys.executable, "-c", code, str(places.home)]) for _ in range(3)]
    assert [starter.wait(30) for starter in starters] == [0, 0, 0]
    deadline = time.monotonic() + 120
    while store.get(number).state != "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    info = process.running(places)
    assert info is not None and store.get(number).state == "running"
    assert (places.state / "supervisor.log").read_text().count("started") == 1
    assert os.getsid(info["pid"]) == info["pid"] and os.getsid(store.get(number).pid or 0) == store.get(number).pid
    os.kill(info["pid"], signal.SIGHUP)  # as when the terminal goes away
    time.sleep(1.5)  # those that came too late try for a second, and would take over
    info = process.running(places)
    assert info is not None and (places.state / "supervisor.log").read_text().count("started") == 1
    os.kill(info["pid"], signal.SIGTERM)  # it leaves; its worker goes on
    while process.running(places) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    job = store.get(number)
    assert processes.alive(job.pid, job.pid_started)
    process.ensure(places)
    store.cancel(number)
    while store.get(number).state not in FINAL and time.monotonic() < deadline:
        time.sleep(0.05)
    assert store.get(number).state == "cancelled"


def test_a_foreground_run_ends_though_its_supervisor_was_killed(places: Places) -> None:
    (places.presets / "count.toml").write_text(
        'kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 40\nseconds = 0.05\n'
    )
    followed = subprocess.Popen(
        [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home), "run", "count", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    store, deadline = Store(places.queue), time.monotonic() + 60
    while not (found := store.listing(True)) or found[0].state != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    info = process.running(places)
    assert info is not None
    os.kill(info["pid"], signal.SIGKILL)
    out, _ = followed.communicate(timeout=100)
    assert followed.returncode == 0 and json.loads(out)["state"] == "done"
