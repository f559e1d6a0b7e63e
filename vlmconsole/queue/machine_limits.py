"""A machine that has no process, descriptor or memory to spare: starting pauses, and no job fails for it."""

import errno
import time

from vlmconsole.queue.error_isolation import LONGEST, pause, say
from vlmconsole.queue.store import Store

PAUSE = "pause"  # of the queue's shared values: until when nothing starts, and why
# Why a process cannot be started now, and what to do where it does not pass.
LACKS = {
    errno.EAGAIN: "this user may have no more processes now: end some, or raise `ulimit -u`",
    errno.ENOMEM: "the machine has no memory for one more process: end some",
    errno.EMFILE: "the queue's process may open no more files now: raise `ulimit -n`",
    errno.ENFILE: "the machine may open no more files now: end some processes",
}


def passes(error: BaseException) -> bool:
    """Return whether the machine only lacks room for one more process now, which no job is to fail for."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in LACKS)


def paused(store: Store) -> str:
    """Return why nothing starts for a while; "" when starting is not paused. A clock that was set back ends a pause."""
    stored = store.meta(PAUSE)
    until = stored.get("until") if isinstance(stored, dict) else None
    left = until - time.time() if isinstance(until, int | float) else 0.0
    return f"{stored['why']}; tries again in {left:.0f} s" if 0 < left <= LONGEST else ""


class Refusals:
    """The starts in a row that were refused. The pause grows with them, to a minute."""

    def __init__(self, store: Store) -> None:
        self._store, self._count = store, 0

    def refused(self, error: OSError | MemoryError) -> None:
        """Start nothing for a while: what this start met, every other would meet as well."""
        self._count += 1
        wait = pause(self._count)
        code = errno.ENOMEM if isinstance(error, MemoryError) else error.errno or 0
        why = f"{LACKS[code]} ({errno.errorcode[code]})"
        say(f"no process can be started: {why}; next try in {wait:g} s")
        self._store.set_meta(PAUSE, {"until": time.time() + wait, "why": why})

    def started(self) -> None:
        self._count = 0
