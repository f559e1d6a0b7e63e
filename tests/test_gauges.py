"""The board and what feeds it: series, tiles, states, polling, recordings, our own requests, the command."""

import gc
import itertools
import json
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_server import Clock, serving, until

from vlmconsole.chats.store import ChatStore
from vlmconsole.cli import main
from vlmconsole.cli.gauges import said, sparkline
from vlmconsole.engines.profile import make_profile
from vlmconsole.errors import LabError
from vlmconsole.gauges.board import LATE, Board
from vlmconsole.gauges.feed import RequestFeed
from vlmconsole.gauges.figures import Batch, Figure, Mark, SourceError, title_of
from vlmconsole.gauges.machine import HostSource, NvidiaSource, parse_vm_stat
from vlmconsole.gauges.recording import Recorder, Replay
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.gauges.series import COARSE, FINE, Series
from vlmconsole.gauges.sources import Gauges, ServerSource, default_sources
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

# -- series ------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
@settings(max_examples=80, deadline=None)
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    series = Series(fine=80)
    for at, value in enumerate(values):
        series.push(at, value)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert series.quantiles(len(values)) == (pytest.approx(cuts[49], abs=1e-6), pytest.approx(cuts[94], abs=1e-6))


def test_a_series_keeps_an_hour_of_points_and_a_day_of_minutes() -> None:
    series = Series()
    for second in range(2 * FINE):
        series.push(second, float(second % 60))
    assert len(series.points()) == FINE and series.points()[0][0] == FINE
    bands = series.bands(0)
    assert len(bands) == 2 * FINE // 60 - 1, "the minute under way is left out"
    assert (bands[0].at, bands[0].low, bands[0].mean, bands[0].high) == (0, 0, pytest.approx(29.5), 59)
    p50, p95 = series.quantiles(2 * FINE - 1)
    assert p50 == pytest.approx(29.5, abs=0.5) and p95 == pytest.approx(56, abs=1)
    for bad in (float("nan"), float("inf")):
        series.push(9999, bad)
    assert series.newest == (2 * FINE - 1, float((2 * FINE - 1) % 60))


def test_a_sparkline_shows_gaps_as_gaps() -> None:
    series = Series()
    for second in [0, 1, 2, 50, 51]:
        series.push(second, 10.0 * second)
    line = series.sparkline(60, seconds=60, width=6)
    assert line == [pytest.approx(10), None, None, None, None, pytest.approx(505)]
    assert sparkline(tuple(line)) == "▁    █"


def test_28800_ticks_with_flat_memory() -> None:
    """Eight hours at 1 Hz: after the rings are full not one byte more is kept."""
    board, chance = Board(Clock()), random.Random(7)
    keys = [f"made.{index}" for index in range(3)]

    def tick(at: int) -> None:
        figures = {key: Figure(chance.random(), note=f"note {at}") for key in keys}
        board.take(Batch("made", float(at), figures, (Mark(at, f"mark {at}"),)))

    def held() -> tuple[int, int]:
        gc.collect()
        return len(gc.get_objects()), psutil.Process().memory_info().rss

    for at in range(4000):
        tick(at)
    before = held()
    for at in range(4000, 28800):
        tick(at)
    after = held()
    assert after[0] - before[0] < 100, "objects pile up"
    assert after[1] - before[1] < 2 * 1024**2, f"{after[1] - before[1]} bytes more"
    series = board.series("made.0")
    assert series is not None and len(series.points()) == FINE and len(series.bands(0)) == min(COARSE, 28800 // 60 - 1)


# -- board -------------------------------------------------------------------------------------------------------


def test_a_tile_says_its_source_its_age_and_why_it_is_empty() -> None:
    clock = Clock(100.0)
    board = Board(clock)
    board.expect("server", ("server.running", "server.ttft"))
    tile = board.snapshot().tiles["server.running"]
    assert (tile.value, tile.state, tile.age_s, tile.why) == (None, "missing", None, "waiting for its first answer")
    board.take(
        Batch(
            "server",
            100.0,
            {"server.running": Figure(4, total=4, age_s=0.5), "server.ttft": Figure(None, note="no request")},
        )
    )
    clock.at = 101.0
    tiles = board.snapshot().tiles
    running, ttft = tiles["server.running"], tiles["server.ttft"]
    assert (running.value, running.total, running.state, running.age_s) == (4, 4, "ok", pytest.approx(1.5))
    assert (ttft.value, ttft.state, ttft.why) == (None, "none", "no request")
    board.take(Batch("server", 101.5, missing="nothing answers at http://x"))
    clock.at = 102.0
    running = board.snapshot().tiles["server.running"]
    assert (running.value, running.state, running.why) == (4, "missing", "nothing answers at http://x")
    clock.at = 100.0 + LATE + 0.1
    assert board.snapshot().tiles["server.running"].value is None, "an old figure must not pass for one of now"


def test_a_source_that_hangs_is_said_to_by_the_board() -> None:
    clock = Clock(0.0)
    board = Board(clock)
    board.expect("gpu", ("gpu0.memory",))
    board.expect("slow", ("slow.figure",), slow=10)
    board.take(Batch("gpu", 0.0, {"gpu0.memory": Figure(1.0)}))
    board.take(Batch("slow", 0.0, {"slow.figure": Figure(1.0)}), slow=10)
    clock.at = 3.5
    states = board.snapshot().sources
    assert states["gpu"].state == "missing" and "no answer for" in states["gpu"].why
    assert states["slow"].state == "ok"


def test_samples_give_the_quantiles_of_requests_not_of_ticks() -> None:
    clock = Clock(10.0)
    board = Board(clock)
    for at, samples in ((1.0, (0.1, 0.2)), (2.0, (0.9,))):
        board.take(Batch("own", at, {"own.ttft": Figure(samples[-1], samples=samples)}))
    board.take(Batch("own", 9.5))  # it answers, without a new request
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.value, tile.p50, tile.age_s) == (0.9, pytest.approx(0.2), pytest.approx(8.0))


