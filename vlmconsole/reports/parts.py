"""What a report is made of: sections of tables, plots, facts, sentences, pictures. Text only; the page escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmconsole.runs.titles import NAMED, in_unit, title
from vlmconsole.scoring.answer import CountAnswer, parse_counts
from vlmconsole.text.numbers import UNKNOWN, decimal
from vlmconsole.text.plain import inert, one_line

LONGEST = 600  # characters of one value; the raw file holds the rest
MOST_FACTS = 80


@dataclass(frozen=True)
class Column:
    """A column's head, with its unit; figures stand to the right."""

    name: str
    figures: bool = True


@dataclass(frozen=True)
class Table:
    """`marks` names a row's kind: "" or "bad" (set aside, failing), in words too somewhere in the row.

    `narrow`: one of several with the same columns, which then stand below one another.
    """

    form: ClassVar[str] = "table"
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    marks: Sequence[str] = ()
    note: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class ReportPlot:
    """Finished SVG markup, whose texts are escaped already."""

    form: ClassVar[str] = "plot"
    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    form: ClassVar[str] = "facts"
    title: str
    rows: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True)
class Paragraph:
    """Sentences; `kind` is "", "bad", "warn" or "log" (as it is, in a fixed width)."""

    form: ClassVar[str] = "prose"
    title: str
    lines: Sequence[str]
    kind: str = ""
    note: str = ""


@dataclass(frozen=True)
class ReportImage:
    """A picture as a data URL, with what is said below it."""

    source: str
    said: str
    good: bool | None = None


@dataclass(frozen=True)
class Pictures:
    form: ClassVar[str] = "pictures"
    title: str
    pictures: Sequence[ReportImage]
    note: str = ""


Part = Table | ReportPlot | Facts | Paragraph | Pictures


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part] = field(default=())


def answer(text: object) -> str:
    """Return a counting answer in the format as `3 red, 2 blue`; every other answer as it is, whole."""
    counts = parse_counts(text)
    if isinstance(counts, CountAnswer):
        return f"{counts.red_circles} red, {counts.blue_squares} blue"
    return "no answer" if text is None else shown(text)


def shown(value: object) -> str:
    """Return any value of a file as one text."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, list | tuple) and all(not isinstance(item, dict | list) for item in value):
        text = ", ".join(shown(item) for item in value) or "none"
    else:
        text = str(value)
    text = inert(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def flat(value: Any, most: int = MOST_FACTS, *, raw: bool = False) -> list[tuple[str, str]]:
    """Return the leaves of nested objects as (path, value), at most `most`; lists of objects count as one leaf.

    Keys are said in words and units; `raw` leaves them as a person types them.
    """
    rows: list[tuple[str, str]] = []

    def take(name: str, item: Any, depth: int, *, as_named: bool = raw) -> None:
        if isinstance(item, dict) and depth < 4:
            for key, inner in item.items():
                label, named = str(key), raw or str(key) in NAMED
                part = label if as_named else title(label)
                take(
                    f"{name} · {part}" if name else part,
                    inner if as_named else in_unit(label, inner),
                    depth + 1,
                    as_named=named,
                )
        elif isinstance(item, list) and any(isinstance(member, dict) for member in item):
            rows.append((one_line(name, 100), f"{len(item)} entries, in the raw file"))
        else:
            rows.append((one_line(name, 100), shown(item)))

    take("", value, 0)
    if len(rows) > most:
        rows = [*rows[:most], ("…", f"{len(rows) - most} more in the raw file")]
    return rows
