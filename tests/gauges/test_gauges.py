"""The gauges at work: sources that hang, break, die and come back; recordings."""

import itertools
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_server import Clock, serving, until
from refusals import refused

from vlmconsole.engines.profile import make_profile
from vlmconsole.errors import LabError
from vlmconsole.gauges.board import Board
from vlmconsole.gauges.figures import Batch, Figure, Mark, SourceError
from vlmconsole.gauges.recording import Recorder, Replay, batches
from vlmconsole.gauges.sources import Gauges, ServerSource
from vlmconsole.gauges.words import job_said
from vlmconsole.runs.places import Places
from vlmconsole.text.units import of_total

# -- series ------------------------------------------------------------------------------------------------------


class Made:
    """A source that does what it is told."""

    slow = 0.0

    def __init__(self, name: str, act: Any) -> None:
        self.name, self.keys, self.act, self.closed = name, (f"{name}.figure",), act, False

    def read(self) -> Batch:
        return Batch(self.name, time.time(), {f"{self.name}.figure": Figure(float(self.act()))})

    def close(self) -> None:
        self.closed = True


def test_one_source_that_hangs_or_breaks_never_holds_up_another() -> None:
    ticks, hold = [], threading.Event()

    def fault() -> float:
        raise RuntimeError("boom")

    def fail() -> float:
        raise SourceError("the cable is out", "Plug it in.")

    good = Made("good", lambda: ticks.append(time.monotonic()) or len(ticks))
    sources = [Made("hangs", lambda: hold.wait(30)), Made("breaks", fault), Made("fails", fail), good]
    with Gauges(sources, interval=0.1) as gauges:
        until(lambda: len(ticks) >= 8)
        states = gauges.snapshot().sources
        begun = time.monotonic()
    assert time.monotonic() - begun < 2.5, "stopping does not wait for the one that hangs"
    hold.set()
    assert (states["good"].state, states["hangs"].state) == ("ok", "waiting")
    assert "boom" in states["breaks"].why
    assert (states["fails"].why, states["fails"].hint) == ("the cable is out", "Plug it in.")
    gaps = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    assert statistics.median(gaps) < 0.3
    assert good.closed


def test_a_server_killed_is_said_within_three_seconds_and_recovers_by_itself() -> None:
    text = "vllm:num_requests_running 3\n"
    with serving() as server:
        server.pages["/metrics"] = text
        url = server.url
        source = ServerSource(
            make_profile({"name": "far", "engine": "vllm", "base_url": url}), Places(Path("/nowhere"))
        )
        gauges = Gauges([source]).start()
        until(lambda: gauges.snapshot().tiles["server.running"].value == 3)
    took = until(lambda: gauges.snapshot().sources["server"].state == "missing")
    assert took < 3.0
    assert "nothing answers" in gauges.snapshot().tiles["server.running"].why
    with serving(int(url.rpartition(":")[2])) as server:
        server.pages["/metrics"] = text
        until(lambda: gauges.snapshot().tiles["server.running"].value == 3, 8)
        server.manner = "hang"
        assert until(lambda: gauges.snapshot().sources["server"].state == "missing") < 3.5
        gauges.stop()


def test_a_server_that_is_not_started_says_how(tmp_path: Path) -> None:
    demo = make_profile({"name": "demo", "engine": "mlx", "launch": {}})
    with refused("server-stopped", "demo", "servers start demo", error=SourceError):
        ServerSource(demo, Places(tmp_path)).read()


# -- recording ---------------------------------------------------------------------------------------------------


