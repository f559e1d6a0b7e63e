"""mlx-vlm's `/v1/metrics` (JSON): counters, what is in flight, and the last requests one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vlmconsole.gauges.figures import SourceError, beginning
from vlmconsole.gauges.prometheus import Scrape
from vlmconsole.system.bounded_http import json_value


@dataclass(frozen=True)
class Request:
    """One finished request as the server saw it: its end (server's wall clock), TTFT and time per token in seconds."""

    ended: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True)
class MlxReading:
    """One answer. `recent` holds at most the last 32 finished requests, oldest first: the server keeps no more."""

    scrape: Scrape
    recent: tuple[Request, ...]
    apc: bool  # whether the prefix cache is on
    last_error: str


def read_mlx(text: str) -> MlxReading:
    """The figures of an answer; `in_flight` holds the waiting ones too. Raises SourceError when it is no such."""
    try:
        whole = json_value(text)
        summary, server = whole["summary"], whole["server"]
        scrape = Scrape()
        for figure, name in (
            ("prompt_tokens", "prompt_tokens_total"),
            ("output_tokens", "generated_tokens_total"),
            ("requests", "requests_completed"),
            ("failed", "requests_failed"),
            # Time since the start falls with a restart, even when no request came before it.
            ("uptime", "uptime_s"),
        ):
            scrape.counters[figure] = _number(summary[name])
        queued = _number(server["request_queue_depth"])
        scrape.gauges["queued"] = queued
        scrape.gauges["running"] = max(0.0, _number(summary["in_flight"]) - queued)
        apc = server.get("apc") or {}
        _prefix_cache(scrape, apc)
        recent = tuple(_request(item) for item in whole.get("recent") or ())
        error = summary.get("last_error") or {}
        return MlxReading(scrape, recent, bool(apc.get("enabled")), str(error.get("error", ""))[:200])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SourceError(f"the metrics are not what mlx-vlm sends: {beginning(text)}") from None


def _prefix_cache(scrape: Scrape, apc: dict[str, Any]) -> None:
    """With APC on the server counts the tokens it looked up and those it found."""
    matched = apc.get("matched_tokens")
    if apc.get("enabled") and matched is not None:
        scrape.counters["cached_tokens"] = _number(matched)


def _request(item: dict[str, Any]) -> Request:
    tokens, decode = _maybe(item.get("generated_tokens")), _maybe(item.get("decode_elapsed_s"))
    # The decode time spans the gaps between the tokens, one fewer than there are tokens.
    tpot = decode / (tokens - 1) if tokens is not None and decode is not None and tokens > 1 else None
    return Request(_number(item["timestamp_unix"]), _maybe(item.get("ttft_s")), tpot)


def _maybe(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number
