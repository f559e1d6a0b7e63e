"""What a person gives as SOURCE: a file of rows, or a folder of images, of shards, or of a dataset saved to disk."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.arrow_rows import arrow_rows, parquet_rows
from vlmconsole.data.sources.json_rows import json_rows
from vlmconsole.data.sources.sheet_rows import sheet_rows
from vlmconsole.data.sources.source_row import SourceFile, SourceRow
from vlmconsole.text.plain import one_line

Reader = Callable[[Path], Iterator[tuple[str, dict[str, Any] | DataError]]]
READERS: dict[str, Reader] = {
    ".jsonl": json_rows, ".ndjson": json_rows, ".json": json_rows, ".csv": sheet_rows, ".tsv": sheet_rows,
    ".parquet": parquet_rows, ".arrow": arrow_rows,
}  # fmt: skip
IMAGE_SUFFIXES = frozenset(
    {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}
    | {".heic", ".heif", ".avif", ".jp2", ".ppm", ".pgm"}
)


class Source(ABC):
    """Rows of one source in their order. `kind` says in a word what it is, `root` is where it lies."""

    kind: ClassVar[str]
    root: Path

    @abstractmethod
    def rows(self) -> Iterator[SourceRow]:
        """Return every row. Raises DataError where a file cannot be read at all."""

    @abstractmethod
    def files(self) -> list[SourceFile]:
        """Return the files that hold the rows; none where the images' own places say it all."""

    @property
    def label(self) -> str:
        """What people call it: the name of its one file, else of its folder."""
        files = self.files()
        return files[0].path.name if len(files) == 1 else self.root.absolute().name

    @property
    def question_needed(self) -> bool:
        """Whether the rows hold no question, so that one must be given for all."""
        return False


class RowFiles(Source):
    """One file of rows or several, each with its split."""

    kind = "rows"

    def __init__(self, root: Path, files: list[SourceFile], reader: Reader | None = None) -> None:
        self.root, self._files, self._reader = root, files, reader

    def files(self) -> list[SourceFile]:
        return self._files

    def rows(self) -> Iterator[SourceRow]:
        for file in self._files:
            reader = self._reader or READERS[file.path.suffix.lower()]
            place = file.path.parent.relative_to(self.root)
            try:
                for where, value in reader(file.path):
                    shown = where if place == Path() else f"{place}/{where}"
                    yield SourceRow(one_line(shown), value, file.path.parent, file.split, file.path)
            except OSError as error:
                raise DataError(f"{file.path} cannot be read: {error.strerror}", code="file-unreadable") from None


def files_sha256(files: list[SourceFile]) -> list[str]:
    """Hash (hex) of each file's bytes. Raises DataError."""
    hashes = []
    for file in files:
        try:
            with file.path.open("rb") as opened:
                hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
        except OSError as error:
            raise DataError(f"{file.path} cannot be read: {error.strerror}", code="file-unreadable") from None
    return hashes
