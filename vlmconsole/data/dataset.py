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
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vlmconsole.counting.explore import EXPLORATORY, explore_scene
from vlmconsole.counting.questions import COUNT_PROMPT, question_set
from vlmconsole.counting.scene import check, label_json, make_scene
from vlmconsole.data.generations import aside
from vlmconsole.data.importing.image_facts import ImageFacts
from vlmconsole.data.importing.isolation import NewImage, check_isolation
from vlmconsole.data.importing.look_store import LookStore
from vlmconsole.data.maker_lock import alone
from vlmconsole.data.manifest import MANIFEST, manifest_digest, read_manifest
from vlmconsole.data.recipe import NAMING, Part, Recipe, Split
from vlmconsole.data.rows import DataError, Row, read_rows, write_rows
from vlmconsole.data.splits import CROSSING, Known, LeakError, PictureIndex
from vlmconsole.data.user_file import OwnFile, content_sha256, count_own, own_file
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.atomic_folder import making
from vlmconsole.vision.images import pixel_sha256
from vlmconsole.vision.quick_look import small_grey

_BLANK_ATTEMPTS = 8  # before a scene without targets is drawn with distractors
Progress = Callable[[int, int], None]

__all__ = ["MANIFEST", "Made", "make_dataset", "manifest_digest", "pinned", "read_manifest", "read_objects"]


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
    replace: bool = False,
    on_progress: Progress | None = None,
    waiting: Callable[[], None] | None = None,
) -> Path:
    """Make the dataset below `datasets` and return its folder; one made before by the same recipe is left alone.

    With `replace` another one of this name is put aside as NAME@DIGEST first. One maker at a time: `waiting` is called
    now and then while another one is at work, and may raise. Raises DataError (an existing other dataset, a missing
    replay source) and LeakError (a user's picture that stands in two splits, or stood in an earlier dataset).
    """
    recipe = pinned(recipe)
    folder = datasets / recipe.name
    if made_already(folder, recipe, replace=replace):
        return folder
    with alone(datasets, waiting):
        # Again, as another may have made it meanwhile.
        return folder if made_already(folder, recipe, replace=replace) else _make(recipe, datasets, on_progress)


def pinned(recipe: Recipe) -> Recipe:
    """Return the recipe with the hash of each of its files' bytes, and of their pictures'. Raises DataError,
    RecipeError.
    """
    for split in recipe.splits:
        for part in split.parts:
            if part.file is not None and not Path(part.file).is_file():
                raise DataError(f"{part.file}, which {recipe.name} takes for {split.name}, is no file.")
    return recipe.pinned({path: content_sha256(path) for path in recipe.files})


def made_already(folder: Path, recipe: Recipe, *, replace: bool = False) -> bool:
    """Return whether this pinned recipe made that folder; another's is only right where it is to be replaced.

    Raises DataError for another's, with the hashes of files whose bytes changed.
    """
    if not folder.exists():
        return False
    manifest = read_manifest(folder)
    if manifest.get("recipe_sha256") == recipe.sha256:
        return True
    if replace or _same_before_hashes(folder, manifest, recipe):
        return not replace
    earlier = f"{folder.name}@{manifest_digest(manifest)[:12]}"
    now = f"--replace makes a new one under this name (the old one stays as {earlier})"
    if changed := list(_changed_files(manifest, recipe)):
        raise DataError(f"{folder} was made of other bytes: {'; '.join(changed)}.", f"{now}; or give it another name.")
    raise DataError(
        f"{folder} holds another dataset of this name.",
        f"Made datasets are never overwritten: give a new name with --name; {now}.",
        code="dataset-exists",
    )


def _changed_files(manifest: dict[str, Any], recipe: Recipe) -> Iterator[str]:
    """Each file of the recipe whose bytes are others than those that were taken, with both hashes."""
    try:
        was = Recipe.model_validate(manifest.get("recipe"))
    except ValidationError:
        return
    before = {part.file: part.file_sha256 for split in was.splits for part in split.parts if part.file is not None}
    for path, now in {p.file: p.file_sha256 for split in recipe.splits for p in split.parts if p.file}.items():
        if path in before and (kept := before[path]) != now:
            then = f"made of {kept[:12]}…" if kept else "made by a version that kept no hash of it"
            yield f"{path} is {str(now)[:12]}… now, {then}"


