"""The jobs screen's furniture: the queue │ the chosen job and its log. It looks once a second while it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from vlmconsole.desks.queue import WINDOW, Board, Desk, Particulars, Row
from vlmconsole.errors import LabError
from vlmconsole.queue.model import ACTIVE, FINAL
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.live_view import RunStory, Told
from vlmconsole.runs.logfile import LogPage
from vlmconsole.screens.background import in_background
from vlmconsole.screens.jobs.detail import Curves, JobDetail
from vlmconsole.screens.jobs.table import JobRows, JobTable
from vlmconsole.screens.jobs.training_answers import Answers
from vlmconsole.screens.keys import bindings, reading_actions
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.log_view import LogLines, LogView
from vlmconsole.screens.widgets.topbar import TopBar

_READING = reading_actions("jobs")
PANES = (("Queue", "queue"), ("Job", "job"), ("Answers", "answers"), ("Log", "log"))
ANSWERS, LOG = 2, 3  # places among them
PERIOD = 1.0  # seconds between two looks
STORIES = 8  # runs whose events are kept in mind, the chosen one last
#: What can be done with a job, and in which states; else the key is off, and gone from the footer.
_OF_A_JOB = {
    "open": frozenset({"queued", *ACTIVE, *FINAL}),
    "clone": frozenset({"queued", *ACTIVE, *FINAL}),
    "folder": frozenset({"queued", *ACTIVE, *FINAL}),
    "cancel": frozenset({"queued", *ACTIVE}),
    "retry": frozenset(FINAL) - {"done"},
    "shift": frozenset({"queued"}),
    "hand_over": frozenset({"queued"}),
}
T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What one look found: the queue, and of the chosen job its particulars, its story and the end of its log."""

    board: Board
    number: int | None
    more: Particulars | None
    told: Told
    page: LogPage | None


