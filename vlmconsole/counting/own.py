"""A user's own pictures, questions and answers: JSONL, or Parquet in verl's schema or with plain columns.

A JSONL line: `{"image": "photo.jpg", "question": "…", "answer": "…", "id": "…"}`. The picture is a path
(relative to the file), a `data:` URL or `{"bytes": base64}`; a question left out means the counting
prompt; the answer may be text, or the two counts as an object.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.rows import DataError, Row, from_verl
from vlmconsole.errors import LabError
from vlmconsole.runs.named import named
from vlmconsole.scoring.reward import TruthError, read_truth
from vlmconsole.vision.images import PictureError, open_picture

_QUESTIONS = ("question", "prompt", "text")
_ANSWERS = ("answer", "truth", "ground_truth", "label")
_IDS = ("id", "uid", "question_id")


def read_own(path: Path) -> Iterator[Row]:
    """The rows of a user's file, in order. Raises DataError naming the line and what is wrong with it."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name} line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where} is no JSON: {error}") from None
            if not isinstance(value, dict):
                raise DataError(f"{where} is no JSON object")
            yield _row(value, path.parent, where, number - 1)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=64):
                for value in batch.to_pylist():
                    number += 1
                    where = f"{path.name} row {number}"
                    if "reward_model" in value:
                        yield from_verl(value, where)
                    else:
                        yield _row(value, path.parent, where, number - 1)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None


def _row(value: Mapping[str, Any], folder: Path, where: str, index: int) -> Row:
    question = _first(value, _QUESTIONS)
    answer = _first(value, _ANSWERS)
    if answer is None:
        raise DataError(f"{where} has no answer (one of the keys {', '.join(_ANSWERS)})")
    if not isinstance(question, (str, type(None))):
        raise DataError(f"{where}: the question is {type(question).__name__}, not text")
    counting = question is None or question.strip() == COUNT_PROMPT
    if counting or isinstance(answer, Mapping):
        try:
            counts = read_truth(answer if isinstance(answer, Mapping) else str(answer))
        except TruthError as error:
            raise DataError(f"{where}: {error}") from None
        truth = json.dumps({"red_circles": counts.red_circles, "blue_squares": counts.blue_squares})
    else:
        truth = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    counts_asked = counting or isinstance(answer, Mapping)
    return Row(
        uid=str(_first(value, _IDS) or f"{where.split(' ')[0]}-{index + 1:05d}"),
        picture=_picture(value.get("image", value.get("images")), folder, where),
        question=question or COUNT_PROMPT,
        truth=truth,
        source="own/counting" if counts_asked else "own/text",
        ability="counting" if counts_asked else "text",
        split="",
        index=index,
    )


def _first(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _picture(image: Any, folder: Path, where: str) -> bytes:
    """The bytes that will be sent: the file's own where they are plain, else a lossless RGB PNG."""
    if isinstance(image, list) and len(image) == 1:
        image = image[0]
    source: Path | bytes
    if isinstance(image, Mapping):
        data = image.get("bytes")
        try:
            source = base64.b64decode(data, validate=True) if isinstance(data, str) else data or folder / image["path"]
        except (binascii.Error, KeyError, TypeError):
            raise DataError(f"{where}: the picture has neither bytes (base64) nor a path") from None
    elif isinstance(image, str) and image.startswith("data:"):
        try:
            source = base64.b64decode(image.partition(",")[2], validate=True)
        except binascii.Error:
            raise DataError(f"{where}: the picture's data URL is no base64") from None
    elif isinstance(image, str) and image:
        try:
            source = folder / named(image)
        except LabError as error:
            raise DataError(f"{where}: {error}") from None
    elif isinstance(image, bytes):
        source = image
    else:
        raise DataError(f"{where} has no picture (key image: a path, a data URL, or bytes)")
    try:
        return open_picture(source, name=None if isinstance(source, Path) else where).data
    except PictureError as error:
        raise DataError(f"{where}: {error}") from None
