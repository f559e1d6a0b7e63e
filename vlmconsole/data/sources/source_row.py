"""Rows as they lie in somebody's files, each with its place, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError


@dataclass(frozen=True)
class SourceRow:
    """One row: `where` people find it ("a.jsonl line 3"), its columns or why it cannot be read.

    Paths in it are relative to `folder`; `split` is the one that its file or folder names, "" for none.
    """

    where: str
    value: Mapping[str, Any] | DataError
    folder: Path
    split: str = ""
    file: Path | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file of rows, and the split that it stands for ("": none)."""

    path: Path
    split: str = ""
