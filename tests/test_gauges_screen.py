"""The gauges screen, driven by keys over a recording of a real measurement, and over live sources.

The recording: mlx-vlm with the bundled model on two busy cores, `vlmconsole bench -c 4 -n 24`, 140 s of it.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import waiting
from textual.pilot import Pilot
from vlmconsole.screens.gauges import HIDDEN, GaugesScreen
from vlmconsole.screens.widgets.dialogs import Ask, Reader
from vlmconsole.screens.widgets.gauge_cards import HEIGHT, WAITING, arranged

from vlmconsole.app import ConsoleApp
from vlmconsole.gauges.board import Board, Snapshot
from vlmconsole.gauges.curves import curve, thin
from vlmconsole.gauges.figures import Batch, Figure, Mark
from vlmconsole.gauges.recording import Replay
from vlmconsole.gauges.sources import Gauges
from vlmconsole.gauges.words import job_said, said
from vlmconsole.lab import Lab

until = partial(waiting.until, seconds=20.0, every=0.02)
RECORDED = Path(__file__).parent / "data" / "gauges" / "bench-mlx.jsonl.gz"


class Hand:
    """A clock that stands until it is moved, seconds."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return path


def console(home: Path, gauges: Callable[[], Any], theme: str = "dark") -> ConsoleApp:
    """A console of an empty lab whose gauges are `gauges()`, and which looks for no server."""

    class Shown(ConsoleApp):
        MODES: ClassVar[Any] = {**ConsoleApp.MODES, "gauges": lambda: GaugesScreen(gauges)}

    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'server = "none"\ntheme = "{theme}"\n')
    return Shown(Lab.open(home))


@asynccontextmanager
async def shown(
    home: Path, gauges: Callable[[], Any], size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], GaugesScreen]]:
    app = console(home, gauges)
    async with app.run_test(size=size) as pilot:
        await pilot.press("escape", "f2")
        screen = app.screen
        assert isinstance(screen, GaugesScreen)
        await until(lambda: screen.look_found is not None)
        yield pilot, screen


async def look(pilot: Pilot[None], screen: GaugesScreen) -> str:
    """Look now, and give everything on the screen as text."""
    await until(lambda: not screen._looking)
    before = screen.look_found
    screen.look()
    await until(lambda: screen.look_found is not before)
    await pilot.pause()
    return seen(pilot)


def seen(pilot: Pilot[None]) -> str:
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


# -- the parts -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Everything at the recording's end."""
    path = tmp_path_factory.mktemp("recording") / "bench.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return Replay(path).to_end()


def test_both_sides_of_a_figure_stand_one_under_the_other(full: Snapshot) -> None:
    rows = arranged(full.tiles, ["gpu"], 6)
    keys = [[card.tile.key for card in row] for row in rows]
    for own, server in zip(keys[0][:3], keys[1][:3], strict=True):
        assert own.partition(".")[2] == server.partition(".")[2]
    assert keys[0][3] == "own.in_flight"
    assert keys[1][3] == "server.running" and rows[1][3].second is not None, "with what waits behind it"
    assert not any(key.startswith("gpu") for row in keys for key in row), "it never answered: a line says so"
    assert sorted(key for row in keys for key in row) == sorted({key for row in keys for key in row})
    for columns in range(1, 9):
        laid = arranged(full.tiles, ["gpu"], columns)
        assert max(len(row) for row in laid) <= columns
        assert sum(len(row) for row in laid) == sum(len(row) for row in rows), "no tile is lost by the width"


@pytest.mark.parametrize("width", [16, 17, 30])
def test_a_card_keeps_its_lines_and_its_width(full: Snapshot, width: int) -> None:
    for row in arranged(full.tiles, [], 6):
        for card in row:
            lines = card.lines(width)
            assert len(lines) == HEIGHT
            assert all(line.cell_length <= width for line in lines), card


