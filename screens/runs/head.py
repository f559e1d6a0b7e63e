"""The head over a run's figures: what it was, how it ended, whether its files are still what was sealed."""

from __future__ import annotations

import time

from textual.content import Content

from vlmconsole.desks.runs import RunLine
from vlmconsole.runs.live_view import RunState
from vlmconsole.screens.runs.table import outcome
from vlmconsole.text.bars import progress_bar
from vlmconsole.text.counts import of_many
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.times import duration

Piece = Content | str | tuple[str, str]
SAID = {
    "intact": ("✓ files intact", "$muted"),
    "sealed": ("sealed · v verifies the files", "$muted"),
    "open": ("unsealed (running)", "$faint"),
    "changed": ("✗ FILES CHANGED since sealing", "$error"),
    "missing": ("✗ FILES MISSING", "$error"),
    "ledger broken": ("✗ ledger broken", "$error"),
}


def head(row: RunLine | None, state: RunState | None, now: float) -> Content:
    """At most a few lines; `now` is wall time, seconds."""
    if row is None:
        return Content("Select a run to see its figures.").stylize("$faint")
    sign, style = outcome(row)
    pieces: list[Piece] = [(row.preset, "bold"), "  ", (f"{sign} {row.state}", style)]
    end = row.ended or (now if row.state == "running" else None)
    if row.started is not None and end is not None:
        pieces.append((f" {duration(max(0.0, end - row.started))}", "$muted"))
        pieces.append((f" · {time.strftime('%H:%M, %-d %b', time.localtime(row.started))}", "$muted"))
    if row.verdict:
        pieces.append((f" · {row.verdict}", "bold"))
    pieces.append((f"\n{row.title or row.kind}", "$muted"))
    pieces.append((f"\n{inert(row.name)}", "$faint"))  # whole: the table cuts it, a command and a colleague need it
    if row.wrong:
        pieces.append((f"\n✗ damaged: {row.wrong} in {one_line(row.path)}", "$error"))
    if row.reason and row.state != "done":
        pieces.append(
            (f"\n✗ {inert(row.reason)}" if row.bad else f"\n{inert(row.reason)}", "$error" if row.bad else "")
        )
    progress = state.progress if state is not None and row.state in ("running", "starting") else None
    if progress is not None and progress.share is not None and progress.total is not None:
        full, empty = progress_bar(progress.share, 16)
        done = of_many(progress.done, progress.total, one_line(progress.unit, 20))
        counted = f" {done}  {one_line(progress.note, 40)}"
        pieces += ["\n", (full, "$accent"), (empty, "$faint"), (counted, "$muted")]
    label, tone = SAID.get(row.seal, SAID["open"])
    why = f": {one_line(row.why, 200)}" if row.why and row.seal != "open" else ""
    pieces.append((f"\n{label}{why}", tone))
    if state is not None and state.bad:
        pieces.append((f"\n{state.bad} lines of events.jsonl are unreadable", "$warning"))
    return Content.assemble(*pieces)
