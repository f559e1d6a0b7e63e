"""SGLang's own view of its load: `/v1/loads` (0.5.23) and `/get_load` (0.5.5), both cheap and without a token.

`/health` is never asked: on SGLang it generates a token and takes a second, in the middle of a measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vlmconsole.gauges.figures import SourceError
from vlmconsole.system.bounded_http import json_value
from vlmconsole.text.plain import beginning


@dataclass(frozen=True)
class Load:
    """Requests running and waiting over all data-parallel ranks; what a version does not tell is None.

    `kv` is the fullest rank's share (0–1), `kv_capacity` tokens over all ranks, `limit` the running limit B of
    all ranks. `age_s`: how old the scheduler's snapshot was when the server answered, by the server's own clock.
    """

    running: float
    queued: float
    kv: float | None = None
    kv_capacity: float | None = None
    limit: float | None = None
    age_s: float = 0.0
    version: str | None = None


def read_loads(text: str) -> Load:
    """Return the load in an answer of either path. Raises SourceError when it is neither."""
    try:
        whole = json_value(text)
        if isinstance(whole, list):
            return _get_load([dict(rank) for rank in whole])
        return _v1_loads(whole)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SourceError(f"the load report is not what SGLang sends: {beginning(text)}") from None


def _get_load(ranks: list[dict[str, Any]]) -> Load:
    """0.5.5: `num_reqs` holds the waiting ones too. It is counted when asked, so it has no age."""
    if not ranks:
        raise ValueError("no rank")
    queued = sum(_number(rank["num_waiting_reqs"]) for rank in ranks)
    return Load(sum(_number(rank["num_reqs"]) for rank in ranks) - queued, queued)


def _v1_loads(whole: dict[str, Any]) -> Load:
    ranks = whole["loads"]
    if not ranks:
        raise ValueError("no rank")
    return Load(
        running=sum(_number(rank["num_running_reqs"]) for rank in ranks),
        queued=sum(_number(rank["num_waiting_reqs"]) for rank in ranks),
        kv=max((_number(rank["token_usage"]) for rank in ranks if "token_usage" in rank), default=None),
        kv_capacity=_all(ranks, "max_total_num_tokens"),
        limit=_all(ranks, "max_running_requests"),
        age_s=_age(whole, ranks),
        version=str(whole["version"]) if whole.get("version") else None,
    )


def _all(ranks: list[dict[str, Any]], name: str) -> float | None:
    return sum(_number(rank[name]) for rank in ranks) if all(rank.get(name) is not None for rank in ranks) else None


def _age(whole: dict[str, Any], ranks: list[dict[str, Any]]) -> float:
    """Both stamps are the server's, so a clock that differs from ours does no harm."""
    try:
        answered = datetime.fromisoformat(whole["timestamp"]).timestamp()
        return max(0.0, answered - min(_number(rank["timestamp"]) for rank in ranks))
    except (KeyError, TypeError, ValueError):
        return 0.0


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number
