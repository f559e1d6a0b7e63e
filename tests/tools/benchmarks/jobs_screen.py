"""What ten thousand jobs cost: the console's start, the jobs screen's first look, its idle share. Run by hand.

    python tests/tools/benchmarks/jobs_screen.py [--jobs 10000] [--runs 9]

Start is a fork in a pseudo-terminal until the first frame, with an empty and with the full queue in turn, so that the
machine's mood meets both; medians are compared. The jobs screen is opened without a terminal: CPU seconds (this
process, all threads) until its rows are drawn, and CPU seconds per second afterwards, while nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "lab")]

from job_queue import held, lab  # noqa: E402
from startup import MARK, first_frame  # noqa: E402

from vlmconsole.app import ConsoleApp  # noqa: E402
from vlmconsole.lab import Lab  # noqa: E402
from vlmconsole.queue.model import NewJob  # noqa: E402
from vlmconsole.queue.store import Store  # noqa: E402
from vlmconsole.runs.places import Places  # noqa: E402


def fill(places: Places, jobs: int) -> None:
    """Nine tenths waiting, one tenth ended."""
    store = Store(places.queue)
    with store.change() as db:
        for number in range(jobs):
            store.add(NewJob("sft-tiny", "story_kind:STORY", f"job {number}", {"steps": 1152, "rate": 2e-4}))
        db.execute("UPDATE jobs SET state='done', started=added, ended=added+60 WHERE id % 10 = 0")
    store.close()


async def opened(places: Places) -> dict[str, float]:
    app = ConsoleApp(Lab.open(places.home))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(1.0)
        cpu, wall = time.process_time(), time.monotonic()
        await pilot.press("f3")
        await pilot.pause()
        await app.workers.wait_for_complete()
        first = {"open_cpu_s": time.process_time() - cpu, "open_wall_s": time.monotonic() - wall}
        await pilot.pause(6.0)
        cpu, wall = time.process_time(), time.monotonic()
        await pilot.pause(10.0)
        share = (time.process_time() - cpu) / (time.monotonic() - wall)
        return {**{key: round(value, 3) for key, value in first.items()}, "idle_percent": round(100 * share, 2)}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--runs", type=int, default=9)
    wanted = options.parse_args()
    result: dict[str, Any] = {"jobs": wanted.jobs, "runs": wanted.runs}
    with tempfile.TemporaryDirectory() as folder:
        empty, full = lab(Path(folder) / "empty"), lab(Path(folder) / "full")
        fill(full, wanted.jobs)
        times: dict[str, list[float]] = {"empty": [], "full": []}
        argv = [sys.executable, "-m", "vlmconsole"]
        for number in range(wanted.runs + 1):
            pair = (first_frame(argv, MARK, empty.home), first_frame(argv, MARK, full.home))
            if number:  # the first pair fills the page cache
                times["empty"].append(pair[0])
                times["full"].append(pair[1])
        medians = {name: round(statistics.median(some), 3) for name, some in times.items()}
        result["first_frame_s"] = medians
        result["ratio"] = round(medians["full"] / medians["empty"], 2)
        for name, places in (("empty", empty), ("full", full)):
            with held(places):
                result[f"jobs_screen_{name}"] = asyncio.run(opened(places))
    print(json.dumps({**result, "load_average": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    main()
