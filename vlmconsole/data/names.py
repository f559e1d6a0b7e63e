"""From what a person calls a dataset to its folder: one way for making, training, freezing and evaluating.

A name is, in this order, a dataset that the lab holds, a folder or a recipe file by its path, or a shipped recipe.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import MANIFEST, expected, made_already, make_dataset, pinned, read_manifest
from vlmconsole.data.example import ScoredTruth, read_truths
from vlmconsole.data.recipe import NAMING, Part, Recipe, load_recipe, recipe_names
from vlmconsole.data.rows import DataError
from vlmconsole.data.textvqa import NAME as TEXTVQA
from vlmconsole.data.user_file import count_own, ignored_text, own_truths
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many

#: (name of the dataset being made, pictures done, of how many)
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataSource:
    """What a name stands for: a `folder` that holds a made dataset, the `recipe` that would make one, or both."""

    folder: Path | None
    recipe: Recipe | None

    @property
    def name(self) -> str:
        """The dataset's own name, by which plans and adapters know it."""
        if self.recipe is not None:
            return self.recipe.name
        assert self.folder is not None
        return str(read_manifest(self.folder).get("name"))


@dataclass(frozen=True)
class Promised:
    """One split of a dataset, made or not: its role, and how many pictures it has or will have (None: unknown)."""

    role: str
    n: int | None


def look_up(name: str, datasets: Path) -> DataSource:
    """Return what `name` stands for; nothing is made. Raises DataError and RecipeError, with the nearest name."""
    place = named(name)
    for folder in (place,) if "/" in name else (datasets / name, place):
        if (folder / MANIFEST).is_file():
            return DataSource(folder.absolute(), None)
    if name.endswith(".toml") or name in recipe_names():
        recipe = load_recipe(name)
        made = datasets / recipe.name
        return DataSource(made.absolute() if (made / MANIFEST).is_file() else None, recipe)
    if name == TEXTVQA:
        raise DataError(
            f"{TEXTVQA} is not made yet.",
            "Point the setting textvqa at the Parquet shards, or: vlmconsole data textvqa SHARDS",
            code="dataset-missing",
        )
    if place.is_file():
        raise DataError(
            f"{name} is a file, not a dataset.",
            "Name it in a recipe (parts = [{ file = … }]), make that, and give its name.",
            code="dataset-missing",
        )
    made_names = [path.parent.name for path in datasets.glob(f"*/{MANIFEST}")]
    close = difflib.get_close_matches(name, [*made_names, *recipe_names()], n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    hint += "vlmconsole data list shows them."
    raise DataError(f"There is no dataset and no recipe called {name!r}.", hint, code="dataset-missing").named()


def ready(
    name: str,
    datasets: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    watch: Watch = lambda name, done, total: None,
    pause: Callable[[], None] = lambda: None,
) -> Path:
    """Return the folder of the dataset called `name`, made now if need be, with all that it replays from.

    `pause` is called now and then while another maker is waited for, and may raise to end that. Raises LeakError,
    DataError and RecipeError.
    """
    source = look_up(name, datasets)
    if source.recipe is None:
        assert source.folder is not None
        if name in recipe_names() and read_manifest(source.folder).get("recipe_sha256") != load_recipe(name).sha256:
            say(f"the lab's {name} is not what the shipped recipe makes: it is taken as it is")
        return source.folder
    return make(source.recipe, datasets, say=say, watch=watch, pause=pause)


def make(
    recipe: Recipe,
    datasets: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    watch: Watch = lambda name, done, total: None,
    pause: Callable[[], None] = lambda: None,
    replace: bool = False,
) -> Path:
    """Return the folder of what `recipe` makes, and first of every shipped dataset that it replays from. Raises as
    `ready`.

    With `replace` another dataset of its name is put aside.
    """
    for split in recipe.splits:
        for part in split.parts:
            source = (part.replay or "").partition(":")[0]
            if source in recipe_names() and not (datasets / source).exists():
                make(load_recipe(source), datasets, say=say, watch=watch, pause=pause)
    waited = False

    def waiting() -> None:
        nonlocal waited
        if not waited:
            say("another job is making a dataset: waiting for it")
            waited = True
        pause()

    if not (datasets / recipe.name).exists():
        say(f"making the dataset {recipe.name}")
    folder = make_dataset(
        recipe,
        datasets,
        replace=replace,
        on_progress=lambda done, total: watch(recipe.name, done, total),
        waiting=waiting,
    )
    for entry in own_files(read_manifest(folder)):
        if entry["ignored"]:
            say(f"keys of {entry['file']} that are not used: {ignored_text(entry['ignored'])}")
    return folder


def own_files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a manifest tells of the user's files: `file`, `sha256`, `split`, `rows`, `ignored` (key → rows)."""
    listed = manifest.get("own")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return [{**entry, "ignored": entry.get("ignored") or {}, "file": entry.get("file", "")} for entry in entries]


def files_note(recipe: Recipe) -> str:
    """Return what a recipe takes from files of the user's, before it is made; "" where it takes none. Raises
    DataError.
    """
    notes = []
    for path in recipe.files:
        rows, ignored = count_own(path)
        notes.append(
            f"{path.name}: {many(rows, 'row')}" + (f", keys not used: {ignored_text(ignored)}" if ignored else "")
        )
    return f"{recipe.name} is made of {'; '.join(notes)}" if notes else ""


def promised(name: str, datasets: Path) -> dict[str, Promised]:
    """Return the splits of a dataset by name, as made or as its recipe promises them.

    Raises as `look_up`, and DataError where the made one is not what the recipe's file holds now.
    """
    source = look_up(name, datasets)
    if source.folder is not None:
        if source.recipe is not None:
            made_already(source.folder, pinned(source.recipe))
        splits = read_manifest(source.folder)["splits"]
        return {split: Promised(str(about["role"]), int(about["n"])) for split, about in splits.items()}
    assert source.recipe is not None
    return {
        split.name: Promised(split.role, sum(expected(part) for part in split.parts)) for split in source.recipe.splits
    }


def truths_of(name: str, datasets: Path) -> Iterator[tuple[str, str, Iterator[ScoredTruth]]]:
    """(split, role, its truths) of a dataset, made or to be made; of drawn scenes one truth stands for all.

    No picture is opened. Raises as `look_up`.
    """
    source = look_up(name, datasets)
    if source.folder is not None:
        folder = source.folder
        splits = read_manifest(folder)["splits"].items()
        return ((split, str(about["role"]), read_truths(folder / f"{split}.parquet")) for split, about in splits)
    assert source.recipe is not None
    return (
        (split.name, split.role, (held for part in split.parts for held in _truths(part)))
        for split in source.recipe.splits
    )


def _truths(part: Part) -> Iterator[ScoredTruth]:
    if part.file is not None:
        yield from (ScoredTruth(uid, truth) for uid, truth in own_truths(Path(part.file)))
    elif part.group == NAMING:
        yield ScoredTruth(part.group, "circle", "naming")
    elif part.group is not None:
        yield ScoredTruth(part.group, '{"red_circles": 1, "blue_squares": 1}', "counting")
