"""Sweeps: cells that differ in C, B, picture size or length, and whether they did equal work."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vlmconsole.measure.settings import BenchSettings, picture_size
from vlmconsole.runs.conditions import Conditions


class CellSettings(BaseModel):
    """What one cell has of its own; everything else is the sweep's."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, description="Name of the cell; default: what sets it apart")
    server: str | None = Field(None, description="Another server profile")
    concurrency: int | None = Field(None, ge=1, description="Requests kept in flight by the client (C)")
    running_limit: int | None = Field(None, ge=1, description="Requests that the server runs at once (B)")
    requests: int | None = Field(None, ge=1, description="Measured requests")
    rate: float | None = Field(None, ge=1e-6, le=1e6, description="Requests per second (open loop)")
    image: str | None = Field(None, description="Image size in pixels, WIDTHxHEIGHT")
    input_tokens: int | None = Field(None, ge=1, description="Prompt tokens")
    output_tokens: int | None = Field(None, ge=1, description="Output tokens of an answer")

    @field_validator("image")
    @classmethod
    def _check_image(cls, value: str | None) -> str | None:
        picture_size(value or "")
        return value


MOST_CELLS = 1000  # a grid is typed in a moment and measured for days
SHORT = {
    "concurrency": "c",
    "running_limit": "b",
    "rate": "r",
    "image": "",
    "input_tokens": "in",
    "output_tokens": "out",
}
GRID = tuple(key for key in CellSettings.model_fields if key != "name")


class SweepSettings(BenchSettings):
    """A sweep: the settings of a measurement, and the cells in which they differ."""

    equal_work: bool = Field(True, description="Set aside requests that did not return exactly output_tokens")
    running_limit: int | None = Field(
        None,
        ge=1,
        description="Requests that the server runs at once (B); an owned server restarts for it",
    )
    prefix_cache: bool | None = Field(None, description="Server's prefix cache; default: as its profile says")
    cells: list[CellSettings] = Field([], description="Cells one by one; each is crossed with the grid")
    grid: dict[str, list[Any]] = Field({}, description=f"Values to cross, by key: {', '.join(GRID)}")

    @model_validator(mode="after")
    def _check_cells(self) -> SweepSettings:
        if not (self.cells or self.grid):
            raise ValueError("grid and cells are empty: name keys with their values (`vlmconsole bench` measures once)")
        for key, values in self.grid.items():
            if key not in GRID:
                raise ValueError(f"grid.{key}: there is no such key (keys: {', '.join(GRID)})")
            if not values:
                raise ValueError(f"grid.{key} is empty")
        count = max(1, len(self.cells)) * math.prod(map(len, self.grid.values()))
        if count > MOST_CELLS:
            raise ValueError(f"cells and grid make {count} cells: at most {MOST_CELLS}")
        if twice := same_name([cell.name for cell in self.expand()]):
            raise ValueError(f"two cells are the same or have the same name: {twice}")
        return self

    def check_load(self) -> None:
        """Nothing by itself: rates may be the cells' own, and `expand` checks each cell."""

    @property
    def paced(self) -> bool:
        """Whether any cell has a rate."""
        return self.open_loop or "rate" in self.grid or any(cell.rate is not None for cell in self.cells)

    def expand(self) -> list[SweepCell]:
        """Return every cell in the order of measuring. Raises ValueError for a value that no cell may have."""
        made = []
        crossed = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        for cell, more in itertools.product(self.cells or [CellSettings()], crossed):
            own = {**cell.model_dump(exclude_none=True, exclude={"name"}), **more}
            own = CellSettings.model_validate(own).model_dump(exclude_none=True)
            label = "-".join(
                filter(None, [cell.name, *(_short(key, own[key]) for key in (more if cell.name else own))])
            )
            base = self.model_dump(include=set(BenchSettings.model_fields))
            settings = BenchSettings.model_validate({**base, **{k: v for k, v in own.items() if k != "running_limit"}})
            limit = own.get("running_limit", self.running_limit)
            made.append(SweepCell(re.sub(r"[^A-Za-z0-9._-]+", "-", label) or "only", settings, limit))
        return made


def same_name(names: Sequence[str]) -> str:
    """Return the first name that another cell has too, "" for none; files of names that differ by case alone may be
    one.
    """
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return ""


@dataclass(frozen=True)
class SweepCell:
    """One cell: its settings and B (None: as the server has it)."""

    name: str
    settings: BenchSettings
    running_limit: int | None

    @property
    def server(self) -> tuple[str, int | None]:
        """What tells servers apart: profile and B."""
        return self.settings.server, self.running_limit

    @property
    def weight(self) -> float:
        """How much of the sweep it is: requests, or seconds where a duration ends each cell."""
        return self.settings.requests if self.settings.duration is None else self.settings.duration

    def varied(self) -> dict[str, Any]:
        """Return the settings that sweeps vary, for tables and plots."""
        wanted = self.settings.model_dump(include={*SHORT, "requests", "server", "duration"})
        if wanted["rate"] is None:
            del wanted["rate"]
        return {**wanted, "running_limit": self.running_limit}


def _short(key: str, value: Any) -> str:
    if key == "rate":
        value = f"{value:g}"
    return f"{SHORT[key]}{value}" if key in SHORT else f"n{value}" if key == "requests" else str(value)


def work_done(wanted: int, planned: int, summary: dict[str, Any]) -> tuple[bool, str]:
    """Return whether all of a cell's planned requests gave exactly the wanted output, and in words what did not."""
    counted, aside = summary["n"], sum(summary["set_aside"].values())
    parts = [f"{count} {why}" for why, count in summary["set_aside"].items()]
    parts += [f"{count} {why}" for why, count in summary["failure_kinds"].items()]
    if not aside and counted and summary["output_tokens"] != wanted:
        return False, f"{summary['output_tokens']} tokens of output, {wanted} wanted"
    if counted == planned:
        return True, f"all {planned} gave {wanted} tokens"
    return False, f"{counted} of {planned} gave {wanted} tokens; not counted: {', '.join(parts) or 'not sent'}"


def differing(cells: list[Conditions]) -> list[str]:
    """Return the conditions in which a sweep's cells differ: what was varied, and what varied by itself."""
    keys: list[str] = []
    dumps = [cell.model_dump(mode="json") for cell in cells]
    for key in Conditions.model_fields:
        if key in ("n", "notes", "client_error", "settings"):
            continue
        if any(dump.get(key) != dumps[0].get(key) for dump in dumps[1:]):
            keys.append(key)
    return keys
