"""The gauges at work: every source in a thread of its own, once a second, on one board. None can hold another up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from vlmconsole.engines.access import Access
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.gauges.board import CONSOLE, Board, Snapshot
from vlmconsole.gauges.far import FarGpu
from vlmconsole.gauges.feed import RequestFeed
from vlmconsole.gauges.figures import Batch, GaugeSource, Mark, Remembering, SourceError
from vlmconsole.gauges.machine import AppleSource, HostSource, NvidiaSource
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.gauges.scrape import KEYS, ServerMetrics
from vlmconsole.remote.ssh import SshHost
from vlmconsole.runs.places import Places
from vlmconsole.servers.where import server_of

BACK_OFF = (1.0, 2.0, 4.0)  # seconds to the next try after a failure; the last one repeats


class ServerSource:
    """The metrics of a profile's server, wherever it answers now: one started here may get another port each time."""

    name = "server"
    keys = tuple(f"server.{figure}" for figure in KEYS)
    slow = 0.0

    def __init__(self, profile: ServerProfile, places: Places) -> None:
        self._server = server_of(profile, places)
        self._metrics: ServerMetrics | None = None
        self._at: tuple[str, Access] | None = None

    def read(self) -> Batch:
        """Return one reading. Raises SourceError, or SshError while the tunnel to another machine is not up."""
        profile = self._server.located()
        if not profile.base_url:
            raise SourceError(
                f"server {profile.name} is not running",
                f"Start it: vlmconsole servers start {profile.name}",
                code="server-stopped",
            )
        if self._metrics is None or (profile.base_url, profile.access) != self._at:
            self._let_go()
            self._metrics, self._at = ServerMetrics.of(profile), (profile.base_url, profile.access)
        batch = self._metrics.read()
        # A server that was started anew elsewhere is another one: its figures begin a curve of their own.
        subject = profile.base_url
        return replace(batch, figures={key: replace(figure, subject=subject) for key, figure in batch.figures.items()})

    def _let_go(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = None

    def close(self) -> None:
        self._let_go()


class _Poller(threading.Thread):
    """Asks one source again and again; what goes wrong becomes a batch that says so."""

    def __init__(self, source: GaugeSource, deliver: Callable[[Batch, GaugeSource], None], interval: float) -> None:
        super().__init__(name=f"gauges-{source.name}", daemon=True)
        self.source = source
        self._deliver, self._interval = deliver, interval
        self._stopping = threading.Event()
        self._wake = threading.Event()  # set: look at the pace again, or end

    def run(self) -> None:
        for batch in self._past():
            self._deliver(batch, self.source)
        failures, due = 0, time.monotonic()
        while not self._stopping.is_set():
            batch = self._read()
            self._deliver(batch, self.source)
            failures = failures + 1 if batch.missing else 0
            pause = max(self._interval, self.source.slow)
            if failures:
                pause = max(self._interval, BACK_OFF[min(failures, len(BACK_OFF)) - 1])
            # On a fixed beat, so that a slow answer does not shift the next; a beat that was missed is skipped.
            due = max(due + pause, time.monotonic())
            if self._wake.wait(due - time.monotonic()):
                self._wake.clear()
                due = time.monotonic()
        with contextlib.suppress(Exception):  # a source that cannot even close is gone as it is
            self.source.close()

    def _past(self) -> list[Batch]:
        try:
            return self.source.past() if isinstance(self.source, Remembering) else []
        except Exception as error:
            # What was before is not worth the readings of now; that it could not be had is said until the first comes.
            return [Batch(self.source.name, time.time(), missing=f"cannot read earlier data: {error!r}"[:300])]

    def _read(self) -> Batch:
        try:
            return self.source.read()
        except LabError as error:
            return Batch(self.source.name, time.time(), missing=error.message, hint=error.hint)
        except Exception as error:
            # A fault of ours in one source must neither end the others nor be hidden: it is said in its tiles.
            return Batch(self.source.name, time.time(), missing=f"internal error in this source: {error!r}"[:300])

    def pace(self, interval: float) -> None:
        """Read every `interval` seconds from now on; a faster pace begins with a reading at once."""
        faster, self._interval = interval < self._interval, interval
        if faster:
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()


class Gauges:
    """The board and what feeds it. Start, take snapshots from any thread, stop."""

    def __init__(
        self, sources: Sequence[GaugeSource], interval: float = 1.0, record: Callable[[Batch], None] | None = None
    ) -> None:
        """`record` gets every batch as it comes (see gauges.recording)."""
        self.board = Board()
        self._record = record
        self._interval = interval
        self._pollers = [_Poller(source, self._take, interval) for source in sources]
        for source in sources:
            self.board.expect(source.name, source.keys, source.slow)

    def start(self) -> Gauges:
        for poller in self._pollers:
            poller.start()
        return self

    def pace(self, interval: float) -> None:
        """Ask every `interval` seconds from now on: rarely while nobody looks."""
        self._interval = interval
        for poller in self._pollers:
            poller.pace(interval)

    def record(self, record: Callable[[Batch], None] | None) -> None:
        """Give every batch to `record` from now on; None: to nobody."""
        self._record = record

    def leave(self) -> None:
        """Stop asking, without waiting for it."""
        for poller in self._pollers:
            poller.stop()

    def stop(self) -> None:
        """Stop asking. A source that hangs is left behind in its thread, which ends with the process."""
        self.leave()
        until = time.monotonic() + 1.0
        for poller in self._pollers:
            if poller.is_alive():
                poller.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Gauges:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def snapshot(self) -> Snapshot:
        return self.board.snapshot()

    def mark(self, text: str) -> None:
        """Put a mark on every curve, now."""
        self._take(Batch(CONSOLE, time.time(), marks=(Mark(time.time(), text),)), None)

    def _take(self, batch: Batch, source: GaugeSource | None) -> None:
        slow = max(source.slow, self._interval) if source is not None else 0.0
        self.board.take(batch, slow if slow > 1.0 else 0.0)
        record = self._record
        if record is not None:
            record(batch)


def default_sources(
    places: Places, profile: ServerProfile | None = None, feed: RequestFeed | None = None
) -> list[GaugeSource]:
    """Return everything that this machine and `profile` offer; the far GPUs where the profile names an SSH host."""
    sources: list[GaugeSource] = [
        OwnRequests(places.runs, places.chats, feed, server=profile.name if profile is not None else "")
    ]
    if profile is not None:
        sources.append(ServerSource(profile, places))
    sources += [NvidiaSource(), HostSource(places.home)]
    if AppleSource.here():
        sources.append(AppleSource())
    if profile is not None and profile.ssh_host:
        sources.append(FarGpu(SshHost.parse(profile.ssh_host)))
    return sources
