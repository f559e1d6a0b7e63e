"""What the queue on disk holds: the reading half of `store`, which never waits for a writer."""

import contextlib
import sqlite3
from collections.abc import Iterable
from typing import Any

from vlmconsole.queue.model import LINE_READERS, Attempt, Job, Mode, QueueLine, read, table, unreadable
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.variables import OPTION, names_of
from vlmconsole.runs.places import Places

ORDER = "priority DESC, position, id"


class QueueReader:
    """Reads over one connection to the queue of a lab home."""

    lab: Places
    _db: sqlite3.Connection

    def get(self, number: int) -> Job:
        """Return the job of that number. Raises QueueError."""
        jobs = self._jobs("WHERE id=?", (number,))
        if not jobs:
            raise QueueError(f"there is no job {number}", "`vlmconsole jobs list --all` shows them").named()
        return jobs[0]

    def waiting(self, limit: int = -1) -> list[Job]:
        """Return the queued jobs (the first `limit`), in order. Flows are no work of their own and are left out."""
        return self._jobs(f"WHERE state='queued' AND kind<>'flow' ORDER BY {ORDER} LIMIT ?", (limit,))

    def lines(self, limit: int = -1) -> list[QueueLine]:
        """Return the (first `limit`) queued jobs in order, as little of each as the scheduler needs."""
        after: dict[int, list[tuple[int, Mode]]] = {}
        for job, other, mode in self._db.execute(
            "SELECT job, other, mode FROM after JOIN jobs ON jobs.id=after.job WHERE state='queued'"
        ):
            after.setdefault(job, []).append((other, mode))
        rows = self._db.execute(
            "SELECT id, devices, server, serves, hand_over, options, not_before, failures FROM jobs"
            f" WHERE state='queued' AND kind<>'flow' ORDER BY {ORDER} LIMIT ?",
            (limit,),
        )
        return [_line(row, tuple(after.get(row["id"], ()))) for row in rows]

    def with_variables(self) -> dict[int, list[str]]:
        """Return the queued jobs that need variables, with their names."""
        names: dict[int, list[str]] = {}
        for number, text in self._db.execute(
            "SELECT id, options FROM jobs WHERE state='queued' AND options LIKE ?", (f'%"{OPTION}": ["%',)
        ):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                names[number] = names_of(table(text)) or []
        return names

    def active(self) -> list[Job]:
        """Jobs that were started and have not ended, flows left out."""
        return self._jobs("WHERE state IN ('starting','running') AND kind<>'flow' ORDER BY id")

    def listing(self, everything: bool = False, ended: int = 20, limit: int = -1) -> list[Job]:
        """Running, then queued in order, then the last `ended` that have ended (all of them for `everything`)."""
        now = self._jobs(
            f"WHERE state IN ('queued','starting','running') ORDER BY state='queued', {ORDER} LIMIT ?", (limit,)
        )
        then = self._jobs(
            "WHERE state NOT IN ('queued','starting','running') ORDER BY ended DESC, id DESC LIMIT ?",
            (-1 if everything else ended,),
        )
        return now + then

    def find(self, words: str, limit: int) -> list[Job]:
        """Jobs whose number, preset, title, kind, step or state holds each of `words`, ordered as in `listing`."""
        text = "id || ' ' || preset || ' ' || title || ' ' || kind || ' ' || IFNULL(step, '') || ' ' || state"
        tests, values = [], []
        for word in words.split():
            tests.append(f"({text}) LIKE ? ESCAPE '\\'")
            values.append("%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%")
        return self._jobs(
            f"WHERE {' AND '.join(tests) or '1'} ORDER BY state NOT IN ('queued','starting','running'),"
            f" state='queued', ended DESC, {ORDER} LIMIT ?",
            (*values, limit),
        )

    def followed(self, number: int) -> list[tuple[int, Mode]]:
        """Return the jobs that job `number` follows on, each with the end of it that is waited for."""
        rows = self._db.execute("SELECT other, mode FROM after WHERE job=? ORDER BY other", (number,))
        return [(int(other), mode) for other, mode in rows]

    def waiters(self, number: int) -> list[int]:
        """Return the jobs that have not ended and wait for job `number`."""
        rows = self._db.execute(
            "SELECT job FROM after JOIN jobs ON jobs.id=job WHERE other=? AND state='queued' ORDER BY job", (number,)
        )
        return [int(row[0]) for row in rows]

    def steps(self, flow: int) -> list[Job]:
        """Return the jobs of a flow, in the order of its steps."""
        return self._jobs("WHERE flow=? ORDER BY id", (flow,))

    def done_before(self, flow: Job) -> list[Job]:
        """Return the steps of the newest earlier flow of the same preset that was done; none without one."""
        row = self._db.execute(
            "SELECT id FROM jobs WHERE kind='flow' AND preset=? AND state='done' AND id<? ORDER BY id DESC LIMIT 1",
            (flow.preset, flow.id),
        ).fetchone()
        return self.steps(int(row[0])) if row is not None else []

    def states(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the state of each of those jobs that exists."""
        wanted = sorted(set(numbers))
        states: dict[int, str] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            states |= dict(self._db.execute(f"SELECT id, state FROM jobs WHERE id IN ({marks})", part).fetchall())
        return states

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state."""
        return dict(self._db.execute("SELECT state, COUNT(*) FROM jobs WHERE kind<>'flow' GROUP BY state").fetchall())

    def attempts(self, number: int) -> list[Attempt]:
        """Earlier attempts of a job, oldest first."""
        rows = self._db.execute(
            "SELECT number, run, state, reason, started, ended FROM attempts WHERE job=? ORDER BY number", (number,)
        )
        return [Attempt.from_row(row, self.lab) for row in rows]

    def servers_for(self, guest: int) -> list[Job]:
        """Servers that were started for a guest, newest first."""
        return self._jobs("WHERE server_for=? ORDER BY id DESC", (guest,))

    def _jobs(self, where: str, values: tuple[Any, ...] = ()) -> list[Job]:
        rows = self._db.execute(f"SELECT * FROM jobs {where}", values).fetchall()
        after: dict[int, tuple[tuple[int, Mode], ...]] = {}
        if len(rows) == 1:
            edges = self._db.execute("SELECT job, other, mode FROM after WHERE job=?", (rows[0]["id"],))
        else:
            edges = self._db.execute("SELECT job, other, mode FROM after")
        for job, other, mode in edges:
            after[job] = (*after.get(job, ()), (other, mode))
        return [Job.from_row(row, after.get(row["id"], ()), self.lab) for row in rows]


def _line(row: sqlite3.Row, after: tuple[tuple[int, Mode], ...]) -> QueueLine:
    """A queued job for the scheduler; one whose row cannot be read is blocked by that and asks for nothing."""
    values, damage = read(dict(row), LINE_READERS)
    if damage:
        return QueueLine(values["id"], (), None, None, False, {}, 0.0, after, damaged=unreadable(damage))
    return QueueLine(**values, after=after)
