"""What the gauges cost at 1 Hz: `python -m tests.tools.benchmarks.gauges [SECONDS]`, or this file run by its name.

A server of its own process serves a recorded SGLang page (90 KB, 790 samples, its counters moving) and a load
report; this process polls it, itself, and the machine, and takes a snapshot a second, as a screen would. Said: the
CPU time of this process as a share of one core, and how many figures were on the board.
"""

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

GROWS = re.compile(r"(?m)^(sglang:\w+_(?:total|bucket|count|sum)\{.*\}) (\S+)$")


def serve() -> None:
    """Serve the page with counters that grow, until ended."""
    from metrics_server import bodies, page, serving

    text, load = page("sglang-0.5.23.metrics_after"), bodies("sglang-0.5.23/limit1_concurrent4")[0][1]
    with serving() as server:
        print(server.url, flush=True)
        for grown in itertools.count(1):
            moved = GROWS.sub(lambda found, by=grown: f"{found[1]} {float(found[2]) * by}", text)  # type: ignore[misc]
            server.pages = {"/metrics": moved, "/v1/loads?include=core": load}
            time.sleep(0.5)


def measure(seconds: float) -> dict[str, float]:
    """Run it; the first three seconds (imports, first answers) do not count."""
    from vlmconsole.gauges.machine import HostSource, NvidiaSource
    from vlmconsole.gauges.requests import OwnRequests
    from vlmconsole.gauges.scrape import ServerMetrics
    from vlmconsole.gauges.sources import Gauges

    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with TemporaryDirectory() as made:
            home = Path(made)
            sources = [
                ServerMetrics(url, "sglang"),
                OwnRequests(home / "runs", home / "chats.sqlite"),
                HostSource(home),
                NvidiaSource(),
            ]
            with Gauges(sources) as gauges:
                time.sleep(3)
                cpu, wall, looks, spent = time.process_time(), time.monotonic(), 0, 0.0
                while time.monotonic() - wall < seconds:
                    time.sleep(1.0)
                    begun = time.thread_time()
                    snapshot = gauges.snapshot()
                    spent += time.thread_time() - begun
                    looks += 1
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        figures = sum(tile.value is not None for tile in snapshot.tiles.values())
        return {
            "share_of_a_core": round(cpu / wall, 5),
            "figures": figures,
            "seconds": round(wall, 1),
            "snapshot_ms": round(spent / looks * 1000, 3),
        }
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    print(json.dumps(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)))
