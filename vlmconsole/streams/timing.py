"""The times of one request, each defined once. All in seconds; None means unknown, never zero.

* TTFT: sent → first non-empty text piece. Role and empty events do not count; a stream without text has none.
* Time to first reasoning: sent → first non-empty reasoning piece, kept beside it.
* TPOT: (last − first text piece) / (text tokens − 1). Text tokens are output − reasoning tokens, both the server's.
  Unknown, with the reason, without them; where reasoning came and its tokens are not reported; and where reasoning
  came between two pieces of text, whose time would count as the text's.
* ITL: gaps between text pieces; a piece is not a token unless the server says so. None where reasoning came between.
* E2E: sent → [DONE]. A stream without [DONE] was cut and has none.
* Output rate: output tokens / E2E, which is the throughput of a single request.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vlmconsole.streams.stream import StreamResult


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and output tokens per second; see the module for each definition."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    output_tokens_per_s: float | None
    ttfr_s: float | None = None
    """Time to first reasoning piece."""
    tpot_why: str = ""
    """Why there is no TPOT; "" where there is one."""


def timing(result: StreamResult) -> Timing:
    """Return the times of one finished stream. A body that came whole (not streamed) has only its E2E and rate."""
    stamps = result.stamps
    e2e = _gap(stamps.sent, stamps.done)
    tokens = result.usage.completion_tokens
    rate = tokens / e2e if tokens is not None and e2e else None
    if not result.streamed:
        return Timing(None, None, e2e, rate, tpot_why="the answer came whole")
    tpot, why = _tpot(result)
    return Timing(
        ttft_s=_gap(stamps.sent, stamps.first_text),
        tpot_s=tpot,
        e2e_s=e2e,
        output_tokens_per_s=rate,
        ttfr_s=_gap(stamps.sent, stamps.first_reasoning),
        tpot_why=why,
    )


def gaps(result: StreamResult) -> list[float]:
    """Inter-piece gaps in seconds (ITL per piece), in order."""
    if _mixed(result):
        return []
    return [later - earlier for earlier, later in pairwise(result.stamps.text_pieces)]


def _tpot(result: StreamResult) -> tuple[float | None, str]:
    tokens, stamps = result.usage.completion_tokens, result.stamps
    if tokens is None:
        return None, "output tokens not reported"
    if stamps.first_reasoning is not None:
        spent = result.usage.reasoning_tokens
        if not spent:
            return None, "reasoning tokens not reported"
        if _mixed(result):
            return None, "reasoning came between pieces of text"
        tokens -= spent
    span = _gap(stamps.first_text, stamps.last_text)
    # One piece alone, or all of them in one read, spans no time: nothing was measured between the tokens.
    if tokens < 2 or not span:
        return None, "the text came at one moment" if tokens > 1 else "less than two text tokens"
    return span / (tokens - 1), ""


def _mixed(result: StreamResult) -> bool:
    """Whether reasoning came between two pieces of text."""
    last, stamps = result.stamps.last_reasoning, result.stamps
    return last is not None and stamps.first_text is not None and stamps.first_text < last < (stamps.last_text or last)


def _gap(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
