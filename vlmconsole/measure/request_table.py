"""The times of many requests in little memory: what objectives and windows look at, request by request."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request, seconds; None: not known. `sent` and `end` are moments of one clock; a failed one has no figures."""

    sent: float
    end: float
    ttft: float | None = None
    ttfr: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    tokens: int | None = None
    failed: bool = False


class RequestTable:
    """Requests in the order in which they ended, some 60 bytes each."""

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in range(7))
        self._failed = bytearray()

    def add(self, request: RequestTimes) -> None:
        values = (request.sent, request.end, request.ttft, request.ttfr, request.tpot, request.e2e, request.tokens)
        for column, value in zip(self._columns, values, strict=True):
            column.append(UNKNOWN if value is None else value)
        self._failed.append(request.failed)

    def __len__(self) -> int:
        return len(self._failed)

    def __iter__(self) -> Iterator[RequestTimes]:
        for sent, end, ttft, ttfr, tpot, e2e, tokens, failed in zip(*self._columns, self._failed, strict=True):
            count = None if math.isnan(tokens) else int(tokens)
            yield RequestTimes(sent, end, _known(ttft), _known(ttfr), _known(tpot), _known(e2e), count, bool(failed))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
