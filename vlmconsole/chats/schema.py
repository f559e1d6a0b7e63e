"""The database file: its tables, its version, and the one way to open it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from vlmconsole.chats.records import ChatStoreError
from vlmconsole.system.file_system import check_wal, fault
from vlmconsole.system.privacy import close_database

#: Each brings a database from the version before to its own; the first from nothing.
_STEPS = (
    """
CREATE TABLE chats (
  id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
  server TEXT NOT NULL DEFAULT '', system TEXT NOT NULL DEFAULT '', sampling TEXT NOT NULL DEFAULT '{}',
  deleted REAL
);
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
  role TEXT NOT NULL, text TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '', created REAL NOT NULL,
  state TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', server TEXT NOT NULL DEFAULT '', answer TEXT,
  superseded INTEGER NOT NULL DEFAULT 0, writer_pid INTEGER, writer_started TEXT
);
CREATE INDEX messages_by_chat ON messages(chat_id, id);
CREATE TABLE pictures (
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE, position INTEGER NOT NULL,
  sha256 TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (message_id, position)
);
CREATE INDEX pictures_by_hash ON pictures(sha256);
""",
    """
CREATE TABLE drafts (
  id INTEGER PRIMARY KEY, chat_id INTEGER REFERENCES chats(id) ON DELETE SET NULL, text TEXT NOT NULL,
  changing INTEGER REFERENCES messages(id) ON DELETE SET NULL, kept REAL NOT NULL,
  writer_pid INTEGER, writer_started TEXT
);
CREATE TABLE draft_pictures (
  draft_id INTEGER NOT NULL REFERENCES drafts(id) ON DELETE CASCADE, position INTEGER NOT NULL,
  sha256 TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (draft_id, position)
);
""",
)
VERSION = len(_STEPS)


def writable(database: Path) -> bool:
    """May this process write the database, and the files that WAL mode keeps beside it?"""
    return all(_may_write(path) for path in (database, database.parent) if path.exists())


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def connect_to_read(database: Path) -> sqlite3.Connection:
    """Open a database that is there and cannot be written. Raises ChatStoreError like `connect`."""
    wal = database.with_name(database.name + "-wal")
    # Readers of a WAL database make files beside it; where they cannot, it must be said that nobody writes.
    still = not _may_write(database.parent) and not (wal.exists() and wal.stat().st_size)
    try:
        name = f"{database.resolve().as_uri()}?mode=ro" + ("&immutable=1" if still else "")
        connection = sqlite3.connect(name, uri=True, timeout=5.0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    except (sqlite3.Error, OSError) as error:
        raise ChatStoreError(f"the conversations in {database} cannot be read ({error})") from error
    if not 1 <= version <= VERSION:  # drafts, which version 1 had not, are nothing to read
        raise ChatStoreError(f"{database} has schema {version}; this vlmconsole reads 1 to {VERSION}")
    return connection


def connect(database: Path) -> sqlite3.Connection:
    """Open (or make) the database in WAL mode; several consoles may hold it at once.

    Raises ChatStoreError when the file is not ours to use: damaged, written by a newer vlmconsole, or read-only.
    """
    if not writable(database):
        raise ChatStoreError(
            f"the conversations in {database} cannot be written: permission denied",
            "Make the file and its folder writable, or use another lab home with --home DIR.",
            code="database-read-only",
        )
    try:
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        close_database(database)
        connection = sqlite3.connect(database, timeout=5.0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        check_wal(connection, database)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        _migrate(connection, database)
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, sqlite3.Error) and (problem := fault(error, database)):
            raise problem from None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            kind, hint = "database-damaged", f"Move {database} away to start afresh."
        elif code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):  # never advise to put good conversations aside
            kind = "disk-full"
            hint = f"Make room on the disk of {database.parent} and try again; what is in the file stays."
        else:
            kind, hint = "database-busy", "Try again; another process may hold the file."
        raise ChatStoreError(f"the conversations in {database} cannot be opened ({error})", hint, code=kind) from error
    return connection


def _migrate(connection: sqlite3.Connection, database: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise ChatStoreError(
            f"{database} was written by a newer vlmconsole (schema {version}, this one knows {VERSION}); "
            "update vlmconsole or use another --home",
            code="database-newer",
        )
    if version < VERSION:
        # Two consoles may start at once on an empty home: the loser of the lock sees the new version and does nothing.
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            for statement in filter(str.strip, ";".join(_STEPS[version:]).split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={max(version, VERSION)}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:  # a full disk has ended it already, and its own error is the one to tell
                connection.execute("ROLLBACK")
            raise