def test_a_curve_is_broken_where_nothing_came_and_keeps_its_peaks() -> None:
    board = Board(lambda: 2000.0)
    for at in [*range(1000, 1100), *range(1200, 1300)]:
        board.take(Batch("host", float(at), {"host.cpu": Figure(1.0 if at == 1250 else 0.5)}))
    found = curve(board, "host.cpu", 900.0)
    assert [len(piece) for piece in found.pieces] == [100, 100] and not found.minutes
    assert curve(board, "host.cpu", 1150.0).pieces[0][0][0] == 1200.0
    assert curve(board, "gpu0.memory", 0.0).pieces == ()
    points = [(float(at), 9.0 if at == 4321 else 1.0) for at in range(10_000)]
    kept = thin(points, 600)
    assert len(kept) <= 600 and (4321.0, 9.0) in kept and list(kept) == sorted(kept)


def test_two_requests_far_apart_are_no_line() -> None:
    board = Board(lambda: 2000.0)
    for at in (1000.0, 1004.0, 1090.0):
        board.take(Batch("own", at, {"own.ttft": Figure(0.3, samples=(0.3,))}))
    assert [len(piece) for piece in curve(board, "own.ttft", 900.0).pieces] == [2, 1]


def test_of_a_day_the_minutes_come_before_the_last_fine_hour() -> None:
    board = Board(lambda: 40_000.0)
    for at in range(0, 8_000):
        board.take(Batch("host", float(at), {"host.cpu": Figure(0.5)}))
    found = curve(board, "host.cpu", 0.0)
    assert found.minutes
    times = [at for piece in found.pieces for at, _ in piece]
    assert times == sorted(times) and times[0] < 60 and times[-1] == 7999.0


def test_the_running_job_is_told_with_its_conditions() -> None:
    job = {"title": "Measure", "progress": {"done": 3.0, "total": 9.0, "unit": "cells", "note": "cell 3"}}
    spec = {"concurrency": 4, "image": "448x336", "output_tokens": 128, "server": "demo"}
    assert job_said({**job, "conditions": {}, "spec": spec}) == (
        "Measure · 3 of 9 cells · cell 3 · ? in / 128 at most out · C4 · server demo · 448x336"
    )
    known = {"input_tokens": 1735, "output_tokens": 128, "client_concurrency": 4, "running_limit": 4, "cache": "off"}
    text = job_said({"title": "Sweep", "conditions": {"C4": {"input_tokens": 1}, "C4 B4": known}})
    assert text == "Sweep · 1735 in / 128 out · C4 B4 · prefix cache off"
    assert said(200 * 1024**3, "bytes") == "200 GiB"


# -- the screen over a recording -----------------------------------------------------------------------------------


async def test_a_recording_plays_as_if_live(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock)) as (pilot, screen):
        text = await look(pilot, screen)
        assert "no job runs" in text and "recording bench.jsonl" in text
        clock.at = 130.0
        text = await look(pilot, screen)
        assert "15.9 s" in text and "p50 16.7 p95 16.9" in text, "TTFT now, p50 and p95"
        assert "running  Measure a server · 11 of 24 requests" in text
        assert "own in flight 4 · server running 4 · queued 0" in text
        assert "✗ gpu: no NVIDIA GPU" in text, "a source that never answered says why, once"
        assert "mlx-vlm does not" in text, "a figure that the engine does not have says so in its tile"
        clock.at = 1000.0
        assert "at its end" in await look(pilot, screen)


@pytest.mark.slow
async def test_the_plot_follows_the_cursor_and_its_keys(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock)) as (pilot, screen):
        clock.at = 130.0
        text = await look(pilot, screen)
        assert "own TTFT" in text and "server TTFT" in text, "the same figure from the other side is beside it"
        await pilot.press("tab", "tab")
        assert screen.cards.key == "own.throughput"
        await pilot.press("down")
        assert screen.cards.key == "server.throughput"
        await pilot.press("l")
        assert "log axis" in seen(pilot)
        assert "last 5 min" in seen(pilot)
        await pilot.press("z")  # 10 min, 1 h and a day would show no more than the 130 s that there are
        assert "last 1 min" in seen(pilot)
        await pilot.press("z")
        assert "last 5 min" in seen(pilot) and "no older data" not in seen(pilot)
        await pilot.press("up", "home")
        await pilot.press("space")
        assert screen.pinned == {"own.throughput"}
        await pilot.press("p")
        clock.at = 135.0
        await asyncio.sleep(1.2)
        assert "paused at" in seen(pilot) and screen.look_found is not None
        assert screen.look_found.snapshot.t < screen._read(screen.gauges).snapshot.t, "the rest goes on"  # type: ignore[arg-type]
        await pilot.press("p")
        await until(lambda: "paused" not in seen(pilot))
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, Reader)
        assert "Σ output tokens" in seen(pilot) and "vlmconsole gauges --once --json" in seen(pilot)


