"""Device locks: one file a device in a folder that all users of the machine share, locked with flock.

The folder is ``/tmp/vlmconsole-devices`` (mode 1777), the same for everyone, so that two people, or two lab homes,
never put work on one card. Files are opened *read-only* to be locked: in a sticky folder the kernel may refuse to open
another user's file for writing (fs.protected_regular), and flock needs no more than reading. The worker inherits
the locks of its devices and holds them for its life; the kernel lets go when it ends, however it ends.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from vlmconsole.runs import processes

SHARED = Path("/tmp/vlmconsole-devices")


class DeviceLocks:
    """The locks of one machine. Raises OSError when the folder cannot be used at all."""

    def __init__(self, folder: Path = SHARED) -> None:
        self.folder = folder

    def _open(self, name: str) -> int:
        if not self.folder.exists():
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(parents=True)
                self.folder.chmod(0o1777)
        path = self.folder / f"{name}.lock"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def take(self, names: Iterable[str]) -> list[int] | None:
        """Lock all of them or none (None when one is held): descriptors, to be inherited and then closed here."""
        taken: list[int] = []
        for name in names:
            descriptor = self._open(name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                self.release(taken)
                return None
            taken.append(descriptor)
        return taken

    @staticmethod
    def release(descriptors: Iterable[int]) -> None:
        """Close our copies; a worker that inherited them goes on holding the locks."""
        for descriptor in descriptors:
            os.close(descriptor)

    def held(self, name: str) -> bool:
        """Whether anyone holds that device."""
        descriptor = self._open(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holder(self, name: str) -> str:
        """Who holds a device, for people: a process where we may see it (Linux, our own user), else another user."""
        path = str(self.folder / f"{name}.lock")
        for entry in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if str(entry.readlink()) == path and int(entry.parts[2]) != os.getpid():
                    return f"held by {processes.describe(int(entry.parts[2]))}"
            except OSError:
                continue  # ended meanwhile, or another user's
        return "held by a job of another user or lab home"
