"""Rows: one picture, its question and its truth, in the Parquet schema that verl 0.6.1 reads.

The truth stands in `reward_model.ground_truth` and nowhere else; pictures are bytes, never paths.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from vlmconsole.errors import LabError
from vlmconsole.vision.images import pixel_sha256

IMAGE_TAG = "<image>"


class DataError(LabError):
    """A dataset or a user's file cannot be used; the message names the file and the row."""


@dataclass(frozen=True)
class Row:
    """One sample. `picture` are the encoded bytes as they will be sent, `truth` is text (JSON for counting).

    `source` names the task (`vlmconsole/counting`, …), which decides the scorer.
    """

    uid: str
    picture: bytes
    question: str
    truth: str
    source: str
    ability: str
    split: str
    index: int

    @property
    def sha256(self) -> str:
        """Hash (hex) of the picture's file bytes."""
        return hashlib.sha256(self.picture).hexdigest()

    def image(self) -> Image.Image:
        """Return the picture as 8-bit RGB. Raises DataError, naming the row, when its bytes are no whole picture."""
        try:
            return Image.open(io.BytesIO(self.picture)).convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "its bytes are no image" if isinstance(error, UnidentifiedImageError) else error
            raise DataError(f"The image of {self.uid} cannot be decoded: {reason}.") from None

    @property
    def pixel_sha256(self) -> str:
        """Hash (hex) of the picture's RGB pixels. Raises DataError as `image`."""
        return pixel_sha256(self.image())

    def verl(self) -> dict[str, Any]:
        """Return the row as verl's dataset class reads it."""
        return {
            "data_source": self.source,
            "prompt": [{"role": "user", "content": IMAGE_TAG + self.question}],
            "images": [{"bytes": self.picture, "path": None}],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.truth},
            "extra_info": {"split": self.split, "index": self.index, "uid": self.uid},
        }


def schema() -> Any:
    """Return the Arrow schema of a split's Parquet file."""
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("split", text), ("index", pa.int64()), ("uid", text)])),
        ]
    )


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a split's Parquet file; the same rows give the same bytes with the same pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # An open file, here and below: pyarrow takes no path that is not UTF-8.
    with path.open("wb") as file, pq.ParquetWriter(file, schema(), compression="none", store_schema=True) as writer:
        batch: list[dict[str, Any]] = []
        for row in rows:
            batch.append(row.verl())
            if len(batch) == 256:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema()))
                batch = []
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema()))


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a split, a few at a time. Raises DataError naming the row that is not in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path.open("rb"))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None
    number = 0
    try:
        for batch in file.iter_batches(batch_size=128):
            for value in batch.to_pylist():
                number += 1
                yield from_verl(value, f"{path.name} row {number}")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged after row {number}: {error}", code="data-damaged") from None
    finally:
        file.close(force=True)


def from_verl(value: dict[str, Any], where: str) -> Row:
    """Return a Row from verl's form. Raises DataError unless it has one user turn and one picture as bytes."""
    try:
        turns, images = value["prompt"], value["images"]
        extra = value.get("extra_info") or {}
        content, picture = turns[0]["content"], images[0]["bytes"]
        truth = value["reward_model"]["ground_truth"]
        fits = len(turns) == 1 and turns[0]["role"] == "user" and len(images) == 1 and content.count(IMAGE_TAG) == 1
        fits = fits and isinstance(picture, bytes) and isinstance(truth, str)
    except (KeyError, TypeError, IndexError, AttributeError):
        fits = False
    if not fits:
        raise DataError(
            f"{where} is not one question about one image in verl's schema.",
            "Needed: one user turn with one <image>, images[0].bytes, reward_model.ground_truth as text.",
        )
    return Row(
        uid=str(extra.get("uid") or where),
        picture=picture,
        question=content.replace(IMAGE_TAG, "", 1).strip("\n"),
        truth=truth,
        source=str(value.get("data_source") or "own"),
        ability=str(value.get("ability") or ""),
        split=str(extra.get("split") or ""),
        index=int(extra.get("index") or 0),
    )
