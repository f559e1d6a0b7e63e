"""A job's dataset: made when it is not there yet, and examined before anything is learnt from it."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmconsole.client.sight import BYTES_PER_TOKEN
from vlmconsole.data import names as datasets
from vlmconsole.data.dataset import expected, manifest_digest, read_manifest
from vlmconsole.data.examine import check_dataset
from vlmconsole.data.example import Example, read_examples
from vlmconsole.data.longest import longest_example
from vlmconsole.data.manifest import IMPORTED
from vlmconsole.data.recipe import load_recipe, recipe_names
from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.runs.places import Places

# Seconds for a picture drawn, and for one examined, on one thread of a shared AMD EPYC 7B13.
DRAWN, EXAMINED = 0.015, 0.02


LOADING = "loading the model"  # what a training does before its first step


def course(context: Context, names: Sequence[str], then: Mapping[str, float], *, examines: bool = False) -> None:
    """Say in which phases the job will go, and in which proportions: making its data, examining them, and `then`.

    `then` holds expected seconds by phase; where nothing was measured, those of the bundled model stand for it.
    """
    phases: dict[str, float] = {}
    for name in names:
        try:
            phases |= _to_make(name, context.places.datasets)
            if examines:
                source = datasets.look_up(name, context.places.datasets)
                of = source.folder.name if source.folder is not None else source.name
                phases[_examining(of)] = EXAMINED * _pictures(name, context.places.datasets)
        except LabError:
            continue  # the job says what is wrong with it when it comes to it
    context.events.course({**phases, **then})


def _to_make(name: str, folder: Path) -> dict[str, float]:
    """The datasets that must be drawn for that one, those that it replays from first, each with its seconds."""
    source = datasets.look_up(name, folder)
    if source.folder is not None or source.recipe is None:
        return {}
    counts: dict[str, float] = {}
    for split in source.recipe.splits:
        for part in split.parts:
            replayed = (part.replay or "").partition(":")[0]
            if replayed in recipe_names():
                counts |= _to_make(replayed, folder)
    return {**counts, _making(source.name): DRAWN * _pictures(name, folder)}


def _pictures(name: str, folder: Path) -> int:
    return sum(split.n or 0 for split in datasets.promised(name, folder).values())


def _making(name: str) -> str:
    return f"making {name}"


def _examining(name: str) -> str:
    return f"examining {name}"


def ready(context: Context, name: str) -> Path:
    """Return the folder of a dataset by its name, its path or its recipe's, made now if need be, with all it replays
    from.

    Raises LeakError, DataError and RecipeError, with the reason, and Stopped.
    """

    def watch(making: str, done: int, total: int) -> None:
        context.check_stop()
        if done % 64 == 0 or done == total:
            context.events.phase(_making(making))
            context.events.progress(done, total, unit="image")

    return datasets.ready(name, context.places.datasets, say=context.events.note, watch=watch, pause=context.check_stop)


def examined(context: Context, folder: Path) -> dict[str, Any]:
    """Return the manifest of a dataset in which everything was recomputed and nothing found wrong.

    Files, pictures, labels, coverage, replay and isolation from every other split of the lab; the findings go into
    data.json. Raises JobError with what is wrong, a leaked picture first of all, and Stopped.
    """
    context.events.phase(_examining(folder.name))
    findings = check_dataset(folder, context.places.datasets, on_progress=_watched(context))
    context.run.write_json(
        "data.json", {"dataset": folder.name, "findings": [finding.to_json() for finding in findings]}
    )
    wrong = [finding for finding in findings if finding.state == "wrong"]
    if wrong:
        wrong.sort(key=lambda finding: finding.name != "isolation")
        reasons = "; ".join(f"{finding.name}: {finding.text}" for finding in wrong[:3])
        raise JobError(
            f"The dataset {folder.name} is not fit to be trained on. {reasons}.",
            f"Nothing was trained; `vlmconsole data check {folder}` shows all of it.",
            code="dataset-unfit",
        )
    manifest = read_manifest(folder)
    rows = sum(split["n"] for split in manifest["splits"].values())
    _give_back()
    context.events.note(f"{folder.name}: {rows} images examined, each in one split only; {_short(manifest)}")
    return manifest


def _give_back() -> None:
    """Memory that making and examining have freed goes back to the system; else it stays, under the training's own."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc has no such function
            ctypes.CDLL(None).malloc_trim(0)


def split_examples(folder: Path, manifest: dict[str, Any], role: str) -> list[Example]:
    """Return the examples of the one split with that role. Raises JobError unless there is exactly one."""
    names = [name for name, split in manifest["splits"].items() if split["role"] == role]
    if len(names) != 1:
        raise JobError(f"The dataset {folder.name} has {len(names)} splits for {role}, and exactly one is needed.")
    return list(read_examples(folder / f"{names[0]}.parquet"))


def sizes(name: str, places: Places | None = None) -> dict[str, int] | None:
    """Return the examples by role, of a dataset of the lab or as its recipe promises them. Raises LabError.

    None for what is no recipe where the lab (`places`) is not known.
    """
    if not name.endswith(".toml") and name not in recipe_names():
        if places is None:
            return None
        held: dict[str, int] = {}
        for made in datasets.promised(name, places.datasets).values():
            held[made.role] = held.get(made.role, 0) + (made.n or 0)
        return held
    counts: dict[str, int] = {}
    for split in load_recipe(name).splits:
        counts[split.role] = counts.get(split.role, 0) + sum(expected(part) for part in split.parts)
    return counts


def planned_lengths(name: str, places: Places | None) -> dict[str, Any]:
    """Return what a memory plan takes of an imported dataset of this lab: its images' sizes and tokens of text and
    answers.

    `held` are the bytes that a training keeps in memory. {} for drawn scenes, which are of one size, and for what is
    not there.
    """
    try:
        folder = datasets.look_up(name, places.datasets).folder if places is not None else None
        manifest = read_manifest(folder) if folder is not None else {}
        if folder is None or manifest.get("format") != IMPORTED:
            return {}
        learnt = [split for split, about in manifest["splits"].items() if about["role"] in ("train", "dev")]
        files = [folder / f"{split}.parquet" for split in learnt]
        longest, held = longest_example(files), sum(file.stat().st_size for file in files)
    except (LabError, OSError):
        return {}  # what is wrong with it is told by the preflight
    asked, answers = (-(-size // BYTES_PER_TOKEN) + 16 for size in (longest.asked_bytes, longest.answer_bytes))
    return {"images": longest.images, "text_tokens": asked, "answer_tokens": answers, "held": held}


def files_note(name: str) -> str:
    """Return what a recipe by name takes from files of the user's, for a plan; "" where there is none or it is
    unreadable.
    """
    if not name.endswith(".toml"):
        return ""
    try:
        return datasets.files_note(load_recipe(name))
    except LabError:
        return ""  # told by `there.data`


def counted(name: str) -> int:
    """Return all pictures that a recipe promises; 0 where that is not known: an estimate must not fail for it."""
    try:
        return sum((sizes(name) or {}).values())
    except LabError:
        return 0


def _short(manifest: dict[str, Any]) -> str:
    return f"digest {manifest_digest(manifest)[:12]}…"


def _watched(context: Context) -> Any:
    def look(done: int, total: int) -> None:
        context.check_stop()
        if done % 64 == 0 or done == total:
            context.events.progress(done, total, unit="image")

    return look
