"""Settings of a tuning run: a grid of launch parameters, the load they are measured under, and the rule that chooses.

Light: forms and the command line import it. The rule itself is applied in `measure.tune_rule`.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.measure.settings import LAG_LIMIT_S, BenchSettings
from vlmconsole.measure.sweep import MOST_CELLS, same_name
from vlmconsole.measure.variants import with_flag, with_prefix_cache, with_running_limit

Value = bool | int | float | str
#: what a server uses at its peak as it was sampled, in the place of a launch parameter's value
SAMPLED = "sampled peak"
#: the names of what is measured again at the end begin so
CONFIRM = "confirm-"
_KEY = re.compile(r"[a-z][a-z0-9_]*")


class Consistent(BaseModel):
    """What every measured answer must be for its cell to stay in."""

    model_config = ConfigDict(extra="forbid")

    finish_reason: Literal["length"] = Field(description="How every answer must end: at max tokens")
    output_tokens: int = Field(ge=1, description="Tokens that every answer must have, exactly")


class TuneRule(BaseModel):
    """How the winner is chosen. Nothing here has a default: it is decided, and frozen, before the first cell."""

    model_config = ConfigDict(extra="forbid")

    baseline: dict[str, Value] = Field(description="The cell that others are compared with, by its parameters")
    consistent: Consistent = Field(description="What makes a cell's outputs consistent")
    throughput_floor: float = Field(gt=0, le=2, description="Least throughput, as a share of the baseline's")
    close_within: float = Field(ge=0, le=1, description="TTFT p95 this share above the lowest still counts as close")
    memory: str = Field(description=f"What decides between close cells: a parameter of the grid, or “{SAMPLED}”")


class TuneSettings(BaseModel):
    """A tuning run. Each cell is a server of its own, started anew with one combination of launch parameters."""

    model_config = ConfigDict(extra="forbid")

    server: str = Field(description="Profile of a server that this lab starts")
    grid: dict[str, list[Value]] = Field(description="Values to cross, by launch parameter, e.g. chunked_prefill_size")
    rule: TuneRule = Field(description="How the winner is chosen; frozen before the first cell")
    running_limit: int | None = Field(None, ge=1, description="B, the same in every cell; default: the profile's")
    prefix_cache: bool = Field(False, description="Prefix cache while measuring; the chosen profile keeps its own")
    concurrency: int = Field(4, ge=1, description="Requests kept in flight by the client (C)")
    requests: int = Field(12, ge=1, description="Measured requests in each cell")
    warm_up: int = Field(4, ge=0, description="Warm-up requests in each cell, not counted")
    image: str = Field("", description="Image size in pixels, WIDTHxHEIGHT; empty: text only")
    input_tokens: int | None = Field(None, ge=1, description="Prompt tokens, including the image; default: short")
    output_tokens: int = Field(128, ge=1, description="Output tokens of an answer; exactly these where the engine can")
    seed: int = Field(0, description="Seed of the inputs")
    lag_limit_ms: float = Field(
        LAG_LIMIT_S * 1000, gt=0, description="Client lag above which a cell is INVALID (p99, ms; at least 2 % of TTFT)"
    )
    total_timeout_s: float = Field(900.0, gt=0, description="Longest a request may take, s")
    save_as: str = Field("", description="Name of the chosen profile; default: the server's with -tuned")

    @model_validator(mode="after")
    def _check(self) -> TuneSettings:
        self.bench()  # a bad picture size is said now
        if not self.grid:
            raise ValueError("grid is empty: name launch parameters and their values")
        for key, values in self.grid.items():
            if not _KEY.fullmatch(key):
                raise ValueError(f"grid.{key}: write a launch parameter as chunked_prefill_size")
            if not values or len(set(map(repr, values))) != len(values):
                raise ValueError(f"grid.{key}: give each value once, at least one")
            if any(_chooses_program(key, value) for value in values):
                raise ValueError(f"grid.{key}: what a server loads, runs or listens at stands in its profile alone")
            if key in ("max_running_requests", "max_num_seqs") and self.running_limit is not None:
                raise ValueError(f"grid.{key} and running_limit are the same setting (B): leave one out")
        count = math.prod(map(len, self.grid.values()))
        if count > MOST_CELLS:
            raise ValueError(f"grid makes {count} cells: at most {MOST_CELLS}")
        names = [cell.name for cell in self.expand()]
        if twice := same_name(names):
            raise ValueError(f"grid: two cells have the same name, {twice}: they differ in signs that no name keeps")
        if names[0].startswith(CONFIRM):
            raise ValueError(f"grid: names that begin with {CONFIRM} are kept for the confirmation")
        if set(self.rule.baseline) != set(self.grid):
            raise ValueError(f"rule.baseline must give a value for each of: {', '.join(self.grid)}")
        self.baseline()
        if self.rule.memory != SAMPLED and self.rule.memory not in self.grid:
            raise ValueError(f"rule.memory must be “{SAMPLED}” or one of: {', '.join(self.grid)}")
        if self.rule.memory in self.grid and not all(_is_number(setting) for setting in self.grid[self.rule.memory]):
            raise ValueError(f"rule.memory: the values of {self.rule.memory} are no numbers")
        if self.rule.consistent.output_tokens != self.output_tokens:
            raise ValueError("rule.consistent.output_tokens must be output_tokens: that is what is asked for")
        return self

    def bench(self) -> BenchSettings:
        """Return the same load as settings of one measurement; answers of another length are set aside."""
        shared = set(BenchSettings.model_fields) & set(TuneSettings.model_fields)
        return BenchSettings.model_validate({**self.model_dump(include=shared), "equal_work": True})

    def expand(self) -> list[TuneCell]:
        """Return every cell in the order of measuring: the last parameter changes fastest."""
        crossed = itertools.product(*self.grid.values())
        return [TuneCell.of(dict(zip(self.grid, values, strict=True))) for values in crossed]

    def baseline(self) -> TuneCell:
        """Return the grid's cell that the rule names. Raises ValueError when it is none of them."""
        for cell in self.expand():
            if all(_same(cell.values[key], self.rule.baseline[key]) for key in self.grid):
                return cell
        raise ValueError(f"rule.baseline {self.rule.baseline} is no cell of the grid")

    def profile(self, cell: TuneCell, profile: ServerProfile) -> ServerProfile:
        """Return the profile that this cell is measured with. Raises ProfileError for a server that is not launched
        here.
        """
        if self.running_limit is not None:
            profile = with_running_limit(profile, self.running_limit)
        if profile.prefix_cache != self.prefix_cache:
            profile = with_prefix_cache(profile, self.prefix_cache)
        return with_parameters(profile, cell.values)

    def plan(self) -> dict[str, Any]:
        """Return what is frozen before the first cell: the rule, every cell in its order, and the load."""
        return {
            "rule": self.rule.model_dump(mode="json"),
            "cells": [{"name": cell.name, **cell.values} for cell in self.expand()],
            "baseline": self.baseline().name,
            "load": self.model_dump(mode="json", exclude={"rule", "grid", "save_as"}),
            "confirmation": "the chosen cell and the baseline, each on a server started anew, under the same load",
        }


