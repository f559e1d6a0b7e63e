"""The gauges screen: tiles of what client, server and machine do now, one of them as a large plot, the running job.

Sources ask in threads of their own and begin when the screen is first shown. While it is hidden they ask rarely and
nothing is drawn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from textual.containers import Vertical
from textual.widget import Widget

from vlmconsole.errors import LabError, refusal
from vlmconsole.gauges.board import Snapshot
from vlmconsole.gauges.curves import curve
from vlmconsole.gauges.figures import title_of
from vlmconsole.gauges.recording import Recorder, Replay
from vlmconsole.gauges.sources import Gauges, default_sources
from vlmconsole.screens.background import in_background
from vlmconsole.screens.gauges.cards import TWINS, GaugeCards
from vlmconsole.screens.gauges.plot import GaugePlot, Plot
from vlmconsole.screens.gauges.text import facts, particulars
from vlmconsole.screens.keys import key_of, with_keys
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.widgets.dialogs import Ask, Reader
from vlmconsole.screens.widgets.said import Said
from vlmconsole.system.typed_paths import named
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.times import clock

PERIOD = 1.0  # seconds between two paints and readings
PLOT = 1  # its place among the panes
HIDDEN = 5.0  # seconds between two readings while nobody looks
WINDOWS = (60.0, 300.0, 600.0, 3600.0, 86400.0)  # seconds that the plot looks back


@dataclass(frozen=True)
class GaugesView:
    """One look: everything as it is, and what the plot draws."""

    snapshot: Snapshot
    plot: Plot


class GaugesScreen(LookingScreen[None]):
    """See keys.py for its keys."""

    ENTRY = "gauges"
    PANES = (Pane("Tiles", "gauge-cards"), Pane("Plot", "gauge-plot"), Pane("Job and sources", "gauge-facts"))
    PERIOD = PERIOD
    SLOW_PERIOD = 3.0
    CSS_PATH = "gauges.tcss"
    AUTO_FOCUS = "GaugeCards"

    def __init__(self, gauges: Callable[[], Gauges | Replay] | None = None) -> None:
        """`gauges` makes what is shown; None: the sources of this machine and of the server in use."""
        super().__init__()
        self._make = gauges
        self.gauges: Gauges | Replay | None = None
        self._kept: Gauges | None = None  # the live ones while a recording is shown: they go on, rarely
        self.cards = GaugeCards(id="gauge-cards")
        self.plot = GaugePlot(id="gauge-plot")
        self.facts = Said(id="gauge-facts")
        self.look_found: GaugesView | None = None
        self.pinned: frozenset[str] = frozenset()
        self.window = 2
        self._whole = 0.0  # seconds of the stretch at which it was said that there is nothing older, 0: not said
        self.logarithmic = False
        self.paused = 0.0  # wall time at which it was paused, 0: it runs
        self._server = ""
        self._z_told = False  # z was the time range in the version before
        self._recorder: Recorder | None = None

    def compose_panes(self) -> Iterable[Widget]:
        with Vertical(id="gauge-panes"):
            yield from (self.cards, self.plot, self.facts)

    def on_mount(self) -> None:
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        for gauges in (self.gauges, self._kept):
            if gauges is not None:
                _stop(gauges)

    def on_screen_suspend(self) -> None:
        if isinstance(self.gauges, Gauges) and self._recorder is None:
            self.gauges.pace(HIDDEN)

    def on_screen_resume(self) -> None:
        if isinstance(self.gauges, Gauges):
            self.gauges.pace(PERIOD)

    # -- looking -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        in_background(self, self._use_live, "sources", exclusive=True)

    async def _use_live(self) -> None:
        """Ask this machine and the server in use."""
        link = self.console.link
        self._server = link.profile.name if link is not None else self.console.lab.settings.server
        try:
            await self._use(await asyncio.to_thread(self._make or self._live))
        except LabError as error:
            self.notify(error.full_message, severity="error", markup=False)

    def _live(self) -> Gauges:
        # The profile as it is written, not as the chat found it: a server that starts anew gets another port.
        profile = self.console.profiles().get(self._server)
        return Gauges(default_sources(self.console.lab.places, profile))

    async def _use(self, gauges: Gauges | Replay) -> None:
        """Show these, started, from now on. Live ones are kept while a recording is shown, and gone back to."""
        before, self.gauges = self.gauges, gauges
        if gauges is self._kept:
            self._kept.pace(PERIOD)
            self._kept = None
        else:
            gauges.start()
        if isinstance(before, Gauges) and isinstance(gauges, Replay):
            self._kept = before
            if self._recorder is None:
                before.pace(HIDDEN)
        elif before is not None:
            await asyncio.to_thread(before.stop)
        self.paused = 0.0
        self.look()

    def show_server(self) -> None:
        super().show_server()
        link = self.console.link
        if link is None or not self._server or link.profile.name == self._server:
            return
        if isinstance(self.gauges, Gauges):
            self._begin()
        elif self._kept is not None:  # of a server that is not asked any more
            self._kept.leave()
            self._kept = None

    def look(self) -> None:
        """Look now; what is paused stays."""
        if self.gauges is not None and not self.paused:
            super().look()

    async def look_once(self) -> None:
        gauges = self.gauges
        if gauges is not None:
            # In a thread: a replay reads its file, and the readings' lock may be held for a moment.
            view = await asyncio.to_thread(self._read, gauges)
            if gauges is self.gauges:
                self._show(view)

    def show_fault(self, error: LabError | OSError) -> None:
        self.notify(refusal(error), severity="error", markup=False)

    def _read(self, gauges: Gauges | Replay) -> GaugesView:
        snapshot = gauges.snapshot()
        return GaugesView(snapshot, self._plotted(gauges, snapshot))

    def _plotted(self, gauges: Gauges | Replay, snapshot: Snapshot) -> Plot:
        """The chosen figure, the same one from the other side, and what is pinned of the same unit."""
        seconds = WINDOWS[self.window]
        key = self.cards.key
        keys = dict.fromkeys((key, TWINS.get(key, key), *sorted(self.pinned)))
        same = [figure for figure in keys if title_of(figure)[1] == title_of(key)[1] and figure in snapshot.tiles]
        curves = tuple(curve(gauges.board, figure, snapshot.t - seconds) for figure in same[:4])
        answered = tuple(figure for figure in curves if figure.pieces or figure.key == key)
        # While less is known than it could look back, the next stretch that holds it all: no empty half.
        first = min((figure.pieces[0][0][0] for figure in answered if figure.pieces), default=snapshot.t)
        seconds = next((span for span in WINDOWS if span >= min(seconds, snapshot.t - first)), seconds)
        return Plot(answered, snapshot.marks, snapshot.t, seconds, self.logarithmic)

    def _show(self, view: GaugesView) -> None:
        self.look_found = view
        self.cards.pin(self.pinned)
        self.cards.show(view.snapshot)
        if self.plot.display:
            self.plot.show(view.plot, self._state(view.plot.seconds))
        self.facts.say(facts(view.snapshot))

    def _state(self, seconds: float) -> str:
        parts = []
        if seconds == self._whole:
            parts.append("no older data")
        if isinstance(self.gauges, Replay):
            ended = " (ended)" if self.gauges.finished else ""
            parts.append(
                f"recording {one_line(self.gauges.path.name, 40)}{ended} · {key_of('gauges.replay')} returns to live"
            )
        if self._recorder is not None:
            parts.append(self._recorder.why or "recording")
        if self.paused:
            parts.append(f"paused at {clock(self.paused)}")
        return " · ".join(parts)

    # -- moving about --------------------------------------------------------------------------------------

    def action_card(self, across: int, down: int) -> None:
        self.cards.move(across, down)

    def action_series(self, by: int) -> None:
        """Tab: the next figure's curve."""
        self.cards.next(by)

    def on_gauge_cards_chosen(self, event: GaugeCards.Chosen) -> None:
        event.stop()
        self._again()

    def on_gauge_cards_opened(self, event: GaugeCards.Opened) -> None:
        event.stop()
        self.action_open()

    def _again(self) -> None:
        """Draw the plot anew, also of what is paused."""
        if self.gauges is not None and self.look_found is not None:
            snapshot = self.look_found.snapshot
            self._show(GaugesView(snapshot, self._plotted(self.gauges, snapshot)))

    def go_to_pane(self, index: int) -> None:
        self.mark_pane(index)  # the tiles keep the focus: the arrows choose a figure wherever one is

    def mark_pane(self, index: int) -> None:
        super().mark_pane(index)
        self._again()

    # -- doing ---------------------------------------------------------------------------------------------

    def action_large(self) -> None:
        """z: the plot over the whole screen, and back."""
        if not self._z_told:
            self._z_told = True
            self.notify(
                with_keys("{gauges.large} enlarges the plot; {gauges.time_range} cycles the time range"), markup=False
            )
        if not self.has_class("-large"):
            self.mark_pane(PLOT)
        super().action_large()
        self._again()

    def action_time_range(self) -> None:
        """t: the next longer stretch that shows more, and from the longest to the shortest."""
        view = self.look_found
        if self.gauges is None or view is None:
            return
        snapshot, before = view.snapshot, self.window
        self._whole = 0.0
        for by in range(1, len(WINDOWS)):
            self.window = (before + by) % len(WINDOWS)
            if self._plotted(self.gauges, snapshot).seconds != view.plot.seconds:
                break
        else:
            self.window, self._whole = before, view.plot.seconds
        self._again()

    def action_log(self) -> None:
        """l: a logarithmic value axis, and back."""
        self.logarithmic = not self.logarithmic
        self._again()

    def action_pause(self) -> None:
        """p: hold what is shown; the sources go on, and nothing is lost."""
        view = self.look_found
        if self.paused:
            self.paused = 0.0
            self.look()
        elif view is not None:
            self.paused = view.snapshot.t
            self._again()

    def action_pin(self) -> None:
        """Space: keep the chosen figure's curve in the plot beside others of its unit."""
        self.pinned = self.pinned ^ {self.cards.key}
        self._again()

    async def action_mark(self) -> None:
        """m: a mark of one's own on every curve."""

        def marked(text: str | None) -> None:
            if text and self.gauges is not None:
                self.gauges.mark(text[:200])
                self.look()

        self.app.push_screen(Ask("Drop a marker", hint="Enter set · Esc cancel"), marked)

    def action_record(self) -> None:
        """w: write every reading to a file, and stop."""
        if not isinstance(self.gauges, Gauges):
            self.notify(with_keys("replaying a recording · {gauges.replay} returns to live"), markup=False)
            return
        if self._recorder is not None:
            self.notify(f"recording saved to {self._recorder.path}", markup=False)
            self._recorder = None
            self.gauges.record(None)
        else:
            folder = self.console.lab.places.home / "recordings"
            folder.mkdir(mode=0o700, exist_ok=True)
            self._recorder = Recorder(folder / time.strftime("%Y%m%d-%H%M%S.jsonl"))
            self.gauges.record(self._recorder)
            self.notify(f"recording to {self._recorder.path} · {key_of('gauges.record')} stops", markup=False)
        self._again()

    def action_replay(self) -> None:
        """o: a recording as if it were live; again: back to live."""
        if isinstance(self.gauges, Replay):
            kept = self._kept
            if kept is not None:
                in_background(self, partial(self._use, kept), "sources", exclusive=True)
            else:
                self._begin()
            return
        folder = self.console.lab.places.home / "recordings"
        newest = max(folder.glob("*.jsonl"), default=None) if folder.is_dir() else None

        def chosen(text: str | None) -> None:
            if text:
                in_background(self, partial(self._replay, text), "sources", exclusive=True)

        hint = with_keys(
            "file recorded by {gauges.record} or vlmconsole gauges --record FILE · Enter play · Esc cancel"
        )
        self.app.push_screen(Ask("Replay a recording", str(newest or ""), hint), chosen)

    async def _replay(self, typed: str) -> None:
        try:
            await self._use(await asyncio.to_thread(Replay, named(typed)))
        except LabError as error:
            self.notify(error.full_message, severity="error", markup=False)

    def action_open(self) -> None:
        """Enter: what the figure is, where it comes from, and under which conditions."""
        card, view = self.cards.chosen, self.look_found
        if card is None or view is None:
            return
        parts = particulars(card.tile, view.snapshot)
        self.app.push_screen(Reader(card.tile.title, [(heading, inert(text)) for heading, text in parts]))


def _stop(gauges: Gauges | Replay) -> None:
    """Ask no more; without waiting, as the screen is going."""
    if isinstance(gauges, Gauges):
        gauges.leave()
    else:
        gauges.stop()
