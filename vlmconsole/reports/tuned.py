"""Sections of a tuning: the grid with its memory peaks, the frozen rule, how it chose, whether that was confirmed."""

from __future__ import annotations

import shlex
from typing import Any

from vlmconsole.measure.views import cells
from vlmconsole.reports import svg
from vlmconsole.reports.parts import Column, Facts, Paragraph, Part, ReportPlot, Section, Table, flat, shown
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.numbers import UNKNOWN, change, figure, number
from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import MIB, signed_size, size


def sections(run: RunFolder) -> list[Section]:
    """Return what there is of a tuning; nothing for another run."""
    rows = [row for row in run.read_jsonl("cells.jsonl") if isinstance(row.get("parameters"), dict)]
    if not rows:
        return []
    made: list[Part] = [_grid(run, rows), *_memory(rows)]
    summary = run.read_json("summary.json")
    summary_read: dict[str, Any] = summary if isinstance(summary, dict) else {}
    choice, confirmed, rule = (_object(summary_read.get(key)) for key in ("choice", "confirmation", "rule"))
    if choice:
        made.append(Paragraph("How the rule chose", _lines(choice.get("steps"))))
        facts = [("chosen", shown(choice.get("chosen"))), ("why", shown(choice.get("why")))]
        made.append(Facts("The choice", [*facts, ("baseline", shown(summary_read.get("baseline")))]))
        dropped = _object(choice.get("dropped"))
        if dropped:
            made.append(Paragraph("Dropped", [f"{name}: {shown(why)}" for name, why in dropped.items()], "warn"))
    if confirmed:
        good = confirmed.get("state") in ("confirmed", "baseline kept")
        changes = {key: value for key, value in _object(confirmed.get("change")).items() if value is not None}
        heading = "Fresh starts" if changes or not good else "Confirmation"
        reasons = _lines(confirmed.get("said"))
        made.append(Paragraph(f"{heading}: {shown(confirmed.get('state'))}", reasons, "" if good else "bad"))
        if changes:
            made.append(
                Facts(
                    "Chosen against baseline, both measured again",
                    [_change(*change_row) for change_row in changes.items()],
                )
            )
    launch = summary_read.get("launch")
    if isinstance(launch, list) and launch:
        made.append(Paragraph("Launch line of the chosen cell", [shlex.join(map(str, launch))], "log"))
    if rule:
        made.append(Facts("The rule, frozen before the first cell", flat(rule)))
    if summary_read.get("limits_of_this"):
        made.append(Paragraph("", [shown(summary_read["limits_of_this"])], "warn"))
    return [Section("Tuning", made)]


def _grid(run: RunFolder, rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(key for row in rows for key in row["parameters"]))
    columns = [Column("cell", False), *(Column(one_line(name, 40)) for name in names), Column("TTFT p95, s")]
    columns += [Column("tok/s"), Column("sampled peak, MiB"), Column("n"), Column("state", False)]
    lines, marks = [], []
    for row, cell in zip(run.read_jsonl("cells.jsonl"), cells(run), strict=False):
        if not isinstance(row.get("parameters"), dict):
            continue
        peak = _peak(row)
        lines.append(
            [
                cell.name,
                *(shown(row["parameters"].get(name)) for name in names),
                figure(cell.share("ttft_s", "p95")),
                figure(cell.throughput),
                UNKNOWN if peak is None else f"{peak / MIB:.0f}",
                UNKNOWN if cell.n is None else str(cell.n),
                cell.state if cell.state == "valid" else cell.state.upper(),
            ]
        )
        marks.append("" if cell.state == "valid" else "bad")
    return Table("Grid", columns, lines, marks)


def _memory(rows: list[dict[str, Any]]) -> list[Part]:
    bars = [
        svg.Span(str(row.get("name")), 0.0, [("decode", peak / MIB)], tail=size(peak))
        for row in rows
        if (peak := _peak(row)) is not None
    ]
    title = "Sampled memory peak"
    return [ReportPlot(title, svg.spans(title, bars, "MiB", 190), "Shorter peaks are missed.")] if bars else []


def _change(name: str, value: object) -> tuple[str, str]:
    """Bytes as they are, everything else is relative."""
    amount = number(value)
    if amount is None:
        return name, shown(value)
    label = one_line(name.removesuffix("_bytes").replace("_", " "), 40)
    return label, signed_size(amount) if name.endswith("_bytes") else change(amount)


def _peak(row: dict[str, Any]) -> float | None:
    return number(_object(row.get("memory")).get("peak_bytes"))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _lines(value: object) -> list[str]:
    return [shown(line) for line in value] if isinstance(value, list) else []
