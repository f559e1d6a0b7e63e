"""Whether a load keeps an objective: a sequential test on the share of requests that break each limit.

A probe is looked at after `first` requests, then after twice as many, and so on, at most after `most`. At each look:

1. A pass begins on an idle server, and a queue takes long to fill: the first third of a pass is left out, what was sent
   before C were in flight, and every pass but the two newest (three quarters of all requests). The newest must not
   drift (`measure.steady.trend`): a queue that still grows may show that the load fails, never that it holds.
2. Requests wait for each other, so n of them say less than n independent ones: the effective number is n / τ, τ the
   larger variance ratio of batch means of the limit's indicator and, where any came to half of the limit, its figure.
3. The share that breaks the limit has Clopper and Pearson's interval at that number. Looking often must not decide by
   chance: the looks share the error (Bonferroni), the last has half of it, the one before a quarter, and so on.
4. *fails* when the interval of one limit lies above what it allows, *holds* when all lie below; else more requests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vlmconsole.measure.request_table import RequestTimes
from vlmconsole.measure.slo import Slo, SloLimit
from vlmconsole.measure.steady import TREND, full_from, trend
from vlmconsole.scoring.shares import share_interval

BATCHES, MOST_ALIKE = 16, 0.9
NEWEST = 2  # passes that count
HOLDS, FAILS, MORE, UNDECIDED = "holds", "fails", "more", "undecided"
#: the rule in words, frozen with its numbers
STEPS = (
    "bracket: double the load while it holds, halve it while it does not",
    "bisect (geometric mean) until the next load that does not hold is within half of the resolution",
    "probe: looks after first, 2 × first, 4 × first … requests, at most after most",
    "look: the two newest passes, each without its first third, the newest without a trend; effective number n / τ;"
    " Clopper–Pearson interval whose error is spent by halves, most of it at the last look",
    "holds: the interval of every limit lies below what it allows; fails: that of one lies above; else more requests",
    "a load that is still undecided after most requests does not hold",
    "confirm the largest load that holds on a fresh start (or a fresh pass); where it does not hold, search below",
)


class CapacityRule(BaseModel):
    """The numbers of the rule. They are frozen before the first probe."""

    model_config = ConfigDict(extra="forbid")

    first: int = Field(200, ge=20, le=100_000, description="requests before a probe is looked at for the first time")
    most: int = Field(4000, ge=20, le=1_000_000, description="requests of one probe at most")
    error: float = Field(0.05, gt=0, lt=0.5, description="chance of a wrong verdict on a load right at the limit")
    resolution: float = Field(
        0.1, gt=0, le=1, description="how near the largest load that holds is found, as a share of it"
    )
    confirmations: int = Field(3, ge=1, le=10, description="confirmations tried at most, each at a lower load")

    def error_after(self, n: int) -> float:
        """Return the share of `error` that the look after `n` requests may spend, on each side of its interval."""
        left = max(0, math.ceil(math.log2(self.most / max(n, self.first)) - 1e-9))
        return float(self.error / 2 ** (left + 1))

    def pass_requests(self, spent: int) -> int:
        """Requests of the next pass of a probe that has had `spent`; 0: it may have no more."""
        return max(0, min(spent or self.first, self.most - spent))


@dataclass(frozen=True)
class LimitShare:
    """The share of requests that break one limit: `low` to `high` at the look's confidence, of `n` effective ones."""

    limit: SloLimit
    share: float | None
    low: float
    high: float
    effective: float
    steady: bool

    @property
    def verdict(self) -> str:
        if self.low > self.limit.allowed:
            return FAILS
        return HOLDS if self.steady and self.high < self.limit.allowed else MORE


@dataclass(frozen=True)
class Look:
    """What is known of one probe: `n` requests sent so far, of which `counted` in windows."""

    n: int
    counted: int
    goodput: float | None  # good requests per second, in the windows
    shares: tuple[LimitShare, ...]
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """Return the limit that decides is the one that is furthest up, as a multiple of what it allows."""
        worst = max(self.shares, key=lambda share: share.high / share.limit.allowed)
        return {
            "n": self.n,
            "counted": self.counted,
            "goodput": self.goodput,
            "violating": worst.share,
            "low": worst.low,
            "high": worst.high,
            "limit": str(worst.limit),
            "verdict": self.verdict,
        }