def test_a_recording_replays_to_the_same_tiles(tmp_path: Path) -> None:
    path, clock = tmp_path / "gauges.jsonl", Clock(1000.0)
    live, record = Board(clock), Recorder(path)
    for second in range(20):
        clock.at = 1000.0 + second
        batch = Batch(
            "own",
            clock.at,
            {"own.ttft": Figure(0.1 * second, samples=(0.1 * second, 0.2)), "own.in_flight": Figure(second, total=32)},
            (Mark(clock.at, "cell 2"),) if second == 9 else (),
            job={"run": "r", "conditions": {"model": "tiny"}},
        )
        live.take(batch)
        record(batch)
        record(Batch("gpu", clock.at, missing="no card"))
        live.take(Batch("gpu", clock.at, missing="no card"))
    with path.open("a") as file:
        file.write('{"source": "own"}\n{"torn')
    tick = Clock(0.0)
    replay = Replay(path, speed=4.0, clock=tick)
    assert replay.start().snapshot().tiles["own.in_flight"].value == 0
    tick.at = 2.5
    assert replay.snapshot().tiles["own.in_flight"].value == 10 and not replay.finished
    tick.at = 19 / 4
    then = replay.snapshot()
    assert replay.finished
    clock.at = 1019.0
    now = live.snapshot()
    assert then.tiles == now.tiles
    assert then.marks == now.marks and then.job == now.job and then.sources == now.sources


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "x", tmp_path / "none", tmp_path / "fifo", tmp_path):
        with pytest.raises(LabError, match="recording"):
            Replay(path)


def test_a_disk_that_is_full_ends_the_recording_not_the_gauges() -> None:
    record = Recorder(Path("/dev/full"))
    record(Batch("own", 1.0))
    record(Batch("own", 2.0))
    assert "No space left" in record.why


# -- our own requests --------------------------------------------------------------------------------------------


BAD_LINES = [
    {"figures": {"own.ttft": {"value": "x"}}}, {"figures": {"own.ttft": {"value": 1.0, "p50": "y"}}},
    {"figures": {"own.ttft": {"value": 1.0, "samples": ["z"]}}}, {"figures": {"own.ttft": {"value": True}}},
    {"figures": {"own.ttft": {"value": 10**400}}}, {"figures": {"own.ttft": {"value": 1.0, "age_s": None}}},
    {"figures": {"own.ttft": [1]}}, {"figures": [1]}, {"figures": {"own.ttft": {"value": 1.0, "new": 2}}},
    {"job": 5}, {"job": {"conditions": [1]}}, {"job": {"progress": {"done": "half"}}}, {"job": {"spec": "x"}},
    {"marks": 5}, {"marks": [5]}, {"marks": [{"at": 1e300, "text": "x"}]}, {"marks": [{"at": 1.0, "text": 5}]},
    {"source": 5}, {"at": "now"}, {"at": -1}, {"at": 1e18}, {"missing": 5}, {"hint": [1]},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_LINES, ids=str)
def test_a_bad_line_of_a_recording_is_left_out(tmp_path: Path, bad: dict[str, Any]) -> None:
    path = tmp_path / "gauges.jsonl"
    good = Batch("own", 1000.0, {"own.ttft": Figure(0.2)}, job={"title": "one", "progress": {"done": 1, "total": 2}})
    line = json.dumps({"source": "own", "at": 1001.0, "figures": {"own.ttft": {"value": 0.9}}, **bad})
    path.write_text(f"{json.dumps(good.to_json())}\n{line}\n")
    assert list(batches(path)) == [good]
    shown = Replay(path).to_end()
    assert shown.tiles["own.ttft"].value == 0.2 and job_said(shown.job or {}) == "one · 1 of 2"


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["value", "p50", "done", "at"]), inner),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["job", "marks", "figures", "at", "missing"]), _VALUE),
    st.dictionaries(st.sampled_from(["value", "p50", "p95", "total", "samples", "age_s", "stale", "note"]), _VALUE),
)
def test_any_recorded_line_is_shown_or_none(whole: dict[str, Any], figure: dict[str, Any]) -> None:
    line = {"source": "own", "at": 5.0, "figures": {"own.ttft": {"value": 1.0, **figure}}, **whole}
    try:
        batch = Batch.from_json(line)
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    board = Board(Clock(6.0))
    board.take(batch)
    shown = board.snapshot()
    json.dumps(shown.to_json())
    if shown.job is not None:
        job_said(shown.job)
    for tile in shown.tiles.values():
        of_total(tile.value, tile.total, tile.unit)
