"""Room for timed work among the lab homes of one machine.

Whoever waits for nothing but other homes' servers shows it (the lock `timed`), for a while and not for ever. A home
that sees it lets its idle servers go, and they come back once the timed work is over.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psutil

from vlmconsole.queue.model import Job, Mode, NewJob
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.running_job import Live
from vlmconsole.queue.store import Store

ASK = 90.0  # seconds for which room is asked for
REST = 300.0  # seconds until it is asked for again: others' work must not wait while a busy server makes none
QUIET = 10.0  # seconds without work after which a server is idle
BUSY_SHARE = 0.1  # of one core: measured: 0.002-0.01 of an idle one with its worker, looked at by a console


@dataclass
class Room:
    """What one supervisor asks of other homes, and grants them. Not for several threads."""

    machine: Machine
    clock: Callable[[], float]
    _asked: float | None = None
    _work: dict[int, "_Work"] = field(default_factory=dict)

    def ask(self, wanted: bool) -> None:
        """Ask other homes' idle servers to go (or stop asking)."""
        now = self.clock()
        if not wanted:
            self._asked = None
        elif self._asked is None or now - self._asked >= ASK + REST:
            self._asked = now
        self.machine.ask_for_room(wanted and self._asked is not None and now - self._asked < ASK)

    def idle(self, servers: Iterable[Live], used: set[int]) -> list[Live]:
        """Our servers that have done nothing for a while; `used`: those that jobs are guests of."""
        now, idle = self.clock(), []
        for live in servers:
            seconds = None if live.job.id in used or not live.ready else _cpu_seconds(live)
            before = self._work.get(live.job.id)
            busy = seconds is None or before is None or seconds - before.seconds > BUSY_SHARE * (now - before.at)
            since = now if busy or before is None else before.since
            self._work[live.job.id] = _Work(now, seconds or 0.0, since)
            if now - since >= QUIET:
                idle.append(live)
        return idle


@dataclass(frozen=True)
class _Work:
    at: float
    seconds: float
    since: float  # when it last did something, as far as we saw


def _cpu_seconds(live: Live) -> float | None:
    """Processor time that a server has taken, with its worker and all children; None when it cannot be told."""
    try:
        process = psutil.Process(live.worker.pid)
        return sum(sum(member.cpu_times()[:2]) for member in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None


def comes_back(job: Job, after: tuple[tuple[int, Mode], ...] = (), note: str | None = None) -> NewJob:
    """Return a server's job anew, to be queued when it makes room."""
    return NewJob(
        job.preset, job.kind, job.title, job.spec, job.options, job.devices, serves=job.serves,
        keep=True, after=after, priority=job.priority, note=note,
    )  # fmt: skip


def make_room(store: Store, live: Live, who: str) -> None:
    """Let an idle server go for another home's timed work; one that was to stay is queued again."""
    if live.asked is not None or live.job.stop is not None:
        return
    with store.change():
        store.cancel(live.job.id, f"made room for timed work: cpu×all {who}")
        if live.job.keep:
            store.add(comes_back(live.job, note="back after another lab home's timed work"))
