"""The table of runs: the cursor stays on its run however the lines move."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.content import Content

from vlmconsole.desks.runs import RunLine, RunsBoard
from vlmconsole.screens.keys import key_of
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.counts import many
from vlmconsole.text.fitting import fitted
from vlmconsole.text.signs import CHOSEN, LATE_PASS, sign_of
from vlmconsole.text.times import duration, is_today


def no_runs() -> Content:
    """Return what to do where there is no run yet."""
    return Content.assemble(
        ("No runs yet", "bold"),
        ("\n\nEvery job leaves a run: conditions, raw requests,\nresults and how it ended.\n\nPress ", "$muted"),
        ("3", "$accent"),
        (" and then ", "$muted"),
        (key_of("jobs.new"), "$accent"),
        (" to queue a preset,\nor from a shell:\n", "$muted"),
        "vlmconsole run main-experiment-tiny",
    )


#: what is known of a run's files → (in the table, style)
SEALS = {
    "intact": ("intact", "$muted"),
    "sealed": ("sealed", "$faint"),
    "open": ("open", "$faint"),
    "not sealed": ("open", "$faint"),
    "changed": ("CHANGED", "$error"),
    "missing": ("MISSING", "$error"),
    "ledger broken": ("ledger!", "$error"),
}
SEAL, TOOK, BEGAN = 7, 7, 7
DOUBTFUL = ("INVALID", "CANNOT JUDGE", LATE_PASS, "not provable", "not confirmed", "no choice")


def when(started: float | None, now: float) -> str:
    """Return the day and the minute a run began; today only the minute."""
    if started is None:
        return ""
    return time.strftime("%H:%M" if is_today(started, now) else "%-d %b", time.localtime(started))


def outcome(row: RunLine) -> tuple[str, str]:
    """(sign, style) of a run: of its state, or of its verdict where it is done and its gates did not pass."""
    own = sign_of(row.state)
    return painted(sign_of(row.verdict, own) if row.state == "done" else own)


class RunRows(ItemList[RunLine]):
    """The lines of the runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="run-rows")
        self.marked: tuple[str, ...] = ()
        self._clock = clock

    def key(self, item: RunLine) -> str:
        return item.name

    def differs(self, before: RunLine, now: RunLine) -> bool:
        return before != now or now.state == "running"

    def mark(self, names: tuple[str, ...]) -> None:
        """These runs carry the mark."""
        if names != self.marked:
            self.marked = names
            self.refresh()

    def header(self, width: int) -> Content:
        names, room, took = self._room(width)
        last = f"{'took':>{took}}" if took else ""
        line = f"  {'run':<{names}}  {'result':<{room}}{'began':>{BEGAN}}{last}  {'files':<{SEAL}}"
        return Content(line).stylize("$faint")

    def _room(self, width: int) -> tuple[int, int, int]:
        """(cells for the name, for verdict or figure, for how long it took: 0 where there is no room)."""
        left = width - 2 - 2 - BEGAN - 2 - SEAL
        took = TOOK if left >= 20 + 12 + TOOK else 0
        left -= took
        room = max(12, min(20, left - 20))
        return max(8, left - room), room, took

    def line(self, y: int, width: int) -> Content:
        row, now = self.items[y], self._clock()
        names, room, span = self._room(width)
        mark, style = outcome(row)
        if row.name in self.marked:
            mark, style = painted(CHOSEN)
        label, tone = _outcome(row)
        end = row.ended or (now if row.state == "running" else None)
        took = duration(max(0.0, end - row.started)) if row.started is not None and end is not None else ""
        seal, seal_style = SEALS.get(row.seal, (row.seal, "$warning"))
        return Content.assemble(
            (f"{mark} ", style),
            f"{fitted(row.preset, names)}  ",
            (fitted(label, room), tone),
            (f"{when(row.started, now):>{BEGAN}}", "$muted"),
            (f"{took:>{span}}" if span else "", "$muted"),
            (f"  {seal:<{SEAL}}", seal_style),
        )


def _outcome(row: RunLine) -> tuple[str, str]:
    """(verdict, else what went wrong, else its figure; style)."""
    if row.wrong:
        return "damaged", "$error"
    if row.state in ("failed", "lost", "cancelled"):
        return row.state, "$error" if row.bad else "$muted"
    if row.state in ("running", "starting"):
        return row.state, "$accent"
    if row.verdict == "FAIL":
        return row.verdict, "$error"
    tone = "$warning" if row.verdict in DOUBTFUL else "$muted"
    return row.verdict.replace("frozen late", "late") or row.said, tone  # whole in the run's head


class RunTable(FilteredTable[RunRows]):
    """The runs: counts, the filter, the columns and the rows."""

    def __init__(self, clock: Callable[[], float], *, id: str) -> None:
        super().__init__(RunRows(clock), "name, kind, state, verdict or files", no_runs(), id=id)

    def show(self, board: RunsBoard, words: str, marked: tuple[str, ...], comparing: str) -> None:
        """Put the runs there; `comparing` says what is marked for a comparison."""
        self.rows.show(board.lines)
        self.rows.mark(marked)
        head = _counts(board, words, comparing, named=not self.screen.has_class("-narrow"))
        self.show_head(head, empty=not board.total)


def _counts(board: RunsBoard, words: str, comparing: str, *, named: bool) -> Content:
    pieces: list[Content | str | tuple[str, str]] = [(" Runs", "bold"), "  "] if named else [" "]
    pieces.append((f"{board.total}", "$muted"))
    if board.running:
        pieces.append((f" · {board.running} running", "$accent"))
    if board.failed:
        pieces.append((f" · {board.failed} failed", "$error"))
    if board.ledger:
        pieces.append((" · ledger broken", "$error"))
    if words.strip():
        pieces.append((f"  {many(len(board.lines), 'match', 'matches')}", "$accent"))
    if comparing:
        pieces.append((f"  {comparing}", "$accent"))
    return Content.assemble(*pieces)
