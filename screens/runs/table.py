"""The table of runs: the cursor stays on its run however the lines move."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from vlmconsole.desks.runs import Board, Line
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.fitting import fitted
from vlmconsole.text.plain import inert
from vlmconsole.text.signs import CHOSEN, LATE_PASS, sign_of
from vlmconsole.text.times import duration

EMPTY = Content.assemble(
    ("No runs yet", "bold"),
    ("\n\nEvery job leaves one: with its conditions,\nits raw requests and how it ended.\n\nPress ", "$muted"),
    ("3", "$accent"),
    (" and then ", "$muted"),
    ("n", "$accent"),
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
    """The day and the minute a run began; today only the minute."""
    if started is None:
        return ""
    then, today = time.localtime(started), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%-d %b", then)


def outcome(row: Line) -> tuple[str, str]:
    """(sign, style) of a run: of its state, or of its verdict where it is done and its gates did not pass."""
    own = sign_of(row.state)
    return painted(sign_of(row.verdict, own) if row.state == "done" else own)


class RunRows(LineView):
    """The lines. Posts `Chosen` when the cursor comes to stand on another run."""

    class Chosen(Message):
        pass

    class Clicked(Message):
        """A line was clicked that was chosen already."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="run-rows")
        self.rows: tuple[Line, ...] = ()
        self.marked: tuple[str, ...] = ()
        self._clock = clock
        self._chosen: str | None = None

    @property
    def chosen(self) -> Line | None:
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def show(self, rows: tuple[Line, ...], marked: tuple[str, ...]) -> None:
        before, self.rows = self.rows, rows
        same = self.marked == marked
        self.marked = marked
        names = [row.name for row in rows]
        at = names.index(self._chosen) if self._chosen in names else min(max(self.cursor, 0), len(rows) - 1)
        moved = at != self.cursor
        self.cursor = at
        if before != rows or not same or moved or any(row.state == "running" for row in rows):
            self.sized(len(rows))
            self.refresh()
        self._tell()

    def choose(self, index: int) -> None:
        super().choose(index)
        self._tell()

    def _tell(self) -> None:
        name = self.chosen.name if self.chosen else None
        if name != self._chosen:
            self._chosen = name
            self.post_message(self.Chosen())

    def header(self, width: int) -> Content:
        names, said, took = self._room(width)
        last = f"{'took':>{took}}" if took else ""
        line = f"  {'run':<{names}}  {'result':<{said}}{'began':>{BEGAN}}{last}  {'files':<{SEAL}}"
        return Content(line).stylize("$faint")

    def _room(self, width: int) -> tuple[int, int, int]:
        """(cells for the name, for verdict or figure, for how long it took: 0 where there is no room)."""
        left = width - 2 - 2 - BEGAN - 2 - SEAL
        took = TOOK if left >= 20 + 12 + TOOK else 0
        left -= took
        said = max(12, min(20, left - 20))
        return max(8, left - said), said, took

    def line(self, y: int, width: int) -> Content:
        row, now = self.rows[y], self._clock()
        names, room, span = self._room(width)
        mark, style = outcome(row)
        if row.name in self.marked:
            mark, style = painted(CHOSEN)
        said, tone = _said(row)
        end = row.ended or (now if row.state == "running" else None)
        took = duration(max(0.0, end - row.started)) if row.started is not None and end is not None else ""
        seal, seal_style = SEALS.get(row.seal, (row.seal, "$warning"))
        return Content.assemble(
            (f"{mark} ", style),
            f"{fitted(row.preset, names)}  ",
            (fitted(said, room), tone),
            (f"{when(row.started, now):>{BEGAN}}", "$muted"),
            (f"{took:>{span}}" if span else "", "$muted"),
            (f"  {seal:<{SEAL}}", seal_style),
        )

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            if index == self.cursor:
                self.post_message(self.Clicked())
            self.choose(index)


def _said(row: Line) -> tuple[str, str]:
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


class RunTable(Vertical):
    """Counts, the filter, the columns and the rows."""

    class Filtered(Message):
        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, clock: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._counts, self._columns = Said(id="run-counts"), Said(id="run-columns")
        self.field = Field(placeholder="name, kind, state, verdict or files", id="run-filter", compact=True)
        self.rows = RunRows(clock)
        self._empty = Static(EMPTY, id="runs-empty")

    def compose(self) -> ComposeResult:
        yield from (self._counts, self.field, self._columns, self.rows, self._empty)

    def on_mount(self) -> None:
        self.field.cursor_blink = False
        self.field.display = False
        self._empty.display = False

    def show(self, board: Board, words: str, marked: tuple[str, ...], comparing: str) -> None:
        """Put the runs there; `comparing` says what is marked for a comparison."""
        empty = not board.total
        for part, there in ((self._empty, empty), (self._columns, not empty), (self.rows, not empty)):
            part.display = there
        self.rows.show(board.lines, marked)
        self._counts.say(_counts(board, words, comparing, named=not self.screen.has_class("-narrow")))
        self._draw_columns()

    def show_fault(self, message: str, hint: str) -> None:
        """The runs cannot be read: that in the table's place."""
        for part, there in ((self._empty, True), (self._columns, False), (self.rows, False)):
            part.display = there
        self._counts.say(Content(" Runs cannot be read").stylize("$error"))
        self._empty.update(Content.assemble((f"✗ {inert(message)}", "$error"), (f"\n\n{inert(hint)}", "")))

    def on_resize(self) -> None:
        self._draw_columns()

    def _draw_columns(self) -> None:
        self._columns.say(self.rows.header(self.rows.scrollable_content_region.width or self.size.width))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.rows.focus()


def _counts(board: Board, words: str, comparing: str, *, named: bool) -> Content:
    pieces: list[Content | str | tuple[str, str]] = [(" Runs", "bold"), "  "] if named else [" "]
    pieces.append((f"{board.total}", "$muted"))
    if board.running:
        pieces.append((f" · {board.running} running", "$accent"))
    if board.failed:
        pieces.append((f" · {board.failed} failed", "$error"))
    if board.ledger:
        pieces.append((" · the ledger is broken", "$error"))
    if words.strip():
        pieces.append((f"  {len(board.lines)} found", "$accent"))
    if comparing:
        pieces.append((f"  {comparing}", "$accent"))
    return Content.assemble(*pieces)
