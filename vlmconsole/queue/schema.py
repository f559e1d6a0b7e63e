"""The queue's tables, and how an older database becomes the present one."""

import sqlite3
import time
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.system.file_system import check_wal

# Each script takes the database from version n to n + 1 (PRAGMA user_version). Never edit one that was released.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used again, so a number always means one job
        preset TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL,
        spec TEXT NOT NULL,                     -- JSON, as queued; a flow's step may hold ${step.key}
        options TEXT NOT NULL DEFAULT '{}',     -- JSON, the preset's [queue] table
        devices TEXT NOT NULL DEFAULT '["cpu"]',-- JSON list of requests
        server TEXT, serves TEXT,
        keep INTEGER NOT NULL DEFAULT 0, hand_over INTEGER NOT NULL DEFAULT 0,
        flow INTEGER REFERENCES jobs(id), step TEXT,
        server_for INTEGER REFERENCES jobs(id), -- the guest that this server was started for
        priority INTEGER NOT NULL DEFAULT 0, position REAL NOT NULL,
        state TEXT NOT NULL, reason TEXT, note TEXT,
        attempt INTEGER NOT NULL DEFAULT 1, failures INTEGER NOT NULL DEFAULT 0,
        not_before REAL NOT NULL DEFAULT 0,     -- wall seconds
        added REAL NOT NULL, started REAL, ended REAL,
        run TEXT, pid INTEGER, pid_started TEXT,
        granted TEXT NOT NULL DEFAULT '[]', guest_of INTEGER,
        stop TEXT                               -- why it was asked to stop; NULL: it was not
    );
    CREATE INDEX jobs_state ON jobs(state, priority DESC, position);
    CREATE INDEX jobs_position ON jobs(position);
    CREATE INDEX jobs_flow ON jobs(flow);
    CREATE INDEX jobs_server_for ON jobs(server_for);
    CREATE TABLE after (
        job INTEGER NOT NULL REFERENCES jobs(id), other INTEGER NOT NULL REFERENCES jobs(id),
        mode TEXT NOT NULL CHECK (mode IN ('ok', 'any')), PRIMARY KEY (job, other)
    );
    CREATE TABLE attempts (
        job INTEGER NOT NULL REFERENCES jobs(id), number INTEGER NOT NULL,
        run TEXT, state TEXT NOT NULL, reason TEXT, started REAL, ended REAL, PRIMARY KEY (job, number)
    );
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    """,
)


class QueueError(LabError):
    """The queue cannot do that; the message says why."""


def prepare(connection: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS, path: Path = Path()) -> None:
    """Make the tables or bring them up to date, once, whoever comes first. Raises QueueError for a newer database, and
    FileSystemError where the file's place cannot have one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            # Entering WAL ignores the busy timeout, so many first openers must try again by themselves.
            check_wal(connection, path)
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if _version(connection) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(migrations):
            raise QueueError(
                f"the queue was written by a newer vlmconsole (version {version}, this one knows {len(migrations)})",
                "update vlmconsole, or use another --home",
                code="queue-newer",
            )
        for script in migrations[version:]:
            for statement in _statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a fault of the disk may have ended it already
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> list[str]:
    """The statements of a script one by one: executescript would commit the transaction that guards them."""
    statements, part = [], ""
    for piece in script.split(";"):
        part += piece + ";"
        if part.strip(" \n;") and sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    return statements