@dataclass(frozen=True)
class TuneCell:
    """One combination of launch parameters; the name tells it apart in tables and files."""

    name: str
    values: dict[str, Value]

    @staticmethod
    def of(values: dict[str, Value]) -> TuneCell:
        # The first word of a parameter tells it apart in a name, unless two of them begin alike.
        short = {key: key.partition("_")[0] for key in values}
        if len(set(short.values())) < len(short):
            short = {key: key.replace("_", "-") for key in values}
        name = "-".join(f"{short[key]}-{value}" for key, value in values.items())
        return TuneCell(re.sub(r"[^A-Za-z0-9._-]+", "-", name), values)


def with_parameters(profile: ServerProfile, values: dict[str, Value]) -> ServerProfile:
    """Return the profile with launch parameters set: true is the flag alone, false leaves it out. Raises
    ProfileError.
    """
    for key, value in values.items():
        flag = f"--{key.replace('_', '-')}"
        limit = find_engine(profile.engine).limit_flag
        if flag == limit and isinstance(value, int) and not isinstance(value, bool):
            profile = with_running_limit(profile, value)
        else:
            profile = with_flag(profile, flag, value)
    return profile


_LOADS = frozenset({"model", "tokenizer", "plugin", "cls", "class", "custom", "loader", "host", "url", "key", "draft"})
_LOADS |= {"lora", "adapter", "template", "module", "config"}


def _chooses_program(key: str, value: Value) -> bool:
    """Whether a launch parameter would choose what is loaded or run: a preset, which is data, may not."""
    words = set(key.split("_"))
    if isinstance(value, str):
        return bool(words & _LOADS) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", value)
    return value is True and bool(words & {"trust", "remote", "custom"})


def _same(value: Value, other: Value) -> bool:
    return (type(value) is type(other) and value == other) or (
        _is_number(value) and _is_number(other) and value == other
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