def _same_before_hashes(folder: Path, manifest: dict[str, Any], recipe: Recipe) -> bool:
    """Whether a dataset whose manifest has no hashes of its files was made of these very rows."""
    plain = recipe.pinned({path: None for path in recipe.files})
    if not recipe.files or manifest.get("own") or manifest.get("recipe_sha256") != plain.sha256:
        return False
    for split in recipe.splits:
        if any(part.file is None for part in split.parts):
            return False
        given = {_content(row) for part in split.parts for row in own_file(Path(str(part.file))).rows}
        held = {_content(row) for row in read_rows(folder / f"{split.name}.parquet")}
        if not held <= given or (held != given and all(part.count is None for part in split.parts)):
            return False
    return True


def _content(row: Row) -> tuple[str, str, str]:
    return row.sha256, row.question, row.truth


def _make(recipe: Recipe, datasets: Path, on_progress: Progress | None) -> Path:
    folder = datasets / recipe.name
    index = PictureIndex(datasets)
    maker = _Maker(recipe, datasets, index, on_progress)
    maker.check_sources()
    with making(folder) as building:
        manifest = maker.write(building)
        with index.adding(maker.new, sharing=bool(recipe.files)):
            write_atomic(building / MANIFEST, to_json(manifest))
            if folder.exists():
                folder.rename(aside(folder))
            building.rename(folder)
    return folder


