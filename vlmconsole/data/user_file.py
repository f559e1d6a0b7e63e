"""A user's own pictures, questions and answers: JSONL, or Parquet in verl's schema or with plain columns.

A JSONL line: `{"image": "photo.jpg", "question": "…", "answer": "…", "id": "…"}`. The picture is a path
(relative to the file), a `data:` URL or `{"bytes": base64}`; a question left out means the counting
prompt; the answer may be text, or the two counts as an object. Other keys are not used, and named; options
to choose from that the question does not hold are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.data.rows import DataError, Row, from_verl
from vlmconsole.data.user_image import image_of, image_paths
from vlmconsole.data.user_options import missing_options
from vlmconsole.models.qwen2_5_vl import CONTROL
from vlmconsole.scoring.reward import TruthError, read_truth
from vlmconsole.text.plain import one_line
from vlmconsole.vision.limits import PictureError, read_picture_bytes

QUESTIONS = ("question", "prompt", "text")
ANSWERS = ("answer", "truth", "ground_truth", "label")
IDS = ("id", "uid", "question_id")
IMAGES = ("image", "images")
_VERL = ("data_source", "prompt", "images", "ability", "reward_model", "extra_info")
_EXTRA = ("split", "index", *IDS)


@dataclass
class OwnFile:
    """One file of the user's: `rows` in order, `ids` where the user gave them, and the keys that nothing reads."""

    rows: list[Row] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # "" where a row has none
    ignored: Counter[str] = field(default_factory=Counter)  # key → rows that hold it
    wrong: list[str] = field(default_factory=list)  # one sentence a line that cannot be used


def read_own(path: Path) -> Iterator[Row]:
    """Yield the rows of a user's file, in order. Raises DataError naming the line and what is wrong with it."""
    for _, row in _rows(path, OwnFile()):
        if isinstance(row, DataError):
            raise row
        yield row


def examine_own(path: Path) -> OwnFile:
    """Return all of a user's file, with every line that is wrong. Raises DataError when the file itself cannot be
    read.
    """
    whole = OwnFile()
    for given, row in _rows(path, whole):
        if isinstance(row, DataError):
            whole.wrong.append(row.message)
        else:
            whole.rows.append(row)
            whole.ids.append(given)
    return whole


def own_file(path: Path) -> OwnFile:
    """Return all of a user's file. Raises DataError naming the first line that cannot be used."""
    whole = examine_own(path)
    if whole.wrong:
        raise DataError(whole.wrong[0], code="rows-invalid")
    return whole


def count_own(path: Path) -> tuple[int, Counter[str]]:
    """(rows, keys that nothing reads) of a user's file, without opening a picture. Raises DataError."""
    n, ignored = 0, Counter[str]()
    for _, value in _values(path, images=False):
        n += 1
        if isinstance(value, dict):
            ignored.update(_ignored(value))
    return n, ignored


def content_sha256(path: Path) -> str:
    """Hash (hex) of the file's bytes and of the bytes of each picture that it names by path, in order.

    What is embedded is in the file's own bytes. Raises DataError for a file or a picture that cannot be read.
    """
    whole = hashlib.sha256()
    try:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    for where, value in _values(path):
        for source in image_paths(_first(value, IMAGES), path.parent) if isinstance(value, dict) else ():
            try:
                whole.update(_picture_sha256(source))
            except PictureError as error:
                raise DataError(f"{where}: {error}") from None
    return whole.hexdigest()


_KNOWN: dict[tuple[str | int, ...], bytes] = {}
_SETTLED_S = 2.0  # a file younger than this may change again without its times showing it


