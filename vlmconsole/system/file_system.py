"""What the file system under a lab home must be able to do: locks, and memory that processes share through a file."""

import contextlib
import errno
import fcntl
import os
import re
import sqlite3
from pathlib import Path

from vlmconsole.errors import LabError

LOCAL = "Use a lab home on a local disk: --home DIR or VLMCONSOLE_HOME. What is in this one may be copied there."
# What a file system answers that has no locks, and not that somebody holds one.
NONE = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF})
# SQLite's extended codes for a lock or a shared memory that could not be had.
LACKING = frozenset({2058, 2314, 3594, 3850, 4618, 5130, 5386})


class FileSystemError(LabError):
    """The lab home is on a file system that cannot keep a lab; the message names it."""


def check_locks(home: Path, state: Path) -> None:
    """Raise FileSystemError where the file system of a lab home has no locks. A home that cannot be written passes."""
    path = state / "locks.probe"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return
    try:
        # The queue's books hold locks of the one kind, SQLite of the other.
        for lock in (fcntl.flock, fcntl.lockf):
            with contextlib.suppress(BlockingIOError):  # another process of ours asks the same in this moment
                lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NONE:
            raise lacking(home, "file locks", error.strerror or str(error)) from None
    finally:
        os.close(descriptor)


def lacking(path: Path, what: str, why: str) -> FileSystemError:
    """Return the error for a file system that has not `what`."""
    return FileSystemError(f"{path} is on {name_of(path)}, which has no {what} ({why}).", LOCAL)


def fault(error: sqlite3.Error, path: Path) -> FileSystemError | None:
    """Return the error where a database could not be used for want of locks or shared memory; None for any other
    fault.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code in LACKING or code & 0xFF == sqlite3.SQLITE_PROTOCOL:
        return lacking(path, "locks or shared memory as SQLite needs them", str(error))
    return None


def check_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Enter WAL mode. Raises FileSystemError where the file system cannot have it, else sqlite3.Error."""
    try:
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    except sqlite3.Error as error:
        if problem := fault(error, path):
            raise problem from None
        raise
    if mode != "wal":
        raise lacking(path, "shared memory as SQLite's WAL mode needs it", f"it stays in mode {mode}")


def name_of(path: Path) -> str:
    """Return the kind of the file system that a path is on, and from where: `nfs4 (box:/export)`."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return "a file system"
    best, name = -1, "a file system"
    resolved = path.resolve()
    for line in lines:
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])  # blanks, mostly
        if resolved.is_relative_to(place) and len(place) >= best:
            kind, source = after.split()[:2]
            best, name = len(place), f"{kind} ({source})"
    return name


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does (time of change in ns, bytes); None for none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size)
