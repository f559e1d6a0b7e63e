"""Thumbnails of a dataset's images, on disk below the lab home's cache: bounded, and made anew when they are gone."""

from __future__ import annotations

import io
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

SIDE = 192  # pixels, longest side of a thumbnail
LIMIT = 256 * 1024**2  # bytes of all thumbnails of a lab home
_QUALITY = 85  # of a thumbnail's JPEG
_DECODERS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow has some that start other programs


class Thumbnails:
    """A file of thumbnails (SQLite), by a key that the image's place in an immutable file gives.

    Losing it loses nothing: what cannot be read or written is made again. Safe under several threads and processes.
    """

    def __init__(self, cache: Path, limit: int = LIMIT) -> None:
        self.path = cache / "thumbnails.sqlite"
        self._limit = limit
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._size = 0

    def get(self, key: str) -> bytes | None:
        """Return the thumbnail under `key` (JPEG); b"" for an image that has none, None where it was not made yet."""
        with self._lock:
            try:
                row = self._opened().execute("SELECT data FROM thumbnails WHERE key = ?", (key,)).fetchone()
            except (sqlite3.Error, OSError):
                return None
        return bytes(row[0]) if row is not None else None

    def put(self, key: str, data: bytes) -> None:
        """Store a thumbnail; where there is no room left, the oldest quarter goes."""
        with self._lock, suppress(sqlite3.Error, OSError):
            database = self._opened()
            database.execute("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", (key, data))
            self._size += len(data)
            if self._size > self._limit:
                self._shrink(database)

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                self._database = self._open()
            except sqlite3.DatabaseError:  # no database any more: it held nothing that is not elsewhere
                self.path.unlink(missing_ok=True)
                self._database = self._open()
        return self._database

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=OFF")
            database.execute("CREATE TABLE IF NOT EXISTS thumbnails (key TEXT PRIMARY KEY, data BLOB)")
            self._size = _size(database)
        except BaseException:
            database.close()
            raise
        return database

    def _shrink(self, database: sqlite3.Connection) -> None:
        (rows,) = database.execute("SELECT count(*) FROM thumbnails").fetchone()
        oldest = "SELECT rowid FROM thumbnails ORDER BY rowid LIMIT ?"
        database.execute(f"DELETE FROM thumbnails WHERE rowid IN ({oldest})", (rows // 4 + 1,))
        database.execute("VACUUM")
        self._size = _size(database)


def _size(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT coalesce(sum(length(data)), 0) FROM thumbnails").fetchone()[0])


def make_thumbnail(image: bytes, side: int = SIDE) -> bytes:
    """Return a JPEG of at most `side` × `side` pixels of encoded image bytes; b"" where they are no image."""
    from PIL import Image

    try:
        opened = Image.open(io.BytesIO(image), formats=_DECODERS)
        opened.draft("RGB", (side * 2, side * 2))  # lets a large JPEG decode at a fraction of its size
        small = opened.convert("RGB")
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        small.save(out, "JPEG", quality=_QUALITY)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return b""
    return out.getvalue()
