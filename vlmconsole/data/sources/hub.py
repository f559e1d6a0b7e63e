"""A dataset of a hub by its name, through the library `datasets` (extra `data`), read like a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.source import Source
from vlmconsole.data.sources.source_row import SourceFile, SourceRow
from vlmconsole.data.sources.splits_named import split_named
from vlmconsole.text.plain import one_line

_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


class HubRows(Source):
    """Rows of a loaded dataset, images as stored; class numbers as their names. `parts`: split → its rows."""

    kind: ClassVar[str] = "hub"

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.name, self.root = name, Path("/")  # paths of images are the library's own, in its cache
        self._parts = {split: _plain(part) for split, part in parts.items()}

    @property
    def label(self) -> str:
        return self.name

    def files(self) -> list[SourceFile]:
        return []

    def rows(self) -> Iterator[SourceRow]:
        for split, (part, names) in self._parts.items():
            for number, value in enumerate(part, start=1):
                row = dict(value)
                for column, known in names.items():
                    if isinstance(row.get(column), int) and 0 <= row[column] < len(known):
                        row[column] = known[row[column]]
                yield SourceRow(f"{self.name} {split} row {number}", row, self.root, split_named(split) or split)


def is_hub_name(text: str) -> bool:
    """Return whether a text has the form of a hub's name: `owner/dataset`, with `:config` after it where there are
    several.
    """
    return _NAME.fullmatch(text) is not None


def hub_source(name: str) -> HubRows:
    """Return the dataset of that name. Raises DataError where the library or the net is missing."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"There is no file or folder {name}; to look for it on a hub, the library datasets is missing.",
            "Install it: pip install 'vlmconsole[data]'",
            code="extra-missing",
        ) from None
    place, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(place, config or None)
    except Exception as error:  # another package's: no net, no such name, no right, a broken script
        raise DataError(
            f"There is no file or folder {name}, and the library datasets could not load it: {one_line(error, 160)}.",
            "Check the name and the network, or download the files and give their folder.",
            code="hub-failed",
        ) from None
    return HubRows(name, loaded if isinstance(loaded, Mapping) else {"train": loaded})


def _plain(part: Any) -> tuple[Any, dict[str, list[str]]]:
    """(the rows with images not decoded, column → names of its classes)."""
    import datasets

    names = {}
    for column, feature in part.features.items():
        if isinstance(feature, datasets.Image):
            part = part.cast_column(column, datasets.Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            part = part.cast_column(column, type(feature)(datasets.Image(decode=False)))
        elif isinstance(feature, datasets.ClassLabel):
            names[column] = list(feature.names)
    return part, names
