"""The jobs screen: what a person can do about the queue, each the twin of a `vlmconsole jobs` command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from vlmconsole.desks import forms
from vlmconsole.desks.queue import Desk, Row, losses
from vlmconsole.errors import LabError
from vlmconsole.queue.model import Mode
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder, to_json, write_atomic
from vlmconsole.screens.background import in_background
from vlmconsole.screens.jobs.desk import ANSWERS, LOG, JobsDesk
from vlmconsole.screens.jobs.detail import Curves, all_curves
from vlmconsole.screens.jobs.form import JobForm
from vlmconsole.screens.jobs.sheets import CurveSheet, PlanSheet, PresetList
from vlmconsole.screens.jobs.table import JobRows
from vlmconsole.screens.jobs.training_answers import Answers, Shown
from vlmconsole.screens.jobs.training_sheet import AnswerSheet
from vlmconsole.screens.outside import open_outside
from vlmconsole.screens.widgets.dialogs import Confirm, Reader
from vlmconsole.screens.widgets.log_view import LogView
from vlmconsole.text.sizes import size


class JobsScreen(JobsDesk):
    """Key actions on jobs; see keys.py for the keys."""

    async def _try(self, call: Callable[[], Awaitable[str]]) -> bool:
        """Do it, say what came of it, and look again; a fault is one line."""
        try:
            said = await call()
        except LabError as error:
            self.notify(error.told, severity="error", markup=False)
            return False
        finally:
            self.look()
        if said:
            self.notify(said, markup=False)
        return True

    def _row(self) -> Row | None:
        if self.row is None:
            self.notify("no job is chosen; n makes one", markup=False)
        return self.row

    # -- one job -------------------------------------------------------------------------------------------

    async def action_cancel(self) -> None:
        """c: after saying what would be lost."""
        row = self._row()
        if row is None:
            return
        number = row.job.id

        async def cancel() -> str:
            state = await self.in_thread(lambda desk: desk.cancel(number))
            return f"job {number} is {'cancelled' if state == 'cancelled' else 'asked to stop'}"

        async def decided(yes: bool | None) -> None:
            if yes:
                await self._try(cancel)

        waiters = self.more.waiters if self.more is not None and self.more.job.id == number else ()
        lost = losses(row, waiters, self.console.clock())
        self.app.push_screen(Confirm(f"Cancel job {number}, {row.job.preset}?", lost), decided)

    async def action_retry(self) -> None:
        """t: a new attempt beside the old one."""
        row = self._row()
        if row is not None:
            await self._try(lambda: self._done(lambda desk: desk.retry(row.job.id), f"job {row.job.id} is tried again"))

    async def action_clone(self) -> None:
        """C: a new job with the same settings."""
        row = self._row()
        if row is None:
            return

        async def clone() -> str:
            copy = await self.in_thread(lambda desk: desk.clone(row.job.id))
            self.table.rows.choose_job(copy)
            return f"job {copy} is queued with the settings of job {row.job.id}"

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

        async def decided(yes: bool | None) -> None:
            if yes:
                said = f"job {number} may stop the server on its device"
                await self._try(lambda: self._done(lambda desk: desk.hand_over(number), said))

        self.app.push_screen(
            Confirm(
                f"May job {number} stop a server that holds its device?",
                "Chats and jobs that use that server lose it until this job has ended; then it is started again.",
            ),
            decided,
        )

    async def _done(self, call: Callable[[Desk], object], said: str) -> str:
        await self.in_thread(call)
        return said

    async def action_drain(self) -> None:
        """d: nothing new starts, or the queue goes on."""
        drained = not self.board.drained
        said = "drained: what runs goes on, nothing new starts; d resumes" if drained else "the queue goes on"
        await self._try(lambda: self._done(lambda desk: desk.drain(drained), said))

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
            parts.append(("in the queue", to_json(job.options)))
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

    def on_job_rows_opened(self, event: JobRows.Opened) -> None:
        event.stop()
        self.action_open()

    def on_answers_opened(self, event: Answers.Opened) -> None:
        event.stop()
        self.open_answer(event.shown)

    def open_answer(self, shown: Shown) -> None:
        """A picture of the training as large as the screen allows, with every answer to it in full."""
        if self.more is not None and self.more.job.run:
            self.app.push_screen(AnswerSheet(shown, Path(self.more.job.run), self.console.drawing))

    def action_curve(self) -> None:
        """p: the chosen curve over the whole screen."""
        if not all_curves(self.told):
            self.notify("this job has told no figures yet", markup=False)
            return
        self.app.push_screen(CurveSheet(self.told, max(0, self.detail.curves.cursor), self.look_now))

    def action_folder(self) -> None:
        """e: the run's folder, opened where there is a desktop, and its path to the clipboard."""
        row = self._row()
        if row is None:
            return
        if not row.job.run:
            self.notify("it has not begun, so there is no folder yet", markup=False)
            return
        path = Path(row.job.run)
        kept = self.console.lab.places.home / "copied.txt"
        write_atomic(kept, str(path))
        # Whether the terminal takes it cannot be known (tmux drops it by default): so a file as well.
        self.app.copy_to_clipboard(str(path))
        opened = not open_outside(path)
        how = "opened, and its path" if opened else "its path was"
        self.notify(f"{path}\n{how} sent to the terminal and saved in {kept}", markup=False, timeout=10)

    # -- a new one -----------------------------------------------------------------------------------------

    def action_new(self) -> None:
        """n: choose a preset, fill in its form, see the plan, queue it."""
        in_background(self, self._new, "new", exclusive=True)

    async def _new(self) -> None:
        places = self.console.lab.places
        entries, wrong = await asyncio.to_thread(forms.catalogue, places)
        name = await self.app.push_screen_wait(PresetList(entries, wrong))
        if name is None:
            return
        title = next(entry.title for entry in entries if entry.name == name)
        try:
            groups = await asyncio.to_thread(forms.form, name, places)
        except LabError as error:
            self.notify(error.told, severity="error", markup=False)
            return
        sheet = JobForm(name, title, groups, places)
        while (filled := await self.app.push_screen_wait(sheet)) is not None:
            changes, after, priority = filled
            if await self._plan(name, changes, after, priority):
                return
            values = sheet.kept
            sheet = JobForm(name, title, groups, places, values)

    async def _plan(self, name: str, changes: list[str], after: str, priority: str) -> bool:
        """Show what would be queued; True when it was."""
        places = self.console.lab.places
        others = after.replace(",", " ").split()
        height = int(priority) if priority else None
        try:
            planned = await asyncio.to_thread(forms.planned, name, changes, places)
        except LabError as error:
            self.notify(error.told, severity="error", markup=False)
            return False
        waiting = self.board.count("queued")
        place = "the queue is drained: it waits for d" if self.board.drained else f"{waiting} wait before it"
        if not waiting and not self.board.drained:
            place = "nothing waits before it"
        if not await self.app.push_screen_wait(PlanSheet(planned, forms.twin(name, changes, others, height), place)):
            return False
        waits: list[tuple[int, Mode]] = [
            (int(part.partition(":")[0]), "any" if part.endswith(":any") else "ok") for part in others
        ]

        async def queue() -> str:
            number = await self.in_thread(lambda desk: desk.add(planned, waits, height))
            self.table.rows.choose_job(number)
            return f"job {number} is queued"

        return await self._try(queue)

    # -- filter and log ------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """/: the queue's filter, or in the log its search."""
        if self.pane == LOG:
            field = self.log_view.field
        else:
            self.go_to_pane(0)
            field = self.table.field
        field.display = True
        field.focus()

    def action_leave(self) -> None:
        """Esc: out of a field, then out of its search or filter, out of the large pane, back to the queue."""
        for field, pane in ((self.table.field, 0), (self.log_view.field, LOG)):
            if self.focused is field or (field.display and self.pane == pane):
                # The log's words stay marked once the field is left: , . and & go on with them.
                if self.focused is field and pane == LOG and field.value:
                    self.log_view.lines.focus()
                else:
                    field.value = ""
                    field.display = False
                    self.go_to_pane(pane)
                return
        if self.has_class("-large"):
            self.remove_class("-large")
            self.show_answers()
        else:
            self.go_to_pane(0)

    def action_large(self) -> None:
        """z: the pane one is in, over the whole screen, and back."""
        self.toggle_class("-large")
        self.show_answers()

    def action_follow(self) -> None:
        """f: stay at the log's end, or stay where one reads."""
        follow = not self.log_view.lines.follow
        if follow:
            self.go_to_pane(LOG)
            self.action_edge(1)
        else:
            self.log_view.follow(False)

    def on_log_view_searched(self, event: LogView.Searched) -> None:
        event.stop()
        in_background(self, partial(self._search, event.words, only=self.log_view.only), "search", exclusive=True)

    async def _search(self, words: str, *, only: bool) -> None:
        await asyncio.sleep(0.15)  # typing goes on: the last state is the one that counts
        page = self.log_view.page
        if page is None:
            return
        found = await asyncio.to_thread(logfile.search, page.path, words) if words else []
        if self.log_view.page is None or self.log_view.page.path != page.path:
            return
        self.log_view.at = len(found)
        self.log_view.show_found(words, found, only=only and bool(words))
        await self._step(0)

    async def on_log_view_step(self, event: LogView.Step) -> None:
        event.stop()
        await self._step(event.by)

    async def action_match(self, by: int) -> None:
        """, and . : the match before and after; among the answers, the step before and after."""
        if self.pane == ANSWERS:
            self.answers.turn(by)
            self.show_answers()
            return
        await self._step(by)

    async def _step(self, by: int) -> None:
        found = self.log_view.found
        if found and not self.log_view.only:
            self.log_view.at = max(0, min(len(found) - 1, self.log_view.at + by))
            await self.turn_to(found[self.log_view.at][0])

    def action_only(self) -> None:
        """&: nothing but the lines that were found, and back."""
        words = self.log_view.lines.words
        if not words:
            self.go_to_pane(LOG)
            self.action_filter()
            self.notify("type what the lines are to hold, Esc, then & again", markup=False)
            return
        in_background(self, partial(self._search, words, only=not self.log_view.only), "search", exclusive=True)
