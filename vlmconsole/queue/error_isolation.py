"""What nobody foresaw, kept to the one job that it came from: said in the log and on the job, tried again later."""

import errno
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid

from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store

LONGEST = 60.0  # seconds between two tries
GIVE_UP = 4  # tries to close a dead worker's books
# Faults of the machine and not of one job: they are the loop's to handle, which gives back its reserve of disk.
WHOLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def say(text: str) -> None:
    """A line into the supervisor's log, which is its standard output."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor {getpid()} {text}", flush=True)


def error_text(error: BaseException) -> str:
    """Return an exception in one line: its type and what it says."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_the_machine(error: BaseException) -> bool:
    """Return whether every job would meet this fault: the queue's file, the disk, descriptors, memory."""
    whole = isinstance(error, OSError) and error.errno in WHOLE
    return whole or isinstance(error, sqlite3.Error | QueueError | MemoryError)


def pause(times: int) -> float:
    """Seconds until the next try after the `times`-th failure in a row."""
    return float(min(LONGEST, 2.0 ** (min(times, 10) - 1)))


@dataclass(frozen=True)
class _Trouble:
    times: int
    until: float
    text: str


class Troubles:
    """The jobs whose handling failed, each with the time of the next try (of the supervisor's monotonic clock)."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._of: dict[int, _Trouble] = {}

    def times(self, number: int) -> int:
        """Return how often in a row the handling of that job has failed."""
        return self._of[number].times if number in self._of else 0

    def rests(self, number: int) -> bool:
        """Return whether that job's next try is not due yet."""
        return number in self._of and self._clock() < self._of[number].until

    @contextmanager
    def kept_to(self, number: int, doing: str) -> Iterator[None]:
        """Do something with one job; what goes wrong is booked on it, and only a fault of the machine goes on up."""
        try:
            yield
        except Exception as error:
            if of_the_machine(error):
                raise
            self._book(number, doing, error)
        else:
            self._of.pop(number, None)

    def _book(self, number: int, doing: str, error: Exception) -> None:
        times, text = self.times(number) + 1, f"{doing}: {error_text(error)}"
        wait = pause(times)
        say(f"job {number}: {text}; next try in {wait:g} s")
        if number not in self._of or self._of[number].text != text:
            traceback.print_exc()
            job = self._store.get(number)
            note = f"the supervisor had trouble {text} (see supervisor.log)"
            if note not in (job.note or ""):
                self._store.set(number, note=f"{job.note}; {note}" if job.note else note)
        self._of[number] = _Trouble(times, self._clock() + wait, text)
