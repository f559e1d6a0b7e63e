"""One maker of datasets at a time: two jobs that want the same dataset must not both draw it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmconsole.system.locking import take

LOCK = ".making"
TURN_S = 0.25  # seconds between two looks at the lock


@contextmanager
def alone(datasets: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lab's lock of datasets. `waiting` is called before each look at a lock that is taken, and may raise.

    The lock goes with its process, so that a maker that was killed never blocks the next.
    """
    datasets.mkdir(mode=0o700, parents=True, exist_ok=True)
    while (descriptor := take(datasets / LOCK)) is None:
        if waiting is not None:
            waiting()
        time.sleep(TURN_S)
    try:
        yield
    finally:
        os.close(descriptor)
