"""The template of a question: `{question}` and the row's own columns by their names, everything else as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlmconsole.data.formats.raw_example import held
from vlmconsole.data.rows import DataError
from vlmconsole.text.plain import one_line

_PLACE = re.compile(r"\{([^{}\n]+)\}")
_WORD = re.compile(r"[^\W\d]\w*")


def fill_prompt(template: str, question: str | None, row: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """(the question as asked, columns that it took). An empty template gives the question itself.

    Raises DataError for a `{word}` that is no column of the row, and where the question it wants is missing. Braces
    around anything else (JSON) stay.
    """
    if not template:
        if question is None:
            raise DataError("there is no question", code="question-missing")
        return question, frozenset()
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "question":
            if question is None:
                raise DataError("there is no question for the prompt's {question}", code="question-missing")
            return question
        if name in row:
            if not held(row[name]):
                raise DataError(
                    f"the column {one_line(name, 40)}, which the prompt takes, is empty", code="prompt-empty"
                )
            used.add(name)
            return str(row[name])
        if _WORD.fullmatch(name):
            raise DataError(f"the prompt's {{{one_line(name, 40)}}} is no column of it", code="prompt-unknown")
        return match[0]

    return _PLACE.sub(fill, template), frozenset(used)
