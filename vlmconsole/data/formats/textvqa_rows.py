"""TextVQA's shards: question, image and the ten human answers, scored by its official rule."""

from __future__ import annotations

from typing import ClassVar

from vlmconsole.data.formats.plain_columns import PlainColumns
from vlmconsole.data.formats.raw_example import ColumnNames, RawExample, Row
from vlmconsole.data.rows import DataError

_COLUMNS = ("image", "image_id", "question_id", "question", "answers")
_ANNOTATORS = 10


class TextVqaRows(PlainColumns):
    """As published for validation; the hidden test set has no answers."""

    name = "textvqa"
    aliases: ClassVar[tuple[str, ...]] = ()
    title = "image, image_id, question_id, question, answers (ten): TextVQA"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        answers = row.get("answers")
        return all(column in row for column in _COLUMNS) and isinstance(answers, list) and len(answers) == _ANNOTATORS

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        answers = row.get("answers")
        if not isinstance(answers, list) or len(answers) != _ANNOTATORS:
            raise DataError(f"the official score needs {_ANNOTATORS} human answers", code="answer-invalid")
        return super().read(row, columns)