class JobsDesk(LookingScreen):
    """Shows the queue. Doing something about it is added by the class above."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("anywhere", "reading"), "jobs")
    CSS_PATH = "jobs.tcss"
    AUTO_FOCUS = "JobRows"

    def __init__(self) -> None:
        super().__init__()
        self.table = JobTable(self.console.clock, id="queue")
        self.detail = JobDetail(id="job")
        self.answers = Answers(id="answers")
        self.log_view = LogView(id="log")
        self.pane = 0
        self.board = Board()
        self.more: Particulars | None = None
        self.told = Told()
        self.words = ""
        self._window = WINDOW
        self._desk: Desk | None = None
        self._stories: dict[str, RunStory] = {}
        self._thread = ThreadPoolExecutor(1, "jobs")  # the queue's connection belongs to one thread
        self._trouble = ""
        self._state = "?"  # of the chosen job, as the footer knows it

    def compose(self) -> ComposeResult:
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], "Jobs")
        yield Static(id="panetabs")
        with Horizontal(id="job-panes"):
            yield self.table
            with Vertical(id="job-side"):
                yield self.detail
                yield self.answers
                yield self.log_view
        yield KeyLine()

    def on_mount(self) -> None:
        self.begin_looking(PERIOD)
        self.go_to_pane(0)
        self.look()

    def on_unmount(self) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._desk is not None:
            self._desk.close()

    # -- looking -------------------------------------------------------------------------------------------

    async def in_thread(self, call: Callable[[Desk], T]) -> T:
        """Let `call` use the desk, in its thread. Raises LabError."""

        def run() -> T:
            if self._desk is None:
                self._desk = Desk(self.console.lab.places)
            return call(self._desk)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def look_now(self) -> Told:
        """Look, and give the chosen job's story."""
        await self._look()
        return self.told

    async def _look(self) -> None:
        chosen = self.row
        number = chosen.job.id if chosen else None
        page = self.log_view.page
        try:
            found = await self.in_thread(lambda desk: self._read(desk, number, page))
        except LabError as error:
            if str(error) != self._trouble:  # drawn once, not every second
                self._trouble = str(error)
                self.table.show_fault(error.message, error.hint)
                self._show_nothing()
            return
        finally:
            self._looking = False
        self._trouble = ""
        self._show(found, page)

    def _read(self, desk: Desk, number: int | None, page: LogPage | None) -> Look:
        """One look, in the desk's thread."""
        board = desk.board(self.words, self._window)
        numbers = [row.job.id for row in board.rows]
        if number not in numbers:
            number = numbers[0] if numbers else None
        if number is None:
            return Look(board, None, None, Told(), None)
        more = desk.particulars(number)
        if not more.job.run:
            return Look(board, number, more, Told(), None)
        run = RunFolder(Path(more.job.run))
        story = self._stories.pop(more.job.run, None) or RunStory(run)
        self._stories[more.job.run] = story
        while len(self._stories) > STORIES:
            self._stories.pop(next(iter(self._stories)))
        path = logfile.newest(run.log)
        new = logfile.grown(page) if page is not None and page.path == path else logfile.tail(path)
        return Look(board, number, more, story.read(), new)

    def _show(self, found: Look, read_from: LogPage | None) -> None:
        self.board = found.board
        self.table.show(found.board, self.words)
        row = self.row
        state = row.job.state if row is not None else ""
        if state != self._state:
            self._state = state
            self.refresh_bindings()
        if row is None or row.job.id != found.number:
            if row is not None:
                self._blank(row)
                self.look()  # the cursor went on meanwhile
            else:
                self._show_nothing()
            return
        self.more, self.told = found.more, found.told
        self.detail.show(row, found.more, found.told, found.page, self.console.clock())
        self.show_answers()
        if self.log_view.page is read_from:  # else someone turned the page meanwhile
            same = read_from is not None and found.page is not None and read_from.path == found.page.path
            if not same:
                self.forget_search()
                self.log_view.follow(True)
            self.log_view.show(found.page, keep=same)

    def _blank(self, row: Row) -> None:
        """What is known of the chosen job at once; the rest follows with the look, and no other job's stays."""
        self.more, self.told = None, Told()
        self.detail.show(row, None, self.told, None, self.console.clock())
        self.show_answers()
        self.forget_search()
        self.log_view.show(None)

    def _show_nothing(self) -> None:
        """No job is there to be chosen."""
        self.told = Told()
        self.detail.show(None, None, self.told, None, 0.0)
        self.show_answers()
        self.log_view.show(None)

    def show_answers(self) -> None:
        """The chosen job's answers with their pictures; the pane is there only where it has some."""
        folder = Path(self.more.job.run) if self.more is not None and self.more.job.run else Path()
        had = self.answers.has_class("-there")
        self.answers.show(self.told.rollouts, folder, self.console.drawing, large=self.has_class("-large"))
        self.set_class(bool(self.told.rollouts), "-answers")
        if had and not self.told.rollouts and self.pane == ANSWERS:
            self.go_to_pane(1)
        elif had != bool(self.told.rollouts):
            self._mark_pane(self.pane)

    def forget_search(self) -> None:
        """Another log: what was found in the last one means nothing here."""
        self.log_view.show_found("", [], only=False)

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def row(self) -> Row | None:
        """The chosen job's line."""
        return self.table.rows.chosen

    @property
    def typing(self) -> bool:
        """Is a text being typed? Then single letters are letters."""
        return isinstance(self.focused, Input)

    def on_job_rows_chosen(self, event: JobRows.Chosen) -> None:
        event.stop()
        row = self.row
        if row is not None:
            self._blank(row)
        self.look()

    def on_job_rows_wanted(self, event: JobRows.Wanted) -> None:
        event.stop()
        if self.board.more:
            self._window += WINDOW
            self.look()

    def on_job_table_filtered(self, event: JobTable.Filtered) -> None:
        event.stop()
        self.words, self._window = event.words, WINDOW
        self.look()

    # -- moving about --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single-letter keys are off, and gone from the footer, while a text is being typed."""
        if action in _READING and self.typing:
            return False
        if action in _OF_A_JOB and (self.row is None or self.row.job.state not in _OF_A_JOB[action]):
            return False
        return super().check_action(action, parameters)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()
        for number, (_, name) in enumerate(PANES):
            if any(part.id == name for part in event.widget.ancestors) and number != self.pane:
                self._mark_pane(number)

    def action_pane(self, by: int) -> None:
        there = [number for number in range(len(PANES)) if number != ANSWERS or self.answers.has_class("-there")]
        at = there.index(self.pane) if self.pane in there else 0
        self.go_to_pane(there[(at + by) % len(there)])

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self._mark_pane(index)
        curves = self.detail.curves
        detail = curves if curves.display else self.detail
        target = (self.table.rows, detail, self.answers.scroll, self.log_view.lines)[index]
        target.focus()

    def _mark_pane(self, index: int) -> None:
        self.pane = index
        for number, (_, name) in enumerate(PANES):
            self.query_one(f"#{name}").set_class(number == index, "-current")
        self.query_one("#job-side").set_class(index > 0, "-current")
        pieces: list[Any] = []
        for number, (title, _) in enumerate(PANES):
            if number == ANSWERS and not self.answers.has_class("-there"):
                continue
            pieces += [(title, "bold" if number == self.pane else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def action_move(self, by: int) -> None:
        if isinstance(self.focused, LogLines):
            self.focused.by(by)
            self.log_view.draw_head()
        elif self.pane == ANSWERS:
            self.answers.choose(self.answers.cursor + by)
        elif isinstance(self.focused, Curves) and self.focused.count:
            self.focused.choose(self.focused.cursor + by)
        elif isinstance(self.focused, JobDetail):
            self.focused.scroll_relative(y=by, animate=False)
        else:
            self.table.rows.choose(self.table.rows.cursor + by)

    def action_page(self, by: int) -> None:
        part = self.focused
        self.action_move(by * max(1, (part.size.height if part is not None else 10) - 1))

    def action_edge(self, by: int) -> None:
        """To the first or the last line; the log's last is followed, its first is the file's."""
        if isinstance(self.focused, LogLines):
            if by > 0:
                self.log_view.follow(True)
                in_background(self, self._turn_to_end, "page", exclusive=True)
            else:
                self.log_view.follow(False)
                in_background(self, partial(self.turn_to, 0), "page", exclusive=True)
        else:
            self.action_move(by * 1_000_000)

    # -- the log's pages -----------------------------------------------------------------------------------

    async def on_log_lines_reached(self, event: LogLines.Reached) -> None:
        event.stop()
        page = self.log_view.page
        if page is None or self.log_view.only:
            return
        turn = logfile.older if event.edge == "older" else logfile.newer
        new = await asyncio.to_thread(turn, page)
        if self.log_view.page is page:
            self.log_view.show(new)

    async def _turn_to_end(self) -> None:
        page = self.log_view.page
        if page is not None and not page.at_end and not self.log_view.only:
            self.log_view.show(await asyncio.to_thread(logfile.tail, page.path), keep=False)

    async def turn_to(self, offset: int) -> None:
        """Show the page that holds the line beginning at `offset`, and stand on that line."""
        page = self.log_view.page
        if page is None or self.log_view.only:
            return
        self.log_view.lines.follow = False
        if offset not in page.offsets:
            self.log_view.show(await asyncio.to_thread(logfile.around, page.path, offset), keep=False)
        self.log_view.stand_on(offset)
