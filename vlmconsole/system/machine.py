"""What this machine is, in one line: the same words wherever the hardware of a figure is told."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vlmconsole.text.counts import many


def usable_cores() -> int:
    """Cores that this process may use (its affinity where the system knows one)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def peak_rss_bytes(pid: int | None = None) -> int:
    """Read the peak resident memory of a process so far, in bytes (this one's by default; 0 for one that is gone).

    Source: `/proc/PID/status`. The resource usage that the system offers elsewhere survives a fork and an exec, and so
    counts the parent's size.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid or 'self'}/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if pid is not None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def raise_file_limit(wanted: int) -> int:
    """Allow `wanted` open files, as far as the hard limit goes; returns what is allowed now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def machine_line(cards: Sequence[str] = ()) -> str:
    """`1 × NVIDIA H200, AMD EPYC 7B13, 16 cores`; `cards` as they are to be called. Nothing of load or clock."""
    return ", ".join([*cards, _processor(), many(usable_cores(), "core")])


@cache
def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    name = match[1] if match else platform.processor() or platform.machine()
    return " ".join(re.sub(r"\((R|TM)\)|CPU|@.*$", " ", name).split())
