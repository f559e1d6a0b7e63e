"""Many writers at once, by the real command line."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from folders import HELPERS

from vlmconsole.queue import process
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_terminals_add_twenty_jobs_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """120 command lines, six at a time: no error, no number twice, each terminal's own order kept."""
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.setenv(process.LOCKS_VARIABLE, str(tmp_path / "devices"))
    monkeypatch.setenv(process.IDLE_VARIABLE, "1")
    places = Places(tmp_path / "home").ensure()
    (places.presets / "count.toml").write_text('kind = "job_kinds:COUNT"\ntitle = "Counts"\n[spec]\nsteps = 1\n')
    store = Store(places.queue)
    store.set_meta("drained", True)  # they are only queued
    command = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home), "jobs", "add", "count", "--json"]
    said: dict[int, list[subprocess.CompletedProcess[str]]] = {number: [] for number in range(6)}

    def terminal(number: int) -> None:
        for step in range(20):
            words = [*command, "--set", f"size={number * 100 + step}"]
            said[number].append(subprocess.run(words, capture_output=True, text=True, timeout=300))

    terminals = [threading.Thread(target=terminal, args=(number,)) for number in said]
    for one in terminals:
        one.start()
    for one in terminals:
        one.join()
    for done in [done for some in said.values() for done in some]:
        assert done.returncode == 0 and not done.stderr, done
    told = {number: [json.loads(done.stdout)["id"] for done in some] for number, some in said.items()}
    jobs = store.waiting()
    assert [job.id for job in jobs] == list(range(1, 121)) == sorted(id for ids in told.values() for id in ids)
    for number, ids in told.items():
        assert ids == sorted(ids)
        assert [store.get(id).spec["size"] for id in ids] == [number * 100 + step for step in range(20)]
    assert (places.state / "supervisor.log").read_text().count("Traceback") == 0
    deadline = time.monotonic() + 60
    while process.running(places) is not None:
        assert time.monotonic() < deadline, "the idle supervisor did not end"
        time.sleep(0.1)
