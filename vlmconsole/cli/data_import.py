"""`vlmconsole data import`: anyone's images and questions become a dataset that every command reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import FAILED, console, emit, fail, say, state
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.data.importing.dataset_import import ImportedDataset, ImportPreview
    from vlmconsole.data.importing.settings import ImportSettings

_SHOWN = 20  # unusable rows named on a terminal; JSON has all


def register_import(data: typer.Typer) -> None:
    """Add `import` to `data`."""

    @data.command("import")
    def import_(
        source: str = typer.Argument(..., metavar="SOURCE", help="File of rows, or folder of images or shards"),
        name: str = typer.Option(..., "--name", help="Name of the dataset"),
        format_: str = typer.Option("auto", "--format", help="Format of the rows; auto recognises it"),
        scorer: str = typer.Option("", help="Scorer of the answers; default: proposed from them"),
        set_: Annotated[
            list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="Option of the scorer; repeatable")
        ] = None,
        prompt: str = typer.Option("", help="Question of each row; {question} and {COLUMN} are filled in"),
        split: str = typer.Option("", metavar="SHARES", help="Shares by which rows are split: train=80,dev=10,test=10"),
        role: str = typer.Option("", "--as", metavar="ROLE", help="One split for all rows: train, dev or test"),
        by: str = typer.Option("image", metavar="image", help="Rows that share an image share a split"),
        seed: int = typer.Option(0, min=0, help="Seed of the split"),
        question: str = typer.Option("", metavar="COLUMN", help="Column of the question"),
        answer: str = typer.Option("", metavar="COLUMN", help="Column of the answer"),
        image: str = typer.Option("", metavar="COLUMN", help="Column of the image"),
        id_: str = typer.Option("", "--id", metavar="COLUMN", help="Column of the id; none numbers the rows"),
        group: str = typer.Option("", metavar="COLUMN", help="Column of the group, for scores by group"),
        images: str = typer.Option("", metavar="DIR", help="Folder that image paths are relative to"),
        skip_bad: bool = typer.Option(False, "--skip-bad", help="Leave out rows that cannot be used"),
        replace: bool = typer.Option(
            False, "--replace", help="Make a new generation of this name; the old one remains as NAME@HASH"
        ),
        yes: bool = typer.Option(False, "-y", "--yes", help="Write without asking"),
    ) -> None:
        """Import images, questions and answers. Unusable rows are named; nothing is written unless all are usable."""
        from vlmconsole.data.formats.raw_example import ColumnNames
        from vlmconsole.data.importing.dataset_import import UnusableRowsError, import_dataset, preview
        from vlmconsole.data.importing.settings import ImportSettings, read_role, read_shares

        if by != "image":
            fail(f"--by {one_line(by, 40)} is unknown.", "Rows that share an image are kept together: --by image.", 2)
        settings = ImportSettings(
            name=name,
            format=format_,
            columns=ColumnNames(question, answer, image, id_, group, prompt),
            scorer=scorer,
            options=_options(set_ or []),
            shares=read_shares(split) if split else {},
            role=read_role(role) if role else None,
            seed=seed,
            images=_folder(images) if images else None,
            skip_bad=skip_bad,
            replace=replace,
        )
        seen = preview(named(source), settings)
        for line in _preview_lines(seen):
            say(line)
        asks = format_ == "auto" and not (yes or state.json) and sys.stdin.isatty() and sys.stderr.isatty()
        if asks and not typer.confirm("Import it like this?", default=True, err=True):
            fail(
                "Nothing was imported.",
                "Choose the format or the columns: vlmconsole data import --help",
                code="cancelled",
            )
        places = state.lab.places
        try:
            imported = import_dataset(
                seen, settings, places.datasets, runs=places.runs, on_progress=_progress(), waiting=_wait()
            )
        except UnusableRowsError as error:
            _refused(settings, error)
            raise typer.Exit(FAILED) from None
        _show(imported, settings)


def _show(imported: ImportedDataset, settings: ImportSettings) -> None:
    from vlmconsole.data.importing.shown import first_examples
    from vlmconsole.data.importing.survey import row_problem_text
    from vlmconsole.data.manifest import manifest_digest
    from vlmconsole.data.user_file import ignored_text

    manifest = imported.manifest
    if not imported.new:
        say(f"{manifest['name']} holds exactly this already; nothing to do")
    skipped = manifest["skipped"]
    for row in skipped[:_SHOWN] if imported.new else ():
        say(f"left out: {row_problem_text(row)}")
    if len(skipped) > _SHOWN and imported.new:
        say(f"… and {len(skipped) - _SHOWN} more")
    summary = {
        "name": manifest["name"],
        "generation": manifest["generation"],
        "format": manifest["source_format"],
        "sha256": manifest_digest(manifest),
        "splits": {split: {"role": about["role"], "n": about["n"]} for split, about in manifest["splits"].items()},
        "rows": manifest["rows"],
        "skipped": skipped,
        "ignored_columns": manifest["ignored_columns"],
        "scorer": manifest["scorer"],
        "examples": first_examples(imported.folder, manifest, 3),
        "notes": manifest["notes"],
        "new": imported.new,
        "path": str(imported.folder),
    }
    splits = ", ".join(f"{split} {about['n']}" for split, about in summary["splits"].items())
    lines = [f"{manifest['name']}: {many(manifest['rows'], 'row')} ({splits}), {summary['path']}"]
    if skipped:
        lines.append(f"left out: {many(len(skipped), 'row')} that cannot be used")
    if manifest["ignored_columns"]:
        lines.append(f"not used, the model never sees them: {ignored_text(manifest['ignored_columns'])}")
    lines += [f"{note}: {many(rows, 'row')}" for note, rows in manifest["notes"].items()]
    if manifest["scorer"]:
        proposed = "" if settings.scorer else ", proposed from the answers (choose with --scorer)"
        lines.append(f"scorer: {manifest['scorer']}{proposed}")
    else:
        lines.append("no answers: they can be asked, and neither scored nor trained on")
    if len(summary["splits"]) == 1:
        lines.append(f"all rows are in {next(iter(summary['splits']))}; --split train=80,dev=10,test=10 divides them")
    lines.append(f"look at them: vlmconsole data show {manifest['name']}")
    emit(summary, "\n".join(lines))


def _refused(settings: ImportSettings, error: Any) -> None:
    """Name every row that cannot be used; nothing was written."""
    skipped = [problem.to_json() for problem in error.problems]
    for problem in error.problems[:_SHOWN]:
        say(str(problem))
    if len(skipped) > _SHOWN:
        say(f"… and {len(skipped) - _SHOWN} more (all with --json)")
    failure = {"message": error.message, "hint": error.hint, "code": error.code}
    emit({"name": settings.name, "error": failure, "skipped": skipped})
    console(stderr=True).print(f"error: {error.message}\n       {error.hint}", markup=False, soft_wrap=True)


def _preview_lines(seen: ImportPreview) -> list[str]:
    """What a source was taken for, and its first examples."""
    lines = [f"format {seen.form.name}: {seen.form.title}"]
    for number, raw in enumerate(seen.examples, start=1):
        turns = " → ".join(f"{turn.role}: {one_line(turn.text, 70)}" for turn in raw.turns)
        lines.append(f"  {number}. {turns}")
        lines.append(
            f"     {many(len(raw.images), 'image')}, answer {one_line(json.dumps(raw.truth, ensure_ascii=False), 60)}"
        )
    return lines


def _options(given: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            fail(f"--set {one_line(text, 60)!r} is no OPTION=VALUE.", "Example: --set tolerance=0.05", 2, code="usage")
        try:
            options[key.strip()] = json.loads(value)
        except ValueError:
            options[key.strip()] = value
    return options


def _folder(text: str) -> Path:
    folder = named(text)
    if not folder.is_dir():
        fail(f"{text} is no folder.", "Name the folder that holds the images.", 2, code="folder-missing")
    return folder.absolute()


def _progress() -> Any:
    """Say how far it is every thousand rows (stderr)."""

    def tell(what: str, done: int, total: int) -> None:
        if done and done % 1000 == 0:
            say(f"{done}{f' of {total}' if total else ''} {what}")

    return tell


def _wait() -> Any:
    waited = False

    def tell() -> None:
        nonlocal waited
        if not waited:
            say("another dataset is being made: waiting for it")
        waited = True

    return tell
