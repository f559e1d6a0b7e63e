"""`messages` of {role, content}: content is text, or parts (text, image, image_url); images beside them or within."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.conversations import SPEAKERS, asked_by, last_answer
from vlmconsole.data.formats.plain_columns import taught_text
from vlmconsole.data.formats.raw_example import (
    ColumnNames,
    RawExample,
    Row,
    RowFormat,
    held,
    named_column,
    row_group,
    row_id,
    row_images,
    truth_of,
    with_tags,
)
from vlmconsole.data.rows import IMAGE_TAG, DataError
from vlmconsole.text.plain import one_line

_COLUMNS = ("messages", "conversation")
_TRUTHS = ("solution", "truth", "ground_truth", "answer", "answers")
_TEXT = ("text", "input_text", "output_text")
_IMAGE = ("image", "image_url", "input_image")


class Messages(RowFormat):
    """OpenAI's and ms-swift's messages; a truth beside them (`solution`, `answer`) is what is scored."""

    name = "messages"
    aliases = ("openai", "swift")
    title = "messages of {role, content}, images beside them or as content parts"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        return self._turns(row)[0] is not None

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        column, messages = self._turns(row)
        if column is None:
            raise DataError("it has no list of messages", code="turns-invalid")
        given, id_column = row_id(row, columns)
        group, group_column = row_group(row, columns)
        beside, image_column = row_images(row, columns)
        pending = list(beside)
        turns, images = [], []
        for message in messages:
            text, own = _turn_text(message, pending)
            images += own
            turns.append(ExampleTurn(_role(message), text))
        images += pending  # without a mark: as many as the texts have tags for, or all before the first question
        turns, taken = asked_by(columns, turns, row)
        truth_column = named_column(row, _TRUTHS, columns.answer)
        truth = truth_of(row[truth_column]) if truth_column else last_answer(turns)
        if truth_column and turns and turns[-1].role == "user":
            turns.append(ExampleTurn("assistant", taught_text(truth)))
        placed, notes = with_tags(turns, len(images))
        read = {column, id_column, group_column, image_column, truth_column, *taken}
        used = frozenset(name for name in read if name is not None)
        return RawExample(placed, tuple(images), truth, given, group, used=used, notes=notes)

    def _turns(self, row: Row) -> tuple[str | None, list[Any]]:
        """(column, messages); those are JSON text where a table of plain cells holds them."""
        for column in _COLUMNS:
            value = row.get(column)
            if isinstance(value, str) and value.lstrip().startswith("["):
                try:
                    value = json.loads(value)
                except (ValueError, RecursionError):
                    continue
            if isinstance(value, list):
                return column, value
        return None, []


def _role(message: Any) -> Any:
    role = message.get("role") if isinstance(message, Mapping) else None
    known = SPEAKERS.get(role.casefold()) if isinstance(role, str) else None
    if known is None:
        raise DataError(f"a message is from {one_line(role, 40)!r}, which is no role known here", code="turns-invalid")
    return known


def _turn_text(message: Any, pending: list[Any]) -> tuple[str, list[Any]]:
    """(text with a tag for each image, images in order): marked images are taken from `pending`, in their order."""
    if not isinstance(message, Mapping):
        raise DataError(f"a message is {type(message).__name__}, not {{role, content}}", code="turns-invalid")
    if message.get("tool_calls"):
        raise DataError("a message holds tool_calls, which are not taught or asked here", code="turns-invalid")
    content = message.get("content")
    if isinstance(content, str):
        tags = content.count(IMAGE_TAG)
        taken, pending[:] = pending[:tags], pending[tags:]
        return content, taken
    if not isinstance(content, list):
        raise DataError(f"a message's content is {type(content).__name__}, not text and no parts", code="turns-invalid")
    texts, images = [], []
    for kind, value in _parts(content):
        if kind == "text":
            texts.append(value)
        else:
            texts.append(IMAGE_TAG)
            if value is None and not pending:
                raise DataError(
                    "a content part is an image, and the images beside the messages are fewer", code="image-tags"
                )
            images.append(pending.pop(0) if value is None else value)
    return "".join(texts), images


def _parts(content: list[Any]) -> Iterator[tuple[str, Any]]:
    """("text", its text) or ("image", its reference; None where it stands beside the messages) of each part."""
    for part in content:
        if isinstance(part, str):
            yield "text", part
            continue
        if not isinstance(part, Mapping):
            raise DataError(f"a content part is {type(part).__name__}", code="turns-invalid")
        kind = part.get("type") or next((key for key in (*_IMAGE, *_TEXT) if held(part.get(key))), None)
        if kind in _TEXT:
            if not isinstance(part.get("text"), str):
                raise DataError("a text part holds no text", code="turns-invalid")
            yield "text", part["text"]
        elif kind in _IMAGE:
            reference = next((part[key] for key in (*_IMAGE, "url", "path", "bytes") if held(part.get(key))), None)
            yield "image", reference
        else:
            what = one_line(kind, 40)
            raise DataError(
                f"a content part is of type {what}, and only text and images can be sent", code="media-unsupported"
            )