@pytest.mark.slow
async def test_80_by_24_shows_one_pane_at_a_time(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock), (80, 24)) as (pilot, screen):
        clock.at = 130.0
        text = await look(pilot, screen)
        assert "Tiles" in text and "15.9 s" in text and "last 5 min" not in text
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert "own TTFT" in seen(pilot) and "16.7" not in seen(pilot)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert "running  Measure a server" in seen(pilot)


async def test_only_what_changed_is_drawn_again(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock)) as (pilot, screen):
        clock.at = 130.0
        await look(pilot, screen)
        await pilot.pause(0.2)
        drawn: list[object] = []
        screen.cards.refresh = lambda *regions, **_: drawn.append(regions)  # type: ignore[assignment, method-assign, return-value]
        screen.facts.update = lambda *_, **__: drawn.append("facts")  # type: ignore[method-assign]
        await look(pilot, screen)
        assert drawn == [], "the same moment again"
        clock.at = 131.0
        await look(pilot, screen)
        assert 0 < len(drawn) <= 20 and all(len(regions) == 1 for regions in drawn if regions != "facts")


@pytest.mark.slow
async def test_marks_and_what_is_no_recording(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock)) as (pilot, screen):
        clock.at = 130.0
        await look(pilot, screen)
        await pilot.press("m")
        await until(lambda: isinstance(pilot.app.screen, Ask))
        await pilot.press(*"cache", "enter")
        await until(lambda: "│" in seen(pilot) and "cache" in seen(pilot))


# -- live sources --------------------------------------------------------------------------------------------------


class Source:
    """A source of the test's own; `hang` holds it up, and it counts how often it was asked."""

    name, keys, slow = "host", ("host.cpu",), 0.0

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.hang = threading.Event()
        self.hang.set()

    def read(self) -> Batch:
        self.asked.append(time.monotonic())
        self.hang.wait(30)
        return Batch("host", time.time(), {"host.cpu": Figure(0.25)}, (Mark(time.time(), "cell 3"),))

    def close(self) -> None:
        pass


@pytest.mark.slow
async def test_sources_begin_when_it_is_shown_and_ask_rarely_while_it_is_hidden(tmp_path: Path) -> None:
    source = Source()
    app = console(tmp_path / "lab", lambda: Gauges([source]))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert source.asked == []
        await pilot.press("escape", "f2")
        await until(lambda: len(source.asked) >= 2)
        screen = app.screen
        assert isinstance(screen, GaugesScreen) and isinstance(screen.gauges, Gauges)
        assert screen.gauges._interval == 1.0
        await pilot.press("f1")
        assert screen.gauges._interval == HIDDEN
        await asyncio.sleep(0.3)
        hidden = len(source.asked)
        await asyncio.sleep(1.5)
        assert len(source.asked) <= hidden + 1
        await pilot.press("f2")
        await until(lambda: len(source.asked) > hidden + 1, seconds=4.5)
    await until(lambda: not any(thread.name == "gauges-host" for thread in threading.enumerate()))


async def test_after_a_recording_the_live_readings_from_before_are_still_there(tmp_path: Path, recording: Path) -> None:
    source = Source()
    async with shown(tmp_path / "lab", lambda: Gauges([source])) as (pilot, screen):
        live = screen.gauges
        assert isinstance(live, Gauges)
        await until(lambda: bool(source.asked) and "25 %" in seen(pilot))
        first = live.board.snapshot().marks[0].at
        await screen._replay(recording)
        assert isinstance(screen.gauges, Replay) and live._interval == HIDDEN, "asked rarely while nobody looks"
        asked = len(source.asked)
        await pilot.press("o")
        await until(lambda: screen.gauges is live)
        assert live._interval == 1.0 and live.snapshot().marks[0].at == first
        await until(lambda: len(source.asked) > asked)
        await screen._replay(recording)
    assert all(poller._stopping.is_set() for poller in live._pollers), "the kept ones end with the screen"


