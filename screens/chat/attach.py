"""Pictures on their way into a message: from paths, addresses and the inbox, each checked before it becomes a chip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

#: How often the inbox is looked at while something is expected (seconds). Never otherwise.
INBOX_PERIOD = 1.0


@dataclass
class Attached:
    """What a round of attaching gave: pictures that may be sent, and one line for each that may not."""

    pictures: list[Picture] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def open_all(paths: list[Path], *, background: str) -> Attached:
    """Read and check files in a thread; a bad one never keeps the good ones out."""
    return await asyncio.to_thread(_open_all, paths, background)


def _open_all(paths: list[Path], background: str) -> Attached:
    from vlmconsole.vision.images import PictureError, open_picture

    made = Attached()
    for path in paths:
        try:
            made.pictures.append(open_picture(path, background=background))
        except PictureError as error:
            made.errors.append(str(error))
    return made


async def await_in_inbox(inbox: Path, names: set[str], arrived: Callable[[Path], None]) -> None:
    """Watch `inbox` until a file of each name has come; a file counts once its size has stopped growing.

    scp writes in place, so a file seen once may be half a picture: it must look the same twice.
    """
    inbox.mkdir(parents=True, exist_ok=True, mode=0o700)
    before: dict[str, tuple[int, int]] = {}
    waiting = set(names)
    while waiting:
        for name in sorted(waiting):
            try:
                state = (inbox / name).stat()
            except OSError:
                continue
            now = (state.st_size, state.st_mtime_ns)
            if state.st_size and before.get(name) == now:
                waiting.discard(name)
                arrived(inbox / name)
            before[name] = now
        if waiting:
            await asyncio.sleep(INBOX_PERIOD)


def open_outside(path: Path) -> str:
    """Open a file with the system's own viewer; returns why that is not possible here, "" when it was started."""
    import os
    import shutil
    import subprocess
    import sys

    opener = "open" if sys.platform == "darwin" else "xdg-open"
    headless = sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if headless or shutil.which(opener) is None:
        return f"there is no desktop here to open it on; the picture is {path}"
    subprocess.Popen(
        [opener, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return ""
