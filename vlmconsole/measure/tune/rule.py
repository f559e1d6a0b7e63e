"""The tuning rule: from measured cells to the chosen one, every step with its numbers.

1. Cells that failed, whose requests failed, whose outputs are not consistent or whose client was late are dropped.
2. Of the rest those stay whose throughput is at least `throughput_floor` × the baseline's.
3. The lowest TTFT p95 leads; cells within `close_within` of it count as close to it.
4. Among close ones the smallest memory wins, then the lower TTFT p95, then the earlier cell.

The confirmation is judged by the same limits, frozen with them (see `CONFIRMED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vlmconsole.measure.tune.settings import SAMPLED, TuneRule, Value
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import decimal, figure
from vlmconsole.text.sizes import MIB

#: the rule in words, frozen with its numbers
STEPS = (
    "drop cells with failures, inconsistent outputs or a late client",
    "keep throughput ≥ throughput_floor × the baseline's",
    "find the lowest TTFT p95; within close_within of it is close",
    "of the close ones take the smallest memory, then the lower TTFT p95, then the earlier cell",
)
CONFIRMED = (
    "both fresh starts without failures and consistent; throughput ≥ throughput_floor × the baseline's"
    " fresh one; TTFT p95 at most close_within above the baseline's fresh one"
)


@dataclass(frozen=True)
class MeasuredCell:
    """What the rule looks at. Seconds, tokens a second, bytes; None where it was not measured."""

    name: str
    values: dict[str, Value]
    state: str  # valid, invalid (the client was late) or failed
    planned: int
    n: int = 0
    failures: int = 0
    set_aside: int = 0
    finish_reasons: dict[str, int] = field(default_factory=dict)
    output_tokens: int | str | None = None
    ttft_p95_s: float | None = None
    throughput: float | None = None
    peak_bytes: int | None = None
    why: str = ""

    @staticmethod
    def of(entry: dict[str, Any]) -> MeasuredCell:
        """Return a cell as it stands in cells.jsonl."""
        summary = entry.get("summary") or {}
        return MeasuredCell(
            name=entry["name"],
            values=entry["parameters"],
            state=entry["state"],
            planned=entry["settings"]["requests"],
            n=summary.get("n", 0),
            failures=summary.get("failures", 0),
            set_aside=sum(summary.get("set_aside", {}).values()),
            finish_reasons=summary.get("finish_reasons", {}),
            output_tokens=summary.get("output_tokens"),
            ttft_p95_s=(summary.get("ttft_s") or {}).get("p95"),
            throughput=summary.get("throughput_tok_s"),
            peak_bytes=(entry.get("memory") or {}).get("peak_bytes"),
            why=entry.get("why") or "",
        )

    def memory(self, rule: TuneRule) -> float | None:
        """Return what decides between close cells: sampled peak in bytes, or the parameter's value."""
        if rule.memory == SAMPLED:
            return self.peak_bytes
        value = self.values[rule.memory]
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class TuneChoice:
    """The chosen cell's name (None: the rule chooses none), why, and each step in words."""

    chosen: str | None
    why: str
    steps: tuple[str, ...]
    dropped: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fault(cell: MeasuredCell, rule: TuneRule) -> str:
    """Return why a cell cannot be used, "" when it can."""
    want = rule.consistent
    if cell.state == "failed":
        return f"failed: {cell.why}"
    if cell.failures:
        return f"{cell.failures} of {cell.planned} requests failed"
    other = {reason: count for reason, count in cell.finish_reasons.items() if reason != want.finish_reason}
    if other:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in other.items())
        return f"inconsistent: finish reason {reasons}, not {want.finish_reason}"
    if cell.n < cell.planned or cell.output_tokens != want.output_tokens:
        if cell.set_aside:
            return f"inconsistent: {many(cell.set_aside, 'answer')} had not exactly {want.output_tokens} tokens"
        if cell.n < cell.planned:
            return f"only {cell.n} of {cell.planned} requests counted"
        return f"inconsistent: {cell.output_tokens} tokens of output, not exactly {want.output_tokens}"
    if cell.state != "valid":
        return f"INVALID: {cell.why}"
    if cell.ttft_p95_s is None or cell.throughput is None:
        return "no TTFT or throughput could be measured"
    return ""