@pytest.mark.slow
async def test_a_longer_stretch_that_would_show_no_more_is_said_to(tmp_path: Path) -> None:
    async with shown(tmp_path / "lab", lambda: Gauges([Source()])) as (pilot, screen):
        await until(lambda: "25 %" in seen(pilot))
        await pilot.press(*["right"] * 9, *["down"] * 9)
        await look(pilot, screen)
        assert "no older data" not in seen(pilot)
        for _ in range(2):
            await pilot.press("z")
            assert "last 1 min" in seen(pilot) and "no older data" in seen(pilot)


async def test_before_anything_is_read_it_says_what_it_waits_for(tmp_path: Path) -> None:
    read = threading.Event()

    def slowly() -> Gauges:
        read.wait(20.0)
        return Gauges([Source()])

    async with console(tmp_path / "lab", slowly).run_test(size=(80, 24)) as pilot:
        await pilot.press("escape", "f2")
        await until(lambda: WAITING in seen(pilot))
        read.set()
        await until(lambda: "25 %" in seen(pilot) and WAITING not in seen(pilot), seconds=20.0)


@pytest.mark.slow
async def test_a_source_that_hangs_holds_up_no_key(tmp_path: Path) -> None:
    source = Source()
    source.hang.clear()
    async with shown(tmp_path / "lab", lambda: Gauges([source])) as (pilot, _):
        begun = time.monotonic()
        await pilot.press("l", "z", "l")
        assert time.monotonic() - begun < 20.0, "the source may take 30"
        await until(lambda: "no answer for" in seen(pilot), seconds=25.0)
        source.hang.set()
        await until(lambda: "25 %" in seen(pilot), seconds=20.0)
        await until(lambda: "cell 3" in seen(pilot), seconds=20.0)


async def test_without_colours_it_is_drawn_in_greys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(tmp_path / "lab", lambda: Gauges([Source()])) as (pilot, screen):
        await until(lambda: "25 %" in seen(pilot), seconds=20.0)
        styles = [segment.style for strip in screen._compositor.render_strips() for segment in strip]
        colours = {style.color.triplet for style in styles if style and style.color and style.color.triplet}
        assert colours and all(red == green == blue for red, green, blue in colours)


@pytest.mark.slow
async def test_readings_are_recorded_and_played_again(tmp_path: Path) -> None:
    async with shown(tmp_path / "lab", lambda: Gauges([Source()])) as (pilot, screen):
        await pilot.press("w")
        folder = tmp_path / "lab" / "recordings"
        await until(lambda: any(path.stat().st_size for path in folder.glob("*.jsonl")))
        await pilot.press("w", "o")
        await until(lambda: isinstance(pilot.app.screen, Ask))
        await pilot.press("enter")
        await until(lambda: isinstance(screen.gauges, Replay))
        await until(lambda: "recording 2" in seen(pilot) or "o: live again" in seen(pilot))
        await pilot.press("o")
        await until(lambda: isinstance(screen.gauges, Gauges))


# -- pictures ------------------------------------------------------------------------------------------------------


def after(clock: Hand, *keys: str) -> Callable[[Pilot[None]], Any]:
    async def run(pilot: Pilot[None]) -> None:
        await pilot.press("escape", "f2")
        screen = pilot.app.screen
        assert isinstance(screen, GaugesScreen)
        await until(lambda: screen.look_found is not None)
        clock.at = 130.0
        await look(pilot, screen)
        for key in keys:
            await pilot.press(key)
        await look(pilot, screen)
        await pilot.pause(0.3)

    return run


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
def test_picture_120(snap_compare: Any, tmp_path: Path, recording: Path, theme: str) -> None:
    clock = Hand()
    app = console(tmp_path / "lab", lambda: Replay(recording, clock=clock), theme)
    assert snap_compare(app, terminal_size=(120, 40), run_before=after(clock))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(), ("right_square_bracket",)])
def test_picture_80(snap_compare: Any, tmp_path: Path, recording: Path, keys: tuple[str, ...]) -> None:
    clock = Hand()
    app = console(tmp_path / "lab", lambda: Replay(recording, clock=clock))
    assert snap_compare(app, terminal_size=(80, 24), run_before=after(clock, *keys))
