"""`vlmconsole gates note`, `notes`, `agree`, `judge` and `spread`: what reading the answers themselves shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vlmconsole.cli.common import emit, state
from vlmconsole.text.times import minute

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.runs.folder import RunFolder


def register(gates: typer.Typer) -> None:
    """Add the commands to the group `gates`."""

    @gates.command("note")
    def note(
        run: str = typer.Argument(..., help="Run: a name or part of one, a folder, or `last`"),
        sample: str = typer.Option(..., "--sample", metavar="ID", help="Sample ID of the answer"),
        tag: str = typer.Option(..., "--tag", metavar="T", help="Tag for what is wrong, e.g. “misread letter”"),
        text: str = typer.Option("", "--text", help="Free text"),
        side: str = typer.Option(
            "", "--side", help="Side: after, before or diagnostic; default: the first with this sample"
        ),
    ) -> None:
        """Tag one answer. Notes are only ever added, lie outside the run, and never touch a score."""
        from vlmconsole.evaluation.notes import add_note

        folder = _run(run)
        added = add_note(state.lab.places.home, folder, sample, tag, text, side)
        emit({"run": folder.name, **added.to_json()}, f"{added.side} {added.sample}: {added.tag}")

    @gates.command("notes")
    def notes(run: str = typer.Argument(..., help="Run: a name or part of one, or a folder")) -> None:
        """The notes on a run's answers, and how often each tag was given."""
        from vlmconsole.evaluation.notes import read_notes
        from vlmconsole.text.plain import one_line

        folder = _run(run)
        entries = read_notes(state.lab.places.home, folder)
        tags: dict[str, int] = {}
        for entry in entries:
            tags[entry.tag] = tags.get(entry.tag, 0) + 1

        def human(console: Console) -> None:
            for entry in entries:
                when = minute(entry.t)
                line = f"{when}  {entry.side} {entry.sample}  {entry.tag}  {entry.text}"
                console.print(one_line(line).rstrip(), markup=False, soft_wrap=True)
            shown = ", ".join(f"{tag} {n}" for tag, n in sorted(tags.items(), key=lambda pair: -pair[1]))
            console.print(shown or "No notes yet: vlmconsole gates note RUN --sample ID --tag T", markup=False)

        value = {"run": folder.name, "notes": [entry.to_json() for entry in entries], "tags": tags}
        emit(value, human)

    @gates.command("agree")
    def agree(
        first: str = typer.Argument(
            ..., metavar="RUN", help="First evaluation: a run's name or part of it, or its folder"
        ),
        second: str = typer.Argument(..., metavar="RUN", help="Second evaluation over the same images"),
        side: str = typer.Option("before", "--side", help="Side of both: before or after"),
    ) -> None:
        """How many answers of two runs are the same, word for word. It is no comparison of their scores."""
        from vlmconsole.evaluation.agreement import agreement
        from vlmconsole.ledger.chain import Ledger

        result = agreement(_run(first), _run(second), side, Ledger(state.lab.places.ledger))
        emit(result.to_json(), result.sentence())

    @gates.command("judge")
    def judge(
        run: str = typer.Argument(..., help="Evaluation scored by a judge: a run's name or part of it, or its folder"),
        side: str = typer.Option("before", "--side", help="Side: before or after"),
    ) -> None:
        """Cohen's κ between a run's scores and 30 or more of your notes tagged right or wrong, with its interval."""
        from vlmconsole.evaluation.judge_agreement import judge_agreement

        folder = _run(run)
        made = judge_agreement(state.lab.places.home, folder, side)
        text = f"κ {made.kappa:.2f} [{made.low:.2f}, {made.high:.2f}] over {made.n} notes; {made.same:.0%} the same"
        emit({"run": folder.name, "side": side, **asdict(made)}, text)

    @gates.command("spread")
    def spread(
        runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="One evaluation per training seed")],
    ) -> None:
        """How far several trainings lie apart on the same images, beside each one's interval over images."""
        from vlmconsole.evaluation.spread import spread as between

        folders = [_run(name) for name in runs]
        spreads = between(folders)
        value = {"runs": [folder.name for folder in folders], "groups": [group.to_json() for group in spreads]}
        emit(value, "\n".join(group.sentence() for group in spreads))


def _run(name: str) -> RunFolder:
    from vlmconsole.runs.folder import find_run

    return find_run(state.lab.places.runs, name)
