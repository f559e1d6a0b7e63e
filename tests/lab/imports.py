"""Imports of small sources made in a test: as an example list, and files of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, read_examples
from vlmconsole.data.formats.raw_example import ColumnNames
from vlmconsole.data.importing.dataset_import import ImportedDataset, import_dataset, preview
from vlmconsole.data.importing.settings import ImportSettings

PNG = Path(__file__).parents[1] / "data" / "datasets" / "pictures" / "p0.png"


def imported(source: Path, datasets: Path, name: str = "own", **settings: Any) -> ImportedDataset:
    columns = ColumnNames(**{key: settings.pop(key) for key in ColumnNames.__annotations__ if key in settings})
    wanted = ImportSettings(name, columns=columns, **settings)
    return import_dataset(preview(source, wanted), wanted, datasets, runs=datasets / "runs")


def examples(dataset: ImportedDataset) -> list[Example]:
    return [row for split in dataset.manifest["splits"] for row in read_examples(dataset.folder / f"{split}.parquet")]


def rows_of(folder: Path, *rows: dict[str, Any] | str, name: str = "rows.jsonl") -> Path:
    (folder / "a.png").write_bytes(PNG.read_bytes())
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
