"""What is the lab's is for its owner alone; what the user asks to be written elsewhere keeps the user's own umask."""

import contextlib
import os
import pwd
import stat
from pathlib import Path

from vlmconsole.errors import LabError

PRIVATE = 0o077  # the bits that nobody else gets
DATABASE = ("", "-wal", "-shm", "-journal")
_users: int | None = None  # the umask that this process was started with


def keep_private() -> None:
    """Called first by every process of ours: whatever it and its children make is for its owner alone."""
    global _users
    before = os.umask(PRIVATE)
    _users = before if _users is None else _users


def users_mode(bits: int = 0o666) -> int:
    """Return the mode of a file (0o777: of a folder) that the user asked for outside the lab, by their own umask."""
    if _users is not None:
        return bits & ~_users
    now = os.umask(PRIVATE)  # cannot be read without being set
    os.umask(now)
    return bits & ~now


def close_database(path: Path) -> list[str]:
    """Make a database, and what SQLite keeps beside it, its owner's alone before it is opened; what was not.

    SQLite gives its journals the mode of the database: they are right when that one is right in time.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return [path.name + end for end in DATABASE if _closed(path.with_name(path.name + end))]


def _closed(path: Path) -> bool:
    """Take a file or folder from everybody else; True when anybody had it."""
    try:
        info = path.lstat()
        if info.st_uid != os.geteuid() or stat.S_ISLNK(info.st_mode) or not info.st_mode & PRIVATE:
            return False
        path.chmod(stat.S_IMODE(info.st_mode) & ~PRIVATE)
    except OSError:  # not there, or a read-only disk
        return False
    return True


def close_home(home: Path, *databases: Path) -> str:
    """Make a lab home its owner's alone, and say so ("" when it was). Raises LabError where it cannot be trusted.

    The folder's own mode closes all that is in it; the databases are closed too, in case it is opened again.
    """
    info = home.stat()
    if not stat.S_ISDIR(info.st_mode):  # never a word of chmod: it may be /dev/null
        raise LabError(
            f"The lab home {home} is no folder.", "Name one with --home DIR or VLMCONSOLE_HOME.", code="home-invalid"
        ).named()
    if info.st_uid != os.geteuid():
        try:
            owner = f"user {pwd.getpwuid(info.st_uid).pw_name}"
        except KeyError:
            owner = f"user {info.st_uid}"
        raise LabError(
            f"The lab home {home} belongs to {owner}.", "Use one of your own: --home DIR or VLMCONSOLE_HOME."
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode & stat.S_IWOTH:
        raise LabError(
            f"The lab home {home} can be written by everybody (mode {mode:o}): what is in it may be anybody's.",
            f"See what is in it, then: chmod 700 {home} (where the disk knows no modes, use another --home).",
        )
    closed = [name for path in databases if path.exists() for name in close_database(path)]
    if not _closed(home) and not closed:
        return ""
    what = f"The lab home {home} (mode {mode:o})" if mode & PRIVATE else f"In the lab home {home} {', '.join(closed)}"
    return f"{what} could be read by others: closed to everybody but you."
