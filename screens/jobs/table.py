"""The queue's table: the cursor stays on its job however the rows move; only lines that changed are drawn anew."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from vlmconsole.desks.queue import Board, Row
from vlmconsole.queue.view import UNATTENDED
from vlmconsole.screens.jobs.rows import Columns
from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.plain import inert

EMPTY = Content.assemble(
    ("No jobs yet", "bold"),
    ("\n\nPress ", "$muted"),
    ("n", "$accent"),
    (" to choose a preset: a training, a sweep,\nan evaluation. It is queued here, and works on", "$muted"),
    ("\nwhen this console is closed.\n\nThe same from a shell:\n", "$muted"),
    "vlmconsole jobs add model-tiny",
)


class JobRows(LineView):
    """The lines. Posts `Chosen` when the cursor comes to stand on another job."""

    class Chosen(Message):
        def __init__(self, number: int | None) -> None:
            super().__init__()
            self.number = number

    class Opened(Message):
        """A line was clicked that was chosen already."""

    class Wanted(Message):
        """The cursor is near the last of the rows that were read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="job-rows")
        self.rows: tuple[Row, ...] = ()
        self._clock = clock
        self._chosen: int | None = None

    @property
    def chosen(self) -> Row | None:
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    @property
    def columns(self) -> Columns:
        longest = max((row.job.id for row in self.rows), default=0)
        return Columns(self.scrollable_content_region.width or self.size.width, max(3, len(str(longest))))

    def show(self, rows: tuple[Row, ...]) -> None:
        before, self.rows = self.rows, rows
        numbers = [row.job.id for row in rows]
        at = numbers.index(self._chosen) if self._chosen in numbers else min(max(self.cursor, 0), len(rows) - 1)
        changed = [y for y, row in enumerate(rows) if y >= len(before) or before[y] != row or row.progress is not None]
        if at != self.cursor:
            changed += [self.cursor, at]
        self.cursor = at
        for y in changed:
            self.sized(len(rows), changed=range(y, y + 1))
        self.sized(len(rows), changed=range(0))
        self._tell()

    def choose(self, index: int) -> None:
        super().choose(index)
        self._tell()
        if self.count and self.cursor >= self.count - 5:
            self.post_message(self.Wanted())

    def choose_job(self, number: int) -> None:
        """Stand on that job now, or as soon as it is among the rows."""
        self._chosen = number
        at = next((y for y, row in enumerate(self.rows) if row.job.id == number), None)
        if at is not None:
            super().choose(at)
            self.post_message(self.Chosen(number))

    def _tell(self) -> None:
        number = self.chosen.job.id if self.chosen else None
        if number != self._chosen:
            self._chosen = number
            self.post_message(self.Chosen(number))

    def line(self, y: int, width: int) -> Content:
        return self.columns.row(self.rows[y], self._clock())

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            if index == self.cursor:
                self.post_message(self.Opened())
            self.choose(index)


class JobTable(Vertical):
    """Counts, the filter, the columns and the rows."""

    class Filtered(Message):
        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, clock: Callable[[], float] = time.time, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._counts, self._columns = Said(id="job-counts"), Said(id="job-columns")
        self.field = Field(placeholder="number, name, kind or state", id="job-filter", compact=True)
        self.rows = JobRows(clock)
        self._empty = Static(EMPTY, id="job-empty")

    def compose(self) -> ComposeResult:
        yield from (self._counts, self.field, self._columns, self.rows, self._empty)

    def on_mount(self) -> None:
        self.field.cursor_blink = False
        self.field.display = False
        self._empty.display = False

    def show(self, board: Board, words: str) -> None:
        empty = not board.rows and not words.strip()
        for part, there in ((self._empty, empty), (self._columns, not empty), (self.rows, not empty)):
            part.display = there
        self.rows.show(board.rows)
        named = not self.screen.has_class("-narrow")  # there the pane's tab says it
        self._empty.update(EMPTY)
        self._counts.say(_counts(board, words, named=named))
        self._draw_columns()

    def show_fault(self, message: str, hint: str) -> None:
        """The queue cannot be read: that in the table's place, since an empty or old table would be untrue."""
        for part, there in ((self._empty, True), (self._columns, False), (self.rows, False)):
            part.display = there
        self.rows.show(())
        self._counts.say(Content(" Queue cannot be read").stylize("$error"))
        text = Content.assemble((f"✗ {inert(message)}", "$error"), (f"\n\n{inert(hint)}" if hint else "", ""))
        self._empty.update(text)

    def on_resize(self) -> None:
        self._draw_columns()

    def _draw_columns(self) -> None:
        self._columns.say(self.rows.columns.header())

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.rows.focus()


def _counts(board: Board, words: str, *, named: bool) -> Content:
    pieces: list[Content | str | tuple[str, str]] = [(" Queue", "bold"), "  "] if named else [" "]
    running, queued = board.count("running", "starting"), board.count("queued")
    failed = board.count("failed", "lost")
    said = [(f"{running} running", ""), (f"{queued} queued", "")]
    said += [(f"{failed} failed", "$error")] if failed else []
    said.append(("drained: nothing new starts, d resumes", "$warning") if board.drained else ("drain off", ""))
    if not board.supervised and (running or (queued and not board.drained)):
        said.insert(0, (UNATTENDED, "$warning"))
    for index, (text, style) in enumerate(said):
        pieces += [(" · ", "$faint") if index else "", (text, style or "$muted")]
    if words.strip():
        pieces.append((f"  {len(board.rows)} found", "$accent"))
    elif board.more:
        pieces.append((f"  {board.more} more further down", "$faint"))
    return Content.assemble(*pieces)