Pass = Sequence[RequestTimes]


def look(passes: Sequence[Pass], slo: Slo, rule: CapacityRule, concurrency: int | None, sent: int = 0) -> Look:
    """Judge a probe by its passes so far. `concurrency`: of a closed loop, None in an open one; `sent`: requests sent,
    where some of them (set aside) are in no pass.
    """
    chosen = [window for requests in passes[-NEWEST:] if (window := counted(requests, concurrency))]
    steady = bool(chosen) and not drifts(chosen[-1])
    n = max(sent, sum(map(len, passes)))
    shares = tuple(_share(limit, chosen, rule.error_after(n), steady) for limit in slo.limits)
    verdicts = {share.verdict for share in shares}
    verdict = FAILS if FAILS in verdicts else MORE if MORE in verdicts else HOLDS
    if verdict == MORE and n >= rule.most:
        verdict = UNDECIDED
    seconds = sum(max(r.sent for r in requests) - min(r.sent for r in requests) for requests in chosen)
    good = sum(slo.good(request) for requests in chosen for request in requests)
    return Look(n, sum(map(len, chosen)), good / seconds if seconds else None, shares, verdict)


def counted(requests: Pass, concurrency: int | None) -> list[RequestTimes]:
    """Return the requests of a pass after its warm-in, in the order of sending."""
    ordered = sorted(requests, key=lambda request: request.sent)
    full = full_from(ordered, concurrency)
    if full is None:
        return []
    return [request for request in ordered[len(ordered) // 3 :] if request.sent >= full]


def drifts(window: Pass) -> bool:
    """Return whether the times of a window still had a trend."""
    values = [value for r in window if (value := r.e2e if r.ttft is None else r.ttft) is not None]
    return abs(trend(values)) >= TREND


def _share(limit: SloLimit, windows: Sequence[Pass], error: float, steady: bool) -> LimitShare:
    broken = [[value for request in window if (value := limit.broken_by(request)) is not None] for window in windows]
    count, n = sum(map(sum, broken)), sum(map(len, broken))
    if not n:
        return LimitShare(limit, None, 0.0, 1.0, 0.0, False)
    figures = [[getattr(r, limit.figure) for r in window if getattr(r, limit.figure) is not None] for window in windows]
    ratio = max(1.0, variance_ratio(broken))
    near = any(value > limit.seconds / 2 for part in figures for value in part)
    if near:  # few that broke it tell little of how they come
        ratio = max(ratio, variance_ratio(figures))
    effective = n / ratio
    low, high = share_interval(count / ratio, effective, 1 - 2 * error)
    return LimitShare(limit, count / n, low, high, effective, steady)


def variance_ratio(series: Sequence[Sequence[float]]) -> float:
    """τ: how many times more the mean of these series scatters than that of as many independent values.

    By the means of BATCHES batches over all series. Neighbouring batches that are still alike (correlation r) make it
    (1 + r) / (1 − r) times larger, as a first-order chain does; and as too small a τ decides too early, it is raised by
    its own relative error √(2 / (batches − 1)). 1 where values are constant or too few.
    """
    values = [value for part in series for value in part]
    if len(values) < 2:
        return 1.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    size = max(2, len(values) // BATCHES)
    batches = [
        [math.fsum(part[at : at + size]) / size - mean for at in range(0, len(part) - size + 1, size)]
        for part in series
    ]  # fmt: skip
    count, squares = sum(map(len, batches)), math.fsum(value * value for part in batches for value in part)
    if count < 2 or variance <= 0 or squares <= 0:
        return 1.0
    ratio = size * squares / (count - 1) / variance
    alike = math.fsum(one * following for part in batches for one, following in itertools.pairwise(part)) / squares
    alike = min(MOST_ALIKE, max(0.0, alike))
    ratio *= (1 + alike) / (1 - alike) * (1 + math.sqrt(2 / (count - 1)))
    return max(1.0, ratio)
