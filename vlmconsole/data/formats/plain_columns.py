"""Plain columns: question, answer and image under usual names, or under those that the user gives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.prompt_template import fill_prompt
from vlmconsole.data.formats.raw_example import (
    ANSWERS,
    QUESTIONS,
    ColumnNames,
    RawExample,
    Row,
    RowFormat,
    named_column,
    row_group,
    row_id,
    row_images,
    text_of,
    truth_of,
    with_tags,
)
from vlmconsole.data.rows import DataError
from vlmconsole.data.user_options import missing_options


class PlainColumns(RowFormat):
    """One question and one answer a row; with a prompt template the question may be the same for all."""

    name = "columns"
    aliases: ClassVar[tuple[str, ...]] = ("own", "hub", "csv", "sheet", "imagefolder", "classes")
    title = "question, answer, image (and id): JSONL, CSV, Parquet, imagefolder"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        asked = bool(columns.prompt) or named_column(row, QUESTIONS, columns.question) is not None
        return asked and (named_column(row, ANSWERS, columns.answer) is not None or bool(row_images(row, columns)[0]))

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        given, id_column = row_id(row, columns)
        group, group_column = row_group(row, columns)
        images, image_column = row_images(row, columns)
        answer_column = self.answer_column(row, columns)
        question_column = None
        if not columns.prompt or "{question}" in columns.prompt:
            question_column = named_column(row, QUESTIONS, columns.question)
        question = text_of(row[question_column], "question") if question_column else None
        asked, taken = fill_prompt(columns.prompt, question, row)
        if refusal := missing_options(row, asked):
            raise DataError(refusal, code="options-hidden")
        turns = [ExampleTurn("user", asked)]
        truth = None
        if answer_column:
            truth = truth_of(row[answer_column])
            turns.append(ExampleTurn("assistant", taught_text(truth)))
        placed, _ = with_tags(turns, len(images))
        read = {id_column, group_column, image_column, answer_column, question_column, *taken}
        used = frozenset(column for column in read if column is not None)
        return RawExample(placed, images, truth, given, group, used=used)

    def answer_column(self, row: Row, columns: ColumnNames) -> str | None:
        """Return the column of the answer; None where the row has none."""
        return named_column(row, ANSWERS, columns.answer)


def taught_text(truth: Any) -> str:
    """Return what is taught as the answer: text as it is, the most frequent of several accepted ones, else JSON."""
    if isinstance(truth, str):
        return truth
    if isinstance(truth, list) and truth and all(isinstance(item, str) for item in truth):
        return str(Counter(truth).most_common(1)[0][0])
    if isinstance(truth, Mapping):
        return json.dumps(dict(truth), ensure_ascii=False)
    return json.dumps(truth, ensure_ascii=False)
