"""Two lab homes with a console each on one machine: nobody waits for an idle server, and whoever waits reads why."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import HELPERS
from rich.cells import cell_len
from test_console_tmux import Tmux

from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.served import serving, waited_for
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import waits
from vlmconsole.runs.places import Places
from vlmconsole.text.fitting import whole_words

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
LIMIT = 60.0  # seconds; 15 on a machine that has nothing else to do


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("waiting for cpu, in use (pid 5652, another home)", "cpu, in use (pid 5652, another home)"),
        ("after 3", "after 3"),
        ("drained: `vlmconsole jobs resume` mends it", "drained: `vlmconsole jobs resume`"),
    ],
)
def test_a_start_tells_what_it_waits_for(why: str, reason: str) -> None:
    assert waited_for(f"job 12 {waits(why)}").startswith(reason)


@pytest.mark.parametrize("phase", ["starting", "loading the model", "job 3", "waits for nothing", ""])
def test_what_has_begun_waits_for_nothing(phase: str) -> None:
    assert waited_for(phase) == ""


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, "cpu, in use elsewhere"),
        (15, "cpu, in use…"),
        (9, "cpu, in…"),
        (5, "cpu…"),
    ],
)
def test_a_reason_is_cut_between_words(width: int, shown: str) -> None:
    assert whole_words("cpu, in use elsewhere", width) == shown


@pytest.mark.parametrize(
    "text", ["pneumonoultramicroscopic", "写写写写写写写写", "a pneumonoultramicroscopic", "for (cpu", ""]
)
@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_a_cut_reason_always_fits(text: str, width: int) -> None:
    assert cell_len(whole_words(text, width)) <= width


class Two:
    """Two homes that share a machine of one CPU slot."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = Places(folder / "first").ensure(), Places(folder / "second").ensure()

    def run(self, places: Places, *words: str) -> str:
        command = [sys.executable, "-m", "vlmconsole", "--home", str(places.home), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    pytest.importorskip("mlx_vlm")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.setenv(process.LOCKS_VARIABLE, str(tmp_path / "devices"))
    monkeypatch.setenv(process.SLOTS_VARIABLE, "1")
    monkeypatch.setenv(process.IDLE_VARIABLE, "2")
    made = Two(tmp_path)
    yield made
    for places in (made.first, made.second):
        store = Store(places.queue)
        for job in store.listing():
            if job.state not in FINAL:
                store.cancel(job.id, "the test is over")
        process.ensure(places)
        end = time.monotonic() + 60
        while store.active() and time.monotonic() < end:
            time.sleep(0.1)
        store.close()


@pytest.mark.slow
@needs_tmux
async def test_the_second_homes_first_question_is_answered_while_the_firsts_server_idles(
    two: Two, tmp_path: Path
) -> None:
    consoles: list[Tmux] = []
    try:
        for number, places in enumerate((two.first, two.second)):
            (tmp_path / str(number)).mkdir()
            tmux = Tmux(tmp_path / str(number))
            consoles.append(tmux)
            begun = time.monotonic()
            tmux.open(places.home, 80, 24)
            await tmux.shows("1 Chat")
            tmux.keys("What shape is red?")
            await tmux.shows("What shape is red?")
            tmux.keys("Enter")
            await tmux.shows("TTFT", LIMIT)
            print(f"console {number + 1}: first answer {time.monotonic() - begun:.1f} s after its start")
            assert time.monotonic() - begun < LIMIT
        for places in (two.first, two.second):
            state = {
                row["name"]: row["state"] for row in json.loads(two.run(places, "--json", "servers", "list"))["servers"]
            }
            assert state["demo"] == "ready"
    finally:
        for tmux in consoles:
            tmux.run("kill-server")


@pytest.mark.slow
@needs_tmux
async def test_timed_work_of_another_home_has_the_machine_and_whoever_waits_reads_why(two: Two, tmp_path: Path) -> None:
    """The first home's idle server makes room and comes back; a question asked meanwhile says what it waits for."""
    two.run(two.first, "servers", "start", "demo")
    mine, theirs = Store(two.first.queue), Store(two.second.queue)
    server = serving(mine, "demo")
    assert server is not None
    timed = theirs.add(
        NewJob("count", "job_kinds:COUNT", "Times", {"steps": 9000, "seconds": 0.05}, devices=("cpu:all",))
    )
    process.ensure(two.second)
    begun = time.monotonic()
    while theirs.get(timed).state != "running":
        assert time.monotonic() - begun < 120, theirs.get(timed)
        assert theirs.get(timed).state == "queued" or mine.get(server.id).state in FINAL
        time.sleep(0.1)
    print(f"timed work began {time.monotonic() - begun:.1f} s after it was queued, beside an idle server")
    assert mine.get(server.id).state == "done" and "made room" in (mine.get(server.id).reason or "")
    (tmp_path / "t").mkdir()
    tmux = Tmux(tmp_path / "t")
    try:
        tmux.open(two.first.home, 80, 24)
        await tmux.shows("1 Chat")
        tmux.keys("What shape is red?")
        await tmux.shows("What shape is red?")
        tmux.keys("Enter")
        seen = " ".join((await tmux.shows("S picks")).replace("▌", " ").split())
        assert re.search(r"● waiting for CPU, .*\(pid \d+, another lab home\)", seen), seen
        assert "F3 shows" in seen and "S picks" in seen
        listed = two.run(two.first, "servers", "list")
        assert re.search(r"demo +mlx +waiting ", listed) and "another lab home" in listed
        assert "another lab home" in two.run(two.first, "jobs", "list")
        tmux.keys("F3")
        await tmux.shows("1 queued")
        await tmux.shows("for CPU, in use")
        tmux.keys("]")
        await tmux.shows("another lab home")
        tmux.keys("F1")
        theirs.cancel(timed)
        await tmux.shows("TTFT", 120)
        back = serving(mine, "demo")
        assert back is not None and back.keep and back.id != server.id
    finally:
        tmux.run("kill-server")
        mine.close()
        theirs.close()