class _Maker:
    def __init__(self, recipe: Recipe, datasets: Path, index: PictureIndex, on_progress: Progress | None) -> None:
        self.recipe, self.datasets, self.index = recipe, datasets, index
        self.seen = index.seen(but=recipe.sha256)  # by hash, grows with every picture
        self.own: dict[Path, OwnFile] = {}
        self.new: list[Known] = []
        self.redrawn = 0
        self.sources: dict[str, str] = {}
        self.places: dict[str, str] = {}  # hash → split, of this dataset's own pictures
        self._done, self._progress = 0, on_progress
        self._total = sum(expected(part) for split in recipe.splits for part in split.parts)

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
            **self._own_table(),
            "files": files,
            "splits": splits,
        }

    def _split(self, split: Split) -> Iterator[Made]:
        made = [drawn for number, part in enumerate(split.parts) for drawn in self._part(split, number, part)]
        # Shuffled once and for all: trainers that read in order (verl with shuffle off) see a mixture.
        random.Random(f"{self.recipe.seed}:{split.name}:order").shuffle(made)
        names: set[str] = set()
        for index, drawn in enumerate(made):
            # The user's own id is part of the name by which every answer, table and report calls the row.
            uid = f"{self.recipe.name}-{split.name}-{drawn.facts.get('id') or f'{index:05d}'}"
            if uid in names:
                raise DataError(f"Two rows of {split.name} would be called {uid}: give each an id of its own.")
            names.add(uid)
            row = replace(drawn.row, uid=uid, split=split.name, index=index)
            if drawn.replay_of is None:
                known = (self.recipe.name, self.recipe.sha256, split.name, split.role, uid)
                self.new.append(Known(drawn.sha256, drawn.pixel_sha256, *known))
            yield replace(drawn, row=row)

    def _part(self, split: Split, number: int, part: Part) -> Iterator[Made]:
        if part.replay is not None:
            yield from self._replay(split, part)
        elif part.file is not None:
            yield from self._file(split, part)
        elif part.group == NAMING:
            for k in range(part.count or 0):
                yield self._fresh(f"{split.name}:{number}:{k}", split, partial(_naming, k=k))
        else:
            rng = random.Random(f"{self.recipe.seed}:{split.name}:{number}:cells")
            for k, (red, blue, group) in enumerate(part.cells(rng)):
                where = f"{split.name}:{number}:{k}"
                draw = partial(_counting, group=group, red=red, blue=blue)
                yield self._fresh(where, split, draw, blank=not red and not blue)

    def _fresh(self, where: str, split: Split, draw: Callable[..., Made], *, blank: bool = False) -> Made:
        """A picture that no dataset has: drawn again with the next seed until its hashes are new.

        Scenes without targets may all be `blank`, and so alike: after a few attempts they get distractors.
        """
        for attempt in range(1000):
            others = {"others": 1 + attempt % 4} if blank and attempt >= _BLANK_ATTEMPTS else {}
            made = draw(f"{self.recipe.seed}:{where}:{attempt}", **others)
            if made.sha256 not in self.seen and made.pixel_sha256 not in self.seen:
                self.redrawn += attempt
                self._took(made, split)
                return made
        raise DataError(f"No new image for {where} in 1000 attempts.", "Give the recipe another seed (--seed).")

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

    def _source(self, split: Split, part: Part) -> tuple[Path, str]:
        """(folder, split) that a part replays from, after every check that needs no picture."""
        name, _, source = str(part.replay).partition(":")
        if split.role != "train":
            raise DataError(
                f"The {split.role} split {split.name} replays {part.replay}: only training replays.",
                code="replay-in-test",
            )
        folder = self.datasets / name
        if not folder.exists():
            raise DataError(
                f"{self.recipe.name} replays {part.replay}, which is not made yet.",
                f"Make it first: vlmconsole data make {name}",
                code="dataset-missing",
            )
        manifest = read_manifest(folder)
        described = manifest["splits"].get(source)
        if described is None or described["role"] != "train":
            raise DataError(
                f"{part.replay} is no training split: past tests are never trained on.", code="replay-of-test"
            )
        if (part.count or 0) > described["n"]:
            raise DataError(f"{part.replay} has {described['n']} images, and {part.count} are to be replayed.")
        path = folder / f"{source}.parquet"
        if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["files"][path.name]["sha256"]:
            raise DataError(
                f"{path} is not the file that was made (its hash differs).",
                "vlmconsole data check shows more.",
                code="file-changed",
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
        path = Path(str(part.file))
        if path not in self.own:
            self.own[path] = own_file(path)
            if content_sha256(path) != part.file_sha256:
                raise DataError(f"{path} was changed while it was read.", "Make the dataset again.")
        rows = list(zip(self.own[path].ids, self.own[path].rows, strict=True))
        if part.count is not None:
            rows = random.Random(f"{self.recipe.seed}:{split.name}:{part.file_sha256}").sample(
                rows, min(part.count, len(rows))
            )
        # Splits of the same role may share images: another generation's, another dataset's.
        foreign = self.index.seen(but=self.recipe.sha256, roles=CROSSING[split.role])
        self._isolated([row for _, row in rows], split)
        for given, row in rows:
            made = Made(row, row.sha256, row.pixel_sha256, {"group": "own", "id": given or None, "row": row.uid})
            for value in (made.sha256, made.pixel_sha256):
                # One picture may carry several questions, but only inside one split.
                here = self.places.get(value)
                if value in foreign or here not in (None, split.name):
                    self._leak(row, split, value, here)
            self._took(made, split)
            yield made

    def _leak(self, row: Row, split: Split, value: str, here: str | None) -> None:
        """Raise LeakError: the picture stands in another split."""
        known = [image for image in self.index.find([value]) if image.digest != self.recipe.sha256]
        crossing = [image for image in known if image.role in CROSSING[split.role]]
        hint = "An image belongs to one split of one dataset; take it out of the file."
        if not crossing:
            raise LeakError(f"{row.uid} (for {split.name}) is the same image as {self.recipe.name}:{here}.", hint)
        raise LeakError(f"{row.uid} (for {split.name}) is the same image as {crossing[0].place}.", hint)

    def _isolated(self, rows: list[Row], split: Split) -> None:
        """Raise LeakError for an image whose pixels an imported dataset holds that has only looked at its own."""
        new = [
            NewImage(
                ImageFacts(row.sha256, row.sha256, row.pixel_sha256, *row.image().size, small_grey(row.image())),
                split.name,
                split.role,
                row.uid,
            )
            for row in rows
        ]
        runs = self.datasets.parent / "runs"
        with LookStore(self.datasets) as looks:
            check_isolation(new, self.recipe.name, self.recipe.sha256, self.datasets, runs, looks, lambda _: {})

    def _own_table(self) -> dict[str, Any]:
        """What the manifest holds of the user's files: their hashes, rows, and the keys that were not used."""
        own = [
            {
                "file": part.file,
                "sha256": part.file_sha256,
                "split": split.name,
                "rows": len(self.own[Path(part.file)].rows),
                "ignored": dict(sorted(self.own[Path(part.file)].ignored.items())),
            }
            for split in self.recipe.splits
            for part in split.parts
            if part.file is not None
        ]
        return {"own": own} if own else {}


def expected(part: Part) -> int:
    """Return how many pictures a part gives; those of a user's file are counted there. Raises DataError."""
    if part.file is None:
        return part.size or 0
    rows = count_own(Path(part.file))[0]
    return rows if part.count is None else min(part.count, rows)


def read_objects(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the object list of a split: uid, group, label, objects… of each picture."""
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


def _counting(key: str, group: str, red: int, blue: int, others: int = 0) -> Made:
    if group in EXPLORATORY:
        scene = explore_scene(key, group, red=red, blue=blue, others=others)
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
        raise AssertionError(f"question {key} came without an image")
    question, truth = asked.pairs[0]
    facts = {**asked.scene.truth(), "group": NAMING, "asked": kind}
    return _made(key, asked.scene, question, truth, "naming", facts)
