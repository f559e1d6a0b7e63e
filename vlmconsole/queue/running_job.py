"""One job that was started: its worker, its limits, and the way to its end (ask, wait, kill)."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.jobs import closing
from vlmconsole.queue.executors import Worker
from vlmconsole.queue.model import Job, limit
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import LATEST, RunFolder
from vlmconsole.system import processes
from vlmconsole.text.numbers import number

NEVER = "never began"  # the reason in a run that is about to be cleared away
BLINK = 10.0  # seconds: a longer time between two looks says that this process itself stood still
GRACE = 30.0  # seconds between asking a job to stop and killing it, unless its preset says otherwise
# Events that the job's own work makes; a heartbeat is no progress.
IDLE_EVENTS = frozenset({"sample"})


@dataclass
class Live:
    """Kept by the supervisor for each active job. All times are of the monotonic clock, which no clock change moves."""

    job: Job
    run: RunFolder
    worker: Worker
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    asked: float | None = None
    killed: bool = False
    left: list[str] = field(default_factory=list)  # processes that KILL did not end
    _still: float = 0.0  # seconds without progress
    _looked: float = 0.0
    _tail: EventTail | None = None

    def __post_init__(self) -> None:
        now = self.clock()
        self.began, self._looked = now - processes.age(self.worker.pid), now
        if limit(self.job.options, "no_progress_s"):
            self._tail = EventTail(self.run.file("events.jsonl"))

    @property
    def ready(self) -> bool:
        """Whether a server answers: its job says so by writing ready.json."""
        return self.run.file("ready.json").exists()

    def stop(self, state: str, reason: str) -> None:
        """Ask once for a clean end, and note in the run what that end is to be called."""
        if self.asked is not None:
            return
        self.asked = self.clock()
        try:
            if not self.run.file("stop.json").exists():
                self.run.write_json("stop.json", {"state": state, "reason": reason})
        finally:  # also on a full disk: the job is asked all the same
            self.worker.ask_to_stop()

    def watch(self) -> None:
        """Apply the limits, and the KILL that follows on a stop that was not heard."""
        now = self.clock()
        if self.asked is not None:
            if now - self.asked >= limit(self.job.options, "grace_s", GRACE) and not self.killed:
                self.killed = True
                self.left = self.worker.kill()
            return
        wall, longest = limit(self.job.options, "wall_clock_s"), limit(self.job.options, "no_progress_s")
        if wall and now - self.began >= wall:
            self.stop("failed", f"stopped at its wall-clock limit of {wall:g} s")
        elif longest and self._tail is not None:
            # What happened while nobody looked (this process was stopped, the machine slept) is not held against it.
            self._still += min(now - self._looked, BLINK)
            if any(event.get("kind") not in IDLE_EVENTS for event in self._tail.read()):
                self._still = 0.0
            elif self._still >= longest:
                self.stop("failed", f"stopped: no progress for {longest:g} s")
        self._looked = now

    def settle(self, death: str) -> tuple[str, str | None] | None:
        """Close the books after the worker's death; None when a worker of this run still lives after all."""
        self.left = self.worker.kill()  # children that outlived it
        asked = self.run.read_json("stop.json", None)
        if isinstance(asked, dict):
            state = str(asked.get("state", "cancelled"))
            # A server that was told to make room and had to be killed has made room all the same.
            how = str(asked.get("reason", "stopped on request"))
            if self.killed or death == closing.death(-signal.SIGKILL):
                how += " (killed: it did not stop by itself)"
            elif death not in (
                closing.death(-signal.SIGTERM),
                closing.GONE,
            ):  # that ends one that had not begun to listen
                how += f" ({death})"
            return closing.bury(self.run, state, how)
        return closing.bury(self.run, *closing.cause(self.run, death))


def span_of(run: RunFolder) -> tuple[float | None, float | None]:
    """Start and end of a run as its books tell them, wall seconds; None for what is not there, or no time at all."""
    now = run.state()
    begun, ended = (number(now.get(key)) for key in ("started", "ended"))
    return begun if begun and 0 < begun < LATEST else None, ended if ended and 0 < ended < LATEST else None


def began(state: dict[str, Any]) -> bool:
    """Return whether a worker ever wrote into the run (its folder may not even have been finished).

    A supervisor that died while it cleared such a run away has left its own mark there, and perhaps little else.
    """
    return state.get("state") not in (None, "queued") and state.get("reason") != NEVER
