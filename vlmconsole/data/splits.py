"""The index of every picture of every dataset that this lab ever made, so that no split can leak into another.

A picture counts as seen when its file bytes *or* its RGB pixels are known. The index outlives the datasets:
a deleted training set has still been trained on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlmconsole.errors import LabError

#: role → roles whose images a split of it must not hold
CROSSING: dict[str, tuple[str, ...]] = {
    "train": ("dev", "test", "exploratory"),
    "dev": ("train", "test"),
    "test": ("train", "dev"),
    "exploratory": ("train",),
}


class LeakError(LabError):
    """A picture stands where it must not: the message names both places."""

    code = "picture-leaked"


@dataclass(frozen=True, slots=True)
class Known:
    """One picture of the index; `role` is that of its split, hashes are hex."""

    sha256: str
    pixel_sha256: str
    dataset: str
    digest: str
    split: str
    role: str
    uid: str

    @property
    def place(self) -> str:
        """As people say it: `sft-expand:train sft-expand-train-00012`."""
        return f"{self.dataset}:{self.split} {self.uid}"


_COLUMNS = "sha256, pixel_sha256, dataset, digest, split, role, uid"


class PictureIndex:
    """The index file (SQLite) below the lab's datasets. Safe under several processes."""

    def __init__(self, datasets: Path) -> None:
        self.path = datasets / "index.sqlite"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS pictures (sha256 TEXT, pixel_sha256 TEXT, dataset TEXT, digest TEXT, "
                "split TEXT, role TEXT, uid TEXT, PRIMARY KEY (digest, uid))"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS by_file ON pictures (sha256)")
            connection.execute("CREATE INDEX IF NOT EXISTS by_pixels ON pictures (pixel_sha256)")
            yield connection
        except sqlite3.DatabaseError as error:
            raise LeakError(
                f"The image index {self.path} cannot be used: {error}.",
                "Isolation of splits cannot be shown without it; restore it from a backup.",
            ) from None
        finally:
            connection.close()

    def seen(self, *, but: str = "", roles: Iterable[str] | None = None) -> set[str]:
        """Return every file and pixel hash known, of splits in these `roles` alone where they are given.

        Those of the dataset whose recipe hash is `but` do not count.
        """
        if not self.path.exists():
            return set()
        with self._open() as db:
            rows = db.execute("SELECT sha256, pixel_sha256, role FROM pictures WHERE digest != ?", (but,))
            wanted = None if roles is None else set(roles)
            return {value for *row, role in rows for value in row if value and (wanted is None or role in wanted)}

    def find(self, hashes: Iterable[str]) -> list[Known]:
        """Return every entry with one of these file or pixel hashes, in the order of their making."""
        if not self.path.exists():
            return []
        matches: list[Known] = []
        with self._open() as db:
            for value in hashes:
                query = f"SELECT {_COLUMNS} FROM pictures WHERE sha256 = ? OR pixel_sha256 = ? ORDER BY rowid"
                matches += [Known(*row) for row in db.execute(query, (value, value))]
        return matches

    def all(self) -> Iterator[Known]:
        """Yield every entry, in the order of their making."""
        if self.path.exists():
            with self._open() as db:
                for row in db.execute(f"SELECT {_COLUMNS} FROM pictures ORDER BY rowid"):
                    yield Known(*row)

    @contextmanager
    def adding(self, pictures: Iterable[Known], *, sharing: bool = False, isolated: bool = False) -> Iterator[None]:
        """Add new pictures, together with what the caller does meanwhile; nothing stays when that fails.

        Raises LeakError when one of them became known since it was drawn (another process was faster); when `sharing`,
        only where it crosses train, dev and test. `isolated` says that isolation was shown with the makers' lock held,
        so that nothing can have been added since.
        """
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                for new in () if isolated else pictures:
                    roles = CROSSING[new.role] if sharing else tuple(CROSSING)
                    places = ", ".join("?" * len(roles))
                    clash = db.execute(
                        f"SELECT {_COLUMNS} FROM pictures WHERE digest != ? AND role IN ({places}) AND "
                        "(sha256 IN (?, ?) OR pixel_sha256 IN (?, ?)) LIMIT 1",
                        (new.digest, *roles, *(new.sha256, new.pixel_sha256) * 2),
                    ).fetchone()
                    if clash:
                        raise LeakError(f"{new.place} is the same image as {Known(*clash).place}.")
                    _insert(db, [new])
                if isolated:
                    _insert(db, pictures)
                yield
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise


def _insert(db: sqlite3.Connection, pictures: Iterable[Known]) -> None:
    rows = ((new.sha256, new.pixel_sha256, new.dataset, new.digest, new.split, new.role, new.uid) for new in pictures)
    db.executemany("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
