"""Service-level objectives: how long a request may take, how many may take longer, and what load kept to it.

Written `ttft_p95<=0.8,tpot_p95<=0.05`: of all requests at most 5 % may take more than 0.8 s to the first text, and at
most 5 % more than 0.05 s a token. A request is good when it keeps every limit; goodput is good requests per second
(as DistServe, Zhong et al., OSDI 2024, defines it).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.measure.request_table import RequestTable, RequestTimes
from vlmconsole.scoring.shares import share_interval
from vlmconsole.text.numbers import figure, percent

_LIMIT = re.compile(r"(ttft|ttfr|tpot|e2e)_p(\d{1,2}(?:\.\d+)?)\s*(?:<=|≤)\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)?", re.ASCII)
MOST_SECONDS = 86_400
EXAMPLE = "ttft_p95<=0.8,tpot_p95<=0.05"


@dataclass(frozen=True)
class SloLimit:
    """One limit: at most `allowed` of the requests may have a `figure` above `seconds`."""

    figure: str  # ttft, ttfr, tpot or e2e
    percent: float  # of the requests that must keep it
    seconds: float

    @property
    def allowed(self) -> float:
        """The share of requests, 0 to 1, that may break it."""
        return round(1 - self.percent / 100, 9)

    def broken_by(self, request: RequestTimes) -> bool | None:
        """Return whether a request breaks it: one that failed does; None where its figure is not known."""
        if request.failed:
            return True
        value: float | None = getattr(request, self.figure)
        return None if value is None else value > self.seconds

    def __str__(self) -> str:
        return f"{self.figure}_p{self.percent:g}<={self.seconds:g}"


@dataclass(frozen=True)
class Slo:
    """All limits of one objective, in their order."""

    limits: tuple[SloLimit, ...]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Return the objective that `text` writes. Raises ValueError, naming the part that is none."""
        limits: list[SloLimit] = []
        for part in text.split(","):
            match = _LIMIT.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"“{part.strip()[:60]}” is no limit: write FIGURE_pNN<=SECONDS, e.g. {EXAMPLE}")
            figure, percent, amount, unit = match.groups()
            seconds = float(amount) / (1000 if unit == "ms" else 1)
            if float(percent) <= 0 or not 0 < seconds <= MOST_SECONDS:
                raise ValueError(f"“{part.strip()}”: the percentile is above 0, the limit above 0 and at most a day")
            if any(limit.figure == figure and limit.percent == float(percent) for limit in limits):
                raise ValueError(f"{figure}_p{percent} has two limits")
            limits.append(SloLimit(figure, float(percent), seconds))
        return cls(tuple(limits))

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    def good(self, request: RequestTimes) -> bool:
        """Return whether a request came through and breaks no limit that its figures can tell of."""
        return not request.failed and not any(limit.broken_by(request) for limit in self.limits)


@dataclass(frozen=True)
class LimitKept:
    """How one limit was kept: `violating` of `n` requests broke it, the share with its 95 % interval.

    `unknown`: requests whose figure is not known, which are in no share. `holds` None: none is known.
    """

    limit: SloLimit
    n: int
    broken: int
    unknown: int

    @property
    def violating(self) -> float | None:
        return self.broken / self.n if self.n else None

    @property
    def holds(self) -> bool | None:
        return None if self.violating is None else self.violating <= self.limit.allowed

    def to_json(self) -> dict[str, Any]:
        low, high = share_interval(self.broken, self.n) if self.n else (None, None)
        counts = {"n": self.n, "violating": self.violating, "low": low, "high": high}
        allowed = {"allowed": self.limit.allowed, "holds": self.holds, "unknown": self.unknown}
        return {"limit": str(self.limit), **counts, **allowed}


def kept(limit: SloLimit, requests: Iterable[RequestTimes]) -> LimitKept:
    """Return how `requests` kept one limit."""
    counts = Counter(limit.broken_by(request) for request in requests)
    return LimitKept(limit, counts[True] + counts[False], counts[True], counts[None])


def slo_sentence(summary: Mapping[str, Any]) -> str:
    """Return a summary's goodput for people: good requests per second, and each limit that was not kept; "" without
    one.
    """
    value = summary.get("goodput")
    if not isinstance(value, dict):
        return ""
    rate, count = figure(value.get("requests_per_s")), f"{figure(value.get('good'))} of {figure(value.get('n'))}"
    listed = value.get("limits")
    limits = [limit for limit in listed if isinstance(limit, dict)] if isinstance(listed, list) else []
    broken = [
        f"{limit.get('limit')} broken by {percent(limit.get('violating'))} (allowed {percent(limit.get('allowed'), 0)})"
        for limit in limits
        if limit.get("holds") is False
    ]
    unknown = [f"{limit.get('limit')} not known" for limit in limits if limit.get("holds") is None]
    verdict = "holds" if value.get("holds") is True else "; ".join([*broken, *unknown])
    return f"goodput {rate} requests/s, {count} requests good · {value.get('slo')}: {verdict}"


def goodput(slo: Slo, requests: Sequence[RequestTimes] | RequestTable, seconds: float | None) -> dict[str, Any]:
    """Return what of a load kept to the objective, as it stands in a summary.

    requests: those that count and those that failed; seconds: the span in which they were sent and answered.
    `holds` is whether every limit was kept by the share it asks for; None where one of them cannot be told.
    """
    good = sum(slo.good(request) for request in requests)
    limits = [kept(limit, requests) for limit in slo.limits]
    verdicts = [limit.holds for limit in limits]
    holds = False if False in verdicts else None if None in verdicts else True
    return {
        "slo": str(slo),
        "n": len(requests),
        "good": good,
        "share": good / len(requests) if requests else None,
        "requests_per_s": good / seconds if seconds else 0.0 if requests and not good else None,
        "holds": holds,
        "limits": [limit.to_json() for limit in limits],
    }
