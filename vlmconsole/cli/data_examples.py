"""`vlmconsole data export`, `note` and `notes`: a dataset's examples with every model's answer, and notes on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail, state
from vlmconsole.text.counts import many

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.desks.data import DataDesk, ExamplesView

WHERE = "Filter, as on the Data screen: words, is:wrong, is:flipped, tag:…, split:…, run:…"


def register(data: typer.Typer) -> None:
    """Add the commands to the group `data`."""

    @data.command("export")
    def export(
        dataset: str = typer.Argument(..., help="Dataset of the lab, by name"),
        where: str = typer.Option("", "--where", metavar="WORDS", help=WHERE),
        html: Annotated[
            Path | None, typer.Option("--html", metavar="FILE", help="Write one page with thumbnails, without scripts")
        ] = None,
        csv: Annotated[
            Path | None, typer.Option("--csv", metavar="FILE", help="Write a CSV file: a row for each example")
        ] = None,
    ) -> None:
        """Save examples with every model's answer and the notes (--csv, --html), or print them (--json)."""
        from vlmconsole.reports.examples import save_examples

        if html is None and csv is None and not state.json:
            fail("Choose a format.", "--html FILE, --csv FILE or --json", USAGE, code="format-missing")
        desk, view = _view(dataset, where)
        try:
            exported = view.exported(view.shown, desk)
            files = [
                save_examples(dataset, exported, form, state.lab.places, path, view.query_text)
                for form, path in (("html", html), ("csv", csv))
                if path is not None
            ]
            value = {"dataset": dataset, "where": view.query_text, "n": len(exported)}
            if files:
                lines = "\n".join(str(path) for path in files)
                emit({**value, "files": [str(path) for path in files]}, f"{many(len(exported), 'example')}\n{lines}")
            else:
                emit({**value, "examples": [_example(view, place) for place in view.shown]})
        finally:
            desk.close()

    @data.command("note")
    def note(
        dataset: str = typer.Argument(..., help="Dataset of the lab, by name"),
        example: str = typer.Argument(..., metavar="ID", help="ID of the example"),
        tag: str = typer.Option("note", "--tag", metavar="T", help="Tag, e.g. blurred"),
        text: str = typer.Option("", "--text", help="Free text"),
    ) -> None:
        """Write a note on an example, or tag it. Notes are only ever added and lie outside the dataset."""
        from vlmconsole.evaluation.notes import add_example_note

        desk, view = _view(dataset, "")
        desk.close()
        if all(listed.id != example for listed in view.opened.examples):
            fail(
                f"{dataset} has no example {example}.",
                "vlmconsole data export lists them.",
                USAGE,
                code="example-missing",
            )
        added = add_example_note(state.lab.places.home, dataset, example, tag, text)
        emit({"dataset": dataset, **added.to_json()}, f"{added.sample}: {added.tag}")

    @data.command("notes")
    def notes(dataset: str = typer.Argument(..., help="Dataset of the lab, by name")) -> None:
        """The notes on a dataset's examples, and how often each tag was given."""
        from collections import Counter

        from vlmconsole.evaluation.notes import read_example_notes
        from vlmconsole.text.plain import one_line
        from vlmconsole.text.times import minute

        entries = read_example_notes(state.lab.places.home, dataset)
        tags = Counter(entry.tag for entry in entries)

        def human(console: Console) -> None:
            for entry in entries:
                line = f"{minute(entry.t)}  {entry.sample}  {entry.tag}  {entry.text}"
                console.print(one_line(line).rstrip(), markup=False, soft_wrap=True)
            shown = ", ".join(f"{tag} {n}" for tag, n in tags.most_common())
            console.print(shown or "No notes yet: vlmconsole data note DATASET ID --tag T", markup=False)

        emit({"dataset": dataset, "notes": [entry.to_json() for entry in entries], "tags": dict(tags)}, human)


def _view(dataset: str, where: str) -> tuple[DataDesk, ExamplesView]:
    """An opened dataset of the lab as a filter leaves it; its desk is the caller's to close."""
    from vlmconsole.desks.data import DataDesk

    desk = DataDesk(state.lab.places)
    entry = next((entry for entry in desk.listing(check=False) if entry.name == dataset), None)
    if entry is None:
        fail(f"There is no dataset {dataset!r}.", "vlmconsole data list shows them.", USAGE, code="dataset-missing")
    if entry.fault:
        fail(entry.fault, code="manifest-damaged")
    return desk, desk.view(entry, where)


def _example(view: ExamplesView, place: int) -> dict[str, Any]:
    """An example in the JSON form: no image, every answer."""
    shown = view.opened.examples[place]
    answers = [
        {
            "run": source.run,
            "side": source.side,
            "model": source.model,
            "answer": prediction.answer,
            "right": prediction.right,
            "valid": prediction.valid,
            "score": prediction.score,
        }
        for source, prediction in view.answered(place)
    ]
    return {
        "id": shown.id,
        "split": shown.split,
        "group": shown.group,
        "question": shown.question,
        "truth": shown.truth,
        "scorer": shown.scorer,
        "options": dict(shown.options),
        "answers": answers,
        "notes": [note.to_json() for note in view.notes_on(place)],
    }
