"""Run one cell: prepare its requests, let the client process send them, then understand what came back."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlmconsole.engines.access import PortHolder, check
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.measure.client.plan import MEASURED, WARM_UP, BodyFile, LoadPhase, LoadPlan
from vlmconsole.measure.client.process import LoadError, Progress, Watch, run_client
from vlmconsole.measure.client.replay import NOT_SENT, Measured, not_sent_row, to_row, understand
from vlmconsole.measure.client.spill import Raw, SpillReader
from vlmconsole.measure.client.stamps import clock
from vlmconsole.measure.machine_load import HostLoad, host_load, load_now
from vlmconsole.measure.settings import FAILURE_LIMIT, LAG_LIMIT_S
from vlmconsole.measure.slo import Slo
from vlmconsole.measure.summary import CellSummary, ClientCost, Gatherer, Lag
from vlmconsole.runs.events import json_line
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import Distribution, distribution

REQUESTS = "requests.jsonl"
TURN_S = 0.02
# An answer may be so large: what no server needs for what was asked is given up (see `reader`).
ROOM_BYTES, TOKEN_BYTES = 4 * 1024 * 1024, 2048
ROOM_READS, TOKEN_READS = 20_000, 4
UNKNOWN_OUTPUT = 8192  # tokens, where none were asked for

Server = dict[str, Distribution]
OnRequest = Callable[[Measured], None]


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    held: PortHolder | None = None
    """Who must hold the port (see engines.access); None: a server that is only given by its address."""

    @classmethod
    def to(cls, profile: ServerProfile) -> Target:
        """Return the chat route of a profile's server, with its key. Raises ProfileError or LoadError."""
        target = cls.of(profile.url("/v1/chat/completions"), profile.api_key())
        return replace(target, held=profile.access.held)

    def listener(self) -> int | None:
        """Return the socket that the client's connections must reach; None: any. Raises PortTakenError."""
        inode = check(self.held)
        # Where the kernel tells and nobody listens, whoever comes later is a stranger.
        return 0 if inode is None and self.held is not None and sys.platform == "linux" else inode

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Target:
        """Return the chat route at `url`, e.g. `http://127.0.0.1:30000/v1/chat/completions`. Raises LoadError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise LoadError(f"{url} is no address of a server; it looks like http://127.0.0.1:30000/v1")
        tls = parts.scheme == "https"
        port = port or (443 if tls else 80)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        headers = [
            ("Host", f"{host}:{port}"),
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
            ("User-Agent", "vlmconsole"),
        ]
        if api_key:
            headers.append(("Authorization", f"Bearer {api_key}"))
        return cls(parts.hostname, port, parts.path or "/", tls, tuple(headers))


@dataclass(frozen=True)
class Body:
    """A prepared request body as parts that follow each other; `shared` numbers the parts others may use too."""

    parts: list[bytes]
    shared: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LoadCell:
    """One measurement. `due_s` None: closed loop with `concurrency` in flight; else seconds after the start.

    A closed loop ends after `until_s`, if that is given, and leaves requests that it did not need. With `equal_work` a
    request whose output is not exactly `wanted_output` tokens (of all, or of each) is set aside.
    """

    name: str
    target: Target
    measured: Iterable[Body]
    concurrency: int = 1
    warm_up: Iterable[Body] = ()
    due_s: list[float] | None = None
    until_s: float | None = None
    wanted_output: int | Sequence[int] | None = None
    equal_work: bool = False
    lag_limit_s: float = LAG_LIMIT_S
    failure_limit: float = FAILURE_LIMIT
    slo: Slo | None = None
    stall_timeout_s: float = 120.0
    total_timeout_s: float = 900.0
    connect_timeout_s: float = 10.0
    extra: dict[str, Any] = field(default_factory=dict)  # kept beside each line of requests.jsonl, e.g. the cell


def run_cell(
    cell: LoadCell,
    run: RunFolder,
    *,
    on_progress: Progress | None = None,
    on_request: OnRequest | None = None,
    stopping: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> CellSummary:
    """Run `cell`, append its requests to the run's requests.jsonl, and return the summary.

    `on_progress` gets the client's state a few times a second (done, failed, total, in_flight, lag_p99_ms),
    `on_request` each counted request soon after its end, `watch` is asked once a second for the server's own
    numbers (running, queued…). When `stopping` turns true, what is in flight is kept as cancelled and the summary
    holds what there is. Raises LoadError when the client process did not come to measuring.
    """
    asked, before = clock(), load_now()
    work = Path(tempfile.mkdtemp(prefix=".cell-", dir=run.path))
    try:
        plan = _plan(cell, work)
        intake = _Intake(cell, run, plan, on_request)
        why = "the load client did not finish"
        report: dict[str, Any] = {}
        try:
            report, seen = run_client(
                plan, on_progress=on_progress, on_turn=intake.turn, stopping=stopping, watch=watch
            )
            stopped = "stopped on request" if report.get("stopped") else ""
            why = report.get("error") or stopped or report.get("problem") or why
        finally:
            intake.rest(why, _unneeded(report) if report else 0)
        server = {key: spread for key, values in seen.items() if (spread := distribution(values)) is not None}
        return _summary(cell, intake, report, server, asked, host_load(before))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _plan(cell: LoadCell, work: Path) -> LoadPlan:
    bodies = BodyFile(str(work / "bodies"))
    try:
        # Warm-ups have numbers below zero: no measured request has the same, and rows sort by time anyhow.
        warm = [(-1 - i, bodies.add(body.parts, body.shared)) for i, body in enumerate(cell.warm_up)]
        measured = [(i, bodies.add(body.parts, body.shared)) for i, body in enumerate(cell.measured)]
    finally:
        bodies.close()
    if not measured:
        raise LoadError("a measurement needs at least one request")
    if cell.due_s is not None and len(cell.due_s) != len(measured):
        raise LoadError(f"{len(measured)} requests, but {len(cell.due_s)} due times")
    open_loop, wanted = cell.due_s is not None, cell.wanted_output
    tokens = (wanted if isinstance(wanted, int) else max(wanted or (), default=0)) or UNKNOWN_OUTPUT
    return LoadPlan(
        host=cell.target.host,
        port=cell.target.port,
        path=cell.target.path,
        tls=cell.target.tls,
        listener=cell.target.listener(),
        headers=list(cell.target.headers),
        bodies=str(work / "bodies"),
        spill=str(work / "spill"),
        report=str(work / "report.json"),
        phases=[
            LoadPhase(WARM_UP, warm, concurrency=min(cell.concurrency, max(1, len(warm)))),
            LoadPhase(MEASURED, measured, 16 if open_loop else cell.concurrency, cell.due_s, cell.until_s),
        ],
        request_id=cell.name,
        stall_timeout_s=cell.stall_timeout_s,
        total_timeout_s=cell.total_timeout_s,
        connect_timeout_s=cell.connect_timeout_s,
        largest_answer=ROOM_BYTES + TOKEN_BYTES * tokens,
        most_reads=ROOM_READS + TOKEN_READS * tokens,
    )


class _Intake:
    """Takes in requests as they end: one line each in requests.jsonl, and their numbers into the summary."""

    def __init__(self, cell: LoadCell, run: RunFolder, plan: LoadPlan, on_request: OnRequest | None) -> None:
        self.cell, self.on_request = cell, on_request
        self.gathered = Gatherer(cell.wanted_output, cell.equal_work, cell.slo)
        self.missing = {phase.name: {index for index, _ in phase.requests} for phase in plan.phases}
        self.first_sent: int | None = None
        self._spill = SpillReader(Path(plan.spill))
        descriptor = os.open(run.file(REQUESTS), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rows = os.fdopen(descriptor, "a", encoding="utf-8")

    def turn(self) -> None:
        """What has ended by now, for a few milliseconds at most: the load itself must not feel it."""
        until = time.monotonic() + TURN_S
        for raw in self._spill.read():
            self._take(raw)
            if time.monotonic() > until:
                break
        self._rows.flush()

    def rest(self, why: str, unneeded: int) -> None:
        """All that is left, and a line for each request that never was; the last `unneeded` need not have been."""
        for raw in self._spill.read():
            self._take(raw)
        for phase, indices in self.missing.items():
            for index in sorted(indices)[: len(indices) - (unneeded if phase == MEASURED else 0)]:
                self._write(not_sent_row(index, phase, why))
                if phase == MEASURED:
                    self.gathered.add_not_sent(NOT_SENT, why)
        self._rows.close()

    def _take(self, raw: Raw) -> None:
        request = understand(raw)
        self.missing[raw.phase].discard(raw.number)
        if raw.sent is not None:
            self.first_sent = raw.sent if self.first_sent is None else min(self.first_sent, raw.sent)
        aside = None
        if raw.phase == MEASURED:
            aside = self.gathered.add(request)
        else:
            self.gathered.add_warm_up(request)
        counted = raw.phase == MEASURED and request.failure is None and aside is None
        self._write(to_row(request, counted=counted, aside=aside))
        if counted and self.on_request is not None:
            self.on_request(request)

    def _write(self, row: dict[str, Any]) -> None:
        self._rows.write(json_line({**self.cell.extra, **row}).decode())


def _unneeded(report: dict[str, Any]) -> int:
    return sum(phase.get("unneeded", 0) for phase in report.get("phases", ()))


def _summary(
    cell: LoadCell, intake: _Intake, report: dict[str, Any], server: Server, asked: int, host: HostLoad
) -> CellSummary:
    measured = next((phase for phase in report["phases"] if phase["name"] == MEASURED), None)
    client = None
    if measured is not None:
        cpu_us, pieces = measured["cpu_s"] * 1e6, intake.gathered.pieces
        client = ClientCost(
            cpu_s=round(measured["cpu_s"], 6),
            cpu_us_per_read=round(cpu_us / measured["reads"], 2) if measured["reads"] else None,
            cpu_us_per_piece=round(cpu_us / pieces, 2) if pieces else None,
            rss_bytes=report["rss_bytes"],
            start_s=None if intake.first_sent is None else (intake.first_sent - asked) / 1e9,
            connections=report["connections"],
        )
    return intake.gathered.summary(
        name=cell.name,
        lag=_lag(report, measured, intake.gathered),
        lag_limit_s=cell.lag_limit_s,
        failure_limit=cell.failure_limit,
        client=client,
        server=server,
        host=host,
        concurrency=cell.concurrency if cell.due_s is None else None,
        broken=report.get("error") or ("stopped on request" if report.get("stopped") else None),
    )


def _lag(report: dict[str, Any], measured: dict[str, Any] | None, gathered: Gatherer) -> Lag:
    ticks = [] if measured is None else measured["ticks_us"]
    kernel: Distribution | None = distribution(gathered.kernel_lag)
    why = None
    if kernel is None:
        why = (
            "TLS: the kernel sees records, not the bytes in them"
            if report["tls"]
            else "the kernel gives no receive stamps here"
            if not report["kernel_stamps"]
            else "no read carried a stamp"
        )
    offsets = [offset for _, offset in report["offsets"]]
    return Lag(
        probe=distribution(tick / 1e6 for tick in ticks),
        kernel=kernel,
        why=why,
        run_queue_wait_s=report["run_queue_wait_s"],
        wall_step_s=(max(offsets) - min(offsets)) / 1e9 if offsets else 0.0,
    )
