"""What every figure means: formula, unit, and where the well-known clients count differently.

The figures of a single request (TTFT, TPOT, ITL, E2E) are computed in one place, `streams.timing`, so
that the chat page and a benchmark cannot disagree; here they are gathered over requests. All times are
seconds of one monotonic clock, and what is unknown is left out of a figure, never put in as zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEFINITIONS = {
    "ttft_s": (
        "sent → first non-empty text piece; role and empty chunks do not count. sent is taken just before the"
        " first byte goes to the kernel, on an open connection, with the image's bytes ready. Reasoning has its"
        " own time beside it (ttfr_s). Others: vLLM's client counts the first chunk with choices, even empty;"
        " aiperf lets reasoning be the first token; sglang's starts its clock after its own semaphore."
    ),
    "ttft_from_scheduled_s": (
        "scheduled → first non-empty text piece; open loop only. It contains the time that a late client or a"
        " missing connection cost, which clients that count from sending leave out (coordinated omission)."
    ),
    "ttfr_s": "sent → first non-empty reasoning piece.",
    "tpot_s": (
        "(last text piece − first text piece) / (text tokens − 1). Text tokens are the output tokens of the server's"
        " usage, less the reasoning tokens; without these where it reasons, and where it reasons in mid-text, unknown."
        " Others: guidellm's TPOT contains TTFT; clients that count chunks divide by another number."
    ),
    "itl_s": (
        "gaps between neighbouring text pieces, none where reasoning came between them. Where pieces are not tokens"
        " it is per piece, and says so. Others:"
        " aiperf's ITL is an average, (latency − TTFT) / (tokens − tokens of the first chunk)."
    ),
    "e2e_s": "sent → [DONE]. A stream without [DONE] has none. Others stop at the last chunk of any kind.",
    "throughput_tok_s": (
        "Σ output tokens of counted requests / (last end − first sent). Others: sglang's client falls back to the"
        " requested length, some count chunks or words."
    ),
    "requests_per_s": "counted requests / (last end − first sent).",
    "in_flight": "time average and peak of requests between sent and end, over first sent … last end.",
}


def throughput(tokens: Iterable[int | None], first_sent: float, last_end: float) -> float | None:
    """Output tokens a second over the whole span; None as soon as one request's tokens are unknown."""
    counts = list(tokens)
    known = [count for count in counts if count is not None]
    if not counts or len(known) < len(counts) or last_end <= first_sent:
        return None
    return sum(known) / (last_end - first_sent)


@dataclass(frozen=True)
class InFlight:
    """Requests in flight: the average over time, and the peak."""

    mean: float
    max: int


def in_flight(spans: Iterable[tuple[float, float]]) -> InFlight | None:
    """Return how many of the `(sent, end)` spans ran at once. An end at the moment of a start does not overlap it."""
    edges = sorted((at, step) for sent, end in spans for at, step in ((sent, 1), (end, -1)))
    if not edges or edges[-1][0] <= edges[0][0]:
        return None
    area, now, peak, before = 0.0, 0, 0, edges[0][0]
    for at, step in edges:
        area += now * (at - before)
        now += step
        peak = max(peak, now)
        before = at
    return InFlight(area / (edges[-1][0] - edges[0][0]), peak)


def span_text(values: Iterable[int | None]) -> int | str | None:
    """Return one number when all agree, `"120–128"` when they differ, None when any is unknown or there is none."""
    listed = list(values)
    if not listed or any(value is None for value in listed):
        return None
    low, high = min(v for v in listed if v is not None), max(v for v in listed if v is not None)
    return low if low == high else f"{low}–{high}"
