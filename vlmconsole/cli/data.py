"""`vlmconsole data`: make a dataset from a recipe, check one against its own pixels, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vlmconsole.cli import data_examples
from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say, state
from vlmconsole.cli.data_example import register_example
from vlmconsole.cli.data_import import register_import
from vlmconsole.system.typed_paths import named, new_file
from vlmconsole.text.counts import many
from vlmconsole.text.signs import sign_of

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add `data` to the command tree."""
    data = typer.Typer(help="Datasets: your own images and questions, and counting scenes.", no_args_is_help=True)
    app.add_typer(data, name="data")
    register_import(data)
    register_example(data)

    data_examples.register(data)

    @data.command("make")
    def make(
        preset: str = typer.Argument(..., help="Recipe: a shipped one or a TOML file"),
        seed: int = typer.Option(None, help="Seed, instead of the recipe's: other images", min=0),
        name: str = typer.Option(None, help="Name, instead of the recipe's"),
        replace: bool = typer.Option(
            False, "--replace", help="Make a new generation of this name; the old one remains as NAME@HASH"
        ),
    ) -> None:
        """Make a dataset below the lab home. Made ones are never overwritten: --replace puts them aside."""
        from vlmconsole.data import names as ready
        from vlmconsole.data.dataset import manifest_digest, read_manifest
        from vlmconsole.data.recipe import load_recipe

        recipe, tell = load_recipe(preset, seed=seed, rename=name), _progress("images")
        places = state.lab.places
        if replace and (users := _at_work_with(recipe.name, preset)):
            fail(
                f"{', '.join(users)} works with {recipe.name} now, and would read two generations of it.",
                "Wait for its end, or cancel it (vlmconsole jobs list).",
            )
        before = _manifest_bytes(places.datasets / recipe.name)
        folder = ready.make(
            recipe, places.datasets, say=say, watch=lambda _, done, total: tell(done, total), replace=replace
        )
        manifest = read_manifest(folder)
        if before == _manifest_bytes(folder):
            say(f"{recipe.name} exists already, made by this recipe; nothing to do")
        summary = _summary(folder, manifest, manifest_digest(manifest))
        emit(summary, lambda console: _table(console, summary, unused=False))  # said when it was made

    @data.command("textvqa")
    def textvqa(
        shards: str = typer.Argument(..., metavar="SHARDS", help="Folder or file of TextVQA validation Parquet"),
    ) -> None:
        """Make textvqa64: the 64 images with the lowest SHA-256, of each the question with the lowest id."""
        from vlmconsole.data.dataset import manifest_digest, read_manifest
        from vlmconsole.data.textvqa import make_textvqa

        folder = make_textvqa(named(shards), state.lab.places.datasets, say=say)
        manifest = read_manifest(folder)
        summary = _summary(folder, manifest, manifest_digest(manifest))
        emit(summary, lambda console: _table(console, summary))

    @data.command("list")
    def list_() -> None:
        """What datasets there are, and which recipes ship."""
        from vlmconsole.data.dataset import MANIFEST, manifest_digest, read_manifest
        from vlmconsole.data.recipe import recipe_names
        from vlmconsole.data.rows import DataError

        folders = sorted(path.parent for path in state.lab.places.datasets.glob(f"*/{MANIFEST}"))
        rows = []
        for folder in folders:
            try:
                manifest = read_manifest(folder)
            except DataError as error:  # one bad folder must not hide the others
                say(f"not usable: {error.message}")
                continue
            rows.append(_summary(folder, manifest, manifest_digest(manifest)))
        lines = [f"{Path(row['path']).name}  {many(row['n'], 'image')}  {row['path']}" for row in rows] or [
            "No datasets yet."
        ]
        lines.append(f"Recipes: {', '.join(recipe_names())}")
        emit({"datasets": rows, "recipes": recipe_names()}, "\n".join(lines))

    @data.command("check")
    def check(
        dataset: str = typer.Argument(..., metavar="DIR", help="Dataset: a folder, a name, or your own file"),
    ) -> None:
        """Recompute hashes, schema, labels (from pixels), coverage and isolation. Exit code 1 when one is wrong."""
        path = _find(dataset)
        findings = _check_own(path) if path.is_file() else _check_made(path)
        wrong = any(item["state"] == "wrong" for item in findings)

        def human(console: Console) -> None:
            for item in findings:
                shown = sign_of(item["state"])
                console.print(f"{shown.mark} {item['name']}: ", style=shown.rich, end="", markup=False)
                console.print(item["text"], markup=False, soft_wrap=True)

        emit({"path": str(path), "ok": not wrong, "findings": findings}, human)
        if wrong:
            raise typer.Exit(FAILED)

    @data.command("show")
    def show(
        dataset: str = typer.Argument(..., metavar="DIR", help="Dataset: a folder, a name, or your own file"),
        split: str = typer.Option(None, help="Split; default: the first"),
        first: int = typer.Option(0, min=0, help="Index of the first image shown"),
        n: int = typer.Option(32, "-n", min=1, max=400, help="Number of images"),
        out: str = typer.Option(None, metavar="FILE", help="File for the contact sheet (PNG)"),
    ) -> None:
        """Write a contact sheet of the images with their truths, and print what the dataset holds."""
        import itertools

        from vlmconsole.cli.data_show import show_imported
        from vlmconsole.data.contact_sheet import contact_sheet
        from vlmconsole.data.manifest import IMPORTED, read_manifest

        path = _find(dataset)
        if path.is_dir() and (manifest := read_manifest(path)).get("format") == IMPORTED:
            show_imported(path, manifest, split, first, n, new_file(out) if out else None)
            return
        summary, rows, label = _contents(path, split)
        chosen = list(itertools.islice(rows, first, first + n))
        if not chosen:
            fail(f"{label} has no image {first}.")
        target = new_file(out) if out else state.lab.places.cache / f"{label}-{first}.png"
        try:
            contact_sheet(chosen).save(target, "PNG")
        except (OSError, ValueError) as error:
            fail(
                f"The contact sheet cannot be written to {target}: {error}", "Choose another place with --out FILE.png."
            )
        summary["sheet"] = str(target)
        summary["rows"] = [
            {"index": row.index, "uid": row.uid, "truth": row.truth, "question": row.question, "sha256": row.sha256}
            for row in chosen
        ]

        def human(console: Console) -> None:
            _table(console, summary)
            console.print(f"contact sheet of {many(len(chosen), 'image')}: {target}", markup=False, soft_wrap=True)

        emit(summary, human)


