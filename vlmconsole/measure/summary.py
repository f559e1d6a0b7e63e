"""One cell's summary: figures with n, what failed and what was set aside, and the client's own lag."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.measure.client.replay import Measured, from_scheduled
from vlmconsole.measure.definitions import InFlight, in_flight, span_text, throughput
from vlmconsole.measure.machine_load import HostLoad
from vlmconsole.measure.request_table import RequestTable, RequestTimes
from vlmconsole.measure.settings import FAILURE_LIMIT, LAG_SHARE
from vlmconsole.measure.slo import Slo, goodput
from vlmconsole.measure.steady import steady_figures
from vlmconsole.scoring.distribution import Distribution, distribution
from vlmconsole.text.numbers import percent

#: how the request asked for its end, and how the server says that it reached it
LENGTH = "length"


@dataclass(frozen=True)
class Lag:
    """How late the client was, seconds. `probe`: a timer that was due every few milliseconds.
    `kernel`: own stamp − the kernel's receive stamp, per read; None where the kernel says nothing (`why`).
    `run_queue_wait_s`: how long the client was ready and had no processor.
    """

    probe: Distribution | None
    kernel: Distribution | None
    why: str | None = None
    run_queue_wait_s: float | None = None
    wall_step_s: float = 0.0

    def worst_p99(self) -> float | None:
        """Return the larger of both p99, seconds."""
        return max((d.p99 for d in (self.probe, self.kernel) if d is not None), default=None)


@dataclass(frozen=True)
class ClientCost:
    """What the client itself took. CPU is of the measured phase; a piece is one non-empty text piece."""

    cpu_s: float
    cpu_us_per_read: float | None
    cpu_us_per_piece: float | None
    rss_bytes: int
    start_s: float | None  # from asking for the cell to its first request, warm-up included
    connections: int


@dataclass(frozen=True)
class CellSummary:
    """Everything that one cell says. Times in seconds; a figure that is not known is None, never zero."""

    name: str
    valid: bool
    invalid_because: str | None
    lag_limit_s: float
    planned: int
    n: int  # requests that count
    failures: int
    failure_kinds: dict[str, int]
    set_aside: dict[str, int]
    warm_up: int
    warm_up_failures: int
    finish_reasons: dict[str, int]
    ttft_s: Distribution | None
    ttft_from_scheduled_s: Distribution | None
    ttft_kernel_s: Distribution | None
    ttfr_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    itl_per: str | None  # "token" when every piece was one token, else "piece"
    e2e_s: Distribution | None
    throughput_tok_s: float | None
    requests_per_s: float | None
    duration_s: float | None
    input_tokens: int | str | None
    output_tokens: int | str | None
    cached_tokens: int | str | None
    total_input_tokens: int | None
    total_output_tokens: int | None
    in_flight: InFlight | None
    lag: Lag
    client: ClientCost | None
    server: dict[str, Distribution]  # what was scraped of the server meanwhile, e.g. running, waiting
    first_failures: list[str] = field(default_factory=list)
    tpot_left_out: dict[str, int] = field(default_factory=dict)  # counted answers without a TPOT, by the reason
    models: dict[str, int] = field(default_factory=dict)  # names in the counted answers: how many held each
    failure_limit: float = FAILURE_LIMIT  # largest share of failures of a valid cell
    host: HostLoad | None = None  # how busy the client's machine was
    steady: dict[str, Any] | None = None  # the steady window and its figures: see measure.steady
    goodput: dict[str, Any] | None = None  # where an objective was given: see measure.slo.goodput

    def to_json(self) -> dict[str, Any]:
        value = dataclasses.asdict(self)
        for key in ("goodput", "steady"):
            if value[key] is None:
                del value[key]
        return value


class Gatherer:
    """Takes understood requests one by one, and keeps only the numbers of them."""

    def __init__(self, wanted_output: int | Sequence[int] | None, equal_work: bool, slo: Slo | None = None) -> None:
        self.wanted_output, self.equal_work, self.slo = wanted_output, equal_work, slo
        self.table = RequestTable()
        self.measured = self.warm_up = self.warm_up_failures = self.pieces = self.not_sent = 0
        self.failures: Counter[str] = Counter()
        self.first_failures: dict[str, str] = {}
        self.aside: Counter[str] = Counter()
        self.finish: Counter[str] = Counter()
        self.no_tpot: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.times: dict[str, list[float | None]] = {
            key: [] for key in ("ttft", "scheduled", "kernel", "ttfr", "tpot", "e2e")
        }
        self.itl, self.kernel_lag = array("d"), array("d")
        self.piece_is_token = True
        self.prompt: list[int | None] = []
        self.output: list[int | None] = []
        self.cached: list[int | None] = []
        self.spans: list[tuple[float, float]] = []
        self.all_spans: list[tuple[float, float]] = []

    def add_warm_up(self, request: Measured) -> None:
        self.warm_up += 1
        self.warm_up_failures += request.failure is not None

    def add(self, request: Measured) -> str | None:
        """Take one measured request; returns why it was set aside, or None."""
        self.measured += 1
        self.kernel_lag.extend(request.kernel_lag_s)
        self.pieces += len(request.result.stamps.text_pieces)
        sent = None if request.raw.sent is None else request.raw.sent / 1e9
        if sent is not None:
            self.all_spans.append((sent, request.ended_s))
        if request.failure is not None:
            self.add_failure(request.failure.kind, request.failure.detail, sent, request.ended_s)
            return None
        self.finish[request.result.finish_reason or "not said"] += 1
        tokens, wanted = request.result.usage.completion_tokens, self.wanted(request.raw.number)
        if self.equal_work and tokens != wanted:
            reason = "unknown output" if tokens is None else "early stop" if tokens < (wanted or 0) else "overlong"
            self.aside[reason] += 1
            return f"{reason}: {tokens if tokens is not None else '?'} of {wanted} tokens"
        stamps, timing = request.result.stamps, request.timing
        if sent is not None:
            end = stamps.done if stamps.done is not None else request.ended_s
            self.spans.append((sent, end))
            times = (timing.ttft_s, timing.ttfr_s, timing.tpot_s, timing.e2e_s)
            self.table.add(RequestTimes(sent, end, *times, tokens))
        self.times["ttft"].append(timing.ttft_s)
        self.times["scheduled"].append(from_scheduled(request))
        self.times["kernel"].append(request.ttft_kernel_s)
        self.times["ttfr"].append(timing.ttfr_s)
        self.times["tpot"].append(timing.tpot_s)
        if timing.tpot_s is None:
            self.no_tpot[timing.tpot_why or "not known"] += 1
        self.times["e2e"].append(timing.e2e_s)
        self.itl.extend(request.gaps_s)
        self.piece_is_token &= tokens is not None and tokens == len(stamps.text_pieces)
        self.models.update(request.result.models)
        self.prompt.append(request.result.usage.prompt_tokens)
        self.output.append(tokens)
        self.cached.append(request.result.usage.cached_tokens)
        return None

    def wanted(self, number: int) -> int | None:
        """Return how many tokens request `number` should give; None: not known."""
        return self.wanted_output if not isinstance(self.wanted_output, Sequence) else self.wanted_output[number]

    def add_not_sent(self, kind: str, why: str) -> None:
        self.not_sent += 1
        self.add_failure(kind, why)

    def add_failure(self, kind: str, detail: str, sent: float | None = None, end: float = 0.0) -> None:
        self.failures[kind] += 1
        self.table.add(RequestTimes(end if sent is None else sent, end, failed=True))
        self.first_failures.setdefault(kind, detail)

    def summary(
        self,
        *,
        name: str,
        lag: Lag,
        lag_limit_s: float,
        client: ClientCost | None,
        server: dict[str, Distribution],
        broken: str | None,
        failure_limit: float = FAILURE_LIMIT,
        host: HostLoad | None = None,
        concurrency: int | None = None,
    ) -> CellSummary:
        """Return the summary of what was taken. `broken`: why the client itself did not finish, if it did not;
        `concurrency` is that of a closed loop.
        """
        counted = len(self.e2e)
        first = min((sent for sent, _ in self.spans), default=0.0)
        last = max((end for _, end in self.spans), default=0.0)
        took = last - first if last > first else None
        ttft = distribution(self.times["ttft"])
        # Beside answers that take seconds a lag that would spoil milliseconds does no harm.
        limit_s = _lag_limit(lag_limit_s, ttft.p50 if ttft else None)
        why = (
            broken
            or self._failed_too_often(failure_limit)
            or _lag_verdict(lag, lag_limit_s, ttft.p50 if ttft else None)
            or (None if counted else "no request was counted")
        )
        total_in = [count for count in self.prompt if count is not None]
        total_out = [count for count in self.output if count is not None]
        return CellSummary(
            name=name,
            valid=why is None,
            invalid_because=why,
            lag_limit_s=limit_s,
            planned=self.measured + self.not_sent,
            n=counted,
            failures=sum(self.failures.values()),
            failure_kinds=dict(self.failures),
            set_aside=dict(self.aside),
            warm_up=self.warm_up,
            warm_up_failures=self.warm_up_failures,
            finish_reasons=dict(self.finish),
            ttft_s=ttft,
            ttft_from_scheduled_s=distribution(self.times["scheduled"]),
            ttft_kernel_s=distribution(self.times["kernel"]),
            ttfr_s=distribution(self.times["ttfr"]),
            tpot_s=distribution(self.times["tpot"]),
            itl_s=distribution(self.itl),
            itl_per=None if not self.itl else "token" if self.piece_is_token else "piece",
            e2e_s=distribution(self.e2e),
            throughput_tok_s=throughput(self.output, first, last),
            requests_per_s=counted / took if took else None,
            duration_s=took,
            input_tokens=span_text(self.prompt),
            output_tokens=span_text(self.output),
            cached_tokens=span_text(self.cached),
            total_input_tokens=sum(total_in) if len(total_in) == counted and counted else None,
            total_output_tokens=sum(total_out) if len(total_out) == counted and counted else None,
            in_flight=in_flight(self.all_spans),
            lag=lag,
            client=client,
            server=server,
            first_failures=[f"{kind}: {detail}" for kind, detail in self.first_failures.items()],
            tpot_left_out=dict(self.no_tpot),
            models=dict(self.models),
            failure_limit=failure_limit,
            host=host,
            steady=steady_figures(self.table, concurrency),
            goodput=None if self.slo is None else goodput(self.slo, self.table, took),
        )

    def _failed_too_often(self, limit: float) -> str | None:
        planned, failed = self.measured + self.not_sent, sum(self.failures.values())
        if not planned or failed <= limit * planned:
            return None
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.failures.most_common())
        share = percent(failed / planned, 0)
        return (
            f"{failed} of {planned} requests failed ({share}; {kinds}), more than failure_limit {limit:g}:"
            " the others are no sample of the load that was asked for"
        )

    @property
    def e2e(self) -> list[float | None]:
        return self.times["e2e"]


def _lag_limit(lag_limit_s: float, ttft_s: float | None) -> float:
    return max(lag_limit_s, LAG_SHARE * ttft_s) if ttft_s is not None else lag_limit_s


def _lag_verdict(lag: Lag, lag_limit_s: float, ttft_s: float | None) -> str | None:
    worst, limit_s = lag.worst_p99(), _lag_limit(lag_limit_s, ttft_s)
    if worst is None or worst <= limit_s:
        return None
    asked = f"lag_limit_ms {lag_limit_s * 1000:.3g}"
    median = f"{percent(LAG_SHARE, 0)} of the median TTFT"
    source = f"{median}, which is more than {asked}" if limit_s > lag_limit_s else asked
    return (
        f"load client too slow: p99 lag {worst * 1000:.1f} ms (limit {limit_s * 1000:.1f} ms: {source})."
        " Use an idle CPU or lower concurrency."
    )
