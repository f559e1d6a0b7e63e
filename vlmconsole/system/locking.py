"""Locks of the operating system on a file: whoever holds one, the kernel lets go of it with the process."""

import fcntl
import os
from pathlib import Path


def take(path: Path) -> int | None:
    """Return the lock of a file, which is made where it is missing: a descriptor to close when done; None while it is
    held.

    Of one process's two takes the second gets None as well. Raises OSError where the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
