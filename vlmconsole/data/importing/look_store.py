"""What the lab knows of every image it has looked at, by the hash of its bytes: an import that was stopped goes on.

A cache below the lab's datasets. Where it was deleted, images are looked at again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from vlmconsole.data.importing.image_facts import ImageFacts

_BATCH = 500  # looks written at once
_COLUMNS = "sha, sent, pixel, width, height, grey"


class LookStore:
    """The file of looks (SQLite), safe in threads. What cannot be stored (a full disk) is only not remembered."""

    def __init__(self, datasets: Path) -> None:
        datasets.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = datasets / "looks.sqlite"
        self._lock = threading.Lock()
        self._new: list[ImageFacts] = []
        self._db = _opened(self.path)

    def get(self, sha256: str) -> ImageFacts | None:
        """Return what is known of an image by the hash (hex) of its bytes."""
        with self._lock, suppress(sqlite3.DatabaseError):
            row = self._db.execute(f"SELECT {_COLUMNS} FROM looks WHERE sha = ?", (bytes.fromhex(sha256),)).fetchone()
            return _facts(row) if row else None
        return None

    def add(self, facts: ImageFacts) -> None:
        """Remember an image, and the bytes that are sent of it."""
        with self._lock:
            self._new.append(facts)
            if len(self._new) >= _BATCH:
                self._flush()

    def add_all(self, facts: Iterable[ImageFacts]) -> None:
        """Remember several."""
        for entry in facts:
            self.add(entry)

    def flush(self) -> None:
        """Write what is remembered so far, so that `get` gives it."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        with self._lock:
            self._flush()
            self._db.close()

    def _flush(self) -> None:
        rows = [_row(facts) for facts in self._new]
        rows += [
            _row(replace(facts, sha256=facts.sent_sha256)) for facts in self._new if facts.sent_sha256 != facts.sha256
        ]
        self._new = []
        with suppress(sqlite3.DatabaseError), self._db:
            self._db.executemany("INSERT OR REPLACE INTO looks VALUES (?, ?, ?, ?, ?, ?)", rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _opened(path: Path) -> sqlite3.Connection:
    for attempt in (1, 2):
        db = sqlite3.connect(path, timeout=30, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS looks (sha BLOB PRIMARY KEY, sent BLOB, pixel BLOB, width INTEGER, "
                "height INTEGER, grey BLOB) WITHOUT ROWID"
            )
            return db
        except sqlite3.DatabaseError:  # damaged: it is only a cache
            db.close()
            if attempt == 2:
                break
            path.unlink(missing_ok=True)
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute("CREATE TABLE looks (sha BLOB PRIMARY KEY, sent BLOB, pixel BLOB, width, height, grey BLOB)")
    return db


def _row(facts: ImageFacts) -> tuple[bytes, bytes, bytes, int, int, bytes]:
    hashes = (bytes.fromhex(value) for value in (facts.sha256, facts.sent_sha256, facts.pixel_sha256))
    sha, sent, pixel = hashes
    return sha, sent, pixel, facts.width, facts.height, facts.grey


def _facts(row: tuple[bytes, bytes, bytes, int, int, bytes]) -> ImageFacts:
    sha, sent, pixel, width, height, grey = row
    return ImageFacts(sha.hex(), sent.hex(), pixel.hex(), width, height, grey)
