"""What killed processes left lying in a lab home: files that never got their names."""

import contextlib
import os
import stat
import time
from pathlib import Path

from vlmconsole.runs.folder import TEMPORARY
from vlmconsole.runs.places import Places

OLD = 3600.0  # seconds: writing a file takes no hour, so whoever began it is gone


def clear(places: Places) -> list[Path]:
    """Remove them; what was removed. Runs are cleared when their books are closed, and what has makers by those."""
    left_out = {places.runs, places.environments, places.datasets}
    gone = []
    for folder, below, names in os.walk(places.home):  # links are not followed
        below[:] = [name for name in below if Path(folder, name) not in left_out]
        for name in filter(TEMPORARY.fullmatch, names):
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                info = path.lstat()
                if stat.S_ISREG(info.st_mode) and time.time() - info.st_mtime > OLD:
                    path.unlink()
                    gone.append(path)
    return gone
