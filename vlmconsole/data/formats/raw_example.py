"""A row of somebody's data as read by its format: turns and images as they were written, before an image is opened."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.rows import IMAGE_TAG, DataError
from vlmconsole.models.qwen2_5_vl import CONTROL
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

Row = Mapping[str, Any]
IMAGES = ("image", "images", "image_path", "image_file", "img", "img_path", "file_name", "filename", "file_names")
QUESTIONS = ("question", "prompt", "text", "query", "instruction")
ANSWERS = ("answer", "answers", "truth", "ground_truth", "label", "target", "solution", "response", "output")
IDS = ("id", "uid", "question_id")
GROUPS = ("group",)
MAX_TEXT = 1_000_000  # bytes (UTF-8) of one turn, and of one truth as JSON: more is no question and no answer
_UNSEEN = ("video", "videos", "audio", "audios")  # media that no model of this lab is sent


@dataclass(frozen=True)
class RawExample:
    """One example before its images are opened.

    `images` are references (path, `data:` URL, base64, bytes, {bytes, path}) in the order of the IMAGE_TAGs in
    `turns`; `options` go to the scorer; `used` are the columns that were read; `notes` say what was altered.
    """

    turns: tuple[ExampleTurn, ...]
    images: tuple[Any, ...]
    truth: Any
    id: str = ""
    group: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    used: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnNames:
    """Columns that the user named for what a format reads; "" leaves the choice to the format."""

    question: str = ""
    answer: str = ""
    image: str = ""
    id: str = ""
    group: str = ""
    prompt: str = ""  # template of each question: {question} and {COLUMN} are filled in

    def check(self, columns: Iterable[str]) -> None:
        """Raise DataError for a named column that no row has."""
        known = set(columns)
        for what in ("question", "answer", "image", "id", "group"):
            name = getattr(self, what)
            if name and name not in known and not (what == "id" and name == "none"):
                shown = ", ".join(one_line(column, 40) for column in sorted(known)[:20])
                raise DataError(
                    f"There is no column {one_line(name, 40)!r} for --{what}.",
                    f"There is: {shown}.",
                    code="column-unknown",
                ).named()


class RowFormat(ABC):
    """One form in which people write examples down, row by row."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]  # one line for people: the columns by which it is known

    @abstractmethod
    def fits(self, row: Row, columns: ColumnNames) -> bool:
        """Return whether this row is written in this form, judged by its columns alone."""

    @abstractmethod
    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        """Return the row as an example. Raises DataError with the reason, without the place."""


def named_column(row: Row, names: Iterable[str], chosen: str = "") -> str | None:
    """Return the column that holds a value: the `chosen` one, else the first of `names`, in any case."""
    if chosen:
        return chosen if held(row.get(chosen)) else None
    plain = {plain_column(column): column for column, value in reversed(list(row.items())) if held(value)}
    return next((plain[name] for name in names if name in plain), None)


def plain_column(column: object) -> str:
    """Return a column's name as it is compared: small letters, `_` between words."""
    return str(column).strip().casefold().replace(" ", "_").replace("-", "_")


def held(value: Any) -> bool:
    """Return whether a cell holds anything: not null, no empty text or list."""
    return value is not None and value != "" and value != []


def text_of(value: Any, what: str) -> str:
    """Return a cell as text. Raises DataError for what is none."""
    if not isinstance(value, str):
        raise DataError(f"the {what} is {type(value).__name__}, not text", code=f"{what}-invalid")
    return value


def truth_of(value: Any) -> Any:
    """Return an answer as a truth: text, number, list or object. Raises DataError for NaN, nothing, and bytes."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"the answer is {value}, which is no answer", code="answer-invalid")
    if value is None or (isinstance(value, str) and not value.strip()) or value in ([], {}):
        raise DataError("the answer is empty", code="answer-missing")
    if isinstance(value, (list, tuple)):
        return [truth_of(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    return _json_value(value)


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"the answer holds {value}, which is no answer", code="answer-invalid")
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise DataError(f"the answer is {type(value).__name__}, no text and no number", code="answer-invalid")


def row_id(row: Row, columns: ColumnNames, names: Iterable[str] = IDS) -> tuple[str, str | None]:
    """(the user's own id, "" without one; its column). Raises DataError for one that could not be shown."""
    column = None if columns.id == "none" else named_column(row, names, columns.id)
    if column is None:
        return "", None
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise DataError(f"the id is {type(value).__name__}, not text or a whole number", code="id-invalid")
    text = str(value)
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise DataError(
            f"the id {one_line(text, 60)!r} is blank, longer than 200 characters or unprintable", code="id-invalid"
        )
    return text, column


def row_group(row: Row, columns: ColumnNames) -> tuple[str, str | None]:
    """(group, its column), "" without one."""
    column = named_column(row, GROUPS, columns.group)
    return ("", None) if column is None else (one_line(row[column], 80), column)


def row_images(row: Row, columns: ColumnNames) -> tuple[tuple[Any, ...], str | None]:
    """(image references, their column), none without one. Raises DataError for a video or a sound by its name."""
    for name, cell in row.items():
        if plain_column(name) in _UNSEEN and held(cell):
            raise DataError(f"it holds {plain_column(name)}, and only images can be sent", code="media-unsupported")
    column = named_column(row, IMAGES, columns.image)
    if column is None:
        return (), None
    value = row[column]
    return (tuple(value) if isinstance(value, (list, tuple)) else (value,)), column


def with_tags(turns: list[ExampleTurn], images: int) -> tuple[tuple[ExampleTurn, ...], tuple[str, ...]]:
    """(turns with a tag for each image, notes): untagged images stand before the first question.

    Raises DataError where some but not all images have a tag.
    """
    tags = sum(turn.text.count(IMAGE_TAG) for turn in turns)
    if tags == images:
        return tuple(turns), ()
    if tags:
        raise DataError(f"{tags} {IMAGE_TAG} in the text, and {many(images, 'image')}", code="image-tags")
    first = next((at for at, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        raise DataError("there is no question", code="question-missing")
    turns[first] = ExampleTurn("user", IMAGE_TAG * images + turns[first].text)
    return tuple(turns), ("images placed before the question",)


def checked_text(turns: Iterable[ExampleTurn]) -> None:
    """Raise DataError for text that cannot be stored, or that a model would read as the conversation's own marks."""
    for turn in turns:
        what = {"user": "question", "assistant": "answer", "system": "system prompt"}[turn.role]
        if half := next((sign for sign in turn.text if "\ud800" <= sign <= "\udfff"), ""):
            raise DataError(
                f"the {what} holds half a character (\\u{ord(half):04x}), which is no text", code="text-unstorable"
            )
        if too_long(turn.text):
            raise DataError(_long_reason(what), code="text-too-long")
        if marks := [mark for mark in CONTROL if mark in turn.text]:
            raise DataError(
                f"the {what} holds {', '.join(marks)}, which the model reads as a command, not as text",
                code="text-control",
            )


def checked_truth(truth: Any) -> None:
    """Raise DataError for a truth that is too long to be an answer; `null` is none."""
    if too_long(truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)):
        raise DataError(_long_reason("answer"), code="text-too-long")


def too_long(text: str) -> bool:
    """Return whether a text has more than MAX_TEXT bytes as UTF-8."""
    return len(text) > MAX_TEXT or (len(text) * 4 > MAX_TEXT and len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT)


def _long_reason(what: str) -> str:
    return f"the {what} is longer than {MAX_TEXT // 10**6} MB: no model reads that much"
