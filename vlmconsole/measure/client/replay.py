"""Raw reads → what a request measured: HTTP and the chat stream are parsed here, after the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmconsole.measure.client.framing import Framing
from vlmconsole.measure.client.spill import CANCELLED, CLOSED, GARBAGE, WHOLE, Raw
from vlmconsole.measure.client.stamps import kernel_wall_ns
from vlmconsole.streams.head import head_fault
from vlmconsole.streams.stream import StreamParser, StreamResult, error_text
from vlmconsole.streams.timing import Timing, gaps, timing
from vlmconsole.system.redaction import redact, without_keys

HTTP_ERROR, ERROR_EVENT, NOT_SENT, NO_STREAM = "http error", "error event", "not sent", "no stream"
LOST = "events lost"  # the stream came to its end, but not all of it could be read
FAR_NS = 3_600_000_000_000  # a kernel stamp further away than this came from a stepped wall clock
HEAD_KEPT = 2000  # bytes of an unreadable answer that are kept as evidence
TEXT_KEPT = 4000  # characters of an answer that are kept in requests.jsonl


@dataclass(frozen=True)
class RequestFailure:
    """Why a request does not count: the kind (countable) and a sentence (readable)."""

    kind: str
    detail: str
    status: int | None = None
    received: str | None = None  # the beginning of what came, when it could not be understood


@dataclass(frozen=True)
class Measured:
    """One request, understood. Times in seconds of the monotonic clock; differences in `timing` and `gaps_s`.

    `kernel_lag_s` holds, for each read, own stamp − kernel receive stamp; empty where the kernel says nothing.
    `ttft_kernel_s` is TTFT with the kernel's stamp of the read that held the first text: an estimate
    beside the figure, never instead of it.
    """

    raw: Raw
    result: StreamResult
    timing: Timing
    gaps_s: list[float]
    failure: RequestFailure | None
    reads: int
    kernel_lag_s: list[float]
    ttft_kernel_s: float | None

    @property
    def ended_s(self) -> float:
        return self.raw.end / 1e9


class _Body:
    """Hands the body on to the stream parser with the time of the present read, and keeps its beginning."""

    def __init__(self, stream: StreamParser) -> None:
        self.stream = stream
        self.now = 0.0
        self.kept = bytearray()

    def take(self, data: bytes) -> None:
        if len(self.kept) < 2 * HEAD_KEPT:
            self.kept += data[: 2 * HEAD_KEPT - len(self.kept)]
        self.stream.feed(data, self.now)


def understand(raw: Raw) -> Measured:
    """Parse the reads of one request, each with its own time, and say whether it failed and of what."""
    stream = StreamParser(sent=None if raw.sent is None else raw.sent / 1e9)
    body = _Body(stream)
    framing = Framing(body.take)
    for at, _, data in raw.reads:
        body.now = at / 1e9
        if framing.feed(data):
            break
    stream.finish(raw.end / 1e9, cancelled=raw.outcome == CANCELLED)
    result = stream.result
    if raw.reads:
        result.stamps.first_byte = raw.reads[0][0] / 1e9  # of the answer, its head included
    lags, ttft_kernel = _kernel(raw, result)
    failure = _failure(raw, result, body, framing)
    framing.release()
    return Measured(
        raw=raw,
        result=result,
        timing=timing(result),
        gaps_s=gaps(result) if result.streamed else [],
        failure=failure,
        reads=len(raw.reads),
        kernel_lag_s=lags,
        ttft_kernel_s=ttft_kernel,
    )


def _kernel(raw: Raw, result: StreamResult) -> tuple[list[float], float | None]:
    lags: list[float] = []
    ttft = None
    for at, ancillary, _ in raw.reads:
        wall = kernel_wall_ns(ancillary)
        if wall is None or abs(at - (wall - raw.wall_offset)) > FAR_NS:
            continue
        arrived = wall - raw.wall_offset
        lags.append((at - arrived) / 1e9)
        if result.stamps.first_text == at / 1e9 and raw.sent is not None:
            ttft = (arrived - raw.sent) / 1e9
    return lags, ttft


def _failure(raw: Raw, result: StreamResult, body: _Body, framing: Framing) -> RequestFailure | None:
    """The first reason that holds, from the wire upwards; None when the answer is whole and no error."""
    broken, status, head = framing.broken, framing.status or None, framing.head
    shown = _shown(raw, body)
    pieces = len(result.stamps.text_pieces)
    if raw.outcome == GARBAGE or broken:
        return RequestFailure(GARBAGE, f"what came is no HTTP answer{f' ({broken})' if broken else ''}", None, shown)
    if status is not None and status >= 400:
        reason = result.error or error_text(shown or "nothing")
        return RequestFailure(HTTP_ERROR, f"the server answered {status}: {reason}", status, shown)
    if raw.outcome in (WHOLE, CLOSED) and status is not None and (wrong := head_fault(status, head)):
        return RequestFailure(HTTP_ERROR if status >= 300 else NO_STREAM, f"the server answered {wrong}", status)
    if raw.outcome not in (WHOLE, CLOSED):
        reached = f" after {pieces} pieces of text" if raw.reads else ""
        return RequestFailure(raw.outcome, f"{raw.detail or raw.outcome}{reached}", status)
    if result.error is not None:
        streamed = result.events > 0
        kind = ERROR_EVENT if streamed else NO_STREAM
        detail = f"the stream broke with an error after {pieces} pieces: {result.error}" if streamed else result.error
        return RequestFailure(kind, detail, status, None if streamed else shown)
    if result.stamps.done is None:
        where = f"after {pieces} pieces of text" if raw.reads else "without an answer"
        how = "the server closed the connection" if raw.outcome == CLOSED else "the stream ended"
        lost = f"; {result.loss}" if result.loss else ""
        return RequestFailure(CLOSED, f"{how} {where}, before [DONE]{lost}", status, None if pieces else shown)
    if result.loss:
        return RequestFailure(LOST, result.loss, status)
    return None


def _shown(raw: Raw, body: _Body) -> str:
    data = bytes(body.kept) or b"".join(data for _, _, data in raw.reads[:4])
    # Hidden before it is cut: half a key is a leak, too.
    return redact(data[: 2 * HEAD_KEPT].decode("utf-8", "replace"))[:HEAD_KEPT]


def to_row(request: Measured, *, counted: bool, aside: str | None = None) -> dict[str, Any]:
    """Return the line of requests.jsonl. Stamps are seconds after the phase's start, durations seconds, both to 1
    µs.
    """
    raw, result, stamps, zero = request.raw, request.result, request.result.stamps, request.raw.zero
    start = zero / 1e9

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - start, 6)

    def of_ns(at: int | None) -> float | None:
        return None if at is None else round((at - zero) / 1e9, 6)

    usage = result.usage
    row: dict[str, Any] = {
        "index": raw.number,
        "phase": raw.phase,
        "counted": counted,
        "aside": aside,
        "failure": None,
        "scheduled": of_ns(raw.scheduled),
        "sent": of_ns(raw.sent),
        "send_done": of_ns(raw.send_done),
        "first_byte": since(stamps.first_byte),
        "first_any": since(stamps.first_any),
        "first_reasoning": since(stamps.first_reasoning),
        "first_text": since(stamps.first_text),
        "last_text": since(stamps.last_text),
        "done": since(stamps.done),
        "end": of_ns(raw.end),
        "ttft_s": _round(request.timing.ttft_s),
        "ttft_from_scheduled_s": _round(from_scheduled(request)),
        "ttft_kernel_s": _round(request.ttft_kernel_s),
        "ttfr_s": _round(request.timing.ttfr_s),
        "tpot_s": _round(request.timing.tpot_s),
        "tpot_why": request.timing.tpot_why or None,
        "e2e_s": _round(request.timing.e2e_s),
        "itl_s": [round(gap, 6) for gap in request.gaps_s],
        "finish_reason": result.finish_reason,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "image_tokens": usage.image_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "usage": usage.raw[-1:],
        "pieces": len(stamps.text_pieces),
        "unreadable": result.unreadable + result.garbled,
        "models": result.models,
        "reads": request.reads,
        "lag_max_s": _round(max(request.kernel_lag_s, default=None)),
        "connection": raw.connection,
        "served_before": raw.served,
        "text": without_keys(result.text)[:TEXT_KEPT],
    }
    if request.failure is not None:
        row["failure"] = {key: value for key, value in vars(request.failure).items() if value is not None}
    return row


def from_scheduled(request: Measured) -> float | None:
    """TTFT counted from when the request was due (open loop), seconds; None in a closed loop."""
    first = request.result.stamps.first_text
    return None if first is None or request.raw.scheduled is None else first - request.raw.scheduled / 1e9


def not_sent_row(index: int, phase: str, why: str) -> dict[str, Any]:
    """Return the line of a request that was planned and never sent, so that none is missing from the books."""
    return {"index": index, "phase": phase, "counted": False, "failure": {"kind": NOT_SENT, "detail": why}}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