def test_titles_of_gpus_here_and_elsewhere() -> None:
    assert title_of("gpu0.memory") == ("GPU memory 0", "bytes")
    assert title_of("gpu1.mig2.use") == ("GPU use 1.mig2", "share")
    assert title_of("gpu0@box.lab.example.power") == ("GPU power 0@box.lab.example", "W")
    assert title_of("other") == ("other", "")


# -- polling -----------------------------------------------------------------------------------------------------


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
    with pytest.raises(SourceError, match="demo is not started") as told:
        ServerSource(demo, Places(tmp_path)).read()
    assert "servers start demo" in told.value.hint


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
    for path in (tmp_path / "x", tmp_path / "none"):
        with pytest.raises(LabError, match="recording"):
            Replay(path)


def test_a_disk_that_is_full_ends_the_recording_not_the_gauges() -> None:
    record = Recorder(Path("/dev/full"))
    record(Batch("own", 1.0))
    record(Batch("own", 2.0))
    assert "No space left" in record.why


# -- our own requests --------------------------------------------------------------------------------------------


def own(tmp_path: Path, tick: Clock, feed: RequestFeed | None = None) -> OwnRequests:
    return OwnRequests(tmp_path / "runs", tmp_path / "chats.sqlite", feed, clock=tick, wall=Clock(5000.0))


def test_what_is_fed_in_becomes_figures(tmp_path: Path) -> None:
    feed, tick = RequestFeed(), Clock(0.0)
    source = own(tmp_path, tick, feed)
    source.read()
    with feed.request() as done, feed.request():
        tick.at = 1.0
        assert source.read().figures["own.in_flight"].value == 2
        done(ttft_s=0.2, tpot_s=0.01, output_tokens=100)
    with feed.request() as done:
        done(ttft_s=None, tpot_s=None, output_tokens=None)
    tick.at = 2.0
    figures = source.read().figures
    assert figures["own.in_flight"].value == 0
    assert figures["own.ttft"].samples == (0.2,)
    assert figures["own.throughput"].value == pytest.approx(50)
    assert "1 answers told no token count" in figures["own.throughput"].note
    tick.at = 3.0
    assert "own.ttft" not in source.read().figures
    tick.at = 12.5
    assert source.read().figures["own.throughput"].value == 0
    source.close()


def test_answers_of_a_chat_in_another_process_are_seen(tmp_path: Path) -> None:
    tick = Clock(0.0)
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    chat = store.new_chat()
    answer = {"timing": {"ttft_s": 0.3, "tpot_s": 0.02}, "usage": {"completion_tokens": 40}}
    old = store.add(chat.id, "assistant", "", state="streaming")
    store.finish(old.id, text="old", state="done", answer=answer)
    source = own(tmp_path, tick)
    assert "own.ttft" not in source.read().figures, "what was answered before is not of now"
    new = store.add(chat.id, "assistant", "", state="streaming")
    tick.at = 1.0
    assert source.read().figures["own.in_flight"].value == 1
    store.finish(new.id, text="new", state="done", answer=answer)
    quick = store.add(chat.id, "assistant", "", state="streaming")  # begins and ends between two readings
    store.finish(quick.id, text="x", state="stopped", answer={"timing": {"ttft_s": 0.5}, "usage": {}})
    tick.at = 2.0
    figures = source.read().figures
    assert sorted(figures["own.ttft"].samples) == [0.3, 0.5]
    assert figures["own.in_flight"].value == 0
    assert figures["own.throughput"].value == pytest.approx(20)
    tick.at = 3.0
    assert "own.ttft" not in source.read().figures
    source.close()
    store.close()


