"""ms-swift's `query` and `response`, with `history` of earlier pairs and a `system` prompt."""

from __future__ import annotations

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.conversations import asked_by, last_answer
from vlmconsole.data.formats.raw_example import (
    ColumnNames,
    RawExample,
    Row,
    RowFormat,
    held,
    row_group,
    row_id,
    row_images,
    text_of,
    with_tags,
)
from vlmconsole.data.rows import DataError


class QueryResponse(RowFormat):
    """One question and its answer, after those of `history`."""

    name = "query-response"
    aliases = ("query_response",)
    title = "query, response, images, history: ms-swift"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        return held(row.get("query")) and "response" in row

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        given, id_column = row_id(row, columns)
        group, group_column = row_group(row, columns)
        images, image_column = row_images(row, columns)
        used = {"query", "response", id_column, group_column, image_column}
        turns = []
        if held(row.get("system")):
            turns.append(ExampleTurn("system", text_of(row["system"], "system")))
            used.add("system")
        history = row.get("history") or []
        if not isinstance(history, list) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in history
        ):
            raise DataError("the history is no list of [query, response]", code="turns-invalid")
        if history:
            used.add("history")
        for query, response in [*history, (row.get("query"), row.get("response"))]:
            turns.append(ExampleTurn("user", text_of(query, "question")))
            turns.append(ExampleTurn("assistant", text_of(response, "answer")))
        turns, taken = asked_by(columns, turns, row)
        placed, notes = with_tags(turns, len(images))
        read = frozenset(name for name in used | taken if name is not None)
        return RawExample(placed, images, last_answer(turns), given, group, used=read, notes=notes)
