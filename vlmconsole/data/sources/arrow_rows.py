"""Parquet as hubs serve it, and Arrow of a dataset saved to disk: a few rows at a time, classes by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.text.plain import one_line

_ROWS = 32  # in memory at once; their images may be megabytes each


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """(place, row) of a Parquet file. Raises DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            names = class_names((file.schema_arrow.metadata or {}).get(b"huggingface"))
            for batch in file.iter_batches(batch_size=_ROWS):
                for value in _values(batch):
                    number += 1
                    yield f"{path.name} row {number}", _with_names(value, names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read as Parquet after row {number}: {one_line(error)}", code="parquet-invalid"
        ) from None


def arrow_rows(path: Path, features: bytes | None = None) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """(place, row) of an Arrow stream or file; `features`: the JSON of the library `datasets`. Raises DataError."""
    import pyarrow as pa

    number = 0
    try:
        with path.open("rb") as opened:
            stream = opened.read(6) != b"ARROW1"
            opened.seek(0)
            reader = pa.ipc.open_stream(opened) if stream else pa.ipc.open_file(opened)
            names = class_names(features or (reader.schema.metadata or {}).get(b"huggingface"))
            batches = reader if stream else (reader.get_batch(at) for at in range(reader.num_record_batches))
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    for value in _values(batch.slice(start, _ROWS)):
                        number += 1
                        yield f"{path.name} row {number}", _with_names(value, names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read as Arrow after row {number}: {one_line(error)}", code="arrow-invalid"
        ) from None


def _values(batch: Any) -> Iterator[dict[str, Any]]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # a text column that holds other bytes: only the rows that do are lost
        for at in range(batch.num_rows):
            try:
                yield batch.slice(at, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield {"": None}


def _with_names(value: dict[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any] | DataError:
    if "" in value and len(value) == 1:
        return DataError("a text of it is not UTF-8", code="encoding-unknown")
    for column, known in names.items():
        number = value.get(column)
        if isinstance(number, int) and 0 <= number < len(known):
            value[column] = known[number]
    return value


def class_names(features: bytes | None) -> dict[str, list[str]]:
    """Column → names of its classes, from the JSON that the library `datasets` writes; {} where it says none."""
    try:
        table = json.loads(features or b"{}")
    except (ValueError, RecursionError):
        return {}
    table = table.get("info", table) if isinstance(table, dict) else {}
    columns = table.get("features") if isinstance(table, dict) else None
    return {
        column: [str(name) for name in about["names"]]
        for column, about in (columns.items() if isinstance(columns, dict) else ())
        if isinstance(about, dict) and about.get("_type") == "ClassLabel" and isinstance(about.get("names"), list)
    }
