"""The gauges screen, driven by keys over a recording of a real measurement, and over live sources.

The recording: mlx-vlm with the bundled model on two busy cores, `vlmconsole bench -c 4 -n 24`, 140 s of it.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import waiting
from folders import DATA
from refusals import mentions
from textual.pilot import Pilot

from vlmconsole.app import ConsoleApp
from vlmconsole.gauges.figures import Batch, Figure, Mark
from vlmconsole.gauges.recording import Replay
from vlmconsole.gauges.sources import Gauges
from vlmconsole.lab import Lab
from vlmconsole.screens.gauges.cards import WAITING
from vlmconsole.screens.gauges.screen import HIDDEN, GaugesScreen
from vlmconsole.screens.widgets.dialogs import Ask, Reader

pytestmark = pytest.mark.usefixtures("utc")

until = partial(waiting.until, seconds=20.0, every=0.02)
RECORDED = DATA / "gauges" / "bench-mlx.jsonl.gz"


class Hand:
    """A clock that stands until it is moved, seconds."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return path


def console(home: Path, gauges: Callable[[], Any], theme: str = "dark") -> ConsoleApp:
    """A console of an empty lab whose gauges are `gauges()`, and which looks for no server."""

    class Shown(ConsoleApp):
        MODES: ClassVar[Any] = {**ConsoleApp.MODES, "gauges": lambda: GaugesScreen(gauges)}

    home.mkdir(mode=0o700, exist_ok=True)
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


# -- the screen over a recording -----------------------------------------------------------------------------------


async def test_a_recording_plays_as_if_live(tmp_path: Path, recording: Path) -> None:
    clock = Hand()
    async with shown(tmp_path / "lab", lambda: Replay(recording, clock=clock)) as (pilot, screen):
        text = await look(pilot, screen)
        assert "no job running" in text and "recording bench.jsonl" in text
        clock.at = 130.0
        text = await look(pilot, screen)
        assert "15.9 s" in text and "p50 16.7 p95 16.9" in text, "TTFT now, p50 and p95"
        assert mentions(text, "running", "Measure a server", "11 of 24")
        assert mentions(text, "in flight 4", "4 running", "0 queued")
        assert mentions(text, "✗ gpu", "no NVIDIA GPU"), "a source that never answered says why, once"
        assert "mlx-vlm does not" in text, "a figure that the engine does not have says so in its tile"
        clock.at = 1000.0
        assert "(ended)" in await look(pilot, screen)


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
        await pilot.press("t")  # 10 min, 1 h and a day would show no more than the 130 s that there are
        assert "last 1 min" in seen(pilot)
        await pilot.press("t")
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
        assert "client TTFT" in seen(pilot) and "16.7" not in seen(pilot)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert mentions(seen(pilot), "running", "Measure a server")


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
        await screen._replay("~no-such-user/r.jsonl")
        await until(lambda: any("no user here" in one.message for one in pilot.app._notifications))
        assert screen.gauges is live
        await screen._replay(str(recording))
        assert isinstance(screen.gauges, Replay) and live._interval == HIDDEN, "asked rarely while nobody looks"
        asked = len(source.asked)
        await pilot.press("o")
        await until(lambda: screen.gauges is live)
        assert live._interval == 1.0 and live.snapshot().marks[0].at == first
        await until(lambda: len(source.asked) > asked)
        await screen._replay(str(recording))
    assert all(poller._stopping.is_set() for poller in live._pollers), "the kept ones end with the screen"


@pytest.mark.slow
async def test_a_longer_stretch_that_would_show_no_more_is_said_to(tmp_path: Path) -> None:
    async with shown(tmp_path / "lab", lambda: Gauges([Source()])) as (pilot, screen):
        await until(lambda: "25 %" in seen(pilot))
        await pilot.press(*["right"] * 9, *["down"] * 9)
        await look(pilot, screen)
        assert "no older data" not in seen(pilot)
        for _ in range(2):
            await pilot.press("t")
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
        await pilot.press("l", "t", "l")
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
        await until(lambda: "recording 2" in seen(pilot) or "o returns to live" in seen(pilot))
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
