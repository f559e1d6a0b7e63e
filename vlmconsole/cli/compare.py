"""``vlmconsole runs compare A B``: two measurements side by side, or a refusal that names what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vlmconsole.cli.common import CANNOT_JUDGE, emit, state

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.measure.compare import Side
    from vlmconsole.runs.folder import RunFolder


def compare(
    a: Annotated[
        str, typer.Argument(help="a measured run: its name, a part of it, a path, or `last`; RUN:CELL of a sweep")
    ],
    b: Annotated[str, typer.Argument(help="another one")],
    only: Annotated[str, typer.Option(metavar="KEY", help="the one condition that may differ")] = "",
) -> None:
    """Compare two measurements. Refused (exit code 3) when conditions differ, each of them named."""
    from rich.table import Table
    from rich.text import Text

    from vlmconsole.measure.compare import compare_sides, shown

    (left, one), (right, other) = _side(a), _side(b)
    doubts = _doubts(one, other)
    comparison, rows = compare_sides(left, right, only or None)
    value = {"a": left.name, "b": right.name, **comparison.to_json(), "sentence": comparison.sentence()}
    value["not_intact"] = doubts
    if comparison.comparable:
        value["figures"] = [{**vars(row), "change": row.change} for row in rows]

    def human(console: Console) -> None:
        console.print(Text(f"a {left.name}\nb {right.name}"))
        for doubt in doubts:
            console.print(Text(f"! {doubt}", style="bold red"), soft_wrap=True)
        console.print(Text(comparison.sentence(), style="" if comparison.comparable else "bold red"), soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        if not comparison.comparable:
            for name in ("differs", "a", "b"):
                table.add_column(name)
            for one in comparison.differs:
                table.add_row(one.label, Text(shown(one.key, one.a)), Text(shown(one.key, one.b)))
            console.print(table)
            if len(comparison.differs) == 1:
                key = comparison.differs[0].key
                console.print(f"If that is the experiment: --only {key}", markup=False)
            return
        for name in ("", "a", "b", "", "change"):
            table.add_column(name, justify="right" if name else "left")
        for row in rows:
            change = "" if row.change is None else f"{row.change:+.1%}"
            table.add_row(row.name, _figure(row.a), _figure(row.b), row.unit, change)
        console.print(table)
        console.print(f"n: a {rows[0].n_a}, b {rows[0].n_b}" if rows else "no figures", markup=False)
        if comparison.unknown:
            console.print(f"not known of either: {', '.join(comparison.unknown)}", markup=False, soft_wrap=True)

    emit(value, human)
    raise typer.Exit(0 if comparison.comparable else CANNOT_JUDGE)


def _doubts(*runs: RunFolder) -> list[str]:
    """What the seals say against the files behind the figures; nothing for runs that are intact."""
    from vlmconsole.gates.ledger import Ledger

    ledger = Ledger(state.lab.places.ledger)
    found = [ledger.verify(run) for run in {run.path: run for run in runs}.values()]
    return [f"{one.run} is {one.status}: {one.why}" for one in found if one.status != "intact"]


def _side(name: str) -> tuple[Side, RunFolder]:
    """The measurement that RUN or RUN:CELL names, and its run."""
    from vlmconsole.measure.compare import side
    from vlmconsole.runs.folder import NoRunError, find_run

    runs = state.lab.places.runs
    try:
        found = find_run(runs, name)
        return side(found), found
    except NoRunError:
        run, colon, cell = name.rpartition(":")
        if not colon:
            raise
        found = find_run(runs, run)
        return side(found, cell), found


def _figure(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
