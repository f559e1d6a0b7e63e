"""Where code of this process tells the gauges of its own requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    """One finished request of ours. Times in seconds; None where it has none (no text, no usage)."""

    at: float  # wall-clock end
    ttft_s: float | None
    tpot_s: float | None
    output_tokens: int | None


class RequestFeed:
    """Where code of this process tells of its requests; safe from any thread.

    Only for requests that are kept nowhere else: the chat store and the run folders are read anyway.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._finished: deque[Finished] = deque(maxlen=10_000)
        self._in_flight = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[Callable[..., None]]:
        """In flight for the length of the block; call what it gives with ttft_s, tpot_s, output_tokens when done."""
        with self._lock:
            self._in_flight += 1
        try:
            yield self._done
        finally:
            with self._lock:
                self._in_flight -= 1

    def _done(self, ttft_s: float | None, tpot_s: float | None, output_tokens: int | None) -> None:
        with self._lock:
            self._finished.append(Finished(self._clock(), ttft_s, tpot_s, output_tokens))

    def drain(self) -> tuple[list[Finished], int]:
        """(finished since the last call, in flight now)."""
        with self._lock:
            done = list(self._finished)
            self._finished.clear()
            return done, self._in_flight
