"""Series and the board: percentiles, gaps, memory, what a tile says of itself."""

import gc
import random
import re
import statistics

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_server import Clock

from vlmconsole.gauges.board import LATE, Board
from vlmconsole.gauges.figures import Batch, Figure, Mark, title_of
from vlmconsole.gauges.series import COARSE, FINE, Series
from vlmconsole.gauges.words import course
from vlmconsole.text.sizes import UNITS
from vlmconsole.text.units import in_unit, spread

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
    assert course(tuple(line)) == "▁    ▇"


def test_a_share_is_drawn_between_0_and_100_percent() -> None:
    assert (course((1.0, 1.0), "share"), course((0.0, 0.0), "share")) == ("▇▇", "▁▁")
    assert course((0.0, None, 0.5, 1.02), "share") == "▁ ▄▇"
    assert course((), "share") == "" and course((3.0,), "") == "▁"


@pytest.mark.slow
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
    assert (tile.value, tile.state, tile.age_s) == (None, "missing", None) and "first reading" in tile.why
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


FACTORS = {
    "s": 1.0,
    "ms": 1e-3,
    **{name: float(factor) for factor, name in UNITS},
    "%": 0.01,
    "tok/s": 1.0,
    "W": 1.0,
    "": 1.0,
}


def read(text: str, unit: str) -> tuple[float, bool]:
    """(what a number stands for in its unit, whether it is only its upper limit)."""
    below, thousands = text.startswith("<"), text.endswith("k")
    number = float(text.strip("<k").replace(",", ""))
    return number * (1000.0 if thousands else 1.0) * FACTORS[unit], below


MOST = {"s": 5000.0, "bytes": 9e13, "share": 1.0, "tok/s": 90_000.0, "W": 9000.0, "": 9000.0}
LEAST = {"s": 1e-6, "bytes": 4e9, "share": 0.05, "tok/s": 1e-3, "W": 1e-3, "": 1e-3}


@given(
    st.sampled_from(list(MOST)),
    st.lists(st.floats(-6.5, 0.0), min_size=3, max_size=3),
    st.integers(16, 40),
)
@settings(max_examples=300, deadline=None)
def test_a_tiles_spread_read_with_its_unit_is_what_was_measured(unit: str, powers: list[float], width: int) -> None:
    given_ = [max(LEAST[unit], MOST[unit] * 10**power) for power in powers]
    value, p50, p95 = given_[0], min(given_[1:]), max(given_[1:])
    shown, shares = spread(value, p50, p95, unit, width)
    assert len(shown) <= 16 and len(shares) <= width
    number, _, named = shown.partition(" ")
    found = [(read(number, named), value)]
    if own := re.fullmatch(r"p50 (\S+) ([a-zA-Z%/]+) p95 (\S+) ([a-zA-Z%/]+)", shares):
        found += [(read(own[1], own[2]), p50), (read(own[3], own[4]), p95)]
    else:
        bare = re.fullmatch(r"p50 (\S+) p95 (\S+)", shares) or re.fullmatch(r"p50/95 ([^/]+)/(.+)", shares)
        assert bare, shares
        found += [(read(bare[1], named), p50), (read(bare[2], named), p95)]
    # In 16 cells a number that is a thousandth of the largest keeps one digit.
    rough = {"share": 0.0051}.get(unit, max(given_) / 1000)
    for (told, below), real in found:
        assert real <= told if below else told == pytest.approx(real, rel=0.051, abs=rough), (shown, shares, given_)


def test_a_tile_never_mixes_units() -> None:
    assert spread(0.9, 0.00285, 0.02846, "W", 16) == ("0.900 W", "p50/95 <.01/.028")
    assert spread(0.075, 1.89, 10.9, "s", 17) == ("0.0750 s", "p50 1.89 p95 10.9")
    assert spread(0.075, 1.89, 10.9, "s", 16) == ("0.0750 s", "p50/95 1.89/10.9")
    assert spread(10.9, 0.075, 10.9, "s", 16) == ("10.9 s", "p50/95 .075/10.9")
    assert spread(0.075, 1.89, 10.9, "s", 30) == ("75 ms", "p50 1.89 s p95 10.9 s")
    assert spread(0.012, 0.0098, 0.0104, "s", 17) == ("12 ms", "p50 9.8 p95 10.4")
    assert in_unit(1234.0, "s") == "1234 s" and in_unit(999.7, "tok/s") == "1000 tok/s"
