"""Which process is meant: a pid together with its start, since pids are used again."""

import os
import signal
import time
from pathlib import Path

import psutil

# Set in a worker's environment to its run folder, so that children which left its session are found again.
# Whoever starts a process that shall outlive the job (a shared server) takes it out of that environment.
RUN_MARK = "VLMCONSOLE_RUN"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """Return a token that two processes with the same pid never share, or None when no such process lives.

    On Linux it is the boot id and the start in clock ticks since boot, which a jump of the wall
    clock cannot move (psutil's creation time is wall time and does move). Elsewhere it is psutil's.
    A zombie has ended and counts as dead.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        stat = ""
    if stat:
        # The command may hold spaces and brackets: count fields from the last bracket (state is field 3).
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[19]}"
    if Path("/proc/self/stat").exists():
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.3f}"
    except psutil.Error:
        return None


def age(pid: int) -> float:
    """Seconds since that process started, which no change of the clock moves; 0.0 when it has ended or hides it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        ticks = int(stat.rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, since_boot - ticks / os.sysconf("SC_CLK_TCK"))
    except OSError:
        pass
    try:
        return max(0.0, time.time() - float(psutil.Process(pid).create_time()))
    except psutil.Error:
        return 0.0


def alive(pid: int | None, token: str | None) -> bool:
    """Return whether that very process still runs (same pid *and* same start)."""
    return pid is not None and token is not None and started(pid) == token


def describe(pid: int, limit: int = 60) -> str:
    """`pid 4242 python train.py`: the command line as far as we may see it, cut to `limit` characters."""
    try:
        words = psutil.Process(pid).cmdline() or [psutil.Process(pid).name()]
    except psutil.Error:
        return f"pid {pid}"
    words[0] = Path(words[0]).name or words[0]
    line = " ".join(" ".join(words).split())
    return f"pid {pid} {line if len(line) <= limit else line[: limit - 1] + '…'}"


def family(leader: int | None, run: Path) -> list[psutil.Process]:
    """Return every living process of a run: the members of its worker's session, and all that carry its mark.

    `leader` is the worker's pid, which is its session's id (None: by the mark alone). Never holds the caller.
    """
    members = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            # Asking a session's id is cheap, reading an environment is not: ask it only of those that may be ours.
            # Sessions 0 and 1 are the system's, never a worker's: a damaged record must not end those.
            ours = leader is not None and leader > 1 and os.getsid(process.pid) == leader
            if not ours and process.uids().real == os.getuid():
                ours = process.environ().get(RUN_MARK) == str(run)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return members


def kill_family(leader: int | None, run: Path, wait: float = 5.0) -> list[psutil.Process]:
    """KILL all of a run's processes and wait until they are gone; returns those that would not go."""
    deadline = time.monotonic() + wait
    while True:
        # Again and again: a process may have been forked between the listing and its parent's end.
        left = family(leader, run)
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)  # not psutil's wait: it would take a child's exit status away from its Popen
