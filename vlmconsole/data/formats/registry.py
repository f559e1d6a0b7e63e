"""All formats of rows, in the order in which they are recognised: the more particular first."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable

from vlmconsole.data.formats.choices import Choices
from vlmconsole.data.formats.conversations import ConversationsFormat
from vlmconsole.data.formats.messages import Messages
from vlmconsole.data.formats.plain_columns import PlainColumns
from vlmconsole.data.formats.problem_solution import ProblemSolution
from vlmconsole.data.formats.query_response import QueryResponse
from vlmconsole.data.formats.raw_example import ColumnNames, Row, RowFormat
from vlmconsole.data.formats.textvqa_rows import TextVqaRows
from vlmconsole.data.formats.verl_rows import VerlRows
from vlmconsole.data.rows import DataError
from vlmconsole.text.plain import one_line

FORMATS: tuple[RowFormat, ...] = (
    VerlRows(),
    ConversationsFormat(),
    Messages(),
    ProblemSolution(),
    QueryResponse(),
    TextVqaRows(),
    Choices(),
    PlainColumns(),
)


def find_format(name: str) -> RowFormat:
    """Return the format by its name or an alias. Raises DataError with the nearest one."""
    by_name = {known: form for form in FORMATS for known in (form.name, *form.aliases)}
    if form := by_name.get(name.casefold()):
        return form
    close = difflib.get_close_matches(name, by_name, n=1)
    hint = (f"Did you mean {close[0]}? " if close else "") + f"Known: auto, {', '.join(by_name)}."
    raise DataError(f"There is no format {one_line(name, 40)!r}.", hint, code="format-unknown").named()


def recognise(rows: Iterable[Row], columns: ColumnNames) -> RowFormat:
    """Return the format that most of these rows are written in. Raises DataError naming their columns."""
    votes: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for row in rows:
        names.update(str(column) for column in row)
        if form := next((form for form in FORMATS if form.fits(row, columns)), None):
            votes[form.name] += 1
    if votes:
        return find_format(votes.most_common(1)[0][0])
    shown = ", ".join(one_line(name, 40) for name, _ in names.most_common(20)) or "none"
    raise DataError(
        f"No format fits these rows; their columns: {shown}.",
        "Name the columns (--question, --answer, --image), ask one question of all with --prompt, or give --format.",
        code="format-unrecognised",
    )
