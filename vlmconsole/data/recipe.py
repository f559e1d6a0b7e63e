"""Recipes: what a dataset holds, written down before it is made and hashed with everything it says.

A recipe names splits; a split is made of parts. A part draws scenes of one group (every combination of two
counts equally often, or so many pictures spread over all combinations), replays earlier training pictures,
or takes a user's own file. Recipes are TOML: shipped ones in `presets/data/`, anyone's own by path.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from vlmconsole.counting.explore import EXPLORATORY
from vlmconsole.counting.scene import GROUPS
from vlmconsole.errors import LabError
from vlmconsole.presets import preset_names, read_preset
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.system.typed_paths import named
from vlmconsole.text.settings_errors import explain_all

NAMING = "naming"
Role = Literal["train", "dev", "test", "exploratory"]


class RecipeError(LabError):
    """A recipe cannot be used; the message names the key and what is allowed."""

    exit_status = 2


class _RecipeModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_RecipeModel):
    """One source of pictures: exactly one of `group`, `replay` and `file`.

    `every` renders each combination of `low`..`high` red circles and blue squares that often; `count` spreads
    so many pictures over the combinations, none more than one picture ahead of another.
    """

    group: str | None = None
    low: int = Field(0, ge=0, le=24)
    high: int = Field(7, ge=0, le=24)
    every: int | None = Field(None, ge=1)
    count: int | None = Field(None, ge=1)
    styles: tuple[str, ...] = ()  # the k-th rendering of a combination is drawn as the k-th of these groups
    replay: str | None = None  # "dataset:split", a training split made earlier
    file: str | None = None  # a user's own JSONL or Parquet; relative to the recipe
    file_sha256: str | None = None  # of its bytes and its pictures' (`own.content_sha256`); set when it is made

    @model_serializer(mode="wrap")
    def _without_absent_hash(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the hash out where there is none: recipes without files keep the hashes that they always had."""
        table: dict[str, Any] = whole(self)
        if self.file_sha256 is None:
            del table["file_sha256"]
        return table

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        if sum(source is not None for source in (self.group, self.replay, self.file)) != 1:
            raise ValueError("a part needs exactly one of group, replay and file")
        known = {*GROUPS, *EXPLORATORY, NAMING}
        for name in (*([self.group] if self.group else []), *self.styles):
            if name not in known:
                raise ValueError(f"unknown group {name!r}: one of {', '.join(sorted(known))}")
        if self.file_sha256 is not None and self.file is None:
            raise ValueError("file_sha256 belongs to a file")
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, {self.high}")
        if self.group == NAMING and self.every is not None:
            raise ValueError("naming images have no combinations: give count")
        if self.group and (self.every is None) == (self.count is None):
            raise ValueError("a part with a group needs exactly one of every and count")
        if self.replay and self.count is None:
            raise ValueError("a replay needs count")
        if self.replay and self.replay.count(":") != 1:
            raise ValueError(f"replay is {self.replay!r}: write it as dataset:split")
        return self

    @property
    def combinations(self) -> list[tuple[int, int]]:
        """Every (red circles, blue squares) of the part's range, in order."""
        span = range(self.low, self.high + 1)
        return [(red, blue) for red in span for blue in span]

    def cells(self, rng: random.Random) -> list[tuple[int, int, str]]:
        """(red, blue, group to draw) of every picture of this part, combinations in order.

        With `count`, the combinations that get one picture more than others are drawn without replacement.
        """
        combinations = self.combinations
        styles = self.styles or (str(self.group),)
        if self.every is not None:
            often = dict.fromkeys(combinations, self.every)
        else:
            each, left = divmod(int(self.count or 0), len(combinations))
            often = dict.fromkeys(combinations, each)
            for combination in rng.sample(combinations, left):
                often[combination] += 1
        return [(r, b, styles[k % len(styles)]) for (r, b), n in often.items() for k in range(n)]

    @property
    def size(self) -> int | None:
        """How many pictures; None for a whole file of the user's."""
        return self.count if self.count is not None else (self.every or 0) * len(self.combinations) or None


class Split(_RecipeModel):
    """One split. Only `train` splits may ever be replayed; `exploratory` ones belong to no frozen plan."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    role: Role
    parts: tuple[Part, ...] = Field(min_length=1)


class Recipe(_RecipeModel):
    """A whole dataset. `seed` decides every picture; two recipes that differ anywhere have different hashes."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str
    seed: int = Field(ge=0)
    notes: str = ""
    splits: tuple[Split, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Recipe:
        names = [split.name for split in self.splits]
        if len(set(names)) != len(names):
            raise ValueError("two splits have the same name")
        return self

    @property
    def sha256(self) -> str:
        """Hash (hex) of everything the recipe says; of a file whose bytes it names, the place plays no part."""
        table = self.model_dump(mode="json")
        for split in table["splits"]:
            for part in split["parts"]:
                if "file_sha256" in part:
                    del part["file"]
        return hashlib.sha256(canonical_json(table)).hexdigest()

    @property
    def files(self) -> list[Path]:
        """The user's own files that it takes, each once."""
        parts = (part for split in self.splits for part in split.parts)
        return list(dict.fromkeys(Path(part.file) for part in parts if part.file is not None))

    def pinned(self, hashes: Mapping[Path, str | None]) -> Recipe:
        """Return this recipe with the hash of each file's content (None takes it out).

        Raises RecipeError where it names another one.
        """
        splits = []
        for split in self.splits:
            parts = []
            for part in split.parts:
                now = hashes[Path(part.file)] if part.file is not None else None
                if now is not None and part.file_sha256 not in (None, now):
                    wanted = str(part.file_sha256)[:12]
                    raise RecipeError(f"{part.file} is {now[:12]}… now, the recipe {self.name} wants {wanted}….")
                parts.append(part.model_copy(update={"file_sha256": now}))
            splits.append(split.model_copy(update={"parts": tuple(parts)}))
        return self.model_copy(update={"splits": tuple(splits)})


def recipe_names() -> list[str]:
    """Return the shipped recipes."""
    return preset_names("data")


def load_recipe(name: str, *, seed: int | None = None, rename: str | None = None) -> Recipe:
    """Return the shipped recipe called `name`, or the TOML file at that path, with another seed or name if given.

    Raises RecipeError naming the key, or the nearest name.
    """
    table = read_preset("data", name, "dataset recipe", RecipeError)
    path = named(name)
    for split in table.get("splits", []):
        for part in split.get("parts", []) if isinstance(split, dict) else []:
            if isinstance(part, dict) and isinstance(part.get("file"), str):
                part["file"] = str((path.parent / named(part["file"])).absolute())
    changed: dict[str, Any] = {"seed": seed, "name": rename}
    table.update({key: value for key, value in changed.items() if value is not None})
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError(
            f"The recipe {name} cannot be used: {explain_all(error.errors())}.", code="recipe-invalid"
        ) from None
