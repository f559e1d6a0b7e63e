"""What an import is asked to do, checked, and the part of it that decides what the dataset holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmconsole.data.formats.raw_example import ColumnNames
from vlmconsole.data.recipe import Role
from vlmconsole.data.rows import DataError
from vlmconsole.text.plain import one_line

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHARES: tuple[Role, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class ImportSettings:
    """`shares`: split → its share of the rows; `role`: all rows are one split; neither: as the source names them.

    `scorer` "" is proposed from the truths; `options` are its own; `images` is a folder that paths are relative to.
    """

    name: str
    format: str = "auto"
    columns: ColumnNames = field(default_factory=ColumnNames)
    scorer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    shares: Mapping[Role, int] = field(default_factory=dict)
    role: Role | None = None
    seed: int = 0
    images: Path | None = None
    skip_bad: bool = False
    replace: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.endswith(".parquet"):
            raise DataError(
                f"{one_line(self.name, 60)!r} is no name for a dataset: letters, digits, . _ and -, no sign first.",
                code="name-invalid",
            ).named()
        if self.shares and self.role:
            raise DataError("--split and --as exclude each other.", code="usage").named()

    @property
    def deciding(self) -> dict[str, Any]:
        """What of these settings decides the dataset's content, as JSON; unset ones are left out."""
        asked = {key: value for key, value in vars(self.columns).items() if value}
        table: dict[str, Any] = {"columns": asked, "scorer": self.scorer, "options": dict(self.options)}
        if self.shares:
            table |= {"shares": dict(self.shares), "seed": self.seed}
        if self.role:
            table["role"] = self.role
        return {key: value for key, value in table.items() if value}


def read_shares(text: str) -> dict[Role, int]:
    """`train=80,dev=10,test=10` as shares. Raises DataError."""
    shares: dict[Role, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        role = next((role for role in _SHARES if role == name.strip()), None)
        if role is None or not number.strip().isdecimal() or role in shares or not 0 < int(number) <= 10**6:
            raise DataError(
                f"--split {one_line(text, 60)!r} is no list of shares.",
                "Example: train=80,dev=10,test=10",
                code="split-invalid",
            ).named()
        shares[role] = int(number)
    return shares


def read_role(text: str) -> Role:
    """Return a split's role by its name. Raises DataError."""
    if role := next((role for role in _SHARES if role == text), None):
        return role
    raise DataError(f"--as {one_line(text, 40)!r} is no role.", "Known: train, dev, test.", code="role-unknown").named()
