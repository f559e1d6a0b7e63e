"""mlx-vlm's `/v1/metrics` (JSON): counters, what is in flight, and the last requests one by one."""

from __future__ import annotations

import math
from typing import Any

from vlmconsole.engines.metrics import FinishedRequest, MetricsError, MetricTable, Scrape
from vlmconsole.system.bounded_http import json_value
from vlmconsole.text.plain import beginning


class MlxMetrics(MetricTable):
    """Read from JSON: there are no names to look up. At most the last 32 finished requests are listed."""

    def recognises(self, text: str) -> bool:
        return False  # found by the server's own name, not by its metrics

    def read(self, text: str) -> Scrape:
        """Return the figures of an answer; `in_flight` holds the waiting ones too. Raises MetricsError when it is no
        such.
        """
        try:
            whole = json_value(text)
            summary, server = whole["summary"], whole["server"]
            scrape = Scrape(absent=dict(_ABSENT))
            for figure, name in _COUNTERS.items():
                scrape.counters[figure] = _number(summary[name])
            queued = _number(server["request_queue_depth"])
            scrape.gauges["queued"] = queued
            scrape.gauges["running"] = max(0.0, _number(summary["in_flight"]) - queued)
            _prefix_cache(scrape, server.get("apc") or {})
            scrape.recent = tuple(_request(item) for item in whole.get("recent") or ())
            return scrape
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MetricsError(f"the metrics are not what mlx-vlm sends: {beginning(text)}") from None


_COUNTERS = {
    "prompt_tokens": "prompt_tokens_total",
    "output_tokens": "generated_tokens_total",
    "requests": "requests_completed",
    "failed": "requests_failed",
    # Time since the start falls with a restart, even when no request came before it.
    "uptime": "uptime_s",
}
_ABSENT = {
    "kv": "not reported by mlx-vlm",
    "queue_time": "not reported by mlx-vlm",
}


def _prefix_cache(scrape: Scrape, apc: dict[str, Any]) -> None:
    """With APC on the server counts the tokens it looked up and those it found."""
    if not apc.get("enabled"):
        scrape.absent["hit_rate"] = "the prefix cache is off (APC_ENABLED)"
    elif (matched := apc.get("matched_tokens")) is not None:
        scrape.counters["cached_tokens"] = _number(matched)


def _request(item: dict[str, Any]) -> FinishedRequest:
    tokens, decode = _maybe(item.get("generated_tokens")), _maybe(item.get("decode_elapsed_s"))
    # The decode time spans the gaps between the tokens, one fewer than there are tokens.
    tpot = decode / (tokens - 1) if tokens is not None and decode is not None and tokens > 1 else None
    return FinishedRequest(_number(item["timestamp_unix"]), _maybe(item.get("ttft_s")), tpot)


def _maybe(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number
