"""Folders of images: with a table of them (imagefolder), a folder for each class, or nothing but images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.source import IMAGE_SUFFIXES, READERS, RowFiles, Source
from vlmconsole.data.sources.source_row import SourceFile, SourceRow
from vlmconsole.data.sources.splits_named import split_named
from vlmconsole.text.plain import one_line

_METADATA = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))


class ImageFiles(Source):
    """Images whose folder is their answer (`classes`), or that have none. Each asks the same question."""

    kind = "classes"

    def __init__(self, root: Path, parts: list[tuple[str, str, Path]]) -> None:
        self.root, self._parts = root, parts  # split, class ("": none), folder

    def files(self) -> list[SourceFile]:
        return []

    @property
    def question_needed(self) -> bool:
        return True

    def rows(self) -> Iterator[SourceRow]:
        for split, label, folder in self._parts:
            for path in _images(folder):
                where = str(path.relative_to(self.root))
                row = {"image": path.name, "label": label} if label else {"image": path.name}
                yield SourceRow(one_line(where), row, folder, split)


def image_folder(folder: Path) -> Source | None:
    """Return the images below a folder: with metadata, by class, or alone; None where it holds neither."""
    if table := _metadata(folder):
        return RowFiles(folder, [SourceFile(table)])
    inner = _folders(folder)
    tables = [(split_named(part.name) or part.name, table) for part in inner if (table := _metadata(part))]
    if tables:
        return RowFiles(folder, [SourceFile(table, split) for split, table in tables])
    if any(path.suffix.lower() in READERS for path in folder.iterdir() if path.is_file()):
        return None
    if inner and all(split_named(part.name) == part.name.casefold() for part in inner):
        parts = [(split_named(part.name), label.name, label) for part in inner for label in _folders(part)]
        parts += [(split_named(part.name), "", part) for part in inner if not _folders(part)]
    else:
        parts = [("", part.name, part) for part in inner]
    parts = [part for part in parts if next(_images(part[2]), None) is not None]
    alone = next(_images(folder), None) is not None
    if alone and parts:
        raise DataError(
            f"{folder} holds images beside folders of images",
            "Move them into a folder: each folder's name is the answer.",
            code="source-mixed",
        )
    if alone:
        parts = [("", "", folder)]
    return ImageFiles(folder, parts) if parts else None


def _metadata(folder: Path) -> Path | None:
    return next((folder / name for name in _METADATA if (folder / name).is_file()), None)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and not path.is_dir()
    )
