"""What a person gives as SOURCE, opened: a file of rows, or a folder of images, of shards, or of a saved dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.data.sources.arrow_rows import arrow_rows
from vlmconsole.data.sources.hub import hub_source, is_hub_name
from vlmconsole.data.sources.image_folders import image_folder
from vlmconsole.data.sources.source import READERS, RowFiles, Source
from vlmconsole.data.sources.source_row import SourceFile
from vlmconsole.data.sources.splits_named import split_named
from vlmconsole.text.plain import one_line

_ADVICE = {
    ".xlsx": "export the sheet as CSV UTF-8", ".xls": "export the sheet as CSV UTF-8", ".ods": "export it as CSV UTF-8",
    ".numbers": "export it as CSV", ".zip": "unpack it first", ".tar": "unpack it first", ".gz": "unpack it first",
    ".tgz": "unpack it first", ".bz2": "unpack it first", ".xz": "unpack it first", ".zst": "unpack it first",
    ".7z": "unpack it first", ".txt": "name it .jsonl, .csv or .tsv after what it holds",
}  # fmt: skip


def open_source(path: Path) -> Source:
    """Return what lies at `path`. Raises DataError for what holds no rows, with what to do."""
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix in READERS:
            return RowFiles(path.parent, [SourceFile(path, "")])
        advice = _ADVICE.get(suffix, f"give a file of {', '.join(READERS)} or a folder")
        raise DataError(f"{path} is no file of rows: {advice}", code="source-unknown")
    if not path.exists() and is_hub_name(str(path)):
        return hub_source(str(path))
    if not path.is_dir():
        raise DataError(f"{path} does not exist, or is no file and no folder.", code="source-missing").named()
    source = _saved(path) or image_folder(path) or _shards(path)
    if source is None:
        raise DataError(
            f"{path} holds no rows: no {', '.join(READERS)}, no metadata.csv or .jsonl, no images.",
            code="source-unknown",
        )
    return source


def _saved(folder: Path) -> Source | None:
    """A dataset that the library `datasets` saved to disk, or several by their splits."""
    if (folder / "dataset_dict.json").is_file():
        names = _listed(folder / "dataset_dict.json", "splits")
        parts = [(name, folder / name) for name in names if (folder / name / "state.json").is_file()]
    elif (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        parts = [("", folder)]
    else:
        return None
    files = []
    features = b""
    for split, part in parts:
        listed = [
            entry.get("filename") for entry in _listed(part / "state.json", "_data_files") if isinstance(entry, dict)
        ]
        for name in listed:
            if not isinstance(name, str) or Path(name).name != name or not (part / name).is_file():
                raise DataError(
                    f"{part / 'state.json'} names {one_line(name, 60)}, which is not beside it", code="file-missing"
                )
            files.append(SourceFile(part / name, split))
        info = part / "dataset_info.json"
        features = features or (info.read_bytes() if info.is_file() else b"")
    return RowFiles(folder, files, lambda path: arrow_rows(path, features))


def _listed(path: Path, key: str) -> list[Any]:
    try:
        value = json.loads(path.read_text("utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise DataError(f"{path} has no list of its {key.strip('_')}", code="saved-invalid")
    return value


def _shards(folder: Path) -> Source | None:
    """The files of rows in a folder or in its `data`, as a hub's copy has them; each stands for the split it names."""
    for place in (folder, folder / "data"):
        paths = sorted(path for path in place.glob("*") if path.suffix.lower() in READERS and path.is_file())
        paths = [path for path in paths if path.name not in ("dataset_infos.json", "dataset_info.json", "state.json")]
        if paths:
            kinds = {path.suffix.lower() for path in paths}
            if len(kinds) > 1:
                raise DataError(
                    f"{place} holds files of several kinds ({', '.join(sorted(kinds))})",
                    "Give the one that is meant as SOURCE.",
                    code="source-mixed",
                )
            return RowFiles(folder, [SourceFile(path, split_named(path.stem)) for path in paths])
    return None
