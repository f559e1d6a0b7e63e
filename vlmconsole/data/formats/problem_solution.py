"""`problem` and `solution` of R1-style training sets: the answer inside `<answer>…</answer>` is what counts."""

from __future__ import annotations

import re

from vlmconsole.data.example import ExampleTurn
from vlmconsole.data.formats.plain_columns import taught_text
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
    truth_of,
    with_tags,
)
from vlmconsole.data.rows import DataError

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
TAGS_OFF = "answer tags taken off, what stands inside is taught and scored"


class ProblemSolution(RowFormat):
    """One problem; its solution may be tagged, with reasoning before it."""

    name = "problem-solution"
    aliases = ("problem_solution", "r1")
    title = "problem, solution (<answer> tags taken off), image"

    def fits(self, row: Row, columns: ColumnNames) -> bool:
        return held(row.get("problem")) and "solution" in row

    def read(self, row: Row, columns: ColumnNames) -> RawExample:
        given, id_column = row_id(row, columns)
        group, group_column = row_group(row, columns)
        images, image_column = row_images(row, columns)
        asked, taken = fill_prompt(columns.prompt, text_of(row.get("problem"), "question"), row)
        truth = truth_of(row.get("solution"))
        notes: tuple[str, ...] = ()
        if isinstance(truth, str) and "<answer>" in truth:
            truth, notes = _inside(truth), (TAGS_OFF,)
        placed, more = with_tags(
            [ExampleTurn("user", asked), ExampleTurn("assistant", taught_text(truth))], len(images)
        )
        read = {"problem", "solution", id_column, group_column, image_column, *taken}
        used = frozenset(name for name in read if name is not None)
        return RawExample(placed, images, truth, given, group, used=used, notes=notes + more)


def _inside(solution: str) -> str:
    answers = _TAGGED.findall(solution)
    if len(answers) != 1 or not answers[0].strip():
        what = f"{len(answers)} whole answers in tags" if len(answers) != 1 else "an empty answer in tags"
        raise DataError(f"the solution has {what}: one is wanted", code="answer-tags")
    return str(answers[0]).strip()
