"""The queue's connection to SQLite: it tells a damaged, unwritable or full file from a queue that is only busy."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.queue.schema import QueueError, prepare
from vlmconsole.system import file_system
from vlmconsole.system.privacy import close_database

BUSY = 30.0  # seconds to wait for another writer before giving up


class QueueConnection(sqlite3.Connection):
    """Says what is wrong with the file itself as a QueueError; a busy queue stays SQLite's own error."""

    path = Path()

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except UnicodeEncodeError:  # a text that names a path which is not UTF-8
            return super().execute(sql, [_plain(value) for value in parameters])
        except OverflowError:  # a job's number, mostly, as someone typed it
            raise QueueError(
                "that number has more than 64 bits: the queue has no such job", code="number-too-large"
            ).named() from None
        except sqlite3.DatabaseError as error:
            problem = fault(error, self.path)
            if problem is None:
                raise
            raise problem from None


def _plain(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def fault(error: sqlite3.DatabaseError, path: Path) -> LabError | None:
    """Return the error for people where the queue's file is damaged or cannot be written; None for any other."""
    if problem := file_system.fault(error, path):
        return problem
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return QueueError(
            f"The queue's file {path} is damaged ({error}).",
            f"Move {path} away to start afresh; the runs themselves are kept in {path.parent / 'runs'}.",
            code="queue-damaged",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return QueueError(
            f"The queue's file {path} cannot be written ({error}).",
            f"Make {path} and its folder writable for you, or use another lab home (--home).",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return QueueError(
            f"The queue's file {path} cannot be written ({error}).",
            f"Make room on the disk of {path.parent}, and see that it works.",
        )
    return None


def opened(path: Path) -> QueueConnection:
    """Return the queue's file, made or brought up to date where need be. Raises QueueError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_database(path)
        database = sqlite3.connect(path, timeout=BUSY, isolation_level=None, factory=QueueConnection)
        database.path = path
        database.row_factory = sqlite3.Row
        database.text_factory = partial(str, encoding="utf-8", errors="replace")  # an odd byte hides no other job
        # A queued job must survive a power cut: each commit reaches the disk.
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA foreign_keys=ON")
        prepare(database, path=path)
    except sqlite3.DatabaseError as error:
        raise fault(error, path) or QueueError(
            f"The queue {path} cannot be opened ({error}).", "Try again; another process may hold it for long."
        ) from None
    except OSError as error:
        raise QueueError(
            f"The queue's file {path} cannot be written ({error.strerror}).",
            f"Make {path} and its folder writable for you, or use another lab home (--home).",
        ) from None
    return database
