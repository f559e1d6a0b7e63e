"""LLaVA and ShareGPT: `conversations` of {from, value}, with `<image>` where an image stands."""

from __future__ import annotations

from collections.abc import Mapping

from vlmconsole.data.example import ExampleTurn, Role
from vlmconsole.data.formats.prompt_template import fill_prompt
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
from vlmconsole.text.plain import one_line

SPEAKERS: dict[str, Role] = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bot": "assistant", "model": "assistant", "system": "system", "developer": "system",
}  # fmt: skip


class ConversationsFormat(RowFormat):
    """Turns as LLaVA, ShareGPT and LLaMA-Factory write them."""

    name = "conversations"
    aliases = ("llava", "sharegpt")
    title = "conversations of {from, value}, image or images: LLaVA, ShareGPT"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        return isinstance(row.get("conversations"), list)

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        given, id_column = row_id(row, columns)
        group, group_column = row_group(row, columns)
        images, image_column = row_images(row, columns)
        turns = []
        system_column = "system" if held(row.get("system")) else None
        if system_column:
            turns.append(ExampleTurn("system", text_of(row["system"], "system")))
        for turn in row["conversations"]:
            turns.append(_turn(turn))
        turns, taken = asked_by(columns, turns, row)
        placed, notes = with_tags(turns, len(images))
        read = {"conversations", id_column, group_column, image_column, system_column, *taken}
        used = frozenset(column for column in read if column is not None)
        return RawExample(placed, images, last_answer(turns), given, group, used=used, notes=notes)


def _turn(turn: object) -> ExampleTurn:
    if not isinstance(turn, Mapping):
        raise DataError(f"a turn is {type(turn).__name__}, not {{from, value}}", code="turns-invalid")
    speaker = turn.get("from", turn.get("role"))
    role = SPEAKERS.get(speaker.casefold()) if isinstance(speaker, str) else None
    if role is None:
        raise DataError(
            f"a turn is from {one_line(speaker, 40)!r}, which is no speaker known here", code="turns-invalid"
        )
    value = turn.get("value", turn.get("content"))
    return ExampleTurn(role, text_of(value, "answer" if role == "assistant" else "question"))


def asked_by(columns: ColumnNames, turns: list[ExampleTurn], row: Row) -> tuple[list[ExampleTurn], frozenset[str]]:
    """(the turns with the prompt template around each question, columns that it took)."""
    if not columns.prompt:
        return turns, frozenset()
    asked, taken = [], frozenset[str]()
    for turn in turns:
        if turn.role == "user":
            text, more = fill_prompt(columns.prompt, turn.text, row)
            turn, taken = ExampleTurn("user", text), taken | more
        asked.append(turn)
    return asked, taken


def last_answer(turns: list[ExampleTurn]) -> str | None:
    """Return the last answer as the truth; None where a question comes last. Raises DataError for an empty one."""
    if not turns or turns[-1].role != "assistant":
        return None
    if not turns[-1].text.strip():
        raise DataError("the answer is empty", code="answer-missing")
    return turns[-1].text
