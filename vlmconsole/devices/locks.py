"""Device locks: files in a folder that all users of the machine share, locked with flock.

The folder is `/tmp/vlmconsole-devices` (mode 1777), the same for everyone, so that two people, or two lab homes,
never put work on one card. Each user has files of their own in it (`cpu.0.u1000.lock`): whoever takes a device locks
their own file of it *and* everybody else's, so that nobody depends on a file that another user made, closed or
put something else in the place of. Of two who come at once, each sees at least the other's. `cpu.0.lock` is the one
file that earlier versions know: it is locked too, shared by what may run beside other work.

What is locked: `cpu.N` and cards by jobs; `timed` by timed work for as long as it runs, and already while it only
waits for servers to make room; `server-…` by each server on the CPU, which is in nobody's way but of timed work.

A worker inherits its locks and holds them for its life; the kernel lets go when it ends, however it ends.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import platformdirs

from vlmconsole.devices import lock_files
from vlmconsole.devices.labels import SERVER, TIMED
from vlmconsole.system import processes

SHARED = Path("/tmp/vlmconsole-devices")
FRESH = 3600.0  # seconds after which a file that is in use is touched again: cleaners of /tmp look at its age
Files = Mapping[str, Sequence[Path]]


def server_lock(home: Path, profile: str) -> str:
    """Return the name under which a lab home's server on the CPU shows other homes that it is up."""
    return f"{servers_of(home)}{_short(profile)}"


def servers_of(home: Path) -> str:
    """Return how the names of a lab home's own servers begin."""
    return f"{SERVER}{_short(f'{os.getuid()}:{home}')}-"


def _short(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


class DeviceLocks:
    """The locks of one machine. Raises OSError when no folder for them can be used at all."""

    def __init__(self, folder: Path = SHARED) -> None:
        self.wanted = folder
        self._opened: tuple[float, Mapping[str, int]] | None = None
        self.remark = ""  # why the locks are not shared with other users; "" when they are

    @property
    def folder(self) -> Path:
        """Where this user's own files are: the shared folder, or one of their own where that cannot be used."""
        why = lock_files.unfit(self.wanted)
        if not why:
            self.remark = ""
            return self.wanted
        other = Path(platformdirs.user_cache_dir("vlmconsole", appauthor=False)) / f"devices-{_short(str(self.wanted))}"
        self.remark = f"devices are shared out among your own lab homes only: {why}; ask its owner to remove it"
        if again := lock_files.unfit(other, 0o700):
            raise OSError(f"{why}; {again}")
        return other

    def files(self) -> Files:
        """Return every lock file there is, by the name of what it locks."""
        listed: dict[str, list[Path]] = {}
        for folder in dict.fromkeys((self.folder, self.wanted)):
            with contextlib.suppress(OSError):  # what cannot be listed is known from `remark`
                for entry in os.scandir(folder):
                    if match := lock_files.NAME.fullmatch(entry.name):
                        listed.setdefault(match["name"], []).append(folder / entry.name)
        return listed

    def _common(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def take(
        self, names: Iterable[str], *, alone: bool = True, beside: Iterable[str] = (), files: Files | None = None
    ) -> list[int] | None:
        """Lock all of them or none (None when one is held): descriptors, to be inherited and then closed here.

        alone: nothing of an earlier version may run on those CPU slots. beside: slots that are used by a server and not
        taken from other work.
        """
        taken: list[int] = []
        listed = self.files() if files is None else files
        try:
            for name in names:
                mine = lock_files.own(self.folder, name)
                common = self._common(name)
                if not name.startswith((TIMED, SERVER)):
                    lock_files.make(common)
                for path in dict.fromkeys((mine, common, *listed.get(name, ()))):
                    mild = path == common and not alone and name.startswith("cpu.")
                    if not self._add(taken, path, fcntl.LOCK_SH if mild else fcntl.LOCK_EX):
                        return None
            for name in beside:
                lock_files.make(self._common(name))
                if not self._add(taken, self._common(name), fcntl.LOCK_SH):
                    return None
        except BaseException:
            self.release(taken)
            raise
        return taken

    def _add(self, taken: list[int], path: Path, operation: int) -> bool:
        descriptor, held = lock_files.lock(path, operation)
        if descriptor is not None:
            taken.append(descriptor)
        elif held or lock_files.kernel_holder(path) is not None:
            self.release(taken)
            return False
        return True  # what is no lock for us holds nobody up

    @staticmethod
    def release(descriptors: Iterable[int]) -> None:
        """Close our copies; a worker that inherited them goes on holding the locks."""
        for descriptor in descriptors:
            os.close(descriptor)

    def held(self, name: str, files: Files | None = None) -> bool:
        """Return whether anyone holds that device."""
        return self.use(name, files) != ""

    def use(self, name: str, files: Files | None = None) -> str:
        """Return how a device is held: "alone" (nothing may run beside it), "work" (a server may), "" by nobody."""
        listed = (self.files() if files is None else files).get(name, ())
        held = [path for path in listed if self._is_held(path)]
        if not held:
            return ""
        common = {folder / f"{name}.lock" for folder in (self.folder, self.wanted)}
        return "work" if name.startswith("cpu.") and not common & set(held) else "alone"

    def _is_held(self, path: Path) -> bool:
        descriptor, held = lock_files.lock(path, fcntl.LOCK_SH)
        if descriptor is not None:
            os.close(descriptor)
            return False
        return held or lock_files.kernel_holder(path) is not None

    def holder(self, name: str) -> str:
        """Return who holds a device, for people: a process of ours, else (Linux) another user's, else nobody we can
        name.
        """
        paths = self.files().get(name, ())
        if (pid := next(filter(None, map(self._processes().get, map(str, paths))), None)) is not None:
            return _words(pid)
        for pid in filter(None, map(lock_files.kernel_holder, paths)):
            with contextlib.suppress(OSError, KeyError):
                user = Path(f"/proc/{pid}").stat().st_uid
                if pid != os.getpid():
                    who = pwd.getpwuid(user).pw_name if user != os.getuid() else ""
                    return f"in use by user {who} (pid {pid})" if who else _words(pid)
        return "in use by a job of another user or lab home"

    def _processes(self) -> Mapping[str, int]:
        """{lock file: a process of ours that has it open} (Linux); for all at once, as it reads all of /proc."""
        now = time.monotonic()
        if self._opened is None or now - self._opened[0] > 1.0:
            folders = {str(self.folder), str(self.wanted)}
            holders: dict[str, int] = {}
            for entry in Path("/proc").glob("[0-9]*/fd/*"):
                with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                    target, pid = str(entry.readlink()), int(entry.parts[2])
                    if pid != os.getpid() and target.rpartition("/")[0] in folders:
                        holders.setdefault(target, pid)
            self._opened = now, holders
        return self._opened[1]

    def keep(self, names: Iterable[str]) -> list[int]:
        """Keep the files of held devices from being cleaned away; the locks that had to be taken anew.

        A cleaner may have removed a file all the same: then it is made and locked again, by us for the holder.
        """
        again: list[int] = []
        for name in names:
            path = lock_files.own(self.folder, name)
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > FRESH:
                    os.utime(path)
            if not self._is_held(path):
                descriptor, _ = lock_files.lock(path, fcntl.LOCK_EX)
                again += [] if descriptor is None else [descriptor]
        return again


def _words(pid: int) -> str:
    words = processes.describe(pid, 1000)
    if "vlmconsole.jobs.worker" in words or "vlmconsole.queue.process" in words:
        return f"in use by another vlmconsole (pid {pid}, another lab home)"
    return f"held by {processes.describe(pid)}"
