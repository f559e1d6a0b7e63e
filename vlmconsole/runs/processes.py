"""Which process is meant: a pid together with its start, since pids are used again."""

from pathlib import Path

import psutil


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """A token that two processes with the same pid never share, or None when no such process lives.

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


def alive(pid: int | None, token: str | None) -> bool:
    """Whether that very process still runs (same pid *and* same start)."""
    return pid is not None and token is not None and started(pid) == token


def describe(pid: int, limit: int = 60) -> str:
    """``pid 4242 python train.py``: the command line as far as we may see it, cut to ``limit`` characters."""
    try:
        words = psutil.Process(pid).cmdline() or [psutil.Process(pid).name()]
    except psutil.Error:
        return f"pid {pid}"
    words[0] = Path(words[0]).name or words[0]
    line = " ".join(" ".join(words).split())
    return f"pid {pid} {line if len(line) <= limit else line[: limit - 1] + '…'}"
