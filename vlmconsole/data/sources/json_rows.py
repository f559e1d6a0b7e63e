"""JSON of other people: a line each (JSONL), or one list, read a piece at a time however long it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vlmconsole.data.rows import DataError
from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import size

MAX_ROW = 256 * 1024 * 1024  # characters of one row
_PIECE = 1 << 20
_BLANK = re.compile(r"[\s\ufeff]*")
_BREAK = re.compile(r"[\s]*")


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """(place, row) of a JSONL file or of a JSON list, as the file itself shows. Raises DataError, OSError."""
    with path.open("rb") as file:
        head = file.read(_PIECE)
    first = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")[:1]
    if first == "[":
        yield from _listed(path)
    elif first == "{" and path.suffix == ".json" and not _line_is_whole(head):
        yield from _wrapped(path)
    else:
        yield from _lines(path)


def _line_is_whole(head: bytes) -> bool:
    lines = [line for line in head.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    return bool(lines) and (isinstance(_parsed(lines[0].decode("utf-8", "replace")), dict)) and len(lines) > 1


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    with path.open("rb") as file:
        for number, line in enumerate(_long_lines(file), start=1):
            where = f"{path.name} line {number}"
            if isinstance(line, DataError):
                yield where, line
            elif text := line.lstrip(b"\xef\xbb\xbf").strip():
                try:
                    yield where, _row(text.decode("utf-8"))
                except UnicodeDecodeError as error:
                    yield where, DataError(f"it is not UTF-8 (byte {error.start + 1})", code="encoding-unknown")


def _long_lines(file: Any) -> Iterator[bytes | DataError]:
    """The lines of a file; a DataError for one that is too long to hold."""
    while line := file.readline(MAX_ROW):
        if len(line) == MAX_ROW and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_ROW)) and not rest.endswith(b"\n"):
                pass
            yield DataError(f"the row is longer than {size(MAX_ROW)}", code="row-too-long")
        else:
            yield line


def _listed(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """Each element of a JSON list. After one that is no JSON nothing more can be read, and that is what it says."""
    decoder = _decoder()
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        text, line, number = "", 1, 0

        def drop(end: int) -> None:
            nonlocal text, line
            line += text.count("\n", 0, end)
            text = text[end:]

        text = _BLANK.sub("", file.read(_PIECE), count=1)[1:]
        while True:
            drop(_end(_BREAK, text))
            if text[:1] == ",":
                drop(1)
                continue
            if not text and not (text := file.read(_PIECE)):
                yield (
                    f"{path.name} line {line}",
                    DataError("the list is not closed: the file is cut off", code="json-cut"),
                )
                return
            if text[:1] == "]":
                return
            if not text.strip():
                continue
            number += 1
            try:
                value, end, text = _element(decoder, text, file)
            except (ValueError, RecursionError) as error:
                reason = DataError(f"is no JSON, and nothing after it can be read: {error}", code="json-invalid")
                yield f"{path.name} entry {number} (line {line})", reason
                return
            yield f"{path.name} entry {number} (line {line})", _as_row(value)
            drop(end)


def _element(decoder: json.JSONDecoder, text: str, file: TextIO) -> tuple[Any, int, str]:
    """(value, where it ends, the text with what had to be read more). Raises ValueError, RecursionError."""
    more = _PIECE
    while True:
        try:
            value, end = decoder.raw_decode(text)
            if end < len(text) or not isinstance(value, (int, float)):  # a number may go on in the next piece
                return value, end, text
        except ValueError:
            if len(text) > MAX_ROW:
                raise ValueError(f"a row is longer than {size(MAX_ROW)}") from None
            piece = file.read(more)
            if not piece:
                raise
            text, more = text + piece, more * 2
            continue
        piece = file.read(more)
        if not piece:
            return value, end, text
        text += piece


def _wrapped(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """The rows of a JSON object of which one key holds a list of objects."""
    if path.stat().st_size > MAX_ROW:
        raise DataError(f"{path.name} is one JSON object of {size(path.stat().st_size)}: write its rows as JSONL")
    value = _parsed(path.read_text("utf-8-sig", "surrogateescape"))
    if isinstance(value, DataError):
        yield path.name, value
        return
    lists = [
        key for key, rows in value.items() if isinstance(rows, list) and rows and all(isinstance(r, dict) for r in rows)
    ]
    if len(lists) != 1:
        yield f"{path.name} line 1", _as_row(value)
        return
    for number, row in enumerate(value[lists[0]], start=1):
        yield f"{path.name} {one_line(lists[0], 40)} entry {number}", row


def _row(text: str) -> dict[str, Any] | DataError:
    value = _parsed(text)
    return value if isinstance(value, DataError) else _as_row(value)


def _as_row(value: Any) -> dict[str, Any] | DataError:
    if isinstance(value, dict):
        return value
    return DataError(f"it is {_KINDS.get(type(value), 'no object')}, not a JSON object", code="json-invalid")


_KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


def _parsed(text: str) -> Any:
    try:
        return _decoder().decode(text)
    except (ValueError, RecursionError) as error:
        return DataError(f"it is no JSON: {one_line(error, 120)}", code="json-invalid")


def _decoder() -> json.JSONDecoder:
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON value and no answer")

    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
            raise ValueError(f"the key {one_line(twice[0], 40)} stands twice")
        return dict(pairs)

    return json.JSONDecoder(parse_constant=refuse, object_pairs_hook=whole)


def _end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0
