"""The jobs screen: the queue │ the chosen job, its answers, its log. Each act has its twin in `vlmconsole jobs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from vlmconsole.desks.queue import WINDOW, Desk, Particulars, QueueBoard, QueueRow, losses
from vlmconsole.errors import LabError
from vlmconsole.queue.adding import Planned
from vlmconsole.queue.model import ACTIVE, FINAL
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder, to_json
from vlmconsole.runs.live_view import RunState, RunStory
from vlmconsole.runs.logfile import LogPage
from vlmconsole.screens.background import in_background
from vlmconsole.screens.jobs.detail import Curves, JobDetail, all_curves
from vlmconsole.screens.jobs.new_job import Waits, ahead, new_job
from vlmconsole.screens.jobs.sheets import CurveSheet
from vlmconsole.screens.jobs.table import JobRows, JobTable
from vlmconsole.screens.jobs.training_answers import Answers, Shown
from vlmconsole.screens.jobs.training_sheet import AnswerSheet
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.widgets.dialogs import Confirm, Reader
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.log_view import LogLines, LogView
from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import size

ANSWERS, LOG = 2, 3  # places among them
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


@dataclass(frozen=True)
class JobsView:
    """What one look found: the queue, and of the chosen job its particulars, its story and the end of its log."""

    board: QueueBoard
    number: int | None
    more: Particulars | None
    run_state: RunState
    page: LogPage | None


class JobsScreen(LookingScreen[Desk]):
    """See keys.py for its keys."""

    ENTRY = "jobs"
    PANES = (Pane("Queue", "queue"), Pane("Job", "job"), Pane("Answers", "answers"), Pane("Log", "log"))
    PERIOD = 1.0
    CSS_PATH = "jobs.tcss"
    table: JobTable

    def __init__(self) -> None:
        super().__init__()
        self.table = JobTable(self.console.clock, id="queue")
        self.detail = JobDetail(id="job")
        self.answers = Answers(id="answers")
        self.log_view = LogView(id="log")
        self.board = QueueBoard()
        self.more: Particulars | None = None
        self.run_state = RunState()
        self.words = ""
        self._window = WINDOW
        self._stories: dict[str, RunStory] = {}
        self._state = "?"  # of the chosen job, as the footer knows it

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            yield self.table
            with Vertical(id="job-side", classes="pane-group"):
                yield from (self.detail, self.answers, self.log_view)

    # -- looking -------------------------------------------------------------------------------------------

    def open_desk(self) -> Desk:
        return Desk(self.console.lab.places)

    def close_desk(self, desk: Desk) -> None:
        desk.close()

    async def look_now(self) -> RunState:
        """Look, and give the chosen job's story."""
        await self._look()
        return self.run_state

    async def look_once(self) -> None:
        number = self.row.job.id if self.row else None
        page = self.log_view.page
        self._show(await self.in_thread(lambda desk: self._read(desk, number, page)), page)

    def show_fault(self, error: LabError | OSError) -> None:
        hint = error.hint if isinstance(error, LabError) else ""
        self.table.show_fault(
            "Cannot read the queue", error.message if isinstance(error, LabError) else str(error), hint
        )
        self._show_nothing()

    def _read(self, desk: Desk, number: int | None, page: LogPage | None) -> JobsView:
        """One look, in the desk's thread."""
        board = desk.board(self.words, self._window)
        numbers = [row.job.id for row in board.rows]
        if number not in numbers:
            number = numbers[0] if numbers else None
        if number is None:
            return JobsView(board, None, None, RunState(), None)
        more = desk.particulars(number)
        if not more.job.run:
            return JobsView(board, number, more, RunState(), None)
        run = RunFolder(Path(more.job.run))
        live = self._stories.pop(more.job.run, None) or RunStory(run)
        self._stories[more.job.run] = live
        while len(self._stories) > STORIES:
            self._stories.pop(next(iter(self._stories)))
        path = logfile.newest(run.log)
        new = logfile.grown(page) if page is not None and page.path == path else logfile.tail(path)
        return JobsView(board, number, more, live.read(), new)

    def _show(self, view: JobsView, read_from: LogPage | None) -> None:
        self.board = view.board
        self.table.show(view.board, self.words)
        row = self.row
        state = row.job.state if row is not None else ""
        if state != self._state:
            self._state = state
            self.refresh_bindings()
        if row is None or row.job.id != view.number:
            if row is not None:
                self._blank(row)
                self.look()  # the cursor went on meanwhile
            else:
                self._show_nothing()
            return
        self.more, self.run_state = view.more, view.run_state
        self.detail.show(row, view.more, view.run_state, view.page, self.console.clock())
        self.show_answers()
        self.log_view.grow(view.page, read_from)

    def _blank(self, row: QueueRow) -> None:
        """What is known of the chosen job at once; the rest follows with the look, and no other job's stays."""
        self.more, self.run_state = None, RunState()
        self.detail.show(row, None, self.run_state, None, self.console.clock())
        self.show_answers()
        self.log_view.forget_search()
        self.log_view.show(None)

    def _show_nothing(self) -> None:
        """No job is there to be chosen."""
        self.run_state = RunState()
        self.detail.show(None, None, self.run_state, None, 0.0)
        self.show_answers()
        self.log_view.show(None)

    def show_answers(self) -> None:
        """The chosen job's answers with their pictures; the pane is there only where it has some."""
        folder = Path(self.more.job.run) if self.more is not None and self.more.job.run else Path()
        had = self.answers.has_class("-there")
        self.answers.show(self.run_state.rollouts, folder, self.console.drawing, large=self.has_class("-large"))
        self.set_class(bool(self.run_state.rollouts), "-answers")
        if had and not self.run_state.rollouts and self.pane == ANSWERS:
            self.go_to_pane(1)
        elif had != bool(self.run_state.rollouts):
            self.mark_pane(self.pane)

    # -- parts and moving about ----------------------------------------------------------------------------

    @property
    def row(self) -> QueueRow | None:
        """The chosen job's line."""
        return self.table.rows.chosen

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
        event.stop()
        row = self.row
        if row is not None:
            self._blank(row)
        self.look()

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        event.stop()
        self.action_open()

    def on_job_rows_wanted(self, event: JobRows.Wanted) -> None:
        event.stop()
        if self.board.more:
            self._window += WINDOW
            self.look()

    def on_filtered_table_filtered(self, event: JobTable.Filtered) -> None:
        event.stop()
        self.words, self._window = event.words, WINDOW
        self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return what cannot be done with the chosen job is off, and gone from the footer."""
        if action in _OF_A_JOB and (self.row is None or self.row.job.state not in _OF_A_JOB[action]):
            return False
        return super().check_action(action, parameters)

    def there(self) -> list[int]:
        return [number for number in super().there() if number != ANSWERS or self.answers.has_class("-there")]

    def target(self, index: int) -> Widget | None:
        detail = self.detail.curves if self.detail.curves.display else self.detail
        return (self.table.rows, detail, self.answers.scroll, self.log_view.lines)[index]

    def action_move(self, by: int) -> None:
        if isinstance(self.focused, LogLines):
            self.log_view.move(by)
        elif self.pane == ANSWERS:
            self.answers.choose(self.answers.cursor + by)
        elif isinstance(self.focused, JobDetail) or (isinstance(self.focused, Curves) and self.focused.count):
            super().action_move(by)
        else:
            self.table.rows.choose(self.table.rows.cursor + by)

    def action_edge(self, by: int) -> None:
        """To the first or the last line; the log's last is followed, its first is the file's."""
        if isinstance(self.focused, LogLines):
            self.log_view.edge(by)
        else:
            super().action_edge(by)

    async def _try(self, call: Callable[[], Awaitable[str]]) -> bool:
        """Do it, say what came of it, and look again; a fault is one line."""
        try:
            message = await call()
        except LabError as error:
            self.notify(error.full_message, severity="error", markup=False)
            return False
        finally:
            self.look()
        if message:
            self.notify(message, markup=False)
        return True

    def _row(self) -> QueueRow | None:
        if self.row is None:
            self.notify(with_keys("no job selected · {jobs.new} adds one"), markup=False)
        return self.row

    # -- one job -------------------------------------------------------------------------------------------

    async def action_cancel(self) -> None:
        """x: after saying what would be lost."""
        row = self._row()
        if row is None:
            return
        number = row.job.id

        async def cancel() -> str:
            state = await self.in_thread(lambda desk: desk.cancel(number))
            return f"job {number} {'cancelled' if state == 'cancelled' else 'is stopping'}"

        async def decided(yes: bool | None) -> None:
            if yes:
                await self._try(cancel)

        waiters = self.more.waiters if self.more is not None and self.more.job.id == number else ()
        lost = losses(row, waiters, self.console.clock())
        self.app.push_screen(Confirm(f"Cancel job {number}, {row.job.preset}?", lost), decided)

    async def action_retry(self) -> None:
        """r: a new attempt beside the old one."""
        row = self._row()
        if row is None:
            return
        number = row.job.id

        async def retry() -> str:
            point = await self.in_thread(lambda desk: desk.retry(number))
            return f"job {number} queued again" + (f" · resumes from {point}" if point else "")

        await self._try(retry)

    async def action_clone(self) -> None:
        """C: a new job with the same settings."""
        row = self._row()
        if row is None:
            return

        async def clone() -> str:
            copy = await self.in_thread(lambda desk: desk.clone(row.job.id))
            self.table.rows.choose_key(copy)
            return f"job {copy} queued with the settings of job {row.job.id}"

        await self._try(clone)

    async def action_shift(self, by: int) -> None:
        """K and J: earlier and later in the queue."""
        row = self._row()
        if row is not None:
            await self._try(lambda: self._done(lambda desk: desk.move(row.job.id, by), ""))

    async def action_hand_over(self) -> None:
        """h: let a waiting job stop the server on its device."""
        row = self._row()
        if row is None:
            return
        number = row.job.id
        server = f"server {one_line(row.blocker[1], 40)}" if row.blocker is not None else "the server on its device"

        async def decided(yes: bool | None) -> None:
            if yes:
                message = f"job {number} will stop the server on its device"
                await self._try(lambda: self._done(lambda desk: desk.hand_over(number), message))

        self.app.push_screen(
            Confirm(
                f"Stop {server} to run job {number}?",
                "Chats and jobs that use the server lose it until this job ends. It restarts afterwards.",
            ),
            decided,
        )

    async def _done(self, call: Callable[[Desk], object], message: str) -> str:
        await self.in_thread(call)
        return message

    async def action_drain(self) -> None:
        """d: nothing new starts, or the queue goes on."""
        drained = not self.board.drained
        paused = with_keys("queue paused: running jobs continue · {jobs.drain} resumes")
        message = paused if drained else "queue resumed"
        await self._try(lambda: self._done(lambda desk: desk.drain(drained), message))

    def action_open(self) -> None:
        """Enter: the chosen curve large, or everything about the job."""
        row = self._row()
        if row is None:
            return
        if isinstance(self.focused, Curves) and self.focused.count:
            self.action_curve()
            return
        if self.pane == ANSWERS and (shown := self.answers.chosen) is not None:
            self.open_answer(shown)
            return
        job = row.job
        parts = [("state", f"{job.state}  {row.why}"), ("settings", to_json(job.spec))]
        if job.options:
            parts.append(("queue options", to_json(job.options)))
        if self.more is not None and self.more.job.id == job.id:
            parts += [(f"attempt {old.number}", f"{old.state}  {old.reason or ''}\n{old.run or ''}")
                      for old in self.more.attempts]  # fmt: skip
            files = "\n".join(f"{size(file.size):>10}  {file.name}" for file in self.more.files)
            parts += [("files", files)] if files else []
        if job.run:
            run = RunFolder(Path(job.run))
            for name in ("summary.json", "conditions.json", "state.json"):
                value = run.read_json(name)
                parts += [(name, to_json(value))] if value is not None else []
            parts.append(("run folder", job.run))
        parts.append(("from a shell", f"vlmconsole jobs show {job.id}\nvlmconsole jobs logs -f {job.id}"))
        self.app.push_screen(Reader(f"Job {job.id}, {job.title}", parts))

    def on_answers_opened(self, event: Answers.Opened) -> None:
        event.stop()
        self.open_answer(event.shown)

    def open_answer(self, shown: Shown) -> None:
        """A picture of the training as large as the screen allows, with every answer to it in full."""
        if self.more is not None and self.more.job.run:
            self.app.push_screen(AnswerSheet(shown, Path(self.more.job.run), self.console.drawing))

    def action_curve(self) -> None:
        """p: the chosen curve over the whole screen."""
        if not all_curves(self.run_state):
            self.notify("no metrics yet", markup=False)
            return
        self.app.push_screen(CurveSheet(self.run_state, max(0, self.detail.curves.cursor), self.look_now))

    def action_folder(self) -> None:
        """o: the run's folder, opened where there is a desktop, and its path to the clipboard."""
        row = self._row()
        if row is None:
            return
        if not row.job.run:
            self.notify("not started yet, so there is no folder", markup=False)
        else:
            self.open_folder(Path(row.job.run))

    # -- a new one -----------------------------------------------------------------------------------------

    def action_new(self) -> None:
        """n: choose a preset, fill in its form, see the plan, queue it."""
        in_background(self, self._new, "new", exclusive=True)

    async def _new(self) -> None:
        await new_job(self.app, self.console.lab.places, lambda: ahead(self.board), self._queue)

    async def _queue(self, planned: Sequence[Planned], waits: Waits, priority: int | None) -> bool:
        async def queue() -> str:
            number = await self.in_thread(lambda desk: desk.add(planned, waits, priority))
            self.table.rows.choose_key(number)
            return f"job {number} queued"

        return await self._try(queue)

    # -- filter and log ------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """/: the queue's filter, or in the log its search."""
        if self.pane == LOG:
            self.log_view.begin_search()
        else:
            super().action_filter()

    def action_leave(self) -> None:
        """Esc: out of a field, then out of its search or filter, out of the large pane, back to the queue."""
        field = self.log_view.field
        if self.focused is field and field.value:
            self.log_view.lines.focus()  # the words stay marked once the field is left: , . and & go on with them
        elif self.focused is field or (field.display and self.pane == LOG):
            self.log_view.end_search()
            self.go_to_pane(LOG)
        else:
            super().action_leave()
            self.show_answers()

    def action_large(self) -> None:
        super().action_large()
        self.show_answers()

    def action_follow(self) -> None:
        """f: stay at the log's end, or stay where one reads."""
        follow = not self.log_view.lines.follow
        if follow:
            self.go_to_pane(LOG)
            self.action_edge(1)
        else:
            self.log_view.follow(False)

    async def action_match(self, by: int) -> None:
        """, and . : the match before and after; among the answers, the step before and after."""
        if self.pane == ANSWERS:
            self.answers.turn(by)
            self.show_answers()
            return
        await self.log_view.step(by)

    def action_only(self) -> None:
        """&: nothing but the lines that were found, and back."""
        words = self.log_view.lines.words
        if not words:
            self.go_to_pane(LOG)
            self.action_filter()
            self.notify("type a search, press Esc, then & again", markup=False)
            return
        self.log_view.search(words, only=not self.log_view.only)
