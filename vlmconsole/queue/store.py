"""The queue on disk (SQLite, WAL): order, dependencies, states and attempts, safe under many processes at once.

Every change is one BEGIN IMMEDIATE transaction, so two writers never see each other's half; readers never wait.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmconsole.queue import variables
from vlmconsole.queue.connection import opened
from vlmconsole.queue.model import FINAL, STATES, Job, NewJob, flow_state, stored_run, unreadable
from vlmconsole.queue.reader import QueueReader
from vlmconsole.queue.schedule import hopeless
from vlmconsole.queue.schema import QueueError
from vlmconsole.runs.places import Places


class Store(QueueReader):
    """One connection to the queue of a lab home. Not for several threads: each makes its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lab = Places(path.parent)
        self._db = opened(path)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its start; nested use joins the outer one."""
        if self._db.in_transaction:
            yield self._db
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise QueueError(f"The queue is busy ({error}).", "Another process holds it for long; try again.") from None
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def version(self) -> tuple[int, int]:
        """Changes with every change, by this connection or another; cheap enough to ask four times a second."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0]), self._db.total_changes

    # --- adding ---
    def add(self, job: NewJob) -> int:
        """Queue a job; returns its number. Raises QueueError when one that it waits for does not exist."""
        options = {variables.OPTION: variables.needed(job, self.lab) if job.kind != "flow" else [], **job.options}
        with self.change() as db:
            cursor = db.execute(
                "INSERT INTO jobs (preset, kind, title, spec, options, devices, server, serves, keep, hand_over, flow,"
                " step, server_for, priority, position, state, note, added) VALUES"
                " (?,?,?,?,?,?,?,?,?,?,?,?,?,?, (SELECT COALESCE(MAX(position), 0) + 1 FROM jobs), ?,?,?)",
                (
                    job.preset, job.kind, job.title, json.dumps(job.spec), json.dumps(options),
                    json.dumps(job.devices), job.server, job.serves, job.keep, job.hand_over, job.flow,
                    job.step, job.server_for, job.priority, "queued", job.note, time.time(),
                ),
            )  # fmt: skip
            number = int(cursor.lastrowid or 0)
            for other, mode in job.after:
                if db.execute("SELECT 1 FROM jobs WHERE id=?", (other,)).fetchone() is None or other == number:
                    raise QueueError(
                        f"there is no job {other} to wait for", "`vlmconsole jobs list --all` shows them"
                    ).named()
                db.execute("INSERT OR REPLACE INTO after VALUES (?,?,?)", (number, other, mode))
            variables.queued(self.lab, number, options[variables.OPTION])
            return number

    # --- what the supervisor does ---
    def claim(self, number: int, granted: tuple[str, ...], guest_of: int | None, run: str) -> bool:
        """queued → starting, exactly once however many try; False when it is not queued any more."""
        with self.change() as db:
            claimed = db.execute(
                "UPDATE jobs SET state='starting', reason=NULL, granted=?, guest_of=?, run=?, started=?, ended=NULL,"
                " pid=NULL, pid_started=NULL, stop=NULL WHERE id=? AND state='queued'",
                (json.dumps(granted), guest_of, stored_run(run), time.time(), number),
            ).rowcount
            self._renew_flow(number)
            return claimed == 1

    def running(self, number: int, pid: int, token: str | None) -> None:
        """starting → running, with the worker's pid and start."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET state='running', pid=?, pid_started=? WHERE id=? AND state IN ('starting','running')",
                (pid, token, number),
            )
            self._renew_flow(number)

    def finish(
        self, number: int, state: str, reason: str | None = None, span: tuple[float | None, float | None] = (None, None)
    ) -> None:
        """To a final state. Its devices are free afterwards. `span`: start and end as its run tells them, wall
        seconds, so that a job and its run took equally long; what is None stays or is now."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET state=?, reason=?, started=COALESCE(?, started), ended=?, granted='[]',"
                " guest_of=NULL, failures=failures + ? WHERE id=?",
                (state, reason, span[0], span[1] or time.time(), int(state in ("failed", "lost")), number),
            )
            self._renew_flow(number)

    def mend(self) -> None:
        """Give jobs whose state is none of those there are one again: *running* where a run was begun, so that it is
        looked at as after a crash, else *lost*."""
        marks = ",".join("?" * len(STATES))
        bad = self._db.execute(f"SELECT id, kind, run, state FROM jobs WHERE state NOT IN ({marks})", STATES).fetchall()
        if not bad:
            return
        with self.change() as db:
            for number, kind, run, state in bad:
                if kind == "flow":
                    self._renew_flow(number, itself=True)
                elif run is None:
                    self.finish(number, "lost", unreadable(f"state: {state!r} is no state", over=True))
                else:
                    db.execute("UPDATE jobs SET state='running' WHERE id=? AND state=?", (number, state))

    def unclaim(self, number: int) -> None:
        """starting → queued again, in its old place: the worker never began."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET state='queued', run=NULL, pid=NULL, started=NULL, granted='[]', guest_of=NULL"
                " WHERE id=? AND state='starting'",
                (number,),
            )
            self._renew_flow(number)

    def again(self, number: int, not_before: float = 0.0, *, by_hand: bool = True) -> None:
        """A new attempt of an ended job, in its old place; the old attempt is kept beside it.

        Of a flow: of every step that did not end well, and of those done ones that went on without such a step (the
        report, which gets what was missing).
        """
        with self.change():
            job = self.get(number)
            if job.kind == "flow":
                renewed: set[int] = set()
                for step in self.steps(number):
                    unmade = step.state in FINAL and step.state != "done"
                    without = step.state == "done" and any(other in renewed for other, _ in step.after)
                    if unmade or without:
                        self._again(step, 0.0, by_hand=True)
                    if unmade or without or step.state == "queued":
                        renewed.add(step.id)
                self._renew_flow(number, itself=True)
                return
            if job.state in ("starting", "running") and job.stop is not None:
                raise QueueError(
                    f"job {number} is stopping ({job.stop}): try again once it has ended",
                    f"vlmconsole jobs wait {number} tells when",
                )
            if job.state not in FINAL or job.state == "done":
                raise QueueError(
                    f"job {number} is {job.state} and has nothing to retry",
                    f"vlmconsole jobs clone {number} runs it anew",
                )
            self._again(job, not_before, by_hand=by_hand)

    def _again(self, job: Job, not_before: float, *, by_hand: bool) -> None:
        number = job.id
        with self.change() as db:
            db.execute(
                "INSERT OR REPLACE INTO attempts VALUES (?,?,?,?,?,?,?)",
                (number, job.attempt, stored_run(job.run), job.state, job.reason, job.started, job.ended),
            )
            db.execute(
                "UPDATE jobs SET state='queued', reason=NULL, attempt=attempt + 1, not_before=?, run=NULL, pid=NULL,"
                " pid_started=NULL, started=NULL, ended=NULL, stop=NULL, failures=? WHERE id=?",
                (not_before, 0 if by_hand else job.failures, number),
            )
            if by_hand and not job.damaged:
                self._rename_variables(job)
            self._renew_flow(number)

    def _rename_variables(self, job: Job) -> None:
        """The variables of whoever tries a job again are its own from then on."""
        others = {key: value for key, value in job.options.items() if key != variables.OPTION}
        same = NewJob(job.preset, job.kind, job.title, job.spec, server=job.server, serves=job.serves)
        names = variables.needed(same, self.lab)
        self._db.execute(
            "UPDATE jobs SET options=? WHERE id=?", (json.dumps({**others, variables.OPTION: names}), job.id)
        )
        variables.queued(self.lab, job.id, names)

    # --- what people ask for ---
    def cancel(self, number: int, why: str = "cancelled on request") -> str:
        """Cancel: a queued job at once, an active one by asking its supervisor. Returns the state it is in then."""
        with self.change() as db:
            job = self.get(number)
            if job.kind == "flow":
                for step in reversed(self.steps(number)):
                    if step.state not in FINAL:
                        self.cancel(step.id, why)
                self._renew_flow(number, itself=True)
                return self.get(number).state
            if job.state in FINAL:
                raise QueueError(f"job {number} has ended already ({job.state})")
            if job.state == "queued":
                self.finish(number, "cancelled", why)
                return "cancelled"
            db.execute("UPDATE jobs SET stop=COALESCE(stop, ?) WHERE id=?", (why, number))
            return job.state

    def clone(self, number: int) -> int:
        """Return a new job with the same settings, at the end of the queue."""
        with self.change() as db:
            job = self.get(number)
            if job.damaged:
                raise QueueError(f"job {number}: {job.damaged}")
            if job.kind == "flow":
                raise QueueError(f"job {number} is a flow: add its preset again", f"vlmconsole jobs add {job.preset}")
            options = {key: value for key, value in job.options.items() if key != variables.OPTION}
            copy = NewJob(
                job.preset, job.kind, job.title, job.spec, options, job.devices, job.server, job.serves, job.keep,
                job.hand_over, priority=job.priority, note=f"clone of {number}",
            )  # fmt: skip
            del db
            return self.add(copy)

    def move(self, number: int, place: int) -> None:
        """Make a queued job the `place`-th of the queue (1 is next); it takes the priority of that place."""
        with self.change() as db:
            queue = self.waiting()
            mine = next((job for job in queue if job.id == number), None)
            if mine is None:
                raise QueueError(f"job {number} is {self.get(number).state}: only queued jobs can be moved")
            others = [job for job in queue if job.id != number]
            place = max(1, min(place, len(others) + 1))
            before = others[place - 2] if place > 1 else None
            behind = others[place - 1] if place <= len(others) else None
            near = behind or before
            priority = near.priority if near else mine.priority
            same = [job.position for job in (before, behind) if job is not None and job.priority == priority]
            if len(same) == 2:
                position = sum(same) / 2
            else:
                position = (same[0] - 1 if near is behind else same[0] + 1) if same else mine.position
            db.execute("UPDATE jobs SET priority=?, position=? WHERE id=?", (priority, position, number))
            if len(same) == 2 and not same[0] < position < same[1]:  # halved too often: number all anew
                ids = [job.id for job in others]
                ids.insert(place - 1, number)
                for index, moved in enumerate(ids):
                    db.execute("UPDATE jobs SET position=? WHERE id=?", (float(index + 1), moved))

    def place_before(self, number: int, other: int) -> None:
        """Put a job right before another in the order, with the same priority."""
        with self.change() as db:
            job = self.get(other)
            row = db.execute(
                "SELECT MAX(position) FROM jobs WHERE priority=? AND position<? AND state='queued' AND id<>?",
                (job.priority, job.position, number),
            ).fetchone()
            floor = row[0] if row[0] is not None else job.position - 1
            db.execute(
                "UPDATE jobs SET priority=?, position=? WHERE id=?",
                (job.priority, (floor + job.position) / 2, number),
            )

    def set(self, number: int, **columns: Any) -> None:
        """Change `hand_over`, `keep`, `note` or `priority` of a job."""
        unknown = set(columns) - {"hand_over", "keep", "note", "priority"}
        if unknown:
            raise ValueError(f"not to be set: {unknown}")
        with self.change() as db:
            for name, value in columns.items():
                db.execute(f"UPDATE jobs SET {name}=? WHERE id=?", (value, number))

    # --- the queue as a whole ---
    def meta(self, key: str, default: Any = None) -> Any:
        """Return a value that the whole queue shares, e.g. `drained`."""
        row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        try:
            return json.loads(row[0]) if row else default
        except (ValueError, TypeError, RecursionError):  # damaged: as if it had never been set
            return default

    def set_meta(self, key: str, value: Any) -> None:
        with self.change() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, json.dumps(value)))

    def guarded(self, idle: Callable[[], bool], leave: Callable[[], None]) -> bool:
        """Under the write lock: if `idle()` holds, do `leave()`. No job can be added between the two."""
        with self.change():
            if not idle():
                return False
            leave()
            return True

    def _renew_flow(self, number: int, *, itself: bool = False) -> None:
        """Give a flow the state that follows from its steps."""
        row = self._db.execute("SELECT flow FROM jobs WHERE id=?", (number,)).fetchone()
        flow = number if itself else (row["flow"] if row else None)
        if flow is None:
            return
        steps = self._db.execute(
            "SELECT id, state, reason, step, started, ended FROM jobs WHERE flow=? ORDER BY id", (flow,)
        ).fetchall()
        left = [step["id"] for step in steps if step["state"] == "queued"]
        after = {step: self.followed(step) for step in left}
        states = self.states({other for pairs in after.values() for other, _ in pairs})
        outcome = [(step["state"], step["step"], step["reason"]) for step in steps]
        state, reason = flow_state(outcome, len(left) - len(hopeless(after, states)))
        begun = [step["started"] for step in steps if step["started"]]
        ended = [step["ended"] for step in steps if step["ended"]]
        self._db.execute(
            "UPDATE jobs SET state=?, reason=?, started=?, ended=? WHERE id=?",
            (state, reason, min(begun, default=None), max(ended, default=None) if state in FINAL else None, flow),
        )
