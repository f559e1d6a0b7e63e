"""The gauges' words: the running job, what does not answer, and all that is known of one figure."""

from __future__ import annotations

from textual.content import Content

from vlmconsole.gauges.board import GaugeTile, Snapshot
from vlmconsole.gauges.figures import LABELS
from vlmconsole.gauges.words import job_said
from vlmconsole.measure.definitions import DEFINITIONS
from vlmconsole.runs.folder import to_json
from vlmconsole.text.numbers import figure
from vlmconsole.text.plain import one_line
from vlmconsole.text.times import age, clock
from vlmconsole.text.units import in_unit, of_total

_DEFINED = {"ttft": "ttft_s", "tpot": "tpot_s", "throughput": "throughput_tok_s", "in_flight": "in_flight"}


def facts(snapshot: Snapshot) -> Content:
    """Return the running job with its conditions, the two queues, and every source that does not answer, with the
    why.
    """
    lines: list[Content] = []
    job = snapshot.job
    if job is not None:
        lines.append(Content.assemble((" running  ", "$accent"), one_line(job_said(job), 400)))
    else:
        lines.append(Content(" no job running").stylize("$muted"))
    tiles = snapshot.tiles
    queued, flight = tiles.get("server.queued"), tiles.get("own.in_flight")
    if queued is not None and flight is not None and queued.value is not None and flight.value is not None:
        running = tiles["server.running"].value if "server.running" in tiles else None
        inside = queued.value + (running or 0)
        own, runs, waits = ("?" if value is None else figure(value) for value in (flight.value, running, queued.value))
        text = f" requests in flight {own} · server: {runs} running, {waits} queued"
        lines.append(Content(text).stylize("$muted"))
        if flight.value > inside:
            more = f"   {figure(flight.value - inside)} not in its scheduler (preprocessing or on the network)"
            lines[-1] = lines[-1] + Content(more).stylize("$warning")
    for name, source in snapshot.sources.items():
        if source.state != "ok":
            sign, style = ("✗", "$error") if source.state == "missing" else ("◌", "$muted")
            text = f" {LABELS.get(name, name)}: {one_line(source.why, 200)}" + (
                f". {one_line(source.hint, 160)}" if source.hint else ""
            )
            lines.append(Content.assemble((f" {sign}", style), (text, "$muted")))
    return Content("\n").join(lines)


def particulars(tile: GaugeTile, snapshot: Snapshot) -> list[tuple[str, str]]:
    """(heading, text) of what the figure is, where it comes from, and under which conditions."""
    parts = [("now", f"{of_total(tile.value, tile.total, tile.unit)}   {tile.state}  {tile.why}".rstrip())]
    if tile.p50 is not None:
        parts.append(("last ten minutes", f"p50 {in_unit(tile.p50, tile.unit)}   p95 {in_unit(tile.p95, tile.unit)}"))
    source = snapshot.sources.get(tile.source)
    readings = f", {source.readings} readings" if source is not None else ""
    of = f" of {one_line(tile.subject, 200)}" if tile.subject else ""
    parts.append(
        ("source", f"{LABELS.get(tile.source, tile.source)}{of}, {age(tile.age_s) or 'no reading yet'} old{readings}")
    )
    if source is not None and source.why:
        parts.append(("no answer", f"{source.why} {source.hint}".strip()))
    defined = DEFINITIONS.get(_DEFINED.get(tile.key.partition(".")[2], ""), "")
    if defined:
        own = tile.key.startswith("own.")
        note = "" if own else "\nMeasured by the server: excludes the network and everything before its clock starts."
        parts.append(("definition", defined + note))
    if snapshot.job is not None:
        parts.append(("conditions of the running job", to_json(snapshot.job)))
    marks = snapshot.marks[-20:]
    if marks:
        lines = (f"{clock(mark.at)}  {mark.text}" for mark in marks)
        parts.append(("marks", "\n".join(lines)))
    parts.append(("from a shell", "vlmconsole gauges --once --json"))
    return parts
