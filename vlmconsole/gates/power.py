"""What a plan's gates can see: the smallest true change each shows with 80 % chance, and gates that decide nothing.

Answers are taken as right or wrong, which scatter most of all scores of one mean. Of `n` answers the base has so many
right; a true change turns some of the wrong ones right (or right ones wrong), each answer for itself, and besides a few
turn both ways as a new training turns them (CHURN). Chances are binomial sums over what the gate itself decides; only
interval ends are drawn, with a fixed seed. docs/evaluation.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor
from typing import Any, Literal

from vlmconsole.gates.measures import of_counts
from vlmconsole.gates.plan import Gate, Group, Plan, PlanError
from vlmconsole.scoring.bounded import SMALL, paired_bounds
from vlmconsole.scoring.intervals import Interval
from vlmconsole.text.numbers import percent, signed

CHANCE = 0.8
CHURN = 0.1  # answers that turn each way besides the change, as a share of n·p·(1 − p)
ASSUMED = 0.5  # share of right answers where the base's is not known
DRAWS = 9999
GRID = 1000  # changes tried: thousandths
State = Literal["", "vacuous", "unreachable", "not judged", "not computed"]


@dataclass(frozen=True)
class BaseShare:
    """What before has in one group, from a finished evaluation (`source`, a run's name); shares from 0 to 1."""

    shares: Mapping[str, float]  # all_correct, partial, valid, blind
    source: str


@dataclass(frozen=True)
class GatePower:
    """What one gate can see at its n and base. Shares are of after; `unchanged` is the chance to pass without change.

    `passes_at` is the smallest share at which it passes with 80 % chance, `fails_at` the largest at which it fails so;
    None: at none. `source` "": the base is not known, and assumed.
    """

    gate: Gate
    n: int
    base: float
    source: str
    state: State
    unchanged: float | None = None
    passes_at: float | None = None
    fails_at: float | None = None

    @property
    def sees(self) -> float | None:
        """The smallest true change (a share, with its sign) that it shows with 80 % chance."""
        at = self.fails_at if (self.unchanged or 0.0) >= 0.5 else self.passes_at
        return None if at is None or self.state else at - self.base

    @property
    def short(self) -> str:
        """The same in a table's cell: `sees +12.4 pts`, `vacuous`."""
        if self.state:
            return {"not judged": "cannot judge", "not computed": ""}.get(self.state, self.state)
        return "sees no change" if self.sees is None else f"sees {signed(self.sees * 100, 1)} pts"

    @property
    def text(self) -> str:
        """What a reader must know of it, in a sentence."""
        name = "blind score" if self.gate.definition.blind else "base"
        base = (
            f"{name} {percent(self.base)}" if self.source else f"{name} not measured, {percent(self.base, 0)} assumed"
        )
        if self.state == "vacuous":
            return f"vacuous: it holds even if every answer is wrong ({base})"
        if self.state == "unreachable":
            return f"unreachable: it fails even if every answer is right ({base}, n = {self.n})"
        if self.state == "not judged":
            return f"cannot judge: {base} is below what its guard needs"
        if self.state == "not computed":
            return "power not computed: it is not a matter of right and wrong answers"
        chance = f"; passes by chance, if nothing changes: {percent(self.unchanged or 0.0, 0)}"
        if self.sees is None:
            return f"sees no change with {percent(CHANCE, 0)} chance ({base}, n = {self.n}){chance}"
        points, at = f"{abs(self.sees) * 100:.1f} points", percent(self.base + self.sees)
        verb = "a fall of" if self.sees < 0 else "a gain of"
        return f"sees {verb} {points} (to {at}) with {percent(CHANCE, 0)} chance ({base}, n = {self.n}){chance}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "gate": self.gate.name,
            "group": self.gate.group,
            "metric": self.gate.metric,
            "n": self.n,
            "base": self.base,
            "base_from": self.source or None,
            "state": self.state or "ok",
            "unchanged": self.unchanged,
            "passes_at": self.passes_at,
            "fails_at": self.fails_at,
            "sees": self.sees,
            "text": self.text,
        }


def power(plan: Plan, bases: Mapping[str, BaseShare]) -> list[GatePower]:
    """Return each gate's power, in the plan's order; `bases` by group, where known."""
    decisions: dict[tuple[Any, ...], _Decision] = {}
    powers = []
    for gate in plan.gates:
        group = plan.group(gate.group)
        kind = gate.definition.base
        known = bases.get(group.name)
        share = known.shares.get(kind) if known is not None and kind is not None else None
        base, source = (ASSUMED, "") if share is None or known is None else (share, known.source)
        right = round(base * group.n)
        if kind is None:
            powers.append(GatePower(gate, group.n, base, source, "not computed"))
            continue
        key = (gate.metric, gate.limit, group.n, right)
        decision = decisions.setdefault(key, _Decision(plan, gate, group.n, right))
        powers.append(_power(plan, gate, group, decision, base, source, known))
    return powers


def refuse_weak_intervals(plan: Plan) -> None:
    """Raise PlanError for a gate on an interval's end over so few examples that a bootstrap does not hold its level."""
    if plan.intervals == "bounded":
        return
    for gate in plan.gates:
        n = plan.group(gate.group).n
        if gate.definition.of_interval and n < SMALL:
            raise PlanError(
                f"{gate.name}: a percentile bootstrap over {n} examples does not hold its level (below {SMALL}).",
                'Add `intervals = "bounded"` to the plan, or take more examples.',
                code="interval-weak",
            )


