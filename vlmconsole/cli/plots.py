"""Drawings of a measured run for plain terminals: cells, what they cost, cold and warm pairs, waterfalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlmconsole.drawings.lines import as_rich, line
from vlmconsole.drawings.measured import cell_table, heat, pair_bars, scatter
from vlmconsole.drawings.measured import waterfalls as drawn_waterfalls
from vlmconsole.measure.axes import axes
from vlmconsole.measure.views import cells, overlap, pairs, waterfalls
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.numbers import change
from vlmconsole.text.sizes import signed_size

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 110  # columns
MOST_FALLS = 4  # waterfalls: those of the cells with most requests in flight matter


def show_plots(console: Console, run: RunFolder) -> None:
    """Everything there is to draw of a run; nothing for runs that measured no server."""
    width = min(console.width, WIDEST)
    measured, summary, falls = cells(run), run.read_json("summary.json"), waterfalls(run)
    lines = cell_table(measured, width) if len(measured) > 1 else []
    if isinstance(summary, dict) and summary.get("choice"):
        lines += [line(), *map(line, reasoning(summary))]
    for axis in axes(measured):
        lines += scatter(axis, width)
    lines += heat(measured, width) + pair_bars(pairs(run), width)
    busiest = sorted(falls, key=lambda name: -overlap(falls[name]))[:MOST_FALLS]
    lines += drawn_waterfalls([(name, falls[name]) for name in busiest], width)
    if lines:
        console.print(as_rich(lines), soft_wrap=True)


def reasoning(summary: dict[str, Any]) -> list[str]:
    """A tuning's frozen rule, each of its steps, and what fresh starts said of the choice."""
    choice, confirmation = summary["choice"], summary.get("confirmation")
    lines = [f"rule frozen as {summary['rule_sha256'][:16]}…, before the first cell", *choice["steps"]]
    lines.append(f"chosen: {choice['chosen'] or 'none'}, as {choice['why']}")
    if confirmation:
        changes = confirmation["change"]
        shares = {"TTFT p95": changes["ttft_p95"], "throughput": changes["throughput"]}
        parts = [f"{name} {change(share)}" for name, share in shares.items() if share is not None]
        if changes["peak_bytes"] is not None:
            parts.append(f"memory peak {signed_size(changes['peak_bytes'])}")
        fresh = "" if not parts and confirmation.get("same_cell") else " on fresh starts"
        lines.append(f"{confirmation['state']}{fresh}: {'; '.join(confirmation['said'])}")
        if parts:
            lines.append(f"against the baseline: {', '.join(parts)}")
        lines.append(
            f"saved as server profile {summary['profile']}" if summary["profile"] else "not saved as a profile"
        )
    return lines
