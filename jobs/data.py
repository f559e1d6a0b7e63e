"""A job's dataset: made when it is not there yet, and examined before anything is learnt from it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.jobs.contract import Context, JobError

from vlmconsole.counting.dataset import make_dataset, manifest_digest, read_manifest
from vlmconsole.counting.examine import check_dataset
from vlmconsole.counting.recipe import Recipe, load_recipe
from vlmconsole.counting.rows import Row, read_rows


def ready(context: Context, name: str) -> Path:
    """The folder of the dataset that the recipe `name` makes, made now if need be, with all that it replays from.

    Raises LeakError and DataError, with the reason, and Stopped.
    """
    recipe = load_recipe(name)
    for split in recipe.splits:
        for part in split.parts:
            source = (part.replay or "").partition(":")[0]
            if source and not (context.places.datasets / source).exists():
                ready(context, source)
    with _alone(context):
        if not (context.places.datasets / recipe.name).exists():
            context.events.note(f"making the dataset {recipe.name}")
        return make_dataset(recipe, context.places.datasets, on_progress=_watched(context, f"making {recipe.name}"))


@contextlib.contextmanager
def _alone(context: Context) -> Iterator[None]:
    """One job of the lab makes datasets at a time: trainings that start together want the same one."""
    context.places.datasets.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(context.places.datasets / ".making", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        said = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    context.events.note("another job is making a dataset: waiting for it")
                    said = True
                context.wait(0.5)
                context.check_stop()
        yield
    finally:
        os.close(descriptor)


def examined(context: Context, folder: Path) -> dict[str, Any]:
    """The manifest of a dataset in which everything was recomputed and nothing found wrong.

    Files, pictures, labels, coverage, replay and isolation from every other split of the lab; the findings go into
    data.json. Raises JobError with what is wrong, a leaked picture first of all, and Stopped.
    """
    progress = _watched(context, f"examining {folder.name}")
    findings = check_dataset(folder, context.places.datasets, on_progress=progress)
    context.run.write_json("data.json", {"dataset": folder.name, "findings": [one.to_json() for one in findings]})
    wrong = [one for one in findings if one.state == "wrong"]
    if wrong:
        wrong.sort(key=lambda one: one.name != "isolation")
        told = "; ".join(f"{one.name}: {one.text}" for one in wrong[:3])
        raise JobError(
            f"The dataset {folder.name} is not fit to be trained on. {told}.",
            f"Nothing was trained; `vlmconsole data check {folder}` shows all of it.",
        )
    manifest = read_manifest(folder)
    rows = sum(split["n"] for split in manifest["splits"].values())
    context.events.note(f"{folder.name}: {rows} pictures examined, each in one split only; {_short(manifest)}")
    return manifest


def split_rows(folder: Path, manifest: dict[str, Any], role: str) -> list[Row]:
    """The rows of the one split with that role. Raises JobError unless there is exactly one."""
    names = [name for name, split in manifest["splits"].items() if split["role"] == role]
    if len(names) != 1:
        raise JobError(f"The dataset {folder.name} has {len(names)} splits for {role}, and exactly one is needed.")
    return list(read_rows(folder / f"{names[0]}.parquet"))


def sizes(name: str) -> dict[str, int]:
    """Pictures by role as a recipe promises them, without making any; a user's whole file counts as none."""
    recipe: Recipe = load_recipe(name)
    found: dict[str, int] = {}
    for split in recipe.splits:
        found[split.role] = found.get(split.role, 0) + sum(part.size or 0 for part in split.parts)
    return found


def _short(manifest: dict[str, Any]) -> str:
    return f"digest {manifest_digest(manifest)[:12]}…"


def _watched(context: Context, what: str) -> Any:
    def look(done: int, total: int) -> None:
        context.check_stop()
        if done % 64 == 0 or done == total:
            context.events.progress(done, total, unit="picture", note=what)

    return look