def _power(
    plan: Plan, gate: Gate, group: Group, decision: _Decision, base: float, source: str, known: BaseShare | None
) -> GatePower:
    floor_ = group.base_at_least
    if floor_ is not None and known is not None and known.shares.get("partial", 1.0) < floor_:
        return GatePower(gate, group.n, base, source, "not judged")
    # An assumed base proves nothing: then only what holds for every base is said.
    others = [] if source else [_Decision(plan, gate, group.n, right) for right in (0, group.n)]
    if all(each.vacuous for each in (decision, *others)):
        return GatePower(gate, group.n, base, source, "vacuous")
    if all(each.unreachable for each in (decision, *others)):
        return GatePower(gate, group.n, base, source, "unreachable")
    share = decision.right / group.n
    lowest, highest = ceil(-share * GRID), floor((1 - share) * GRID)
    passes = _first(lowest, highest, lambda at: decision.chance(at / GRID) >= CHANCE)
    fails = _first(lowest, highest, lambda at: decision.chance(at / GRID) > 1 - CHANCE)
    fails = highest if fails is None else fails - 1
    return GatePower(
        gate,
        group.n,
        base,
        source,
        "",
        decision.chance(0.0),
        None if passes is None else base + passes / GRID,
        None if fails < lowest else base + fails / GRID,
    )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest number from `low` to `high` that holds, of a condition that goes on holding; None for none."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


@dataclass
class _Decision:
    """What a gate says of `n` answers of which before has `right` right, by how many are won and lost."""

    plan: Plan
    gate: Gate
    n: int
    right: int

    def __post_init__(self) -> None:
        self._least: dict[int, int] = {}  # lost → the fewest won at which it passes
        self._said: dict[tuple[int, int], bool] = {}

    @cached_property
    def vacuous(self) -> bool:
        """Whether it passes at the worst."""
        return self.passes(0, self.right)

    @cached_property
    def unreachable(self) -> bool:
        """Whether it fails at the best."""
        return not self.passes(self.n - self.right, 0)

    def passes(self, won: int, lost: int) -> bool:
        """Return the gate's own word on these counts."""
        if (won, lost) not in self._said:
            self._said[won, lost] = self._passes(won, lost)
        return self._said[won, lost]

    def _passes(self, won: int, lost: int) -> bool:
        interval = self._interval(won, lost) if self.gate.definition.of_interval else _NO_INTERVAL
        measures = of_counts(self.n, self.right, won, lost, interval)
        return self.gate.passes(self.gate.definition.value(measures))

    def chance(self, change: float) -> float:
        """Return the chance to pass at a true change of the share of right answers."""
        from scipy import stats

        wrong, share = self.n - self.right, self.right / self.n
        gained, fallen = max(0.0, change) * self.n, max(0.0, -change) * self.n
        turned = max(0.0, min(CHURN * share * (1 - share) * self.n, wrong - gained, self.right - fallen))
        win = min(1.0, (gained + turned) / wrong) if wrong else 0.0
        lose = min(1.0, (fallen + turned) / self.right) if self.right else 0.0
        lost = _likely(self.right, lose)
        fewest = [self._fewest(count) - 1 for count in lost]
        chances = stats.binom.pmf(lost, self.right, lose) * stats.binom.sf(fewest, wrong, win)
        return min(1.0, float(chances.sum()))

    def _fewest(self, lost: int) -> int:
        """The fewest won at which it passes, n + 1 for none: no fewer than where less was lost."""
        if lost not in self._least:
            known = self._least.get(lost - 1, self._least.get(lost + 1, 0))
            low, high, step = 0, self.n - self.right, 1
            if 0 < known <= high:  # look beside the neighbour's first
                while known - step > low and self.passes(known - step, lost):
                    step *= 2
                low = max(low, known - step)
                step = 1
                while known + step < high and not self.passes(known + step, lost):
                    step *= 2
                high = min(high, known + step)
            least = _first(low, high, lambda won: self.passes(won, lost))
            self._least[lost] = self.n + 1 if least is None else least
        return self._least[lost]

    def _interval(self, won: int, lost: int) -> Interval:
        """The plan's interval of the difference, from counts: the same resampling, drawn as multinomials."""
        import numpy as np

        if self.plan.intervals == "bounded":
            before = [0.0] * won + [1.0] * lost + [0.0] * (self.n - won - lost)
            after = [1.0] * won + [0.0] * (self.n - won)
            return paired_bounds(before, after, confidence=self.plan.confidence, draws=DRAWS)
        random = np.random.default_rng(self.plan.seeds.bootstrap)
        shares = [won / self.n, lost / self.n, (self.n - won - lost) / self.n]
        drawn = random.multinomial(self.n, shares, size=DRAWS)
        rest = (1 - self.plan.confidence) / 2
        low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / self.n, [rest, 1 - rest])
        return Interval((won - lost) / self.n, float(low), float(high), 0.0, self.n)


_NO_INTERVAL = Interval(0.0, 0.0, 0.0, 0.0, 0)
_RARE = 1e-9  # chance of a count that is left out


def _likely(n: int, share: float) -> Sequence[int]:
    """The counts of a binomial that are not too rare to matter."""
    from scipy import stats

    low, high = stats.binom.ppf([_RARE, 1 - _RARE], n, share)
    return range(max(0, int(low)), min(n, int(high)) + 1)
