"""A measurement's figures for plain terminals: the same block after `bench` and in `runs show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from vlmconsole.compare.runs import COMPARED, shown
from vlmconsole.measure.least_time import limit_line
from vlmconsole.measure.machine_load import busy
from vlmconsole.measure.slo import slo_sentence
from vlmconsole.measure.views import CellView, cells
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.titles import title
from vlmconsole.scoring.distribution import few
from vlmconsole.text.numbers import decimal, number
from vlmconsole.text.plain import inert
from vlmconsole.text.times import latency

if TYPE_CHECKING:
    from rich.console import Console

FIGURES = {
    "TTFT": "ttft_s",
    "TTFT from due": "ttft_from_scheduled_s",
    "first reasoning": "ttfr_s",
    "TPOT": "tpot_s",
    "E2E": "e2e_s",
}
NO_CONDITIONS = "no conditions recorded: not comparable with other figures"
NOT_IN_LINE = frozenset({"n", "notes", "settings", "quantization", "template_sha256"})  # said elsewhere


def show_measured(console: Console, run: RunFolder) -> bool:
    """The figures of a run's one measurement, or what the cells of its several share, with their conditions.

    False where it measured no cell: then only the conditions are shown that it may have.
    """
    measured = [cell for cell in cells(run) if cell.summary]
    if not measured:
        _print(console, *_under(_recorded(run)), style="dim")
        return False
    alone = is_measurement(run)  # what is to be said of several cells stands below their table
    if alone:
        _figures(console, measured[0])
    known = [cell.conditions for cell in measured if cell.conditions]
    _print(console, *(_under(known) or [NO_CONDITIONS]), style="dim")
    if alone and (remark := busy(measured[0].summary)):
        _print(console, f"! {remark}", style="yellow")
    if len(measured) == 1:
        _print(console, *_not_counted(measured[0].summary))
        if measured[0].state == "invalid":
            _print(console, f"INVALID: {measured[0].why}", style="bold red")
    return True


def is_measurement(run: RunFolder) -> bool:
    """Whether the run measured one thing, so that its summary is that one's figures."""
    measured = cells(run)
    return len(measured) == 1 and not measured[0].name


def _figures(console: Console, cell: CellView) -> None:
    summary = cell.summary
    table = Table(box=None, pad_edge=False)
    for name in ("", "p50", "p95", "n"):
        table.add_column(name, justify="right" if name else "left")
    small: set[int] = set()
    for name, key in FIGURES.items():
        half, most, n = (cell.share(key, share) for share in ("p50", "p95", "n"))
        if half is not None and most is not None and n is not None:
            table.add_row(name, latency(half), latency(most), decimal(n))
            small.add(int(n))
    if table.row_count:
        console.print(table)
        if remark := few(min(small), "requests"):
            _print(console, remark)
    if left_out := tpot_left_out(summary):
        _print(console, left_out)
    each = number(summary.get("requests_per_s"))
    if cell.throughput is not None:
        more = "" if each is None else f", {each:.2f} requests/s"
        _print(console, f"throughput {cell.throughput:.1f} tok/s{more}")
    elif cell.n:
        _print(console, "throughput not known: the server's usage is missing")
    if kept := slo_sentence(summary):
        _print(console, kept)
    if least := limit_line(summary.get("limit")):
        _print(console, least)
    mean, peak = cell.share("in_flight", "mean"), cell.share("in_flight", "max")
    lag = _dict(_dict(summary.get("lag")).get("probe"))
    late = number(lag.get("p99"))
    reasons = [f"{reason} {count}" for reason, count in _dict(summary.get("finish_reasons")).items()]
    parts = [f"in flight {mean:.1f}, peak {decimal(peak)}" if mean is not None and peak is not None else ""]
    parts.append("" if late is None else f"client lag p99 {latency(late)}")
    parts.append(f"finish {', '.join(reasons) or '–'}")
    _print(console, " · ".join(filter(None, parts)))


def tpot_left_out(summary: dict[str, Any]) -> str:
    """How many counted answers are in no TPOT and why; "" where all are."""
    left_out = {why: count for why, value in _dict(summary.get("tpot_left_out")).items() if (count := number(value))}
    if not left_out:
        return ""
    reasons = ", ".join(f"{decimal(count)} × {why}" for why, count in left_out.items())
    n = decimal(number(summary.get("n")) or 0)
    return f"TPOT leaves out {decimal(sum(left_out.values()))} of {n} answers: {reasons}"


def _recorded(run: RunFolder) -> list[dict[str, Any]]:
    """The conditions of a run without cells: one measurement's, or one for each of its arms."""
    conditions = _dict(run.read_json("conditions.json"))
    if conditions.keys() & Conditions.model_fields.keys():
        return [conditions]
    return [arm for arm in conditions.values() if isinstance(arm, dict)]


def _under(known: list[dict[str, Any]]) -> list[str]:
    """The conditions that all share in one line, those in which they differ by name, then the notes."""
    if not known:
        return []
    keys = [
        key
        for key in Conditions.model_fields
        if key not in NOT_IN_LINE and any(key in conditions for conditions in known)
    ]
    same = [key for key in keys if all(conditions.get(key) == known[0].get(key) for conditions in known)]
    shared = [(key, known[0].get(key)) for key in same]
    texts = [f"{_named(key)} {shown(key, value)}" for key, value in shared if value not in (None, "", [], {})]
    lines = [f"{'under' if len(known) == 1 else 'all under'}: {' · '.join(texts) or 'nothing that is known'}"]
    if varied := [_named(key) for key in keys if key not in same]:
        lines.append(f"they differ in: {', '.join(varied)}")
    listed = [conditions.get("notes") for conditions in known]
    notes = dict.fromkeys(str(note) for notes in listed if isinstance(notes, list) for note in notes)
    return [*lines, *(f"note: {note}" for note in notes)]


def _named(key: str) -> str:
    if key == "clock":
        return "clock from"  # its value begins at once with where it starts
    return COMPARED.get(key) or title(key).partition(",")[0]


def _not_counted(summary: dict[str, Any]) -> list[str]:
    failures, aside = number(summary.get("failures")) or 0, _dict(summary.get("set_aside"))
    apart = sum(number(count) or 0 for count in aside.values())
    if not failures and not apart:
        return []
    first = summary.get("first_failures")
    listed = "; ".join(map(str, first)) if isinstance(first, list) else ""
    reasons = listed or ", ".join(f"{count} {why}" for why, count in aside.items())
    return [f"not counted: {decimal(failures)} failed, {decimal(apart)} set aside: {reasons}"]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _print(console: Console, *lines: str, style: str = "") -> None:
    for line in lines:
        console.print(Text(inert(line), style=style), soft_wrap=True)
