"""What this machine is, in one line: the same words wherever the hardware of a figure is told."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vlmconsole.runs.words import many


def usable_cores() -> int:
    """Cores that this process may use (its affinity where the system knows one)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def machine_line(cards: Sequence[str] = ()) -> str:
    """``1 × NVIDIA H200, AMD EPYC 7B13, 16 cores``; `cards` as they are to be called. Nothing of load or clock."""
    return ", ".join([*cards, _processor(), many(usable_cores(), "core")])


@cache
def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1] if found else platform.processor() or platform.machine()
    return " ".join(re.sub(r"\((R|TM)\)|CPU|@.*$", " ", name).split())
