"""Closing the books of a run: its final state, then the seal. Done by the worker, or by whoever finds it dead."""

import os
import signal
import time
from pathlib import Path

from vlmconsole.jobs.launch import log_tail
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import FINAL, TEMPORARY, RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system.locking import take

RESERVE = "reserve"  # the worker's: given back when the disk is full, so that the reason can still be written
DISK_FULL = 4  # a worker's exit code: it could not write how it ended
FULL = "the disk was full, so that it could not even write how it ended: free some space and retry"
GONE = "the worker is gone"  # of one that is no child of ours: how it died is not known
UNFINISHED = "could not finish the books of this run"  # begins a worker's last words then


def close(run: RunFolder, state: str, reason: str | None) -> None:
    """Write the final state and seal the run into its lab's ledger; nothing may write to it afterwards."""
    run.set_state(state, reason, ended=round(time.time(), 3))
    Ledger(Places(Path(run.job()["home"])).ledger).seal(run)


def lock(run: RunFolder) -> int | None:
    """Take the run's lock (a descriptor to be kept open, or closed to let go); None while a worker lives.

    The worker holds it for its whole life and the kernel lets go of it even after kill -9, so whoever has it knows
    that no worker runs.
    """
    return take(run.file("worker.lock"))


def bury(run: RunFolder, state: str, reason: str) -> tuple[str, str | None] | None:
    """Close the books of a run whose worker is dead; returns its final state and reason, None while a worker lives.

    What the worker itself wrote as its end stands; else `state` and `reason` are written. A worker that should
    still be on its way to starting will find the run ended, and leave.
    """
    descriptor = lock(run)
    if descriptor is None:
        return None
    try:
        _clear(run)
        now = run.state()
        if now.get("state") not in FINAL:
            close(run, state, reason)
            return state, reason
        Ledger(Places(Path(run.job()["home"])).ledger).complete(run)  # it may have died in the middle of its seal
        return now["state"], now.get("reason")
    finally:
        os.close(descriptor)


def _clear(run: RunFolder) -> None:
    """Remove what a dead worker could not: its reserve, and files that never got their names."""
    for path in run.path.rglob("*"):
        if path.name == RESERVE or TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def cause(run: RunFolder, death: str) -> tuple[str, str]:
    """State and reason of a worker that died without saying why: a full disk is named, by its exit code or last words.

    An adopted worker is no child of ours and leaves no exit code.
    """
    words = log_tail(run, 3, 4096)
    if death == FULL or any(line.startswith(UNFINISHED) and "disk is full" in line for line in words):
        return "failed", FULL
    return "lost", death


def death(code: int) -> str:
    """Return what a worker's exit status means that ended without saying why; negative is a signal's number."""
    if code < 0:
        name = signal.Signals(-code).name
        more = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        return f"the worker was ended by {name}{more}"
    if code == DISK_FULL:
        return FULL
    return f"the worker ended with exit code {code} before it could say why"