def _find(dataset: str) -> Path:
    """A dataset of the lab by name, else a file or folder by path. Where both are there, the lab's is meant."""
    path = named(dataset)
    ours = state.lab.places.datasets / dataset
    if "/" not in dataset and ours.is_dir():
        if path.exists():
            say(f"{dataset} is the lab's dataset here; ./{dataset} is the one in this folder")
        return ours
    if path.exists():
        return path.absolute()
    hint = "vlmconsole data list lists the datasets."
    fail(f"There is no dataset {dataset!r}, here or in {ours.parent}.", hint, exit_status=USAGE)


def _at_work_with(name: str, recipe: str) -> list[str]:
    """The runs that are at work with a dataset, by its name or by its recipe's file."""
    from vlmconsole.runs.folder import list_runs

    def texts(value: Any) -> list[str]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return [value] if isinstance(value, str) else [text for inner_value in inner for text in texts(inner_value)]

    file = str(named(recipe).absolute())
    return [
        run.name
        for run in list_runs(state.lab.places.runs)
        if run.state().get("state") in ("starting", "running")
        and any(
            text.partition(":")[0] == name or (text.endswith(".toml") and str(named(text).absolute()) == file)
            for text in texts(run.job().get("spec"))
        )
    ]


def _manifest_bytes(folder: Path) -> bytes:
    from vlmconsole.data.dataset import MANIFEST

    path = folder / MANIFEST
    return path.read_bytes() if path.is_file() else b""


