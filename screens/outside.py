"""Files opened with the system's own viewer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def open_outside(path: Path) -> str:
    """Open a file; returns why that is not possible here, "" when its viewer was started."""
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    headless = sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if headless or shutil.which(opener) is None:
        return f"this machine has no desktop to open it on; the image is {path}"
    subprocess.Popen(
        [opener, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return ""
