"""The load client's process: `python -m vlmconsole.measure.client.main` with a plan on standard input.

It imports nothing beyond the standard library and the reading loop, so that it is up in a fraction of a
second. The plan is one line of standard input; when that is closed (on purpose, or because whoever started
us is gone) the run ends early, and what was in flight is kept as cancelled. SIGTERM does the same. Standard
output carries one JSON object a line: progress, a few times a second.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from vlmconsole.measure.client.plan import LoadPlan
from vlmconsole.measure.client.reader import ClientLoop, PhaseReport
from vlmconsole.measure.client.spill import SpillError, SpillWriter
from vlmconsole.measure.client.stamps import clock
from vlmconsole.system.machine import peak_rss_bytes, raise_file_limit

FILES_BESIDE = 64  # descriptors needed for anything but connections


def run_queue_wait_s() -> float | None:
    """Return how long this process was ready to run but had no processor, seconds so far (Linux, else None)."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def percentile_of_sorted(values: list[int], share: float) -> int:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0


def main() -> int:
    plan = LoadPlan.from_json(sys.stdin.readline())
    started = clock()
    raise_file_limit(max((phase.concurrency for phase in plan.phases), default=1) * 2 + FILES_BESIDE)
    spill = SpillWriter(plan.spill)

    def tell(report: PhaseReport, done: int, failed: int, total: int, in_flight: int) -> None:
        recent = sorted(report.ticks[-200:])
        line = {
            "phase": report.name,
            "done": done,
            "failed": failed,
            "total": total,
            "in_flight": in_flight,
            "reads": report.reads,
            "elapsed_s": round((clock() - report.started) / 1e9, 3),
            "lag_p99_ms": percentile_of_sorted(recent, 0.99) / 1000,
        }
        with contextlib.suppress(BlockingIOError):  # a reader that is behind misses a line, never holds us up
            os.write(1, json.dumps(line).encode() + b"\n")

    os.set_blocking(1, False)
    with open(plan.bodies, "rb") as file:  # noqa: PTH123
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    try:
        reader = ClientLoop(plan, memoryview(mapped), spill, tell, stop_on=sys.stdin.fileno())
    except socket.gaierror as unknown:
        return _write_report(plan, {"error": f"{plan.host} is not known: {unknown.strerror}"})

    def stop(*_: object) -> None:
        reader.stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C goes to the whole group; the parent tells us to stop
    # Nothing here makes cycles; a collection would only hold the loop up.
    gc.collect()
    gc.freeze()
    gc.disable()
    waited = run_queue_wait_s()
    phases: list[PhaseReport] = []
    error = None
    try:
        for phase in plan.phases:
            if phase.requests and not reader.stop:
                phases.append(reader.run(phase))
                if phases[-1].not_sent and not reader.stop:
                    break
    except BrokenPipeError:
        error = "whoever started the load client went away"
    except SpillError as fault:
        error = f"the load client had to stop: {fault}"
    finally:
        reader.close()
        spill.close()
    waited_now = run_queue_wait_s()
    return _write_report(
        plan,
        {
            "error": error,
            "problem": reader.pool.last_problem,
            "stopped": reader.stop,
            "process_started": started,
            "wall": time.time(),
            "phases": [
                {
                    "name": phase.name,
                    "started": phase.started,
                    "ended": phase.ended,
                    "not_sent": phase.not_sent,
                    "unneeded": phase.unneeded,
                    "reads": phase.reads,
                    "cpu_s": phase.cpu_s,
                    "ticks_us": phase.ticks.tolist(),
                }
                for phase in phases
            ],
            "offsets": reader.offsets,
            "kernel_stamps": reader.pool.kernel_stamps,
            "tls": plan.tls,
            "connections": reader.pool.opened,
            "stray_bytes": reader.pool.stray_bytes,
            "rss_bytes": peak_rss_bytes(),
            "run_queue_wait_s": None if waited is None or waited_now is None else waited_now - waited,
        },
    )


def _write_report(plan: LoadPlan, report: dict[str, Any]) -> int:
    Path(plan.report).write_text(json.dumps(report))
    return 1 if report.get("error") else 0


if __name__ == "__main__":
    sys.exit(main())
