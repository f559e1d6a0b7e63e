"""Run one cell: prepare its requests, let the client process send them, then understand what came back."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlmconsole.measure.definitions import Distribution, distribution
from vlmconsole.measure.plan import MEASURED, WARM_UP, BodyFile, Phase, Plan
from vlmconsole.measure.replay import NOT_SENT, not_sent_rows, to_row, understand
from vlmconsole.measure.spill import read_spill
from vlmconsole.measure.stamps import Offsets, clock
from vlmconsole.measure.summary import CellSummary, ClientCost, Gatherer, Lag
from vlmconsole.runs.folder import RunFolder

LAG_LIMIT_S = 0.010
REQUESTS = "requests.jsonl"
WATCH_S = 0.5
TERM_GRACE_S = 10.0


class LoadError(Exception):
    """The cell could not be run at all; the message is for people."""


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, base_url: str, api_key: str | None = None) -> Target:
        """The chat route below an OpenAI-style base URL (``http://host:port/v1``). Raises LoadError."""
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise LoadError(f"{base_url} is no address of a server; it looks like http://127.0.0.1:30000/v1")
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
        return cls(parts.hostname, port, f"{parts.path.rstrip('/')}/chat/completions", tls, tuple(headers))


@dataclass(frozen=True)
class Body:
    """A prepared request body as parts that follow each other; ``shared`` numbers the parts others may use too."""

    parts: list[bytes]
    shared: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Cell:
    """One measurement. ``due_s`` None: closed loop with ``concurrency`` in flight; else seconds after the start.

    With ``equal_work`` a request whose output is not exactly ``wanted_output`` tokens is set aside.
    """

    name: str
    target: Target
    measured: Iterable[Body]
    concurrency: int = 1
    warm_up: Iterable[Body] = ()
    due_s: list[float] | None = None
    wanted_output: int | None = None
    equal_work: bool = False
    lag_limit_s: float = LAG_LIMIT_S
    stall_timeout_s: float = 120.0
    total_timeout_s: float = 900.0
    connect_timeout_s: float = 10.0
    extra: dict[str, Any] = field(default_factory=dict)  # kept beside each line of requests.jsonl, e.g. the cell


Progress = Callable[[dict[str, Any]], None]
Watch = Callable[[], Mapping[str, float]]


def run_cell(
    cell: Cell,
    run: RunFolder,
    *,
    on_progress: Progress | None = None,
    stopping: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> CellSummary:
    """Run ``cell``, append its requests to the run's requests.jsonl, and return the summary.

    ``watch`` is asked twice a second for the server's own numbers (running, waiting…). When ``stopping``
    turns true, what is in flight is kept as cancelled and the summary holds what there is. Raises
    LoadError when the client process did not come to a first request.
    """
    asked = clock()
    work = Path(tempfile.mkdtemp(prefix=".cell-", dir=run.path))
    try:
        plan = _plan(cell, work)
        seen, stderr = _run_client(plan, on_progress, stopping, watch)
        report = _report(plan, stderr)
        return _gather(cell, run, plan, report, seen, asked)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _plan(cell: Cell, work: Path) -> Plan:
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
    open_loop = cell.due_s is not None
    return Plan(
        host=cell.target.host,
        port=cell.target.port,
        path=cell.target.path,
        tls=cell.target.tls,
        headers=list(cell.target.headers),
        bodies=str(work / "bodies"),
        spill=str(work / "spill"),
        report=str(work / "report.json"),
        phases=[
            Phase(WARM_UP, warm, concurrency=min(cell.concurrency, max(1, len(warm)))),
            Phase(MEASURED, measured, concurrency=16 if open_loop else cell.concurrency, due_s=cell.due_s),
        ],
        request_id=cell.name,
        stall_timeout_s=cell.stall_timeout_s,
        total_timeout_s=cell.total_timeout_s,
        connect_timeout_s=cell.connect_timeout_s,
    )


def _run_client(
    plan: Plan, on_progress: Progress | None, stopping: Callable[[], bool], watch: Watch | None
) -> tuple[dict[str, list[float]], str]:
    """Let the client process run the plan. Returns what ``watch`` saw, and the client's stderr."""
    seen: dict[str, list[float]] = {}
    with tempfile.TemporaryFile() as stderr:
        # -P: a folder named like one of our modules in the working directory must not be imported instead.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vlmconsole.measure.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            try:
                process.stdin.write(plan.to_json().encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once: its report or its stderr says why
            _follow(process, process.stdout.fileno(), on_progress, stopping, watch, seen)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(TERM_GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            process.stdout.close()
        stderr.seek(0)
        return seen, stderr.read().decode("utf-8", "replace")


def _follow(
    process: subprocess.Popen[bytes],
    descriptor: int,
    on_progress: Progress | None,
    stopping: Callable[[], bool],
    watch: Watch | None,
    seen: dict[str, list[float]],
) -> None:
    rest = b""
    asked_to_stop = False
    next_watch = time.monotonic()
    while True:
        ready, _, _ = select.select([descriptor], [], [], 0.1)
        if ready:
            data = os.read(descriptor, 65536)
            if not data:
                process.wait()
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines[-1:] if on_progress is not None else ():
                on_progress(json.loads(line))  # type: ignore[misc]
        if stopping() and not asked_to_stop:
            asked_to_stop = True
            process.terminate()
        if watch is not None and time.monotonic() >= next_watch:
            next_watch = time.monotonic() + WATCH_S
            for key, value in watch().items():
                seen.setdefault(key, []).append(value)


def _report(plan: Plan, stderr: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(Path(plan.report).read_text())
    except (OSError, ValueError):
        last = stderr.strip().splitlines()[-1:] or ["it said nothing"]
        report = {"error": f"the load client ended without its report: {last[0]}"}
    if report.get("error") and not report.get("phases"):
        raise LoadError(f"Nothing was measured: {report['error']}")
    return report


def _gather(
    cell: Cell, run: RunFolder, plan: Plan, report: dict[str, Any], seen: dict[str, list[float]], asked: int
) -> CellSummary:
    phases = {phase["name"]: phase for phase in report["phases"]}
    measured = phases.get(MEASURED)
    zero = (measured or next(iter(phases.values())))["started"]
    offsets = Offsets([(at, offset) for at, offset in report["offsets"]]) if report["kernel_stamps"] else None
    gathered = Gatherer(cell.wanted_output, cell.equal_work)
    missing = {phase.name: {index for index, _ in phase.requests} for phase in plan.phases}
    first_sent = None
    with run.file(REQUESTS).open("a", encoding="utf-8") as rows:
        for raw in read_spill(Path(plan.spill)):
            one = understand(raw, offsets)
            missing[raw.phase].discard(raw.index)
            if raw.sent is not None:
                first_sent = raw.sent if first_sent is None else min(first_sent, raw.sent)
            aside = None
            if raw.phase == MEASURED:
                aside = gathered.add(one)
            else:
                gathered.add_warm_up(one)
            counted = raw.phase == MEASURED and one.failure is None and aside is None
            rows.write(_line({**cell.extra, **to_row(one, zero, counted=counted, aside=aside)}))
        why = report.get("error") or ("stopped on request" if report.get("stopped") else report.get("problem") or "")
        for phase in plan.phases:
            for row in not_sent_rows(sorted(missing[phase.name]), phase.name, why):
                rows.write(_line({**cell.extra, **row}))
                if phase.name == MEASURED:
                    gathered.add_failure(NOT_SENT, why)
    lag = _lag(report, measured, gathered)
    client = None
    if measured is not None:
        cpu_us = measured["cpu_s"] * 1e6
        client = ClientCost(
            cpu_s=round(measured["cpu_s"], 6),
            cpu_us_per_read=round(cpu_us / measured["reads"], 2) if measured["reads"] else None,
            cpu_us_per_piece=round(cpu_us / gathered.pieces, 2) if gathered.pieces else None,
            rss_bytes=report["rss_bytes"],
            start_s=None if first_sent is None else (first_sent - asked) / 1e9,
            connections=report["connections"],
        )
    server = {key: found for key, values in seen.items() if (found := distribution(values)) is not None}
    broken = report.get("error") or ("stopped on request" if report.get("stopped") else None)
    return gathered.summary(
        name=cell.name,
        planned=len(plan.phases[-1].requests),
        lag=lag,
        lag_limit_s=cell.lag_limit_s,
        client=client,
        server=server,
        broken=broken,
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
    step = Offsets([(at, offset) for at, offset in report["offsets"]]).step_ns() / 1e9
    return Lag(
        probe=distribution(tick / 1e6 for tick in ticks),
        kernel=kernel,
        why=why,
        run_queue_wait_s=report["run_queue_wait_s"],
        wall_step_s=step,
    )


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