def _picture_sha256(path: Path) -> bytes:
    """Hash of a picture's bytes, remembered while its file stays the same one. A plan is made several times over."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return hashlib.sha256(read_picture_bytes(path)).digest()  # raises what is wrong, in words
    key = (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _KNOWN:
        sha = hashlib.sha256(read_picture_bytes(path)).digest()
        if time.time() - max(stat.st_mtime, stat.st_ctime) < _SETTLED_S:
            return sha
        if len(_KNOWN) >= 200_000:
            _KNOWN.clear()
        _KNOWN[key] = sha
    return _KNOWN[key]


def _rows(path: Path, whole: OwnFile) -> Iterator[tuple[str, Row | DataError]]:
    """(the user's id, row or what is wrong with it) of every line; keys that are not used go into `whole`."""
    known: dict[str, str] = {}
    for index, (where, value) in enumerate(_values(path)):
        given = ""
        try:
            if isinstance(value, DataError):
                raise value
            given = _id(value, where)
            named = f"{where} (id {one_line(given, 60)})" if given else where
            if given and given in known:
                raise DataError(f"{named}: {known[given]} has the same id.", code="id-twice")
            if given:
                known[given] = where
            if "reward_model" in value:
                row = _verl_row(value, path.parent, named)
            else:
                row = _row(value, path.parent, named, index)
            _plain("question", row.question, named)
            _plain("answer", row.truth, named)
            if not given:
                row = replace(row, uid=f"{where.split(' ')[0]}-{index + 1:05d}")
            whole.ignored.update(_ignored(value))
        except DataError as error:
            yield given, error
        else:
            yield given, row


def _values(path: Path, *, images: bool = True) -> Iterator[tuple[str, Any]]:
    """(place, value) of each line or row; a DataError in place of a line that cannot be read.

    Without `images` a Parquet file's are left in it, which may hold gigabytes.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, images)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path.name} line {number}"
                yield where, _json(line, where)


def _json(line: bytes, where: str) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON value and no answer")

    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
        if broken := next((half for key, _ in pairs if (half := _half_character(key))), ""):
            raise ValueError(f"a key holds half a character ({broken})")
        if twice:
            raise ValueError(f"the key {one_line(twice[0], 40)} stands twice")
        return dict(pairs)

    try:
        value = json.loads(line, parse_constant=refuse, object_pairs_hook=whole)
    except (ValueError, RecursionError) as error:
        return DataError(f"{where} is no JSON: {error}", code="json-invalid")
    return value if isinstance(value, dict) else DataError(f"{where} is no JSON object", code="json-invalid")


def _parquet(path: Path, images: bool) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            number = 0
            columns = None if images else [name for name in file.schema_arrow.names if name not in IMAGES]
            for batch in file.iter_batches(batch_size=64, columns=columns):
                for value in batch.to_pylist():
                    number += 1
                    yield f"{path.name} row {number}", value
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}", code="parquet-invalid") from None


def own_truths(path: Path) -> Iterator[tuple[str, str]]:
    """(place or id, truth) of each row that can be read, without opening a picture. Raises DataError."""
    for where, value in _values(path, images=False):
        if isinstance(value, DataError):
            continue  # told when the rows are read
        try:
            if "reward_model" in value:
                truth = str((value["reward_model"] or {}).get("ground_truth"))
            else:
                truth = _asked(value, where).truth
            yield _id(value, where) or where, truth
        except DataError:
            continue


@dataclass(frozen=True)
class _AskedRow:
    question: str
    truth: str
    counting: bool  # whether two counts are asked for


def _asked(value: Mapping[str, Any], where: str) -> _AskedRow:
    question = _first(value, QUESTIONS)
    answer = _first(value, ANSWERS)
    if answer is None:
        raise DataError(f"{where} has no answer (one of the keys {', '.join(ANSWERS)})", code="answer-missing")
    if isinstance(answer, float) and not math.isfinite(answer):
        raise DataError(f"{where}: the answer is {answer}, which is no answer", code="answer-invalid")
    if isinstance(answer, str) and not answer.strip():
        raise DataError(f"{where}: the answer is empty", code="answer-missing")
    if not isinstance(question, (str, type(None))):
        raise DataError(f"{where}: the question is {type(question).__name__}, not text", code="question-invalid")
    if refusal := missing_options(value, question or ""):
        raise DataError(f"{where}: {refusal}")
    counting = question is None or question.strip() == COUNT_PROMPT
    if counting or isinstance(answer, Mapping):
        try:
            counts = read_truth(answer if isinstance(answer, Mapping) else str(answer))
        except TruthError as error:
            raise DataError(f"{where}: {error}", code="truth-invalid") from None
        truth = json.dumps({"red_circles": counts.red_circles, "blue_squares": counts.blue_squares})
    else:
        truth = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return _AskedRow(question or COUNT_PROMPT, truth, counting or isinstance(answer, Mapping))


def _row(value: Mapping[str, Any], folder: Path, where: str, index: int) -> Row:
    asked = _asked(value, where)
    return Row(
        uid=_id(value, where),
        picture=image_of(_first(value, IMAGES), value, folder, where),
        question=asked.question,
        truth=asked.truth,
        source="own/counting" if asked.counting else "own/text",
        ability="counting" if asked.counting else "text",
        split="",
        index=index,
    )


def _verl_row(value: dict[str, Any], folder: Path, where: str) -> Row:
    """A row in verl's form, its picture made plain as everywhere: verl itself neither turns it nor sees through it."""
    row = from_verl(value, where)
    for table in (value, value.get("extra_info")):
        if isinstance(table, Mapping) and (refusal := missing_options(table, row.question)):
            raise DataError(f"{where}: {refusal}", code="options-hidden")
    return replace(row, picture=image_of(row.picture, value, folder, where))


def _plain(what: str, text: str, where: str) -> None:
    """Raise DataError for text that cannot be stored, or that a model would read as the conversation's own marks."""
    if broken := _half_character(text):
        raise DataError(
            f"{where}: the {what} holds half a character ({broken}), which is no text", code="text-unstorable"
        )
    if marks := [mark for mark in CONTROL if mark in text]:
        raise DataError(
            f"{where}: the {what} holds {', '.join(marks)}, which the model reads as a command, not as text",
            code="text-control",
        )


def _half_character(text: str) -> str:
    """The first lone surrogate of a text, escaped: JSON can name one, UTF-8 cannot hold it; "" for none."""
    return next((f"\\u{ord(sign):04x}" for sign in text if "\ud800" <= sign <= "\udfff"), "")


def _id(value: Mapping[str, Any], where: str) -> str:
    """The user's own name of a row, "" without one. Raises DataError for one that could not be shown."""
    extra = value.get("extra_info")
    source = extra if "reward_model" in value and isinstance(extra, Mapping) else value
    given = _first(source, IDS)
    if given is None:
        return ""
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise DataError(f"{where}: the id is {type(given).__name__}, not text or a whole number", code="id-invalid")
    text = str(given)
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise DataError(
            f"{where}: the id {one_line(text, 60)!r} is empty, longer than 200 characters or unprintable",
            code="id-invalid",
        )
    return text


def _ignored(value: Mapping[str, Any]) -> list[str]:
    """Keys of a row that hold something and are read by nothing: the model never sees them."""
    if "reward_model" in value:
        extra = value.get("extra_info")
        inner = [f"extra_info.{key}" for key in extra if key not in _EXTRA] if isinstance(extra, Mapping) else []
        return [key for key, held in value.items() if key not in _VERL and held is not None] + inner
    used = {_first_key(value, keys) for keys in (QUESTIONS, ANSWERS, IDS, IMAGES)}
    return [key for key, held in value.items() if key not in used and held is not None]


def _first_key(value: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if value.get(key) is not None), None)


def _first(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    key = _first_key(value, keys)
    return None if key is None else value[key]


def ignored_text(ignored: Mapping[str, int]) -> str:
    """`hint (3 rows), source (1 row)`, the most frequent first; "" for none."""
    ordered = sorted(ignored.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{one_line(key, 40)} ({n} row{'s' * (n != 1)})" for key, n in ordered[:12]]
    return ", ".join(shown) + (f" and {len(ordered) - 12} more" if len(ordered) > 12 else "")
