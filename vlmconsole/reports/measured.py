"""Sections of runs that measured a server: cells, percentiles, TTFT against throughput, C × B, pairs, waterfalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmconsole.compare.runs import COMPARED, shown
from vlmconsole.measure.axes import axes
from vlmconsole.measure.definitions import DEFINITIONS
from vlmconsole.measure.machine_load import busy
from vlmconsole.measure.slo import slo_sentence
from vlmconsole.measure.sweep import differing
from vlmconsole.measure.views import Bar, CellView, PairLine, cells, grid, pairs, parts, shortest, waterfalls
from vlmconsole.reports import svg
from vlmconsole.reports.parts import Column, Facts, Paragraph, Part, ReportPlot, Section, Table
from vlmconsole.runs import titles
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.distribution import SMALL_N
from vlmconsole.text.numbers import UNKNOWN, figure, number

MILLI = frozenset({"tpot_s", "itl_s"})
MOST_BARS = 48  # requests of one waterfall
SHARES = ("n", "min", "p50", "p90", "p95", "p99", "max")
TIMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
NOT_SHOWN = ("notes", "settings")
COUNTED = frozenset({"client_concurrency", "running_limit", "input_tokens", "output_tokens", "rate", "max_tokens"})


def sections(run: RunFolder) -> list[Section]:
    """Return what of these there is of a run; nothing for one that measured no server."""
    measured, lines = cells(run), pairs(run)
    made: list[Section] = []
    if measured:
        made.append(Section("What was measured", _overview(run, measured)))
        made.append(Section("Percentiles", [_percentiles(cell) for cell in measured if cell.summary]))
    if lines:
        made.append(Section("Cold and warm pairs", _pairs(run, lines)))
    falls = waterfalls(run)
    if falls:
        made.append(Section("Each request", [*_waterfalls(falls), Paragraph("", [_HOW_READ])]))
    if measured:
        made.append(Section("Conditions", conditions(measured)))
    return made


_HOW_READ = (
    "Light: time to first token beyond the shortest of the cell, so waiting (or a slower prefill; a client cannot tell "
    "which). Middle: that shortest time. Dark: decode, its reasoning included. Hatched outline: not counted."
)


def _overview(run: RunFolder, cells: Sequence[CellView]) -> list[Part]:
    heads = ("C", "B", "TTFT p50, s", "p95, s", "TPOT p50, ms", "E2E p50, s", "tok/s", "n", "failed", "set aside")
    goods = ("good/s",) if any(cell.goodput is not None for cell in cells) else ()
    rows, marks = [], []
    for cell in cells:
        tpot = cell.share("tpot_s", "p50")
        aside = cell.summary.get("set_aside")
        rows.append(
            [
                cell.name or run.name,
                _known(cell.concurrency),
                _known(cell.running_limit),
                figure(cell.share("ttft_s", "p50")),
                figure(cell.share("ttft_s", "p95")),
                figure(tpot * 1000 if tpot is not None else None),
                figure(cell.share("e2e_s", "p50")),
                figure(cell.throughput),
                _known(cell.n),
                figure(cell.summary.get("failures")),
                figure(sum(number(v) or 0 for v in aside.values())) if isinstance(aside, dict) else UNKNOWN,
                *(figure(cell.goodput) for _ in goods),
                " · ".join(filter(None, [cell.state if cell.state == "valid" else cell.state.upper(), cell.work])),
            ]
        )
        marks.append("" if cell.state == "valid" else "bad")
    small = [n for cell in cells if (n := cell.n) is not None and n < SMALL_N]
    few = str(min(small)) if small and min(small) == max(small) else f"{min(small)} to {max(small)}" if small else ""
    note = f"p95 is unreliable below {SMALL_N} requests (here {few})." if small else ""
    columns = [Column("cell", False), *(Column(head) for head in (*heads, *goods)), Column("state", False)]
    made: list[Part] = [Table("Cells", columns, rows, marks, note)]
    if sentences := [f"{cell.name or run.name}: {kept}" for cell in cells if (kept := slo_sentence(cell.summary))]:
        made.append(Paragraph("Service-level objective", sentences))
    failures = [f"{cell.name or run.name} ({cell.state}): {cell.why}" for cell in cells if cell.why]
    failures += [line for cell in cells for line in _failures(cell)]
    if failures:
        made.append(Paragraph("Set aside and failed", failures, "bad"))
    remarks = [f"{cell.name or run.name}: {remark}" for cell in cells if (remark := busy(cell.summary))]
    if remarks:
        made.append(Paragraph("The machine", remarks, "warn"))
    return [*made, *_scatter(cells), *_heat(cells)]


def _failures(cell: CellView) -> list[str]:
    first = cell.summary.get("first_failures")
    return [f"{cell.name}: {line}" for line in first] if isinstance(first, list) else []


def _scatter(cells: Sequence[CellView]) -> list[Part]:
    known = {cell.name: cell for cell in cells}
    made: list[Part] = []
    alike = differing([_as_conditions(cell.conditions) for cell in cells])
    for line in axes(cells):
        marks = []
        for point in line.points:
            good, n = point.state == "valid", _known(known[point.name].n)
            caption = f"{point.name}: {line.x} {figure(point.x)}, {line.y} {figure(point.y)}, n = {n}"
            marks.append(
                svg.PlotMark(point.name if good else f"{point.name} (set aside)", point.x, point.y, good, caption)
            )
        names = [_named(key) for key in alike if key not in ("client_concurrency", "running_limit")]
        more = f"The cells differ in more than C and B: {', '.join(names)}." if names else ""
        note = f"These cells differ in {_named(line.only)} alone." if line.only else more
        made.append(ReportPlot(line.title, svg.scatter(line.title, marks, line.x, line.y), note))
    return made


def _heat(cells: Sequence[CellView]) -> list[Part]:
    table = grid(cells)
    if table is None:
        return []
    made: list[Part] = []
    for title, unit in (("Throughput by C and B", "tok/s"), ("TTFT p50 by C and B", "s")):
        fields = {}
        for c, column in enumerate(table.columns):
            for r, row in enumerate(table.rows):
                cell = table.cell(column, row)
                if cell is None:
                    continue
                figured = cell.throughput if unit == "tok/s" else cell.share("ttft_s", "p50")
                if figured is not None:
                    second = f"{unit} · n = {_known(cell.n)}" if cell.state == "valid" else cell.state.upper()
                    fields[c, r] = (figured, second, cell.state == "valid")
        drawn = svg.heat(
            title,
            [f"C = {c}" for c in table.columns],
            [f"B = {b}" for b in table.rows],
            fields,
            "columns: client concurrency C",
            "server's running limit B",
        )
        made.append(ReportPlot(title, drawn))
    return made


def _percentiles(cell: CellView) -> Table:
    rows = []
    for key, name in TIMES.items():
        spread = cell.summary.get(key)
        if isinstance(spread, dict):
            per = f" per {cell.summary['itl_per']}" if key == "itl_s" and cell.summary.get("itl_per") else ""
            if key in MILLI:
                values = [spread.get("n"), *(_thousand(spread.get(share)) for share in SHARES[1:])]
                rows.append([f"{name}{per}, ms", *map(figure, values)])
            else:
                rows.append([f"{name}{per}, s", *(figure(spread.get(share)) for share in SHARES)])
    lag = cell.summary.get("lag")
    probe = lag.get("probe") if isinstance(lag, dict) else None
    if isinstance(probe, dict):
        values = [probe.get("n"), *(_thousand(probe.get(share)) for share in SHARES[1:])]
        rows.append(["client's own lag, ms", *map(figure, values)])
    columns = [Column("", False), *(Column(share) for share in SHARES)]
    notes = [f"{name}: {DEFINITIONS[key].split('. ')[0]}." for key, name in TIMES.items() if key in DEFINITIONS]
    note = " ".join(notes) if not cell.name else ""
    return Table(cell.name or "Requests", columns, rows, note=note, narrow=True)


def _thousand(seconds: object) -> float | None:
    value = number(seconds)
    return None if value is None else round(value * 1000, 3)


def _pairs(run: RunFolder, lines: Sequence[PairLine]) -> list[Part]:
    summary = run.read_json("summary.json")
    made: list[Part] = []
    if isinstance(summary, dict) and summary.get("verdict"):
        reasons = summary.get("reasons")
        reasons_listed = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
        kind = "" if summary["verdict"] == "hit proven" else "warn"
        made.append(Paragraph(f"Verdict: {summary['verdict']}", reasons_listed, kind))
    bars = []
    for line in lines:
        for role, seconds in (("cold", line.cold_s), ("warm", line.warm_s)):
            if seconds is None:
                continue
            cached = "?" if line.cached is None else line.cached
            tail = f"{seconds:.3f} s" + (f", {cached} of {_known(line.prompt)} cached" if role == "warm" else "")
            name = f"{line.arm} {line.pair} {role}"
            bars.append(svg.Span(name, 0.0, [("wait" if role == "cold" else "decode", seconds)], tail=tail))
    if bars:
        title = "TTFT of each pair"
        made.append(ReportPlot(title, svg.spans(title, bars, "TTFT, s", 140)))
    rows = [
        [
            line.arm,
            str(line.pair),
            figure(line.cold_s),
            figure(line.warm_s),
            figure(None if line.cold_s is None or line.warm_s is None else line.cold_s - line.warm_s),
            "not reported" if line.cached is None else str(line.cached),
            _known(line.prompt),
            str(line.raw.get("flush_said") or UNKNOWN),
        ]
        for line in lines
    ]
    heads = ("pair", "cold, s", "warm, s", "fall, s", "cached tokens, warm", "prompt tokens")
    columns = [Column("arm", False), *(Column(head) for head in heads), Column("flush", False)]
    made.append(Table("Pairs", columns, rows, note="Not reported is unknown, not zero."))
    stored = run.read_json("conditions.json")
    if isinstance(stored, dict):
        arms = [CellView(str(k), "valid", "", "", {}, {}, v) for k, v in stored.items() if isinstance(v, dict)]
        made += conditions(arms)
    return made


def _waterfalls(falls: dict[str, list[Bar]]) -> list[Part]:
    made: list[Part] = []
    for name, bars in falls.items():
        least, begin = shortest(bars), min(bar.sent for bar in bars)
        lines = []
        for bar in bars[:MOST_BARS]:
            wait, prefill, decode = parts(bar, least)
            kinds = ("lost", "lost", "lost") if bar.failed else ("wait", "prefill", "decode")
            caption = f"sent {bar.sent - begin:.3f} s, first token after {wait + prefill:.3f} s, decode {decode:.3f} s"
            label = f"{bar.index} ×" if bar.failed else str(bar.index)
            lines.append(
                svg.Span(label, bar.sent - begin, list(zip(kinds, (wait, prefill, decode), strict=True)), caption)
            )
        title = f"Requests of {name}" if name else "Requests"
        more = f"{len(bars) - MOST_BARS} more in requests.jsonl. " if len(bars) > MOST_BARS else ""
        note = more + (f"Shortest TTFT {least:.3f} s." if least is not None else "No request gave text.")
        made.append(ReportPlot(title, svg.spans(title, lines, "seconds since the first was sent", 60), note))
    return made


def conditions(cells: Sequence[CellView]) -> list[Part]:
    """Return what all cells share, what they differ in, and the server's settings as read back."""
    known = [(cell.name, _as_conditions(cell.conditions)) for cell in cells if cell.conditions]
    if not known:
        return [
            Paragraph("", ["No conditions are recorded: these figures may not be compared with any other."], "warn")
        ]
    varied = differing([stated for _, stated in known])
    first = known[0][1].model_dump(mode="json")
    same = [
        (_named(key), shown(key, value))
        for key, value in first.items()
        if key not in varied and key not in NOT_SHOWN and value is not None
    ]
    made: list[Part] = [Facts("The same for all" if len(known) > 1 else "", same)]
    if varied:
        rows = [
            [name, *(shown(key, stated.model_dump(mode="json")[key]) for key in varied), _known(stated.n)]
            for name, stated in known
        ]
        columns = [Column(_named(key), key in COUNTED) for key in varied]
        made.append(Table("What differs", [Column("", False), *columns, Column("n")], rows))
    settings = known[0][1].settings or {}
    if settings:
        rows_of = [(str(key), str(value)) for key, value in settings.items()]
        whose = f" for {known[0][0]}" if len(known) > 1 else ""
        made.append(Facts(f"The server's settings, as read back{whose}", rows_of))
    notes = list(dict.fromkeys(note for _, stated in known for note in stated.notes))
    if notes:
        made.append(Paragraph("Notes", notes))
    return made


def _named(key: str) -> str:
    return COMPARED.get(key) or titles.title(key)


def _as_conditions(value: dict[str, Any]) -> Conditions:
    """The conditions of a file, with whatever does not fit left unknown."""
    kept = {}
    for key in Conditions.model_fields:
        try:
            Conditions.model_validate({key: value.get(key)})
        except ValueError:
            continue
        kept[key] = value.get(key)
    if not isinstance(kept.get("notes"), list | tuple):
        kept.pop("notes", None)
    return Conditions.model_validate(kept)


def _known(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