def choose(cells: Sequence[MeasuredCell], rule: TuneRule, baseline: str) -> TuneChoice:
    """Apply the rule. `baseline` is a cell's name; without its throughput nothing can be chosen."""
    steps: list[str] = []
    dropped = {cell.name: why for cell in cells if (why := fault(cell, rule))}
    kept = [cell for cell in cells if cell.name not in dropped]
    steps.append(f"1. usable: {len(kept)} of {len(cells)} cells" + _listed("dropped", dropped))
    base = next((cell for cell in kept if cell.name == baseline), None)
    if base is None or base.throughput is None:
        why = f"the baseline {baseline} cannot be used ({dropped.get(baseline, 'not measured')})"
        return TuneChoice(None, f"{why}, so there is no throughput to hold others to", tuple(steps), dropped)

    floor = rule.throughput_floor * base.throughput
    slow = {
        cell.name: f"{cell.throughput:.1f} tok/s < {floor:.1f}"
        for cell in kept
        if cell.throughput is not None and cell.throughput < floor
    }
    share = f"{rule.throughput_floor * 100:g} % of the baseline's {base.throughput:.1f} tok/s"
    kept = [cell for cell in kept if cell.name not in slow]
    steps.append(f"2. throughput ≥ {floor:.1f} tok/s ({share}): {len(kept)} cells" + _listed("dropped", slow))
    dropped |= {name: f"throughput {why}" for name, why in slow.items()}
    if not kept:
        return TuneChoice(None, "no cell reaches the throughput floor", tuple(steps), dropped)

    ranked = [(cell.ttft_p95_s, cell) for cell in kept if cell.ttft_p95_s is not None]
    lowest, first = min(ranked, key=lambda rank: rank[0])
    limit = lowest * (1 + rule.close_within)
    close = [cell for p95, cell in ranked if p95 <= limit]
    steps.append(
        f"3. lowest TTFT p95: {first.name} {lowest:.3f} s; close is ≤ {limit:.3f} s (+{rule.close_within * 100:g} %): "
        + ", ".join(f"{cell.name} {cell.ttft_p95_s:.3f} s" for cell in close)
    )
    if len(close) == 1:
        steps.append(f"4. nothing is close to it: {first.name}")
        return TuneChoice(first.name, "lowest TTFT p95, and no other is close", tuple(steps), dropped)

    sized = [(cell.memory(rule), cell) for cell in close]
    unknown = [cell.name for size, cell in sized if size is None]
    if unknown:
        why = f"the memory of {', '.join(unknown)} was not measured, so close cells cannot be told apart"
        return TuneChoice(None, why, tuple(steps), dropped)
    known = [(size, cell.ttft_p95_s or 0.0, cells.index(cell), cell) for size, cell in sized if size is not None]
    winner = min(known, key=lambda rank: rank[:3])[3]
    listed = ", ".join(f"{cell.name} {size_text(size, rule)}" for size, _, _, cell in known)
    steps.append(f"4. smallest memory ({rule.memory}) among the close: {listed} → {winner.name}")
    return TuneChoice(
        winner.name, f"close to the lowest TTFT p95, with the smallest {rule.memory}", tuple(steps), dropped
    )


def confirm(chosen: MeasuredCell, base: MeasuredCell, rule: TuneRule) -> tuple[bool, tuple[str, ...]]:
    """Return whether fresh starts bear the choice out, and in words what was compared (see `CONFIRMED`)."""
    reasons: list[str] = []
    good = True
    for cell, role in ((chosen, "chosen"), (base, "baseline")):
        why = fault(cell, rule)
        good &= not why
        reasons.append(f"{role} {cell.name}: {why or f'{cell.n} of {cell.planned} requests counted, all consistent'}")
    if not good or chosen.throughput is None or base.throughput is None:
        return False, tuple(reasons)
    assert chosen.ttft_p95_s is not None
    assert base.ttft_p95_s is not None
    floor, limit = rule.throughput_floor * base.throughput, base.ttft_p95_s * (1 + rule.close_within)
    holds = chosen.throughput >= floor
    reasons.append(f"throughput {chosen.throughput:.1f} tok/s {'≥' if holds else '<'} {floor:.1f}: {_word(holds)}")
    good &= holds
    holds = chosen.ttft_p95_s <= limit
    reasons.append(f"TTFT p95 {chosen.ttft_p95_s:.3f} s {'≤' if holds else '>'} {limit:.3f}: {_word(holds)}")
    return good and holds, tuple(reasons)


def change(chosen: MeasuredCell, base: MeasuredCell) -> dict[str, float | None]:
    """Return the chosen against the baseline on fresh starts: shares (−0.1 is ten percent less) and bytes."""

    def share(value: float | None, other: float | None) -> float | None:
        return value / other - 1 if value is not None and other else None

    both = chosen.peak_bytes is not None and base.peak_bytes is not None
    return {
        "ttft_p95": share(chosen.ttft_p95_s, base.ttft_p95_s),
        "throughput": share(chosen.throughput, base.throughput),
        "peak_bytes": chosen.peak_bytes - base.peak_bytes if both and chosen.peak_bytes and base.peak_bytes else None,
    }


def size_text(amount: float, rule: TuneRule) -> str:
    """Return a memory in the unit that it has: MiB for a sampled peak, the plain number for a parameter."""
    return f"{figure(amount / MIB)} MiB" if rule.memory == SAMPLED else decimal(amount)


def _listed(word: str, reasons: dict[str, str]) -> str:
    return f"; {word}: " + "; ".join(f"{name} ({why})" for name, why in reasons.items()) if reasons else ""


def _word(holds: bool) -> str:
    return "holds" if holds else "does not hold"
