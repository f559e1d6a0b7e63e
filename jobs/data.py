"""A job's dataset: made when it is not there yet, and examined before anything is learnt from it."""

from pathlib import Path
from typing import Any

from vlmconsole.jobs.contract import Context, JobError

from vlmconsole.counting import ready as datasets
from vlmconsole.counting.dataset import manifest_digest, read_manifest
from vlmconsole.counting.examine import check_dataset
from vlmconsole.counting.recipe import load_recipe, recipe_names
from vlmconsole.counting.rows import Row, read_rows


def ready(context: Context, name: str) -> Path:
    """The folder of a dataset by its name, its path or its recipe's, made now if need be, with all it replays from.

    Raises LeakError, DataError and RecipeError, with the reason, and Stopped.
    """

    def watch(making: str, done: int, total: int) -> None:
        context.check_stop()
        if done % 64 == 0 or done == total:
            context.events.progress(done, total, unit="picture", note=f"making {making}")

    return datasets.ready(name, context.places.datasets, say=context.events.note, watch=watch, pause=context.check_stop)


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


def sizes(name: str) -> dict[str, int] | None:
    """Pictures by role as a recipe promises them; a user's whole file that is unread counts as none.

    None for what is no recipe: a dataset that only the lab knows is counted when its job starts.
    """
    if not name.endswith(".toml") and name not in recipe_names():
        return None
    found: dict[str, int] = {}
    for split in load_recipe(name).splits:
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
