"""`vlmconsole ask QUESTION SOURCE`: one question over a folder of images or a dataset, every answer in a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail, say, state
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.data.sheet import ContactSheet

SORTS = ("asked", "answer", "time", "id")


def register(app: typer.Typer) -> None:
    """Add `ask` to the command tree."""
    app.command("ask")(ask)


def ask(
    question: Annotated[str, typer.Argument(help="Question, asked of each image")],
    source: Annotated[str, typer.Argument(help="Folder of images, or a dataset of the lab")],
    where: Annotated[
        str, typer.Option(metavar="WORDS", help="Filter of a dataset's examples: words, is:wrong, …")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the dataset that is made; default: after the source")] = "",
    server: Annotated[str, typer.Option(help="Server profile that answers; default: the setting `server`")] = "",
    base: Annotated[str, typer.Option(help="Model folder or asset:NAME that answers in this process")] = "",
    adapter: Annotated[str, typer.Option(help="Adapter that answers")] = "",
    concurrency: Annotated[int | None, typer.Option("-c", "--concurrency", help="Requests in flight, C")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Max tokens of an answer; default 256")] = None,
    sort: Annotated[str, typer.Option(help="Order of the table: asked, answer, time or id")] = "asked",
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page with thumbnails, without scripts")
    ] = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Allow stopping a server that holds the device; it restarts afterwards")
    ] = False,
) -> None:
    """Ask one question of many images: a contact sheet, which the Data screen shows as the answers come.

    Ctrl-C keeps what was answered. Images that cannot be read and requests that fail are named, each with its reason.
    """
    from vlmconsole.cli.foreground import follow_job, interruptions
    from vlmconsole.desks.sheet import queue_sheet, sheet_of

    if sort not in SORTS:
        fail(f"--sort {one_line(sort, 40)} is no order.", f"It is {', '.join(SORTS)}.", USAGE, code="sort-unknown")
    places = state.lab.places
    sheet = sheet_of(places, source, question, where, name)
    for entry in sheet.skipped:
        say(f"not asked: {one_line(entry['id'], 120)}: {entry['reason']}")
    with interruptions() as noted:
        store, number, warnings = queue_sheet(
            places,
            sheet,
            usual_server=state.lab.settings.server,
            server=server,
            base=base,
            adapter=adapter,
            hand_over=hand_over,
            concurrency=concurrency,
            max_new_tokens=max_tokens,
        )
        for warning in warnings:
            say(f"warning: {warning}")
        say(f"job {number}: {many(sheet.manifest['rows'], 'image')} · dataset {sheet.folder.name}")
        code = follow_job(store, number, places, cancels=noted) or 0
    job = store.get(number)
    run = Path(job.run).name if job.run else ""
    value = answers_of(sheet, run, sort) | {"state": job.state, "reason": job.reason}
    value["files"] = [str(path) for path in _files(sheet, run, {"csv": csv, "html": html})]
    emit(value, lambda console: _table(console, value))
    raise typer.Exit(code)


def answers_of(sheet: ContactSheet, run: str, sort: str = "asked") -> dict[str, Any]:
    """The shape of `ask --json`: each answer, also failed ones, and the images that could not be asked about."""
    rows = list(_rows(sheet, run))
    orders: dict[str, Any] = {
        "answer": lambda row: (row["answer"] is None, row["answer"] or ""),
        "time": lambda row: (row["seconds"] is None, row["seconds"] or 0.0),
        "id": lambda row: row["id"],
    }
    if sort in orders:
        rows.sort(key=orders[sort])
    asked = [row for row in rows if row["answer"] is not None or row["reason"]]
    return {
        "run": run or None,
        "dataset": sheet.folder.name,
        "question": sheet.manifest["prompt"],
        "n": len(rows),
        "answered": sum(row["answer"] is not None for row in rows),
        "failed": sum(row["answer"] is None for row in asked),
        "answers": rows,
        "skipped": sheet.skipped,
    }


def _rows(sheet: ContactSheet, run: str) -> Any:
    from vlmconsole.data.example import read_examples
    from vlmconsole.data.sheet import SPLIT
    from vlmconsole.evaluation.predictions import read_source
    from vlmconsole.runs.folder import RunFolder

    source = read_source(RunFolder(state.lab.places.runs / run), "before.jsonl", sheet.folder.name) if run else None
    for example in read_examples(sheet.folder / f"{SPLIT}.parquet"):
        came = source.of(SPLIT, example.id) if source is not None else None
        yield {
            "id": example.id,
            "answer": came.answer if came is not None else None,
            "seconds": came.seconds if came is not None else None,
            "reason": "" if came is None or came.answer is not None else came.reason or "failed",
        }


def _files(sheet: ContactSheet, run: str, wanted: dict[str, Path | None]) -> list[Path]:
    """The table in the forms that were asked for, with the answers of this run."""
    from vlmconsole.desks.data import DataDesk
    from vlmconsole.reports.examples import save_examples

    if not any(wanted.values()):
        return []
    desk = DataDesk(state.lab.places)
    try:
        entry = next(entry for entry in desk.listing(check=False) if entry.name == sheet.folder.name)
        view = desk.view(entry, f"run:{run}" if run else "")
        exported = view.exported(view.shown, desk)
        places = state.lab.places
        return [save_examples(entry.name, exported, form, places, path) for form, path in wanted.items() if path]
    finally:
        desk.close()


def _table(console: Console, value: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("image", "answer", box=None, pad_edge=False)
    table.add_column("s", justify="right")
    for row in value["answers"]:
        if row["answer"] is None and not row["reason"]:
            continue
        text = row["answer"] if row["answer"] is not None else f"✗ {row['reason']}"
        seconds = f"{row['seconds']:.2f}" if row["seconds"] is not None else ""
        table.add_row(one_line(row["id"], 60), " ".join(text.split()) or "(empty)", seconds)
    console.print(table)
    left = value["n"] - value["answered"] - value["failed"]
    parts = [f"{value['answered']} of {value['n']} answered"]
    parts += [f"{value['failed']} failed"] if value["failed"] else []
    parts += [f"{left} not asked"] if left else []
    parts += [f"{many(len(value['skipped']), 'image')} cannot be read"] if value["skipped"] else []
    console.print(" · ".join(parts), markup=False)
    for path in value["files"]:
        console.print(path, markup=False, soft_wrap=True)
