"""Making a dataset from its recipe: pictures, truth, object lists, hashes, and no picture seen before.

A dataset is a folder: a Parquet file and an object list (`.objects.jsonl`) for each split, and
`manifest.json` with the recipe, every file's SHA-256 and every picture's file and pixel hash. It is built
beside its place and appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.counting.alone import alone
from vlmconsole.counting.explore import EXPLORATORY, explore_scene
from vlmconsole.counting.own import read_own
from vlmconsole.counting.questions import COUNT_PROMPT, question_set
from vlmconsole.counting.recipe import NAMING, Part, Recipe, Split
from vlmconsole.counting.rows import DataError, Row, read_rows, write_rows
from vlmconsole.counting.scene import check, label_json, make_scene
from vlmconsole.counting.splits import Known, LeakError, PictureIndex
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.runs.making import making
from vlmconsole.runs.reading import UnreadableError, read_json
from vlmconsole.vision.images import pixel_sha256

MANIFEST = "manifest.json"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Made:
    """One picture with everything known of it. `replay_of` is the place it was taken from, as dataset:split."""

    row: Row
    sha256: str
    pixel_sha256: str
    facts: dict[str, Any]
    replay_of: str | None = None


def make_dataset(
    recipe: Recipe,
    datasets: Path,
    *,
    on_progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """Make the dataset below `datasets` and return its folder; one made before by the same recipe is left alone.

    One maker at a time: `waiting` is called now and then while another one is at work, and may raise. Raises
    DataError (an existing other dataset, a missing replay source) and LeakError (a user's picture that stands in two
    splits, or stood in an earlier dataset).
    """
    folder = datasets / recipe.name
    if _made_already(folder, recipe):
        return folder
    with alone(datasets, waiting):
        # Again, as another may have made it meanwhile.
        return folder if _made_already(folder, recipe) else _make(recipe, datasets, on_progress)


def _made_already(folder: Path, recipe: Recipe) -> bool:
    """Whether this recipe made that folder. Raises DataError when another did."""
    if not folder.exists():
        return False
    if read_manifest(folder).get("recipe_sha256") == recipe.sha256:
        return True
    raise DataError(
        f"{folder} holds another dataset of this name.",
        "Made datasets are never overwritten: give a new name with --name.",
    )


def _make(recipe: Recipe, datasets: Path, on_progress: Progress | None) -> Path:
    folder = datasets / recipe.name
    index = PictureIndex(datasets)
    maker = _Maker(recipe, datasets, index.seen(but=recipe.sha256), on_progress)
    maker.check_sources()
    with making(folder) as building:
        manifest = maker.write(building)
        with index.adding(maker.new):
            write_atomic(building / MANIFEST, to_json(manifest))
            building.rename(folder)
    return folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """A dataset's manifest, with its tables `splits` and `files`. Raises DataError when the folder is no dataset."""
    try:
        value = read_json(folder / MANIFEST)
    except UnreadableError as error:
        missing = f"{folder} is no dataset: it has no {MANIFEST}"
        raise DataError(missing if error.missing else error.message) from None
    if not isinstance(value, dict):
        raise DataError(f"{folder / MANIFEST} is no JSON object")
    for key in ("splits", "files"):
        table = value.get(key)
        if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
            raise DataError(f"{folder / MANIFEST} has no table of its {key}", "It was edited: make the dataset again.")
    kinds: dict[str, tuple[type, Any]] = {
        "role": (str, None),
        "n": (int, None),
        "replayed": (int, 0),
        "pictures": (list, []),
    }
    for name, split in value["splits"].items():
        if wrong := [key for key, (kind, absent) in kinds.items() if not isinstance(split.get(key, absent), kind)]:
            raise DataError(
                f"{folder / MANIFEST}: the {', '.join(wrong)} of its split {name} cannot be read",
                "It was edited: make the dataset again.",
            )
    return value


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Hash (hex) of what a dataset holds, by which plans and adapters name it; the time of making plays no part."""
    return hashlib.sha256(canonical_json({k: v for k, v in manifest.items() if k != "made"})).hexdigest()


class _Maker:
    def __init__(self, recipe: Recipe, datasets: Path, seen: set[str], on_progress: Progress | None) -> None:
        self.recipe, self.datasets = recipe, datasets
        self.seen = seen  # by hash, grows with every picture
        self.new: list[Known] = []
        self.redrawn = 0
        self.sources: dict[str, str] = {}
        self.places: dict[str, str] = {}  # hash → split, of this dataset's own pictures
        self._done, self._progress = 0, on_progress
        self._total = sum(part.size or 0 for split in recipe.splits for part in split.parts)

    def write(self, folder: Path) -> dict[str, Any]:
        splits: dict[str, Any] = {}
        files: dict[str, Any] = {}
        for split in self.recipe.splits:
            made = list(self._split(split))
            names = (f"{split.name}.parquet", f"{split.name}.objects.jsonl")
            write_rows(folder / names[0], (m.row for m in made))
            lines = (json.dumps({**m.facts, "uid": m.row.uid}, ensure_ascii=False) + "\n" for m in made)
            write_atomic(folder / names[1], "".join(lines))
            for name in names:
                data = (folder / name).read_bytes()
                files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            splits[split.name] = {
                "role": split.role,
                "n": len(made),
                "replayed": sum(m.replay_of is not None for m in made),
                "pictures": [[m.row.uid, m.sha256, m.pixel_sha256, m.replay_of] for m in made],
            }
        return {
            "name": self.recipe.name,
            "recipe": self.recipe.model_dump(mode="json"),
            "recipe_sha256": self.recipe.sha256,
            "seed": self.recipe.seed,
            "made": round(time.time(), 3),
            "redrawn": self.redrawn,  # pictures drawn again because they had been seen
            "sources": self.sources,  # digests of the datasets replayed from
            "files": files,
            "splits": splits,
        }

    def _split(self, split: Split) -> Iterator[Made]:
        made = [one for number, part in enumerate(split.parts) for one in self._part(split, number, part)]
        # Shuffled once and for all: trainers that read in order (verl with shuffle off) see a mixture.
        random.Random(f"{self.recipe.seed}:{split.name}:order").shuffle(made)
        for index, one in enumerate(made):
            uid = f"{self.recipe.name}-{split.name}-{index:05d}"
            row = replace(one.row, uid=uid, split=split.name, index=index)
            if one.replay_of is None:
                known = (self.recipe.name, self.recipe.sha256, split.name, split.role, uid)
                self.new.append(Known(one.sha256, one.pixel_sha256, *known))
            yield replace(one, row=row)

    def _part(self, split: Split, number: int, part: Part) -> Iterator[Made]:
        if part.replay is not None:
            yield from self._replay(split, part)
        elif part.file is not None:
            yield from self._file(split, part)
        elif part.group == NAMING:
            for k in range(part.count or 0):
                yield self._fresh(f"{split.name}:{number}:{k}", split, lambda key, k=k: _naming(key, k))  # type: ignore[misc]
        else:
            rng = random.Random(f"{self.recipe.seed}:{split.name}:{number}:cells")
            for k, (red, blue, group) in enumerate(part.cells(rng)):
                where = f"{split.name}:{number}:{k}"
                yield self._fresh(where, split, lambda key, r=red, b=blue, g=group: _counting(key, g, r, b))  # type: ignore[misc]

    def _fresh(self, where: str, split: Split, draw: Callable[[str], Made]) -> Made:
        """A picture that no dataset has: drawn again with the next seed until its hashes are new."""
        for attempt in range(1000):
            made = draw(f"{self.recipe.seed}:{where}:{attempt}")
            if made.sha256 not in self.seen and made.pixel_sha256 not in self.seen:
                self.redrawn += attempt
                self._took(made, split)
                return made
        raise DataError(f"No new picture for {where} in 1000 attempts.", "Give the recipe another seed (--seed).")

    def _took(self, made: Made, split: Split) -> None:
        self.seen.update((made.sha256, made.pixel_sha256))
        self.places.update(dict.fromkeys((made.sha256, made.pixel_sha256), split.name))
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def check_sources(self) -> None:
        """Whether everything to be replayed is there, before the first picture is drawn. Raises DataError."""
        for split in self.recipe.splits:
            for part in split.parts:
                if part.replay is not None:
                    self._source(split, part)
                elif part.file is not None and not Path(part.file).is_file():
                    raise DataError(f"{part.file}, which {self.recipe.name} takes for {split.name}, is no file.")

    def _source(self, split: Split, part: Part) -> tuple[Path, str]:
        """(folder, split) that a part replays from, after every check that needs no picture."""
        name, _, source = str(part.replay).partition(":")
        if split.role != "train":
            raise DataError(f"The {split.role} split {split.name} replays {part.replay}: only training replays.")
        folder = self.datasets / name
        if not folder.exists():
            raise DataError(
                f"{self.recipe.name} replays {part.replay}, which is not made yet.",
                f"Make it first: vlmconsole data make {name}",
            )
        manifest = read_manifest(folder)
        described = manifest["splits"].get(source)
        if described is None or described["role"] != "train":
            raise DataError(f"{part.replay} is no training split: past tests are never trained on.")
        if (part.count or 0) > described["n"]:
            raise DataError(f"{part.replay} has {described['n']} pictures, and {part.count} are to be replayed.")
        path = folder / f"{source}.parquet"
        if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["files"][path.name]["sha256"]:
            raise DataError(
                f"{path} is not the file that was made (its hash differs).", "vlmconsole data check shows more."
            )
        self.sources[name] = manifest_digest(manifest)
        return folder, source

    def _replay(self, split: Split, part: Part) -> Iterator[Made]:
        folder, source = self._source(split, part)
        facts = {fact["uid"]: fact for fact in read_objects(folder, source)}
        rows = list(read_rows(folder / f"{source}.parquet"))
        rng = random.Random(f"{self.recipe.seed}:{split.name}:replay:{part.replay}")
        for at in sorted(rng.sample(range(len(rows)), part.count or 0)):
            row = rows[at]
            made = Made(row, row.sha256, row.pixel_sha256, {**facts[row.uid], "replay_of": row.uid}, part.replay)
            self._took(made, split)
            yield made

    def _file(self, split: Split, part: Part) -> Iterator[Made]:
        rows = list(read_own(Path(str(part.file))))
        if part.count is not None:
            rows = random.Random(f"{self.recipe.seed}:{split.name}:{part.file}").sample(
                rows, min(part.count, len(rows))
            )
        for row in rows:
            made = Made(row, row.sha256, row.pixel_sha256, {"group": "own", "id": row.uid})
            for value in (made.sha256, made.pixel_sha256):
                # One picture may carry several questions, but only inside one split.
                if value in self.seen and self.places.get(value) != split.name:
                    earlier = PictureIndex(self.datasets).find([value])
                    where = earlier[0].place if earlier else f"{self.recipe.name}:{self.places.get(value)}"
                    raise LeakError(
                        f"{row.uid} (for {split.name}) is the same picture as {where}.",
                        "A picture belongs to one split of one dataset; take it out of the file.",
                    )
            self._took(made, split)
            yield made


def read_objects(folder: Path, split: str) -> list[dict[str, Any]]:
    """The object list of a split: uid, group, label, objects… of each picture."""
    path = folder / f"{split}.objects.jsonl"
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _made(key: str, scene: Any, question: str, truth: str, source: str, facts: dict[str, Any]) -> Made:
    picture = scene.png()
    row = Row(key, picture, question, truth, f"vlmconsole/{source}", source, "", 0)
    # The pixels are hashed from the bytes, as every reader will see them, not from the drawing.
    return Made(row, row.sha256, pixel_sha256(row.image()), facts)


def _counting(key: str, group: str, red: int, blue: int) -> Made:
    if group in EXPLORATORY:
        scene = explore_scene(key, group, red=red, blue=blue)
    else:
        scene = make_scene(key, group, red=red, blue=blue)
        wrong = check(scene)
        if wrong:
            raise AssertionError(f"scene {key} breaks its own rules: {wrong}")
    return _made(key, scene, COUNT_PROMPT, label_json(scene.label), "counting", scene.truth())


def _naming(key: str, k: int) -> Made:
    kind = ("colour", "shape")[k % 2]
    # One thing a picture: the guard is about naming, not about finding one thing among others.
    asked = question_set(key, turns=1, kind=kind, counts=(1,))
    if asked.scene is None:
        raise AssertionError(f"question {key} came without a picture")
    question, truth = asked.pairs[0]
    facts = {**asked.scene.truth(), "group": NAMING, "asked": kind}
    return _made(key, asked.scene, question, truth, "naming", facts)
