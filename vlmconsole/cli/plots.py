"""Plots of a measured run for plain terminals: cells, what they cost, cold and warm pairs, a waterfall."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from vlmconsole.measure.axes import Axes, axes
from vlmconsole.measure.views import Bar, Cell, PairLine, cells, overlap, pairs, waterfalls
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.numbers import change, figure
from vlmconsole.text.sizes import signed_size
from vlmconsole.text.times import latency

if TYPE_CHECKING:
    from rich.console import Console

MOST_BARS = 12  # requests of one waterfall
MOST_FALLS = 4  # waterfalls: those of the cells with most requests in flight matter
WAIT, REASONING, DECODE = "░", "▒", "█"


def show_plots(console: Console, run: RunFolder) -> None:
    """Everything there is to draw of a run; nothing for runs that measured no server."""
    width = min(console.width, 110)
    measured = cells(run)
    if len(measured) > 1:
        console.print(_cells(measured))
    summary = run.read_json("summary.json")
    if isinstance(summary, dict) and summary.get("choice"):
        _print(console, reasoning(summary))
    for one in axes(measured):
        _print(console, scatter(one, width))
    _print(console, _pairs(pairs(run), width))
    falls = waterfalls(run)
    for name in sorted(falls, key=lambda name: -overlap(falls[name]))[:MOST_FALLS]:
        _print(console, waterfall(name, falls[name], width))


def scatter(one: Axes, width: int) -> list[str]:
    """A letter for each valid cell; what is set aside stays out."""
    shown = [point for point in one.points if point.state == "valid"]
    if len(shown) < 2:
        return []
    try:
        import plotext
    except ImportError:
        return ["(no plot: pip install 'vlmconsole[tui]' brings plotext)"]
    drawing = plotext.figure
    drawing.clear()
    drawing.plot_size(width, 16)
    drawing.title(f"{one.title}: {one.y} over {one.x}")
    drawing.draw(drawing.signal([point.x for point in shown], [point.y for point in shown], marker=" "))
    letters = dict(zip((point.name for point in shown), string.ascii_uppercase, strict=False))
    for point in shown:
        drawing.draw(drawing.text(point.x, point.y, letters.get(point.name, "*")))
    lines = plotext.uncolorize(drawing.build().string()).splitlines()
    key = "   ".join(f"{letter} {name}" for name, letter in letters.items())
    return [line.rstrip() for line in lines] + [key]


def waterfall(name: str, bars: list[Bar], width: int) -> list[str]:
    """One line a request on a common time axis: `░` waiting and prefill, `▒` reasoning (where some came before the
    text), `█` decode, `×` not counted.
    """
    bars = bars[:MOST_BARS]
    begin = min(bar.sent for bar in bars)
    span = max(bar.end for bar in bars) - begin or 1.0
    room = width - 8

    def column(seconds: float) -> int:
        return min(room, round((seconds - begin) / span * room))

    thought = any(bar.thought for bar in bars)
    more = f"{REASONING} reasoning  " if thought else ""
    lines = [f"{name or 'requests'}: {WAIT} waiting and prefill  {more}{DECODE} decode  × not counted"]
    for bar in bars:
        start, end = column(bar.sent), column(bar.end)
        first = end if bar.first is None else column(bar.first)
        text = first if bar.first is None else column(bar.first + bar.thought)
        drawn = " " * start + WAIT * max(1, first - start) + REASONING * (text - first) + DECODE * (end - text)
        lines.append(f"{bar.index:>4} {'×' if bar.failed else ' '} {drawn}")
    return [*lines, f"       0 s{f'{span:.3g} s':>{room - 3}}"]


def _cells(found: list[Cell]) -> Table:
    table = Table(box=None, pad_edge=False)
    sampled = any(cell.peak for cell in found)  # a tuning run's cells
    for name in (
        "cell",
        "C",
        "B",
        "TTFT p50",
        "p95",
        "E2E p50",
        "tok/s",
        *(["peak"] if sampled else []),
        "n",
        "state",
        "work",
    ):
        table.add_column(name, justify="left" if name in ("cell", "state", "work") else "right")
    for cell in found:
        row = [
            cell.name,
            cell.concurrency,
            "not told" if cell.running_limit is None else cell.running_limit,
            latency(cell.share("ttft_s", "p50")),
            latency(cell.share("ttft_s", "p95")),
            latency(cell.share("e2e_s", "p50")),
            figure(cell.throughput),
            *([cell.peak or "–"] if sampled else []),
            cell.n or 0,
            cell.state.upper() if cell.state != "valid" else cell.state,
            " · ".join(filter(None, [cell.work, cell.why])),
        ]
        table.add_row(*(Text(str(value)) for value in row))
    return table


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


def _pairs(found: list[PairLine], width: int) -> list[str]:
    """Cold and warm TTFT of each pair as bars, with the cached tokens beside the warm one."""
    timed = [
        (pair, role, seconds) for pair in found for role, seconds in (("cold", pair.cold_s), ("warm", pair.warm_s))
    ]
    longest = max((seconds for _, _, seconds in timed if seconds), default=0.0)
    lines = ["TTFT of cold and warm"] if longest else []
    for pair, role, seconds in timed:
        if not seconds:
            continue
        bar = DECODE * max(1, round(seconds / longest * (width - 52)))
        cached = "" if role == "cold" else f", {'?' if pair.cached is None else pair.cached} of {pair.prompt} cached"
        lines.append(f"{pair.arm:<9} {pair.pair:>2} {role} {bar} {seconds:.3f} s{cached}")
    return lines


def _print(console: Console, lines: list[str]) -> None:
    if lines:
        console.print(Text("\n".join(["", *lines])), soft_wrap=True)
