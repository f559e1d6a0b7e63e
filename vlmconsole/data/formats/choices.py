"""Questions with options: lettered columns (A, B, …) as in choice TSVs, or a list of `options` or `choices`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.prompt_template import fill_prompt
from vlmconsole.data.formats.raw_example import (
    ANSWERS,
    IDS,
    QUESTIONS,
    ColumnNames,
    RawExample,
    Row,
    RowFormat,
    held,
    named_column,
    row_group,
    row_id,
    row_images,
    text_of,
    with_tags,
)
from vlmconsole.data.rows import DataError
from vlmconsole.data.user_options import listed_texts, missing_options
from vlmconsole.text.plain import one_line

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LISTS = ("options", "choices", "candidates")
_ASK = "Answer with the letter of one option."


class Choices(RowFormat):
    """The options become part of the question, with a hint before it; the answer is a letter, a text or a position."""

    name = "choices"
    aliases = ("choice", "tsv", "mcq")
    title = "question, options (A, B, C… or a list), answer, hint, image: choice TSVs"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        asked = named_column(row, QUESTIONS, columns.question) and named_column(row, ANSWERS, columns.answer)
        return bool(asked) and len(_options(row)[0]) > 1

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        options, option_columns = _options(row)
        if len(options) < 2:
            raise DataError("it has fewer than two options", code="options-missing")
        given, id_column = row_id(row, columns, (*IDS, "index"))
        group, group_column = row_group(row, columns)
        images, image_column = row_images(row, columns)
        question_column = named_column(row, QUESTIONS, columns.question)
        answer_column = named_column(row, ANSWERS, columns.answer)
        if question_column is None or answer_column is None:
            raise DataError("it has no question, or no answer", code="question-missing")
        asked, hint_column = self._asked(row, text_of(row[question_column], "question"), options)
        prompt = columns.prompt or f"{{question}}\n{_ASK}"
        asked, taken = fill_prompt(prompt, asked, row)
        letter, note = _letter(row[answer_column], options)
        turns, notes = with_tags([ExampleTurn("user", asked), ExampleTurn("assistant", letter)], len(images))
        read = {id_column, group_column, image_column, question_column, answer_column, hint_column, *taken}
        used = frozenset(column for column in read if column is not None) | option_columns
        return RawExample(turns, images, letter, given, group, {"choices": options}, used, (*note, *notes))

    def _asked(self, row: Row, question: str, options: Mapping[str, str]) -> tuple[str, str | None]:
        """(hint, question and options, the hint's column); options that the question holds already stand there once."""
        hint_column = named_column(row, ("hint", "context"))
        hint = text_of(row[hint_column], "hint") if hint_column else ""
        parts = [hint, question] if hint.strip() else [question]
        if missing_options({"options": list(options.values())}, question):
            parts += [f"{letter}. {text}" for letter, text in options.items()]
        return "\n".join(parts), hint_column


def _options(row: Row) -> tuple[dict[str, str], frozenset[str]]:
    """(letter → text, columns): of lettered columns, an empty cell being none; else of a list."""
    lettered = {str(column).strip(): column for column in row if str(column).strip() in LETTERS and str(column).strip()}
    if {"A", "B"} <= set(lettered):
        held_ones = {
            letter: _text(row[lettered[letter]]) for letter in LETTERS if held(row.get(lettered.get(letter, "")))
        }
        options = {letter: text for letter, text in held_ones.items() if text.strip()}
        return options, frozenset(lettered[letter] for letter in options)
    column = named_column(row, _LISTS)
    if column is None:
        return {}, frozenset()
    value = row[column]
    if isinstance(value, Mapping) and set(value) <= set(LETTERS):
        return {str(letter): _text(text) for letter, text in value.items() if held(text)}, frozenset({column})
    texts = listed_texts(value)
    return dict(zip(LETTERS, texts, strict=False)) if len(texts) <= len(LETTERS) else {}, frozenset({column})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _letter(answer: Any, options: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """(the letter that an answer means, a note where it was a position). Raises DataError where it means none."""
    if isinstance(answer, str):
        if (plain := answer.strip().strip("().")) in options:
            return plain, ()
        texts = [letter for letter, text in options.items() if text.strip().casefold() == answer.strip().casefold()]
        if len(texts) == 1:
            return texts[0], ()
    position = int(answer) if isinstance(answer, str) and answer.strip().isdecimal() else answer
    if isinstance(position, int) and not isinstance(position, bool) and 0 <= position < len(options):
        return list(options)[position], ("answers taken as positions, the first is 0",)
    raise DataError(
        f"the answer {one_line(answer, 40)!r} is no letter, text or position of the options {', '.join(options)}",
        code="answer-invalid",
    )
