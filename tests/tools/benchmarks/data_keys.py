"""From a key to its paint on the Data screen: `python tests/tools/benchmarks/data_keys.py [PRESSES]`.

The real console on a lab home with a dataset of 10,000 examples (JPEGs of 640×480), half cells, 120×40, without a
terminal (Textual's headless driver). A key is posted as the driver would; its paint is the next time that the console
hands an update to the driver. Between two keys a pause of 20 to 60 ms, as in fast typing. Phases: the next example (l),
the next row (j), a screen further (PgDn), first and last (G, g), each through parts that have no thumbnails yet and
once more when they have; and the Jobs screen's list beside it, as a screen without images. What is printed: n, p50,
p95 and the longest in ms of each phase, the same of the loop's own processor time (which other work on the machine does
not lengthen), the ratio of each p95 to the Jobs screen's, and the machine's load.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

import own_datasets
from textual import events

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab
from vlmconsole.scoring.distribution import distribution
from vlmconsole.screens.data.screen import DataScreen

N = int(os.environ.get("EXAMPLES", "10000"))
SIZE = (640, 480)
PHASES = {"next": ("l",), "row": ("j",), "page": ("pagedown",), "ends": ("G", "g")}


class Painted(ConsoleApp):
    """The console, which notes when it painted."""

    painted: asyncio.Event

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if renderable is not None:
            self.painted.set()


Press = tuple[float, float]  # from a key to its paint: seconds by the clock, and of the loop's own processor time


async def presses(app: Painted, keys: tuple[str, ...], count: int) -> list[Press]:
    """How long each key took to its paint."""
    pace = random.Random(1)
    taken = []
    for number in range(count):
        await asyncio.sleep(pace.uniform(0.02, 0.06))
        app.painted.clear()
        begun, spent = time.perf_counter(), time.thread_time()
        app.post_message(events.Key(keys[number % len(keys)], None))
        await asyncio.wait_for(app.painted.wait(), 30)
        taken.append((time.perf_counter() - begun, time.thread_time() - spent))
    return taken


def summary(taken: list[Press]) -> dict[str, float]:
    seconds, spent = ([press[part] for press in taken] for part in (0, 1))
    shares, cpu = distribution(seconds), distribution(spent)
    figures = {
        "p50_ms": shares.p50, "p95_ms": shares.p95, "max_ms": max(seconds),
        "cpu_p50_ms": cpu.p50, "cpu_p95_ms": cpu.p95, "cpu_max_ms": max(spent),
    }  # fmt: skip
    return {"n": shares.n, **{name: round(value * 1000, 1) for name, value in figures.items()}}


async def measure(count: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"examples": N, "image": f"{SIZE[0]}x{SIZE[1]} JPEG", "load before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_text('server = "none"\n')
        examples = (
            own_datasets.example(number, images=(own_datasets.picture(number, SIZE, "JPEG"),)) for number in range(N)
        )
        own_datasets.write_dataset(home, "many", {"test": ("test", examples)})
        app = Painted(Lab.open(home))
        app.painted = asyncio.Event()
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("escape", "f3")
            await asyncio.sleep(2)
            figures["jobs screen"] = summary(await presses(app, ("right_square_bracket",), count))
            begun = time.perf_counter()
            await pilot.press("f7")
            while not isinstance(screen := app.screen, DataScreen) or screen.shown is None:
                await asyncio.sleep(0.02)
            figures["opened_s"] = round(time.perf_counter() - begun, 2)
            await pilot.press("right_square_bracket")
            for turn in ("no thumbnails yet", "thumbnails there"):
                for name, keys in PHASES.items():
                    await pilot.press("g")
                    await asyncio.sleep(0.5)
                    figures[f"{name}, {turn}"] = summary(await presses(app, keys, count))
    figures["load after"] = os.getloadavg()[0]
    base = figures["jobs screen"]["p95_ms"]
    figures["p95 ratios to the jobs screen"] = {
        name: round(value["p95_ms"] / base, 2) for name, value in figures.items() if isinstance(value, dict)
    }
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200)), indent=1))
