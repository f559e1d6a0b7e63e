"""The largest load that keeps an objective: bracket, bisect, confirm. Pure; who measures is handed in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.measure.capacity.rule import FAILS, HOLDS, MORE, CapacityRule, Look, Pass, look
from vlmconsole.measure.slo import Slo

Load = float
#: (load, requests, number of the pass, whether it is a confirmation) → its requests
Measure = Callable[[Load, int, int, bool], "ProbePass"]


@dataclass(frozen=True)
class ProbePass:
    """One pass: its requests; `broke` says how the server ended under it, `unusable` why it tells nothing of it."""

    requests: Pass
    broke: str = ""
    unusable: str = ""


@dataclass(frozen=True)
class Probe:
    """One load, judged. A confirmation is a probe of its own."""

    load: Load
    last: Look | None
    verdict: str
    confirmation: bool = False
    why: str = ""
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"load": self.load}
        value |= self.last.to_json() if self.last else dict.fromkeys(("goodput", "violating", "low", "high"))
        value |= {"n": self.n, "verdict": self.verdict}
        return value | ({"confirmation": True} if self.confirmation else {}) | ({"why": self.why} if self.why else {})


class ClientLimitError(Exception):
    """The load client, or what it runs on, could not make a load: nothing is known of the server beyond it."""


@dataclass(frozen=True)
class LoadRange:
    """Where loads are looked for. `whole`: loads are whole numbers (concurrency, B)."""

    start: Load
    least: Load
    most: Load
    whole: bool = False

    def between(self, low: Load, high: Load, resolution: float) -> Load | None:
        """Return the next load to try between one that holds and one that does not; None: they are close enough.

        That is half of the resolution: a load right at the capacity may stay undecided, and the next below it holds.
        """
        if high <= low * (1 + resolution / 2) * (1 + 1e-9) or (self.whole and high - low <= 1):
            return None
        middle = math.sqrt(low * high)
        return min(high - 1, max(low + 1, round(middle))) if self.whole else _rounded(middle)

    def up(self, load: Load) -> Load:
        return min(self.most, load * 2)

    def down(self, load: Load) -> Load:
        lower = max(self.least, load / 2)
        return math.floor(lower) if self.whole else lower

    def steps(self, low: Load, high: Load, resolution: float) -> int:
        """Return how many loads a fixed grid of this resolution has from `low` to `high`, both among them."""
        if high <= low:
            return 1
        if not self.whole:
            return 1 + math.ceil(math.log(high / low) / math.log1p(resolution) - 1e-9)
        loads = {round(low)}
        while (at := max(loads)) < high:
            loads.add(min(round(high), max(at + 1, math.floor(at * (1 + resolution)))))
        return len(loads)


def _rounded(load: Load) -> Load:
    """To four significant digits, as a rate is read and named."""
    return float(f"{load:.4g}")


@dataclass
class CapacitySearch:
    """The search and its books. `note` is told of each probe as it is judged."""

    measure: Measure
    slo: Slo
    rule: CapacityRule
    loads: LoadRange
    closed: bool = False  # the load is a closed loop's concurrency
    note: Callable[[Probe], None] = lambda _: None
    probes: list[Probe] = field(default_factory=list)
    confirmed: bool = False
    stopped: str = ""  # why the search ended before its resolution

    def run(self) -> None:
        """Search until the answer is confirmed, or nothing more can be told."""
        try:
            for _ in range(self.rule.confirmations):
                self._narrow()
                best = self.holds
                if best is None or self._probe(best, confirmation=True).verdict == HOLDS:
                    self.confirmed = best is not None
                    return
            self._narrow()
        except ClientLimitError as limit:
            self.stopped = str(limit)

    @property
    def holds(self) -> Load | None:
        """The largest load that holds, below every one that does not; None: not even the least."""
        return max((load for load in self._verdicts if self._holding(load)), default=None)

    @property
    def fails(self) -> Load | None:
        """The least load that does not hold, failed or undecided; None: none was met."""
        return min((load for load, verdict in self._verdicts.items() if verdict != HOLDS), default=None)

    @property
    def spent(self) -> int:
        """Requests sent in all probes and confirmations."""
        return sum(probe.n for probe in self.probes)

    @property
    def grid_requests(self) -> int:
        """What a fixed grid of this resolution over the same loads would have sent.

        A grid does not know beforehand which loads are hard to tell, so each has as many requests as the longest probe.
        """
        searched = [probe for probe in self.probes if not probe.confirmation]
        if not searched:
            return 0
        loads = [probe.load for probe in searched]
        count = self.loads.steps(min(loads), max(loads), self.rule.resolution)
        confirmations = sum(probe.n for probe in self.probes if probe.confirmation)
        return count * max(probe.n for probe in searched) + confirmations

    def _narrow(self) -> None:
        """Probe until the least load that does not hold is within resolution of the largest that does."""
        if not self.probes:
            self._probe(self.loads.start)
        while True:
            low, high = self.holds, self.fails
            if low is None:
                assert high is not None
                if high <= self.loads.least:
                    return
                following: Load | None = self.loads.down(high)
            elif high is None:
                following = None if low >= self.loads.most else self.loads.up(low)
            else:
                following = self.loads.between(low, high, self.rule.resolution)
            if following is None:
                return
            self._probe(following)

    @property
    def _verdicts(self) -> dict[Load, str]:
        """Each load's verdict; one that once did not hold does not hold."""
        verdicts: dict[Load, str] = {}
        for probe in self.probes:
            if verdicts.get(probe.load, HOLDS) == HOLDS:
                verdicts[probe.load] = probe.verdict
        return verdicts

    def _holding(self, load: Load) -> bool:
        high = self.fails
        return self._verdicts[load] == HOLDS and (high is None or load < high)

    def _probe(self, load: Load, *, confirmation: bool = False) -> Probe:
        passes: list[Pass] = []
        last: Look | None = None
        verdict, why, sent = MORE, "", 0
        while verdict == MORE:
            wanted = self.rule.pass_requests(sent)
            made = self.measure(load, wanted, len(passes), confirmation)
            sent += wanted
            if made.unusable:
                raise ClientLimitError(f"at {load:g}: {made.unusable}")
            passes.append(made.requests)
            if made.broke:
                verdict, why = FAILS, made.broke
                break
            last = look(passes, self.slo, self.rule, round(load) if self.closed else None, sent)
            verdict = last.verdict
        probe = Probe(load, last, verdict, confirmation, why, sent)
        self.probes.append(probe)
        self.note(probe)
        return probe
