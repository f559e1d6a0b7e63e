"""The times of one request, each defined once. All in seconds; None means unknown, never zero.

* TTFT: sent → first non-empty text piece. Role and empty events do not count; a stream without text has none.
* Time to first reasoning: sent → first non-empty reasoning piece, kept beside it.
* TPOT: (last − first text piece) / (output tokens − 1). Output tokens are the server's; without them it is unknown.
  Where the answer also holds reasoning, the text's own tokens must be known for it (output − reasoning).
* ITL: gaps between text pieces; a piece is not a token unless the server says so.
* E2E: sent → [DONE]. A stream without [DONE] was cut and has none.
* Output rate: output tokens / E2E, which is the throughput of a single request.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vlmconsole.engines.stream import StreamResult


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and output tokens per second; see the module for each definition."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    output_tokens_per_s: float | None
    ttfr_s: float | None = None
    """Time to first reasoning piece."""


def timing(result: StreamResult) -> Timing:
    """The times of one finished stream. A body that came whole (not streamed) has only its E2E and rate."""
    stamps = result.stamps
    e2e = _gap(stamps.sent, stamps.done)
    tokens = result.usage.completion_tokens
    rate = tokens / e2e if tokens is not None and e2e else None
    if not result.streamed:
        return Timing(None, None, e2e, rate)
    return Timing(
        ttft_s=_gap(stamps.sent, stamps.first_text),
        tpot_s=_tpot(result),
        e2e_s=e2e,
        output_tokens_per_s=rate,
        ttfr_s=_gap(stamps.sent, stamps.first_reasoning),
    )


def gaps(result: StreamResult) -> list[float]:
    """Inter-piece gaps in seconds (ITL per piece), in order."""
    return [later - earlier for earlier, later in pairwise(result.stamps.text_pieces)]


def _tpot(result: StreamResult) -> float | None:
    tokens, stamps = result.usage.completion_tokens, result.stamps
    if result.reasoning and tokens is not None:
        spent = result.usage.reasoning_tokens
        tokens = tokens - spent if spent else None
    span = _gap(stamps.first_text, stamps.last_text)
    # One piece alone, or all of them in one read, spans no time: nothing was measured between the tokens.
    if tokens is None or tokens < 2 or not span:
        return None
    return span / (tokens - 1)


def _gap(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