def _check_made(folder: Path) -> list[dict[str, Any]]:
    from vlmconsole.data.examine import check_dataset

    findings = check_dataset(folder, state.lab.places.datasets, on_progress=_progress("images checked"))
    return [finding.to_json() for finding in findings]


def _check_own(path: Path) -> list[dict[str, Any]]:
    """A user's file: every row readable, what is not used, and none of its images elsewhere in the lab."""
    from vlmconsole.data.user_check import check_own

    return [finding.to_json() for finding in check_own(path, state.lab.places.datasets)]


def _contents(path: Path, split: str | None) -> tuple[dict[str, Any], Any, str]:
    """(summary, rows in order, label for a file name) of a dataset's split or of a user's file."""
    from vlmconsole.data.dataset import manifest_digest, read_manifest
    from vlmconsole.data.rows import read_rows
    from vlmconsole.data.user_file import own_file

    if path.is_file():
        whole = own_file(path)
        summary = {"name": path.stem, "path": str(path), "n": len(whole.rows), "splits": []}
        return {**summary, "ignored": dict(whole.ignored)}, iter(whole.rows), path.stem
    manifest = read_manifest(path)
    names = list(manifest["splits"])
    chosen = split or names[0]
    if chosen not in names:
        fail(f"{path.name} has no split {chosen!r}.", f"It has: {', '.join(names)}.", 2)
    summary = _summary(path, manifest, manifest_digest(manifest))
    return summary, read_rows(path / f"{chosen}.parquet"), f"{path.name}-{chosen}"


def _summary(folder: Path, manifest: dict[str, Any], digest: str) -> dict[str, Any]:
    from vlmconsole.data.names import own_files

    splits = [
        {"name": name, "role": s["role"], "n": s["n"], "replayed": s.get("replayed", 0)}
        for name, s in manifest["splits"].items()
    ]
    return {
        "name": manifest["name"],
        "title": manifest["title"] if "title" in manifest else manifest["recipe"]["title"],
        "path": str(folder),
        "seed": manifest.get("seed"),
        "digest": digest,
        "recipe_sha256": manifest.get("recipe_sha256"),
        "n": sum(split["n"] for split in splits),
        "redrawn": manifest.get("redrawn", 0),
        "own": own_files(manifest),
        "splits": splits,
    }


def _table(console: Console, summary: dict[str, Any], *, unused: bool = True) -> None:
    from rich.table import Table

    from vlmconsole.data.user_file import ignored_text

    if "digest" in summary:
        console.print(f"{summary['name']}: {summary['title']}", markup=False, soft_wrap=True)
        console.print(
            f"seed {summary['seed']}, digest {summary['digest'][:12]}…, {summary['path']}", markup=False, soft_wrap=True
        )
        table = Table("split", "role", box=None, pad_edge=False)
        table.add_column("images", justify="right")
        table.add_column("replayed", justify="right")
        for split in summary["splits"]:
            table.add_row(split["name"], split["role"], str(split["n"]), str(split["replayed"] or "–"))
        console.print(table)
        ignored = {entry["file"]: entry["ignored"] for entry in summary["own"]}
    else:
        console.print(f"{summary['path']}: {many(summary['n'], 'row')}", markup=False, soft_wrap=True)
        ignored = {summary["path"]: summary["ignored"]}
    for file, keys in ignored.items() if unused else ():
        if keys:
            console.print(f"keys of {file} that are ignored: {ignored_text(keys)}", markup=False, soft_wrap=True)


def _progress(what: str) -> Any:
    """Says how far it is every few hundred images (stderr)."""

    def tell(done: int, total: int) -> None:
        if done % 250 == 0 or (done == total and total > 250):
            say(f"{done} of {total} {what}")

    return tell
