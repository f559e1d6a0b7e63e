"""The load client's own loop: sends what is due, reads what came, stamps it, and leaves parsing for later.

One thread, one poller, non-blocking sockets. On every turn: due requests first, then what the kernel has
ready. Each read becomes `(ns, ancillary, bytes)`, nothing more. A probe that is due every few
milliseconds says how late this loop was for anything, and so how far its stamps can be trusted.
"""

from __future__ import annotations

import mmap
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time

from vlmconsole.measure.client.connection import Connection, State
from vlmconsole.measure.client.framing import Framing, Mode
from vlmconsole.measure.client.plan import LoadPhase, LoadPlan, Segments
from vlmconsole.measure.client.poller import READ, WRITE, Poller
from vlmconsole.measure.client.pool import Pool
from vlmconsole.measure.client.spill import (
    CANCELLED,
    CLOSED,
    GARBAGE,
    RESET,
    STALLED,
    TIMEOUT,
    TOO_LARGE,
    UNREACHABLE,
    WHOLE,
    Raw,
    Reads,
    SpillWriter,
)
from vlmconsole.measure.client.stamps import clock, wall_offset_ns

SECOND = 1_000_000_000
SWEEP_NS = SECOND // 5  # how often timeouts are looked for and progress is told
OFFSET_NS = SECOND // 2  # how often the wall clock is compared
GIVE_UP_AFTER = 8  # failures in a row, without a single answer between, that end a phase
HOPELESS = frozenset({TOO_LARGE, TIMEOUT, GARBAGE})  # what came was no answer
READ_BYTES = 400  # memory that one read takes beside its bytes: tuple, time, ancillary data
TOUCHED_BYTES = 64 * 1024 * 1024  # of bodies that were sent, and may lie in memory
KEPT_BYTES = 64 * 1024 * 1024  # memory that the reads of all requests in flight may take together


@dataclass
class PhaseReport:
    """What the loop saw of one phase. `ticks` are the probe's delays, µs, one for each due tick."""

    name: str
    started: int
    ended: int = 0
    not_sent: int = 0
    unneeded: int = 0  # closed loop: requests that were left when the phase's time was over
    reads: int = 0
    cpu_s: float = 0.0
    ticks: array[int] = field(default_factory=lambda: array("l"))


@dataclass(slots=True)
class Exchange:
    """One request in flight."""

    index: int
    scheduled: int | None
    parts: list[memoryview]
    sent: int = 0
    send_done: int | None = None
    last: int = 0
    framing: Framing = field(default_factory=Framing)
    reads: Reads = field(default_factory=list)
    kept: int = 0  # bytes of memory that `reads` take
    size: int = 0  # bytes that came
    count: int = 0  # reads that are on the disk already


