"""How wrong the load client is: it against a server with ground truth, at rising concurrency.

    python tests/tools/benchmarks/load_client.py [--cells 1:40:20,128:40:512]      concurrency:itl ms:requests

Each cell is a fresh client process, as in real use. What is printed: TTFT p50/p95 of the server's own log
(request read → first text written) and of the client, the difference of both p95s, the p95 of the difference request by
request, where it arises (before the server had read the request, after it had written the first text), requests per
second, the client's CPU per text piece, its peak memory, the seconds from asking for the cell to the first request, its
p99 lag, and whether it called itself valid. An idle machine tells most; the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.measure.client.replay import Measured
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import distribution

CELLS = "1:40:12,4:40:24,32:40:192,128:40:512,1:5:30,4:5:64,32:5:256"
TOKENS = 128

#: the server's log: request id → (request read, first text written), seconds of the monotonic clock
Truth = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Wanted:
    concurrency: int
    itl_ms: float
    requests: int


def measure(wanted: Wanted, url: str, model: str, truth: Callable[[], Truth]) -> dict[str, Any]:
    """Run one cell against `url` and set it beside what the server says."""
    name = f"c{wanted.concurrency}i{wanted.itl_ms:g}"
    request = {"model": model, "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    recipe = InputRecipe(name, request)
    seen: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        parent = Path(folder)
        run = RunFolder.create(parent, kind="bench", preset=name, spec={}, title=name, home=parent)
        cell = LoadCell(
            name=name,
            target=Target.of(url),
            measured=recipe.bodies(range(wanted.requests)),
            warm_up=recipe.bodies(range(-min(4, wanted.concurrency), 0)),
            concurrency=wanted.concurrency,
        )
        summary = run_cell(cell, run, on_request=seen.append)
    said = truth()
    pairs = [(one, said[f"{name}-{one.raw.number}"]) for one in seen if one.timing.ttft_s is not None]
    server = distribution(first - read for _, (read, first) in pairs)
    single = distribution(abs((one.timing.ttft_s or 0) - (first - read)) for one, (read, first) in pairs)
    own = distribution((one.result.stamps.first_text or 0) - first for one, (_, first) in pairs)
    way = distribution(read - (one.result.stamps.sent or 0) for one, (read, _) in pairs)
    client, cost = summary.ttft_s, summary.client
    if server is None or single is None or own is None or way is None or client is None or cost is None:
        raise SystemExit(f"{name}: nothing came back: {summary.first_failures}")
    return {
        "concurrency": wanted.concurrency,
        "itl_ms": wanted.itl_ms,
        "n": summary.n,
        "failures": summary.failures,
        "truth_ms": [server.p50 * 1e3, server.p95 * 1e3],
        "client_ms": [client.p50 * 1e3, client.p95 * 1e3],
        "kernel_ms": [summary.ttft_kernel_s.p50 * 1e3, summary.ttft_kernel_s.p95 * 1e3]
        if summary.ttft_kernel_s
        else None,
        "p95_error_ms": (client.p95 - server.p95) * 1e3,
        "single_error_p95_ms": single.p95 * 1e3,
        "before_read_p50_p95_ms": [way.p50 * 1e3, way.p95 * 1e3],
        "after_write_p50_p95_ms": [own.p50 * 1e3, own.p95 * 1e3],
        "requests_per_s": summary.requests_per_s,
        "cpu_us_per_piece": cost.cpu_us_per_piece,
        "rss_mb": cost.rss_bytes / 2**20,
        "start_s": cost.start_s,
        "lag_p99_ms": (summary.lag.worst_p99() or 0) * 1e3,
        "valid": summary.valid,
        "load": os.getloadavg()[0],
    }


def line(found: dict[str, Any]) -> str:
    """One cell for people."""
    (t50, t95), (c50, c95) = found["truth_ms"], found["client_ms"]
    before, after = found["before_read_p50_p95_ms"], found["after_write_p50_p95_ms"]
    return (
        f"C={found['concurrency']:<4} itl {found['itl_ms']:>4g} ms  n={found['n']:<5} truth {t50:6.1f}/{t95:6.1f}"
        f"  client {c50:6.1f}/{c95:6.1f}  p95 error {found['p95_error_ms']:+6.2f} ms"
        f"  one by one p95 {found['single_error_p95_ms']:5.2f}  before {before[0]:.2f}/{before[1]:.2f}"
        f"  after {after[0]:.2f}/{after[1]:.2f} ms  {found['requests_per_s']:6.2f} req/s"
        f"  {found['cpu_us_per_piece']:4.0f} µs/piece  {found['rss_mb']:3.0f} MB  start {found['start_s']:.2f} s"
        f"  lag p99 {found['lag_p99_ms']:.1f} ms  {'valid' if found['valid'] else 'INVALID'}  load {found['load']:.1f}"
    )


def parse(text: str) -> Iterable[Wanted]:
    for one in text.split(","):
        concurrency, itl, requests = one.split(":")
        yield Wanted(int(concurrency), float(itl), int(requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--json", type=Path, help="write the results here as well")
    asked = parser.parse_args()
    results = []
    for wanted in parse(asked.cells):
        with running(Schedule(role_ms=5, ttft_ms=50, itl_ms=wanted.itl_ms, tokens=TOKENS)) as server:

            def truth(server: Any = server) -> Truth:
                return {one["id"]: (one["received"] / 1e9, one["first"] / 1e9) for one in server.truth()}

            results.append(measure(wanted, server.chat_url, "reference", truth))
        print(line(results[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