def test_a_running_job_is_followed_with_its_conditions_and_marks(tmp_path: Path) -> None:
    tick = Clock(0.0)
    run = RunFolder.create(tmp_path / "runs", kind="bench", preset="main", spec={}, title="Main", home=tmp_path)
    run.set_state("running")
    run.write_json("conditions.json", {"client_concurrency": 4, "model": "tiny", "cache": None})
    run.events.emit("request", ttft_s=9.0, output_tokens=1)
    source = own(tmp_path, tick)
    source.read()
    run.events.emit("request", ttft_s=0.25, tpot_s=0.01, output_tokens=128)
    run.events.emit("request", ttft_s="NaN", tpot_s=True, output_tokens="many")
    run.events.metric("in_flight", 4)
    run.events.metric("client_lag_s", 0.0011)
    run.events.emit("mark", text="cell 3")
    run.events.progress(3, 9, "cell")
    tick.at = 1.0
    batch = source.read()
    assert batch.figures["own.ttft"].samples == (0.25,)
    assert batch.figures["own.in_flight"].value == 4 and batch.figures["own.lag"].value == 0.0011
    assert [mark.text for mark in batch.marks] == ["cell 3"]
    assert batch.job is not None and batch.job["run"] == run.name
    assert batch.job["conditions"] == {"client_concurrency": 4, "model": "tiny"}
    assert batch.job["progress"]["done"] == 3
    run.set_state("done")
    tick.at = 7.0
    batch = source.read()
    assert batch.job is None and batch.figures["own.lag"].value is None and batch.figures["own.in_flight"].value == 0
    source.close()


# -- the machine -------------------------------------------------------------------------------------------------


def test_this_machine_and_its_cards(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    source.read()
    figures = source.read().figures
    cpu, memory, disk = (figures[key] for key in source.keys)
    assert cpu.value is not None and 0 <= cpu.value <= 1
    for figure in (memory, disk):
        assert figure.value is not None and figure.total is not None and 0 < figure.value < figure.total
    try:
        assert "gpu0.memory" in NvidiaSource().read().figures
    except SourceError as error:
        assert error.message.startswith("no NVIDIA GPU: ") and len(error.message) > len("no NVIDIA GPU: ")


def test_vm_stat_of_a_mac_is_read() -> None:
    """Written after Apple's format; not run on a Mac."""
    text = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
Pages active:                            250000.
Pages inactive:                          240000.
Pages speculative:                         1000.
Pages wired down:                        110000.
Pages purgeable:                           2000.
Pages stored in compressor:              300000.
Pages occupied by compressor:             90000.
"""
    assert parse_vm_stat(text) == (250000 + 110000 + 90000) * 16384
    with pytest.raises(SourceError):
        parse_vm_stat("something else")


# -- the command -------------------------------------------------------------------------------------------------


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_gauges_once_as_json_is_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--home", str(tmp_path), "gauges", "--json", "--record", str(tmp_path / "r.jsonl")) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["tiles"]["host.memory"]["value"] > 0 and whole["tiles"]["host.memory"]["source"] == "host"
    assert whole["tiles"]["own.in_flight"]["value"] == 0
    assert whole["sources"]["server"]["state"] == "missing" and "not started" in whole["sources"]["server"]["why"]
    assert run_cli("--home", str(tmp_path), "gauges", "--once", "--replay", str(tmp_path / "r.jsonl")) == 0
    shown = capsys.readouterr().out
    assert "RAM" in shown and "GiB" in shown and "server: the server demo is not started" in shown


def test_gauges_of_a_profile_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--home", str(tmp_path), "gauges", "--once", "--server", "nope") == 2
    assert "no server profile 'nope'" in capsys.readouterr().err


def test_figures_are_said_as_people_read_them() -> None:
    assert [said(0.1643, "s"), said(2.456, "s"), said(0.87, "share"), said(22870000000, "bytes")] == [
        "164 ms",
        "2.46 s",
        "87 %",
        "21.3 GiB",
    ]
    assert [said(341.2, "tok/s"), said(1234.5, "tok/s"), said(4, ""), said(None, "s")] == [
        "341 tok/s",
        "1,234 tok/s",
        "4",
        "",
    ]


def test_default_sources_follow_the_profile(tmp_path: Path) -> None:
    profile = make_profile(
        {"name": "far", "engine": "sglang", "base_url": "http://127.0.0.1:1", "ssh_host": "me@box:2222"}
    )
    names = [source.name for source in default_sources(Places(tmp_path), profile)]
    assert names[:4] == ["own", "server", "gpu", "host"] and names[-1] == "gpu@me@box"
