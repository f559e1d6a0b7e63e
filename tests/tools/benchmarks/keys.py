"""From a key to its paint on the gauges screen, idle and under load: `python tests/tools/benchmarks/keys.py [PRESSES]`.

The real console on a real lab home, without a terminal (Textual's headless driver), its gauges live at 1 Hz. A key is
posted as the driver would; its paint is the next time that the console hands an update to the driver. Between two keys
a pause of 20–60 ms, as in fast typing. Beside it, in processes of their own: the load client at C=16 against the
reference server, and a running job that writes 2,000 log lines and 200 request events a second. What is printed: n,
p50 and p95 in ms of each phase, and the ratio of the p95s. Other work on the machine is in both phases: its load is
printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from textual import events

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import distribution
from vlmconsole.screens.gauges.screen import GaugesScreen

KEYS = ("tab",)  # always goes on to another tile, so every key paints
BURST = """
import sys, time
from pathlib import Path
from vlmconsole.runs.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
while True:
    with run.log.open("a") as log:
        log.write("".join(f"line {n} of a burst that nobody reads\\n" for n in range(200)))
    for n in range(20):
        run.events.emit("request", ttft_s=0.1 + n / 100, tpot_s=0.01, output_tokens=128)
    time.sleep(0.1)
"""


class Painted(ConsoleApp):
    """The console, which notes when it painted."""

    painted: asyncio.Event

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if renderable is not None:
            self.painted.set()


async def presses(app: Painted, count: int) -> list[float]:
    """Seconds from each key to the paint after it."""
    pace = random.Random(1)
    taken = []
    for number in range(count):
        await asyncio.sleep(pace.uniform(0.02, 0.06))
        key = KEYS[number % len(KEYS)]
        app.painted.clear()
        begun = time.perf_counter()
        app.post_message(events.Key(key, None))
        await asyncio.wait_for(app.painted.wait(), 30)
        taken.append(time.perf_counter() - begun)
    return taken


async def measure(count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_text('server = "none"\n')
        app = Painted(Lab.open(home))
        app.painted = asyncio.Event()
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("escape", "f2")
            screen = app.screen
            assert isinstance(screen, GaugesScreen)
            while screen.look_found is None:
                await asyncio.sleep(0.1)
            await presses(app, 20)
            found["idle"] = said(await presses(app, count))
            run = RunFolder.create(home / "runs", kind="bench", preset="burst", spec={}, title="Burst", home=home)
            run.set_state("running")
            beside = [
                subprocess.Popen([sys.executable, "-c", BURST, str(run.path)]),
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("load_client.py")), "--cells", "16:20:4000"],
                    stdout=subprocess.DEVNULL,
                ),
            ]
            try:
                await asyncio.sleep(8)  # imports, and the look for new runs every five seconds
                found["loaded"] = said(await presses(app, count))
                found["load client still at work"] = beside[1].poll() is None
            finally:
                for process in beside:
                    process.terminate()
                    process.wait(20)
    found["load after"] = os.getloadavg()[0]
    found["p95 ratio"] = round(found["loaded"]["p95_ms"] / found["idle"]["p95_ms"], 2)
    return found


def said(seconds: list[float]) -> dict[str, float]:
    told = distribution(seconds)
    return {"n": told.n, "p50_ms": round(told.p50 * 1000, 2), "p95_ms": round(told.p95 * 1000, 2)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200))))
