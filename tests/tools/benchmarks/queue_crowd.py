"""What the queue costs under many writers: `python tests/tools/benchmarks/queue_crowd.py [--writers 8] [--adds 1000]`.

Prints JSON: milliseconds an add (from each writer's view, all writers at once), a claim among 10,000 waiting jobs, and
the first screenful of such a queue.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from vlmconsole.queue.model import NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import views
from vlmconsole.runs.places import Places
from vlmconsole.scoring.distribution import percentile

JOB = NewJob("count", "bench", "Counts", {"steps": 3})


def add(path: Path, count: int, gate: Any, results: Any) -> None:
    store, took = Store(path), []
    gate.wait()
    for _ in range(count):
        begun = time.perf_counter()
        store.add(JOB)
        took.append(time.perf_counter() - begun)
    results.put(took)


def told(took: list[float]) -> dict[str, float]:
    """Milliseconds."""
    found = {f"p{share}": 1000 * percentile(sorted(took), share / 100) for share in (50, 95)}
    return {"n": len(took), **{name: round(value, 2) for name, value in {**found, "max": 1000 * max(took)}.items()}}


def crowd(path: Path, writers: int, count: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(writers + 1), context.Queue()
    processes = [context.Process(target=add, args=(path, count, gate, results)) for _ in range(writers)]
    for one in processes:
        one.start()
    gate.wait()
    begun = time.perf_counter()
    took = [seconds for _ in processes for seconds in results.get(timeout=3000)]
    seconds = time.perf_counter() - begun
    for one in processes:
        one.join()
    ids = [job.id for job in Store(path).waiting()]
    whole = ids == list(range(1, writers * count + 1))
    return {"writers": writers, "seconds": round(seconds, 1), "add_ms": told(took), "none lost or twice": whole}


def claims(path: Path, count: int = 200) -> dict[str, float]:
    store, took = Store(path), []
    for job in store.lines(count):
        begun = time.perf_counter()
        assert store.claim(job.id, ("cpu.0",), None, str(store.lab.runs / "run"))
        took.append(time.perf_counter() - begun)
        store.finish(job.id, "done")
    return told(took)


def screenful(path: Path, home: Path) -> dict[str, float]:
    store, took = Store(path), []
    for _ in range(21):
        begun = time.perf_counter()
        assert len(views(store, Places(home), store.listing(limit=50), ahead=400)) >= 50
        took.append(time.perf_counter() - begun)
    return told(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--adds", type=int, default=1000)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        figures: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
        figures |= crowd(home / "crowd.sqlite", words.writers, words.adds)
        store = Store(home / "many.sqlite")
        with store.change():
            for _ in range(10_000):
                store.add(JOB)
        store.close()
        figures |= {"claim_ms": claims(home / "many.sqlite"), "screenful_ms": screenful(home / "many.sqlite", home)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
