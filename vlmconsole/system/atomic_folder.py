"""A folder that appears whole or not at all: filled beside its place, then renamed into it.

What a maker that was killed left behind is cleared by the next maker of the same folder. It is told from one that is
being filled now by a lock on the folder itself, which the kernel lets go of with its process.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def making(target: Path) -> Iterator[Path]:
    """A new folder (0700) beside `target`, for the caller to fill and to rename; removed if that does not happen.

    Missing parents are made. Raises OSError.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _held(target.parent, wait=True):  # so that nobody clears it between its making and its lock
        clear(target)
        building = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        building.mkdir(mode=0o700)
        lock = _locked(building, wait=False)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)  # nothing there any more where it was renamed
        if lock is not None:
            os.close(lock)


def clear(target: Path) -> list[Path]:
    """Remove what dead makers of `target` left beside it, nothing else; returns what was removed.

    Called with the parent's lock held, as `making` does.
    """
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    gone = []
    for path in target.parent.iterdir():
        if ours.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            lock = _locked(path, wait=False)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
                gone.append(path)
    return gone


@contextmanager
def _held(folder: Path, *, wait: bool) -> Iterator[None]:
    lock = _locked(folder, wait=wait)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _locked(folder: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the folder's lock; None where another process has it, or the disk knows no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return descriptor
    os.close(descriptor)
    return None
