"""A source's own column of splits: followed where every row has a known name in it, else a warning says what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.data.formats.raw_example import held, plain_column
from vlmconsole.data.importing.settings import ImportSettings
from vlmconsole.data.recipe import Role
from vlmconsole.data.sources.splits_named import whole_name_role
from vlmconsole.text.plain import one_line

_NAMES = ("split", "subset", "fold")  # in the order in which they are preferred


@dataclass
class _Column:
    """`roles`: row → role, where its cell is a known name; `rows`: how many hold anything; `read`: for another use."""

    roles: dict[int, Role] = field(default_factory=dict)
    rows: int = 0
    read: bool = False


class SplitColumns:
    """Collects the columns that may name splits, row by row; `settle` says which of them is followed."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    def add(self, number: int, row: Mapping[str, Any], used: Container[str]) -> None:
        """Read one row. `used`: the columns that its format has read."""
        for name, cell in row.items():
            if plain_column(name) not in _NAMES or not held(cell):
                continue
            column = self._columns.setdefault(name, _Column())
            column.rows += 1
            column.read |= name in used
            if (role := whole_name_role(cell)) is not None:
                column.roles[number] = role

    def settle(
        self, rows: Sequence[int], settings: ImportSettings, *, named: bool
    ) -> tuple[str, dict[int, Role], Counter[str]]:
        """(the column that is followed or "", row → split, notes for people → rows).

        `rows`: numbers of the usable rows; `named`: the source's files or folders name splits already.
        """
        usable = set(rows)
        followed, splits, notes = "", dict[int, Role](), Counter[str]()
        order = sorted(self._columns, key=lambda name: (_NAMES.index(plain_column(name)), name))
        for name in order:
            column, shown = self._columns[name], one_line(name, 40)
            known = usable & column.roles.keys()
            if not known and plain_column(name) != _NAMES[0]:
                continue  # a subset or a fold of another kind
            reason = _reason(column, len(usable - known), settings, named=named)
            if not reason and not followed:
                followed, splits = name, {number: column.roles[number] for number in rows}
                notes[f"split taken from the column {shown}"] = len(rows)
            elif reason or splits != {number: column.roles[number] for number in rows}:
                reason = reason or f"the column {one_line(followed, 40)} is"
                notes[f"column {shown} not followed: {reason}; {_ADVICE}"] = column.rows
        return followed, splits, notes


_ADVICE = "import each split from its own file with --as, or name it train, dev or test in every row"


def _reason(column: _Column, unknown: int, settings: ImportSettings, *, named: bool) -> str:
    """Why a column of splits is not followed; "" where it is."""
    if settings.role:
        return f"--as {settings.role} puts all rows into one"
    if settings.shares:
        return "--split divides the rows anew"
    if named:
        return "the source's files name the splits"
    if column.read:
        return "it is read as something else"
    return f"{unknown} of the rows name no known split in it" if unknown else ""
