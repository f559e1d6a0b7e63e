"""One lock file in a folder that is everybody's: opened, made and locked so that no trick laid there can hold us up.

Whatever another user put in the way (a pipe, a folder, a link, a device, a file closed to us) is never waited for,
written to or followed: it is no lock, and `openable` says so.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

MODE = 0o644  # flock needs no more than reading, and every user must be able to try
FOLDER_MODE = 0o1777
TRIES = 5
NAME = re.compile(r"(?P<name>.+?)(?:\.u\d+(?:-[0-9a-f]{8})?)?\.lock")


def unfit(folder: Path, mode: int = FOLDER_MODE) -> str:
    """Return why lock files cannot be kept in that folder, which is made where it is missing; "" when they can."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            folder.chmod(mode)  # mkdir's own mode is cut by the umask
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode):
            return f"{folder} is {kind_of(info.st_mode)}, not a folder"
        if info.st_uid == os.getuid() and stat.S_IMODE(info.st_mode) != mode and _only_locks(folder):
            folder.chmod(mode)  # whoever made it was ended before they could say who may use it
            return ""
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror or error}"
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        return f"in {folder} everybody may remove what is another's (it lacks the sticky bit, mode 1777)"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return f"{folder} is closed to you (it is user {info.st_uid}'s, mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def _only_locks(folder: Path) -> bool:
    """Whether a folder serves for nothing else: only such a one may be opened to everybody."""
    return all(NAME.fullmatch(entry.name) for entry in os.scandir(folder))


def kind_of(mode: int) -> str:
    """Return what a file is that is no ordinary one, in words."""
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((words for test, words in kinds if test(mode)), "a file")


def openable(path: Path) -> int | None:
    """Return a descriptor to lock, opened for reading and without ever waiting; None for what cannot be a lock."""
    try:
        before = path.lstat()
        if not stat.S_ISREG(before.st_mode) or before.st_nlink != 1:  # a second name may be another program's file
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    now = os.fstat(descriptor)
    if not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
        os.close(descriptor)
        return None
    return descriptor


def make(path: Path) -> bool:
    """Make a lock file with the right mode whatever the umask; False when something of that name is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, MODE)
    finally:
        os.close(descriptor)
    return True


def own(folder: Path, name: str) -> Path:
    """Return this user's own lock file of that name, made or mended. Raises OSError when none can be made."""
    stem = f"{name}.u{os.getuid()}"
    earlier = sorted(path for path in folder.glob(f"{stem}-*.lock") if NAME.fullmatch(path.name))
    for path in (folder / f"{stem}.lock", *earlier):
        if make(path):
            return path
        descriptor = openable(path)
        if descriptor is None:
            # Ours, but closed to ourselves by a chmod: the next name does as well.
            continue
        try:
            info = os.fstat(descriptor)
            if info.st_uid != os.getuid():
                continue  # somebody laid it there in our name
            if stat.S_IMODE(info.st_mode) != MODE:
                os.fchmod(descriptor, MODE)
            return path
        finally:
            os.close(descriptor)
    path = folder / f"{stem}-{secrets.token_hex(4)}.lock"
    make(path)
    return path


def lock(path: Path, operation: int) -> tuple[int | None, bool]:
    """Lock a file without waiting: (descriptor, held by another). (None, False): there is no lock of that name.

    The file may have been removed or replaced between opening and locking: then the lock would be one that nobody
    else sees. So it is compared with what now has the name. Raises OSError where the file system has no locks.
    """
    for _ in range(TRIES):
        descriptor = openable(path)
        if descriptor is None:
            return None, False
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            if same(descriptor, path):
                return descriptor, False
        except BlockingIOError:
            os.close(descriptor)
            return None, True
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None, True  # somebody replaces it again and again


def same(descriptor: int, path: Path) -> bool:
    """Return whether that name still means the file that is open."""
    try:
        now, mine = path.lstat(), os.fstat(descriptor)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def kernel_holder(path: Path) -> int | None:
    """Return the pid that took a lock on that file, as the kernel lists it (Linux); None when none is listed.

    It also serves for files that we may not open. The pid is that of whoever took the lock; a child may hold it by now.
    """
    try:
        info = path.lstat()
        wanted = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == wanted and words[4].isdigit():
            return int(words[4])
    return None
