"""A queued job followed in the terminal to its end: why it waits, its progress, a flow step by step."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vlmconsole.cli.common import FAILED, say, state
from vlmconsole.cli.follow import Follower, progress_line
from vlmconsole.queue import process
from vlmconsole.queue.model import ACTIVE, FINAL, Job
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import steps_done, views, waits
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes
from vlmconsole.text.counts import many

EVERY = 0.2  # seconds between two looks
LOOK = 1.0  # seconds between two looks why it waits, and whether a supervisor is there
AHEAD = 200  # queued jobs looked into to say why
INTERRUPTED = 130
HEEDED = 2  # Ctrl-C that are noted: the first stops cleanly, the second kills


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Ctrl-C is noted in the list meanwhile and not raised, so that no moment between queueing a job and following it
    is left in which one would leave the job behind. More than two end the program as ever.
    """
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # `nohup`, or a shell's background: whoever started us wants none heard
        yield noted
        return

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > HEEDED:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


class Foreground:
    """One job, or a flow with its steps, told on stderr as it goes. `round()` is True once it has ended."""

    def __init__(self, store: Store, number: int, places: Places) -> None:
        self.store, self.number, self.places = store, number, places
        self._told: dict[int, str] = {}
        self._looked = -LOOK
        self._shown: Follower | None = None
        self._of: int | None = None
        self._unattended = ""
        self._taken = 0

    def members(self) -> list[Job]:
        job = self.store.get(self.number)
        return self.store.steps(self.number) if job.kind == "flow" else [job]

    def round(self) -> bool:
        """Say what is new."""
        members = self.members()
        look = time.monotonic() - self._looked >= LOOK
        if look:
            self._looked = time.monotonic()
            # One that runs needs a supervisor as well: without, nobody books its end.
            if any(job.state not in FINAL for job in members) and process.running(self.places) is None:
                self._attend()
        for job in members:
            if job.id == self._of and job.state in FINAL:
                self._hide()
            if job.state == "running" and job.run and self._of is None:
                self._of = job.id
                self._shown = Follower(RunFolder(Path(job.run)), job.title, state.quiet)
                self._shown.__enter__()
                if job.step:
                    self._say(job, f"running{self._course()}")
            elif job.state == "queued" and look and not any(other.state in ACTIVE for other in members):
                job_view = views(self.store, self.places, [job], True, AHEAD)[0]
                if not job.step or not job_view.why.startswith("after"):
                    self._say(job, waits(job_view.why_with_commands) if job_view.why != "starts now" else "starts")
            elif job.state == "cancelled" and job.step and job.started is None:
                pass  # it was only taken back: said for all of them together
            elif job.state in FINAL and job.step:
                self._say(job, f"{job.state}{': ' + job.reason if job.reason else ''}")
        if self._shown is not None:
            self._shown.poll()
        withdrawn = sum(job.state == "cancelled" and job.started is None for job in members if job.step)
        if withdrawn > self._taken:
            self._taken = withdrawn
            self.say(f"withdrawn before they began: {many(withdrawn, 'step')}")
        return self.store.get(self.number).state in FINAL and all(job.state not in ACTIVE for job in members)

    def _attend(self) -> None:
        try:
            process.ensure(self.places)
        except QueueError as error:  # no room for a process now: tried again, the job waits
            if self._unattended != error.full_message:
                self._unattended = error.full_message
                self.say(error.full_message)

    def say(self, text: str) -> None:
        (self._shown.say if self._shown is not None else say)(text)

    def close(self) -> None:
        self._hide()

    def _say(self, job: Job, text: str) -> None:
        if self._told.get(job.id) != text:
            self._told[job.id] = text
            self.say(f"{job.step or f'job {job.id}'}: {text}")

    def _course(self) -> str:
        """How far the flow is, and the time it still takes where it was done before."""
        over = steps_done(self.store, self.store.get(self.number))
        return f" · {progress_line(over)}" if over is not None else ""

    def _hide(self) -> None:
        if self._shown is not None:
            self._shown.poll()
            self._shown.__exit__()
        self._shown = self._of = None

    def cancel(self) -> None:
        """Ask what runs to stop cleanly; what waits is taken back."""
        self.store.cancel(self.number)
        process.ensure(self.places)

    def kill(self) -> None:
        """End what runs now; the supervisor books it."""
        for job in self.members():
            if job.state in ACTIVE and job.pid and job.run:
                processes.kill_family(job.pid, Path(job.run))


def follow_job(
    store: Store, number: int, places: Places, *, cancels: list[int] | None = None, timeout: float = 0
) -> int | None:
    """Follow to the end: 0 when done, 1 when it ended otherwise, 130 after Ctrl-C, None when `timeout` s are over.

    `cancels` is the list of `interruptions`: the first Ctrl-C in it stops the job cleanly, a second kills it. Without
    it Ctrl-C leaves the job alone and is raised.
    """
    begun, done = time.monotonic(), 0
    noted = cancels if cancels is not None else []
    shown = Foreground(store, number, places)
    try:
        while True:
            # First the deed, then the word for it: whoever reads may have died of the same Ctrl-C.
            if noted and not done:
                with suppress(QueueError):  # it has just ended by itself
                    shown.cancel()
                done = 1
                shown.say("stopping; results so far are kept (Ctrl-C again kills)")
            if len(noted) > 1 and done == 1:
                shown.kill()
                done = 2
                shown.say("killed")
            if shown.round():
                break
            if timeout and time.monotonic() - begun > timeout:
                return None
            time.sleep(EVERY)
    finally:
        shown.close()
    if noted:
        return INTERRUPTED
    return 0 if store.get(number).state == "done" else FAILED
