"""A notice when a job ends, on whatever screen one is. The queue is read only when its files have moved."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from textual.app import App

from vlmconsole.errors import LabError
from vlmconsole.screens.background import in_background
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import GOOD, sign_of

if TYPE_CHECKING:
    from vlmconsole.desks.queue import Desk
    from vlmconsole.lab import Lab
    from vlmconsole.queue.model import Job

PERIOD = 2.0  # seconds between two looks at the files' times
ATTEND = 10.0  # seconds between two looks whether jobs wait and nobody works on them


class JobWatch:
    """Belongs to the app. What had ended before it began is not told. It also has the queue worked on."""

    def __init__(self, app: App[Any], lab: Lab) -> None:
        self._app, self._lab = app, lab
        self._files = (lab.places.queue, lab.places.queue.with_name(lab.places.queue.name + "-wal"))
        self._seen = self._times()
        self._known: dict[int, str] | None = None
        self._desk: Desk | None = None
        self._thread = ThreadPoolExecutor(1, "job-watch")  # the queue's connection belongs to one thread
        self._busy = False

    def start(self) -> None:
        """Take down how things stand, then look every PERIOD."""
        self._app.set_interval(PERIOD, self._look)
        self._app.set_interval(ATTEND, self._attend)
        if any(self._seen):
            in_background(self._app, self._tell, "job-watch", may_fail=True)
        else:
            self._known = {}  # there is no queue yet, so whatever comes is news

    def _times(self) -> tuple[tuple[int, int], ...]:
        stamps = []
        for path in self._files:
            try:
                now = path.stat()
                stamps.append((now.st_mtime_ns, now.st_size))
            except OSError:
                continue
        return tuple(stamps)

    def _look(self) -> None:
        times = self._times()
        if times != self._seen and times and not self._busy:
            self._seen = times
            in_background(self._app, self._tell, "job-watch", may_fail=True)

    async def _tell(self) -> None:
        self._busy = True
        try:
            ended = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        except LabError:
            return  # the jobs screen says what is wrong with the queue
        finally:
            self._busy = False
        for job, verdict in ended:
            message = f"{sign_of(verdict or job.state, GOOD).mark} job {job.id} {one_line(job.preset, 60)}: {job.state}"
            message += f", verdict {verdict}" if verdict else ""
            reason = f"\n{one_line(job.reason, 300)}" if job.reason and job.state != "done" else ""
            bad = job.state in ("failed", "lost")
            self._app.notify(message + reason, severity="error" if bad else "information", markup=False, timeout=8)
        if ended and self._lab.settings.bell:
            self._app.bell()

    def _attend(self) -> None:
        if self._times():
            in_background(self._app, self._start_supervisor, "attend", may_fail=True)

    async def _start_supervisor(self) -> None:
        with contextlib.suppress(LabError, OSError):  # the jobs screen says what is wrong with the queue
            await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._own().attend())

    def _own(self) -> Desk:
        """The desk, opened in its thread."""
        from vlmconsole.desks.queue import Desk

        if self._desk is None:
            self._desk = Desk(self._lab.places)
        return self._desk

    def _read(self) -> list[tuple[Job, str]]:
        desk = self._own()
        self._known, ended = desk.ended(self._known)
        return [(job, desk.verdict(job)) for job in ended]
