"""CSV and TSV as spreadsheets export them: comma, semicolon or tab, quotes, BOM, CRLF, UTF-16."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

MAX_CELL = 256 * 1024 * 1024
_NUL = "\udc00"  # stands for a NUL byte, which csv does not read; no decoding gives it
_DELIMITERS = (",", ";", "\t", "|")

_NUL_REASON = "it holds a NUL byte, which no text has: the file is damaged or of another kind; export it as CSV UTF-8"


def sheet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """(place, row) of each line below the header. Empty cells are none. Raises DataError, OSError for the file."""
    csv.field_size_limit(MAX_CELL)
    with path.open(encoding=_encoding(path), errors="surrogateescape", newline="") as file:
        delimiter = _delimiter(path)
        reader = csv.reader(_text_lines(file), delimiter=delimiter)
        try:
            header = [name.strip().strip("\ufeff") for name in next(reader, [])]
        except csv.Error as error:
            raise DataError(f"{path.name} line 1 is no table: {error}", code="sheet-invalid") from None
        if not any(header):
            raise DataError(f"{path.name} has no header line", code="sheet-empty")
        if any(_NUL in name for name in header):
            raise DataError(f"{path.name} line 1: {_NUL_REASON}", code="byte-nul")
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise DataError(f"{path.name} has two columns {one_line(twice[0], 40)!r}", code="sheet-invalid")
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"{path.name} line {line}", DataError(f"it is no line of a table: {error}", code="sheet-invalid")
                continue
            if any(cell.strip() for cell in cells):
                yield f"{path.name} line {line}", _row(header, cells)


def _row(header: list[str], cells: list[str]) -> dict[str, Any] | DataError:
    extra = [cell for cell in cells[len(header) :] if cell.strip()]
    if extra or len(cells) < len(header) - 1:
        return DataError(
            f"it has {many(len(cells), 'cell')}, and the header {len(header)}: a separator or a quote is out of place",
            code="cells-many" if extra else "cells-few",
        )
    row = {name: cell for name, cell in zip(header, cells, strict=False) if name}
    if any(_NUL in cell for cell in row.values()):
        return DataError(_NUL_REASON, code="byte-nul")
    if any("\udc80" <= sign <= "\udcff" for cell in row.values() for sign in cell if sign > "\ud7ff"):
        return DataError("it is not UTF-8: export the sheet as CSV UTF-8", code="encoding-unknown")
    return row


def _text_lines(file: Any) -> Iterator[str]:
    """The lines; a NUL, which no cell can hold, becomes a sign by which its row is refused."""
    for line in file:
        yield line.replace("\0", _NUL)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    return "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _delimiter(path: Path) -> str:
    """The separator that the header line holds most of; a tab for `.tsv`."""
    if path.suffix == ".tsv":
        return "\t"
    with path.open(encoding=_encoding(path), errors="surrogateescape", newline="") as file:
        header = file.readline(1 << 20)
    plain = "".join(header.split('"')[::2])  # outside of quotes
    return max(_DELIMITERS, key=lambda sign: (plain.count(sign), sign == ","))