class ClientLoop:
    """Runs the phases of one plan. `on_turn(report, done, failed, total, in flight)` is called a few times a second.

    `stop` (set by anyone, or when the descriptor `stop_on` becomes readable) ends the run early.
    """

    def __init__(
        self,
        plan: LoadPlan,
        bodies: memoryview,
        spill: SpillWriter,
        on_turn: Callable[[PhaseReport, int, int, int, int], None],
        stop_on: int | None = None,
    ) -> None:
        self.plan, self.bodies, self.spill, self.on_turn = plan, bodies, spill, on_turn
        self.offsets: list[tuple[int, int]] = []
        self.stop = False
        self._poller = Poller()
        self.pool = Pool(plan, self._poller, self._connection_failed)
        self._stop_on = stop_on
        if stop_on is not None:
            self._poller.add(stop_on, READ)
        self._busy: dict[int, Exchange] = {}
        self._due: deque[tuple[int, int, Segments]] = deque()
        self._ready: deque[Exchange] = deque()
        self._done = self._failed = self._total = self._reads = self._offset = 0
        self._spill_at = KEPT_BYTES
        self._mapped, self._touched = bodies.obj, 0  # bytes of the map that were sent since it was let go
        lines = [f"POST {plan.path} HTTP/1.1", *(f"{name}: {value}" for name, value in plan.headers)]
        self._head = "\r\n".join(lines).encode("latin-1")

    # -- a phase ---------------------------------------------------------------------------------------------

    def run(self, phase: LoadPhase) -> PhaseReport:
        """Send every request of `phase` and wait for each to end. Its clock starts when connections are open."""
        self._done = self._failed = 0
        self.pool.failures_in_row = 0
        self._total = len(phase.requests)
        self._phase = phase.name
        self._spill_at = min(1024 * 1024, max(64 * 1024, KEPT_BYTES // phase.concurrency))
        self.pool.spare = 0 if phase.due_s is None else min(64, phase.concurrency)
        wanted = min(phase.concurrency, self._total)
        self._open(wanted - len(self.pool.idle))
        self._sample_offset(clock())
        started = clock()
        report = PhaseReport(phase.name, started)
        self._report = report
        self._reads = 0
        cpu = process_time()
        if phase.due_s is None:
            waiting = deque(phase.requests)
        else:
            waiting = deque()
            self._due = deque(
                (started + int(due * SECOND), index, segments)
                for due, (index, segments) in zip(phase.due_s, phase.requests, strict=True)
            )
        give_up = max(GIVE_UP_AFTER, 2 * phase.concurrency)
        tick = int(self.plan.tick_s * SECOND)
        next_tick, next_sweep, next_offset = started + tick, started, started + OFFSET_NS
        until = None if phase.until_s is None else started + int(phase.until_s * SECOND)
        while (waiting or self._due or self._ready or self._busy) and not self.stop:
            now = clock()
            while now >= next_tick:
                # Every tick that was missed counts, else a long stall would weigh no more than a short one.
                report.ticks.append((now - next_tick) // 1000)
                next_tick += tick
            if now >= next_sweep:
                next_sweep = now + SWEEP_NS
                self._sweep(now)
                report.reads = self._reads
                self.on_turn(report, self._done, self._failed, self._total, len(self._busy))
            if now >= next_offset:
                next_offset = now + OFFSET_NS
                self._sample_offset(now)
            if until is not None and now >= until:
                report.unneeded, until = len(waiting), None
                waiting.clear()
            if self.pool.failures_in_row >= give_up:
                if not self._busy:
                    break
            elif self._ready or self._due or self.pool.spare or (waiting and len(self._busy) < phase.concurrency):
                self._send_due(now, waiting, phase)
            next_due = self._due[0][0] if self._due else next_tick
            wait = (min(next_tick, next_due) - clock()) / SECOND
            self._handle(self._poller.wait(max(0.0, wait)))
        self._stop_all()
        report.reads = self._reads
        report.not_sent = len(waiting) + len(self._due) + len(self._ready)
        self._due.clear()
        self._ready.clear()
        report.ended = clock()
        report.cpu_s = process_time() - cpu
        self._sample_offset(report.ended)
        self.on_turn(report, self._done, self._failed, self._total, 0)
        return report

    def _send_due(self, now: int, waiting: deque[tuple[int, Segments]], phase: LoadPhase) -> None:
        """Send what is due: in a closed loop whatever fills C, in an open loop what the schedule says."""
        while waiting and len(self._busy) + len(self._ready) < phase.concurrency:
            number, segments = waiting.popleft()
            self._ready.append(self._prepare(number, None, segments))
        while self._due and self._due[0][0] <= now:
            due, number, segments = self._due.popleft()
            self._ready.append(self._prepare(number, due, segments))
        self._start_ready()

    def close(self) -> None:
        self.pool.close()
        self._poller.close()

    def _open(self, count: int) -> None:
        """Open `count` connections before the clock starts, and wait until each can be used or has failed."""
        for _ in range(count):
            self.pool.open_one()
        while self.pool.opening and not self.stop:
            self._handle(self._poller.wait(0.05))
            self.pool.expire(clock())

    def _prepare(self, index: int, due: int | None, segments: Segments) -> Exchange:
        length = sum(size for _, size in segments)
        self._touched += length
        name = f"{self.plan.request_id}-{index}"
        tail = f"\r\nX-Request-Id: {name}\r\nContent-Length: {length}\r\n\r\n"
        parts = [memoryview(self._head + tail.encode("latin-1"))]
        parts += [self.bodies[at : at + size] for at, size in segments]
        return Exchange(index, due, parts)

    def _let_go(self) -> None:
        """Give back the memory of bodies that were sent; what is still needed is mapped again from the file."""
        self._touched = 0
        if isinstance(self._mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def _start_ready(self) -> None:
        if self._touched > TOUCHED_BYTES:
            self._let_go()
        while self._ready and self.pool.idle:
            self._start(self.pool.idle.popleft(), self._ready.popleft())
        self.pool.top_up(len(self._ready))

    def _start(self, connection: Connection, exchange: Exchange) -> None:
        connection.state = State.BUSY
        self._busy[connection.descriptor] = exchange
        exchange.sent = exchange.last = clock()
        try:
            if connection.send(exchange.parts):
                exchange.send_done = clock()
                exchange.parts = []
            else:
                self._poller.change(connection.descriptor, READ | WRITE)
        except OSError as error:
            self._broken(connection, error)

    # -- what the kernel has -----------------------------------------------------------------------------------

    def _handle(self, events: list[tuple[int, int]]) -> None:
        busy = self._busy
        for descriptor, mask in events:
            exchange = busy.get(descriptor)
            if exchange is None:
                self._handle_other(descriptor)
                continue
            connection = self.pool.all[descriptor]
            try:
                if mask & WRITE and exchange.send_done is None:
                    self._go_on_sending(connection)
                if mask & ~WRITE:
                    self._read(connection, exchange)
            except OSError as error:
                self._broken(connection, error)

    def _handle_other(self, descriptor: int) -> None:
        """Readiness of what is not in the middle of a request."""
        connection = self.pool.all.get(descriptor)
        if connection is not None:
            self.pool.ready(connection)
        elif descriptor == self._stop_on:
            self.stop = True

    def _read(self, connection: Connection, exchange: Exchange) -> None:
        """The hot path: one read, its time, and whether the response is whole. Everything else waits."""
        while True:
            try:
                data, ancillary, _, _ = connection.read()
            except BlockingIOError:
                return
            now = clock()
            if not data:
                whole = exchange.framing.whole_when_closed()
                self._end(connection, exchange, WHOLE if whole else CLOSED, now, keep=False)
                return
            exchange.reads.append((now, ancillary, data))
            exchange.last = now
            self._reads += 1
            exchange.kept += len(data) + READ_BYTES
            exchange.size += len(data)
            if exchange.kept > self._spill_at and self._too_much(connection, exchange, now):
                return
            if exchange.framing.feed(data):
                garbage = exchange.framing.mode is Mode.GARBAGE
                keep = exchange.framing.keep_alive and exchange.send_done is not None
                self._end(connection, exchange, GARBAGE if garbage else WHOLE, now, keep=keep)
                return
            if not connection.tls or not connection.more():
                return

    def _too_much(self, connection: Connection, exchange: Exchange, now: int) -> bool:
        """Put the reads so far on the disk; True when the answer passed a limit and was given up."""
        self.spill.add_part(exchange.index, exchange.reads)
        exchange.count += len(exchange.reads)
        exchange.reads, exchange.kept = [], 0
        plan = self.plan
        if exchange.size <= plan.largest_answer and exchange.count <= plan.most_reads:
            return False
        what = f"more than {plan.largest_answer:,} bytes or {plan.most_reads:,} pieces came for one answer"
        self._end(connection, exchange, TOO_LARGE, now, keep=False, detail=what)
        return True

    def _go_on_sending(self, connection: Connection) -> None:
        if connection.flush():
            exchange = self._busy[connection.descriptor]
            exchange.send_done = clock()
            exchange.parts = []
            self._poller.change(connection.descriptor, READ)

    def _broken(self, connection: Connection, error: OSError) -> None:
        exchange = self._busy[connection.descriptor]
        gone = isinstance(error, (ConnectionResetError, BrokenPipeError))
        detail = error.strerror or str(error)
        self._end(connection, exchange, RESET if gone else UNREACHABLE, clock(), keep=False, detail=detail)

    def _connection_failed(self, outcome: str, detail: str) -> None:
        """A connection could not be opened: the request that waited for it has failed."""
        if self._ready:
            self._end_unsent(self._ready.popleft(), outcome, detail)

    # -- ending ------------------------------------------------------------------------------------------------

    def _end(
        self, connection: Connection, exchange: Exchange, outcome: str, now: int, *, keep: bool, detail: str = ""
    ) -> None:
        del self._busy[connection.descriptor]
        served = connection.served
        number = connection.number
        if keep:
            self.pool.give_back(connection)
        else:
            if outcome == WHOLE:
                # This server closes after each answer: keep as many open in advance as are in flight.
                self.pool.spare = max(self.pool.spare, len(self._busy) + 1)
            self.pool.drop(connection)
        failed = outcome != WHOLE or exchange.framing.status >= 400
        exchange.framing.release()
        hopeless = outcome in HOPELESS or not exchange.size
        self.pool.failures_in_row = self.pool.failures_in_row + 1 if hopeless else 0
        if outcome in HOPELESS:
            self.pool.last_problem = f"it gave up after {self.pool.failures_in_row} in a row: {detail or outcome}"
        self._done += 1
        self._failed += failed
        self.spill.add(
            Raw(
                exchange.index,
                self._phase,
                self._report.started,
                self._offset,
                number,
                served,
                exchange.scheduled,
                exchange.sent,
                exchange.send_done,
                now,
                outcome,
                detail,
                exchange.reads,
            )
        )

    def _end_unsent(self, exchange: Exchange, outcome: str, detail: str) -> None:
        self._done += 1
        self._failed += 1
        self.spill.add(
            Raw(
                exchange.index,
                self._phase,
                self._report.started,
                self._offset,
                None,
                0,
                exchange.scheduled,
                None,
                None,
                clock(),
                outcome,
                detail,
                [],
            )
        )

    def _sweep(self, now: int) -> None:
        self.pool.expire(now)
        stalled = now - int(self.plan.stall_timeout_s * SECOND)
        too_long = now - int(self.plan.total_timeout_s * SECOND)
        for descriptor, exchange in list(self._busy.items()):
            if exchange.last < stalled:
                what = f"no byte for {self.plan.stall_timeout_s:g} s"
                self._end(self.pool.all[descriptor], exchange, STALLED, now, keep=False, detail=what)
            elif exchange.sent < too_long:
                what = f"not finished after {self.plan.total_timeout_s:g} s"
                self._end(self.pool.all[descriptor], exchange, TIMEOUT, now, keep=False, detail=what)

    def _stop_all(self) -> None:
        now = clock()
        for descriptor, exchange in list(self._busy.items()):
            self._end(self.pool.all[descriptor], exchange, CANCELLED, now, keep=False, detail="stopped on request")

    def _sample_offset(self, now: int) -> None:
        self._offset = wall_offset_ns()
        self.offsets.append((now, self._offset))
