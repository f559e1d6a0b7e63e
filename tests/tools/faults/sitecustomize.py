"""A wall clock that jumps: in every process that finds this folder on PYTHONPATH, and only where a test asks for it.

`VLMCONSOLE_FAULT_CLOCK` names a file that holds the seconds by which `time.time` is off. The monotonic clock is
left alone, as a change of the clock leaves it.
"""

import os
import time
from pathlib import Path

FILE = os.environ.get("VLMCONSOLE_FAULT_CLOCK")

if FILE:
    real = time.time

    def shifted() -> float:
        try:
            return real() + float(Path(FILE).read_text() or 0)
        except (OSError, ValueError):  # not there yet, or just being written
            return real()

    time.time = shifted
