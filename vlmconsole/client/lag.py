"""How late our own event loop is: the client's error that stands beside every TTFT it measures."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

LAG_LIMIT = 20.0
"""Milliseconds (p99) above which our own stamps, late by about as much, are not to be trusted."""


class LagMeter:
    """Samples the running loop every `period` seconds while entered; costs nothing at other times.

    A sample is by how much (milliseconds) a timer fired late. A late loop stamps late by about as much.
    """

    def __init__(self, period: float = 0.02) -> None:
        self._period = period
        self._late: list[float] = []
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> LagMeter:
        self._arm(asyncio.get_running_loop())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._period
        self._handle = loop.call_at(self._due, self._sample, loop)

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late.append(max(0.0, (loop.time() - self._due) * 1000))
        self._arm(loop)

    def worst_since(self, samples: int) -> float:
        """Return the greatest lateness (seconds) of the samples after the first `samples`; 0 while there is none."""
        return max(self._late[samples:], default=0.0) / 1000

    def __len__(self) -> int:
        return len(self._late)

    def facts(self) -> dict[str, float | int | None]:
        """`lag_p50_ms`, `lag_p99_ms`, `lag_max_ms` and how many samples; None where there was none."""
        late = sorted(self._late)
        return {
            "lag_p50_ms": _quantile(late, 0.50),
            "lag_p99_ms": _quantile(late, 0.99),
            "lag_max_ms": late[-1] if late else None,
            "lag_samples": len(late),
        }


def _quantile(ordered: list[float], part: float) -> float | None:
    """Nearest rank."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None
