"""Plots of a measured run for plain terminals: cells, TTFT against throughput, cold and warm pairs, a waterfall."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from vlmconsole.measure.views import Bar, Point, points, waterfalls
from vlmconsole.runs.folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

MOST_BARS = 12  # requests of one waterfall
MOST_FALLS = 4  # waterfalls: those of the cells with most requests in flight matter
WAIT, DECODE = "░", "█"


def show_plots(console: Console, run: RunFolder) -> None:
    """Everything there is to draw of a run; nothing for runs that measured no server."""
    width = min(console.width, 110)
    cells = list(run.read_jsonl("cells.jsonl"))
    if cells:
        console.print(_cells(cells))
    found = points(run)
    if len(found) > 1:
        _print(console, scatter(found, width))
    _pairs(console, run, width)
    falls = waterfalls(run)
    for name in sorted(falls, key=lambda name: -overlap(falls[name]))[:MOST_FALLS]:
        _print(console, waterfall(name, falls[name], width))


def scatter(found: list[Point], width: int) -> list[str]:
    """TTFT against throughput, a letter for each cell that has both; INVALID ones stay out."""
    shown = [point for point in found if point.state == "valid" and point.ttft_s is not None and point.throughput]
    if len(shown) < 2:
        return []
    try:
        import plotext
    except ImportError:
        return ["(no plot: pip install 'vlmconsole[tui]' brings plotext)"]
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, 16)
    figure.title("throughput (tok/s) against TTFT p50 (s)")
    figure.draw(figure.signal([point.ttft_s for point in shown], [point.throughput for point in shown], marker=" "))
    letters = dict(zip((point.name for point in shown), string.ascii_uppercase, strict=False))
    for point in shown:
        figure.draw(figure.text(point.ttft_s, point.throughput, letters.get(point.name, "*")))
    lines = plotext.uncolorize(figure.build().string()).splitlines()
    key = "   ".join(f"{letter} {name}" for name, letter in letters.items())
    return [line.rstrip() for line in lines] + [key]


def waterfall(name: str, bars: list[Bar], width: int) -> list[str]:
    """One line a request on a common time axis: ``░`` waiting and prefill, ``█`` decode, ``×`` not counted."""
    bars = bars[:MOST_BARS]
    begin = min(bar.sent for bar in bars)
    span = max(bar.end for bar in bars) - begin or 1.0
    room = width - 8

    def column(seconds: float) -> int:
        return min(room, round((seconds - begin) / span * room))

    lines = [f"{name or 'requests'}: {WAIT} waiting and prefill  {DECODE} decode  × not counted"]
    for bar in bars:
        start, end = column(bar.sent), column(bar.end)
        first = end if bar.first is None else column(bar.first)
        drawn = " " * start + WAIT * max(1, first - start) + DECODE * (end - first)
        lines.append(f"{bar.index:>4} {'×' if bar.failed else ' '} {drawn}")
    return [*lines, f"       0 s{f'{span:.3g} s':>{room - 3}}"]


def overlap(bars: list[Bar]) -> float:
    """How many requests were in flight on the average."""
    span = max(bar.end for bar in bars) - min(bar.sent for bar in bars)
    return sum(bar.end - bar.sent for bar in bars) / span if span else 0.0


def _cells(cells: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("cell", "C", "B", "TTFT p50", "p95", "tok/s", "n", "state", "work"):
        table.add_column(name, justify="left" if name in ("cell", "state", "work") else "right")
    for cell in cells:
        summary, conditions = cell.get("summary") or {}, cell.get("conditions") or {}
        ttft, settings = summary.get("ttft_s") or {}, cell["settings"]
        limit = conditions.get("running_limit")
        row = [
            cell["name"],
            settings["concurrency"],
            "not told" if limit is None else limit,
            _figure(ttft.get("p50"), "s"),
            _figure(ttft.get("p95"), "s"),
            _figure(summary.get("throughput_tok_s")),
            summary.get("n", 0),
            cell["state"].upper() if cell["state"] != "valid" else cell["state"],
            " · ".join(filter(None, [cell.get("work"), cell["why"]])),
        ]
        table.add_row(*(Text(str(value)) for value in row))
    return table


def _pairs(console: Console, run: RunFolder, width: int) -> None:
    """Cold and warm TTFT of each pair as bars, with the cached tokens beside the warm one."""
    rows = [row for row in run.read_jsonl("pairs.jsonl") if row["cold"]["ttft_s"] and row["warm"]["ttft_s"]]
    longest = max((max(row["cold"]["ttft_s"], row["warm"]["ttft_s"]) for row in rows), default=0.0)
    lines = ["TTFT of cold and warm"] if rows else []
    for row in rows:
        for role in ("cold", "warm"):
            one = row[role]
            bar = DECODE * max(1, round(one["ttft_s"] / longest * (width - 52)))
            cached = "?" if one["cached"]["tokens"] is None else one["cached"]["tokens"]
            tail = f"{one['ttft_s']:.3f} s, {cached} of {one['prompt_tokens']} cached"
            lines.append(f"{row['arm']:<9} {row['pair']:>2} {role} {bar} {tail}")
    _print(console, lines)


def _print(console: Console, lines: list[str]) -> None:
    if lines:
        console.print(Text("\n".join(["", *lines])), soft_wrap=True)


def _figure(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.3f} {unit}" if unit else f"{value:.1f}"
