"""The queue as a screen needs it: a snapshot of what to show, and what a person can do about it.

Everything here may wait for the disk, so a screen calls it in a thread; a desk belongs to the one thread that uses it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.gates.trained import standing
from vlmconsole.queue import adding, process
from vlmconsole.queue.adding import Planned
from vlmconsole.queue.model import ACTIVE, FINAL, Attempt, Job, Mode, limit
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import decide_now, devices_seen, steps_done, views
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace, Progress
from vlmconsole.runs.places import Places
from vlmconsole.runs.resume import resume_point
from vlmconsole.text.signs import LATE_PASS
from vlmconsole.text.times import duration

WINDOW = 200  # rows of waiting and of ended jobs that are read at once
PRIVATE = frozenset({"reserve", "worker.lock"})  # the worker's own tools, nothing of the run
MEASURING = ("bench", "sweep")
INVALID = "INVALID"  # of a measurement that counts for nothing
VERDICTS = ("FAIL", INVALID, "CANNOT JUDGE", LATE_PASS, "PASS")  # of gates and measurements, the worst first
REACH = 64 * 1024  # bytes of a running job's newest events that its speed is taken from


@dataclass(frozen=True)
class QueueRow:
    """One line of the queue. `why` says why it waits or how it ended; `verdict` is what the gates said of a job
    that is done (of a flow: the worst of its steps'), "" where nothing was judged. `blocker`: see JobView.
    """

    job: Job
    why: str
    progress: Progress | None = None
    verdict: str = ""
    blocker: tuple[int, str] | None = None


@dataclass(frozen=True)
class QueueBoard:
    """A moment of the queue. `counts` are over all jobs, `more` is how many of them have no row here."""

    rows: tuple[QueueRow, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    drained: bool = False
    supervised: bool = False
    more: int = 0

    def count(self, *states: str) -> int:
        return sum(number for state, number in self.counts if state in states)


@dataclass(frozen=True)
class JobFile:
    """One file of a run, named from its folder; bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Particulars:
    """What is known of one job beside its row: earlier attempts, a flow's steps, who waits for it, its run's files."""

    job: Job
    attempts: tuple[Attempt, ...] = ()
    steps: tuple[Job, ...] = ()
    waiters: tuple[int, ...] = ()
    files: tuple[JobFile, ...] = ()
    run_state: tuple[tuple[str, Any], ...] = ()


class Desk:
    """Opens the queue of a lab home. Every method may raise LabError with a sentence for people."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._store = Store(places.queue)
        self._paces: dict[str, tuple[EventTail, Pace]] = {}
        self._verdicts: dict[str, str] = {}
        self._seen: tuple[object, ...] = ()
        self._board = QueueBoard()

    def close(self) -> None:
        self._store.close()

    # --- showing ---
    def board(self, words: str = "", window: int = WINDOW) -> QueueBoard:
        """Return the queue now: running, waiting in order, ended newest first, `window` of each; or those with `words`.

        A flow has its steps beneath it, and those that run stand below the other running jobs. The same object while
        nothing has changed, so that nothing needs to be drawn.
        """
        supervised = process.running(self.places) is not None
        seen = (self._store.version(), words, window, supervised, int(time.time() / 5))
        busy = any(row.job.state in ACTIVE for row in self._board.rows)
        if seen == self._seen and not busy:
            return self._board
        if words.strip():
            jobs = self._store.find(words, window)
        else:
            jobs = self._beneath(self._store.listing(ended=window, limit=window))
        self._verdicts = {run: verdict for run, verdict in self._verdicts.items() if run in {job.run for job in jobs}}
        verdicts = {job.id: self.verdict(job) for job in jobs}
        rows = tuple(
            QueueRow(
                job_view.job,
                job_view.why,
                self._progress(job_view.job),
                worst(verdicts[job.id] for job in jobs if job_view.job.id in (job.id, job.flow))
                if job_view.job.kind == "flow"
                else verdicts[job_view.job.id],
                job_view.blocker,
            )
            for job_view in views(self._store, self.places, jobs, supervised, ahead=2 * WINDOW)
        )
        counts = self._store.counts()
        active = {row.job.run for row in rows if row.job.state in ACTIVE}
        self._paces = {run: pace for run, pace in self._paces.items() if run in active}
        shown = sum(1 for row in rows if row.job.kind != "flow")
        board = QueueBoard(
            rows,
            tuple(sorted(counts.items())),
            bool(self._store.meta("drained", False)),
            supervised,
            0 if words.strip() else max(0, sum(counts.values()) - shown),
        )
        self._seen = seen
        if board != self._board:
            self._board = board
        return self._board

    def _beneath(self, jobs: list[Job]) -> list[Job]:
        """The same jobs with each flow's steps beneath it: of one that has not ended all, else those that are there."""
        flows = [job for job in jobs if job.kind == "flow"]
        steps: dict[int, list[Job]] = {}
        for flow in flows:
            members = [job for job in jobs if job.flow == flow.id]
            waiting = [
                job for job in members if job.state == "queued"
            ]  # in the queue's order, which a person may change
            if flow.state not in FINAL:
                known = {job.id for job in waiting}
                members = [job for job in self._store.steps(flow.id) if job.id not in known]
            begun = sorted((job for job in members if job.state != "queued"), key=lambda job: job.id)
            steps[flow.id] = [
                *begun,
                *waiting,
                *(job for job in members if job.state == "queued" and job not in waiting),
            ]
        alone = [job for job in jobs if job.flow not in steps]
        first = [job for job in alone if job.state in ACTIVE and job.kind != "flow"]
        rest = [job for job in alone if job not in first]
        return [*first, *(member for job in rest for member in (job, *steps.get(job.id, ())))]

    def verdict(self, job: Job) -> str:
        """PASS, FAIL or CANNOT JUDGE of a job that is done, "" where no gates judged it."""
        if job.state != "done" or not job.run:
            return ""
        if job.run not in self._verdicts:  # a finished run does not change any more
            self._verdicts[job.run] = label_of(job)
        return self._verdicts[job.run]

    def _progress(self, job: Job) -> Progress | None:
        if job.kind == "flow" and (over := steps_done(self._store, job)) is not None:
            return over
        if job.state not in ACTIVE or not job.run:
            return None
        if job.run not in self._paces:
            tail = EventTail(RunFolder(Path(job.run)).file("events.jsonl"))
            if tail.path.exists():
                tail.offset = max(0, tail.path.stat().st_size - REACH)
            self._paces[job.run] = (tail, Pace(job.started))
        tail, pace = self._paces[job.run]
        for event in tail.read():
            pace.add(event)
        return pace.now

    def particulars(self, number: int) -> Particulars:
        """Beside the row: read for the one job that is chosen."""
        job = self._store.get(number)
        run = RunFolder(Path(job.run)) if job.run else None
        return Particulars(
            job,
            tuple(self._store.attempts(number)),
            tuple(self._store.steps(number)) if job.kind == "flow" else (),
            tuple(self._store.waiters(number)),
            tuple(_files(run.path)) if run else (),
            tuple(run.state().items()) if run else (),
        )

    def ended(self, known: dict[int, str] | None) -> tuple[dict[int, str], list[Job]]:
        """(states of the newest jobs, those that have ended since `known`, which was the answer before; None: first).

        Left out are the steps of flows (the flow speaks for them) and servers that ended as they should.
        """
        jobs = [
            job
            for job in self._store.listing(ended=20, limit=WINDOW)
            if job.flow is None and not (job.serves and job.state in ("done", "cancelled"))
        ]
        now = {job.id: job.state for job in jobs}
        if known is None:
            return now, []
        last = max(known, default=0)
        fresh = [
            job
            for job in jobs
            if job.state in FINAL and known.get(job.id, "queued" if job.id > last else "done") not in FINAL
        ]
        return {**known, **now}, fresh

    def attend(self) -> None:
        """Start the supervisor where jobs run or wait and it is gone. One that waits for a command needs none."""
        if not any(self._store.counts().get(state) for state in ("queued", *ACTIVE)):
            return
        if process.running(self.places) is None and not self._rests():
            process.ensure(self.places)

    def _rests(self) -> bool:
        """Whether nothing would get going without a command: then a supervisor, too, leaves again."""
        if self._store.active():
            return False
        decision = decide_now(self._store, self.places, devices_seen(self._store), set(), 2 * WINDOW)
        return {line.id for line in self._store.lines(2 * WINDOW)} <= decision.stuck - decision.outside

    # --- doing: each is what the command of the same name does ---
    def cancel(self, number: int) -> str:
        """Returns the state the job is in then."""
        state = self._store.cancel(number)
        self._changed()
        return state

    def retry(self, number: int) -> str:
        """Queue an ended job as a new attempt; returns where it resumes (`step 350`), "" where that is not known."""
        run = self._store.get(number).run
        point = resume_point(RunFolder(Path(run))) if run else ""
        self._store.again(number)
        self._changed()
        return point

    def clone(self, number: int) -> int:
        """Returns the new job's number."""
        copy = self._store.clone(number)
        self._changed()
        return copy

    def move(self, number: int, by: int) -> int:
        """`by` places down (up, when negative) among the waiting jobs; returns the new place, 1 is next."""
        with self._store.change():
            waiting = [job.id for job in self._store.waiting()]
            if number not in waiting:
                state = self._store.get(number).state
                raise QueueError(f"job {number} is {state}: only waiting jobs can be moved")
            place = max(1, min(len(waiting), waiting.index(number) + 1 + by))
            self._store.move(number, place)
        self._changed()
        return place

    def drain(self, drained: bool) -> None:
        """Drained: nothing new starts. Else the queue goes on."""
        self._store.set_meta("drained", drained)
        self._changed(start=not drained)

    def hand_over(self, number: int) -> None:
        """Let a waiting job stop the server on its device; the server comes back afterwards."""
        if self._store.get(number).state != "queued":
            raise QueueError(f"job {number} is not waiting")
        self._store.set(number, hand_over=True)
        self._changed()

    def add(
        self, planned: Sequence[Planned], after: Sequence[tuple[int, Mode]] = (), priority: int | None = None
    ) -> int:
        """Queue what was planned; returns the number of the job, or of the flow."""
        number = adding.add(self._store, planned, after=after, priority=priority)
        self._changed()
        return number

    def _changed(self, *, start: bool = True) -> None:
        self._seen = ()  # our own commits do not show in the version
        if start:
            process.ensure(self.places)


def verdict_of(job: Job) -> str:
    """PASS, FAIL or CANNOT JUDGE of a job that is done, read from its run, INVALID of a measurement of which a
    cell counts for nothing; "" where nothing was judged.
    """
    if job.state != "done" or not job.run:
        return ""
    summary = RunFolder(Path(job.run)).read_json("summary.json")
    verdict = summary.get("verdict") if isinstance(summary, dict) else None
    if job.kind in MEASURING and isinstance(summary, dict) and summary.get("valid") is False:
        return INVALID
    return verdict if isinstance(verdict, str) and verdict in VERDICTS else ""


def label_of(job: Job) -> str:
    """Return the verdict for people: as :func:`verdict_of`, but a PASS by a plan that was frozen late is no plain
    one.
    """
    verdict = verdict_of(job)
    return standing(RunFolder(Path(job.run)), verdict) if job.run else verdict


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of them, "" for none."""
    return min((verdict for verdict in verdicts if verdict), key=VERDICTS.index, default="")


def losses(row: QueueRow, waiters: Sequence[int], now: float) -> str:
    """Return what cancelling a job would cost, in sentences."""
    job = row.job
    lines = []
    if job.state == "queued":
        lines.append("It has not started; nothing is lost, and a retry queues it again.")
    elif job.kind == "flow":
        over = row.progress
        made = f"{over.done:g} of its {over.total:g} steps are done and stay. " if over and over.total else ""
        lines.append(
            f"{made}The running step is asked to stop and save, and killed after its grace period; waiting steps are"
            " withdrawn. A retry resumes with the steps not done."
        )
    else:
        ran = f" for {duration(now - job.started)}" if job.started else ""
        share = row.progress.share if row.progress else None
        done = f" and is {int(100 * share)} % through" if share is not None else ""
        grace = limit(job.options, "grace_s", 30.0)
        lines.append(
            f"It has run{ran}{done}. It is asked to stop and save, and killed after {grace:.0f} s."
            f" What it has written stays; a retry resumes from {_resume_point(job)}."
        )
    if job.serves:
        lines.append(f"It is the server {job.serves}: its clients lose it.")
    if waiters:
        them = ", ".join(str(number) for number in waiters[:8]) + (" and more" if len(waiters) > 8 else "")
        lines.append(f"Job{'s' if len(waiters) > 1 else ''} {them} wait{'' if len(waiters) > 1 else 's'} for it.")
    return " ".join(lines)


def _resume_point(job: Job) -> str:
    point = resume_point(RunFolder(Path(job.run))) if job.run else ""
    return point or "its last checkpoint, if this kind of job keeps any"


def _files(folder: Path, most: int = 200) -> list[JobFile]:
    """The run's files by name, those in folders below it named with their folder."""
    files: list[JobFile] = []
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name not in PRIVATE and path.name[0] != ".":
                files.append(JobFile(str(path.relative_to(folder)), path.stat().st_size))
                if len(files) == most:
                    break
    except OSError:
        return files  # it is being written, or gone: what was seen is shown
    return files
