"""`vlmconsole runs compare A B`: two measurements, sweeps, trainings or evaluations, or what differs by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vlmconsole.cli.common import CANNOT_JUDGE, emit, state
from vlmconsole.text.numbers import change, figure

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.compare.evaluations import EvaluationComparison
    from vlmconsole.compare.runs import ComparedFigure, ComparedSide, Comparison
    from vlmconsole.compare.sweeps import SweepComparison
    from vlmconsole.compare.trainings import TrainingComparison
    from vlmconsole.runs.folder import RunFolder

#: what is shown of each pair of cells; --json has every figure
SHOWN_OF_CELLS = ("ttft_s.p50", "ttft_s.p95", "tpot_s.p50", "throughput_tok_s")
INTERVAL = "95 % interval"


def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="Run: a name or part of one, a path, or `last`; RUN:CELL is a cell of a sweep, RUN:before a side"
        ),
    ],
    b: Annotated[str, typer.Argument(help="Second run; two sweeps are compared cell by cell")],
    only: Annotated[str, typer.Option(metavar="KEY", help="The condition that is the experiment and may differ")] = "",
) -> None:
    """Compare two measurements, sweeps, trainings or evaluations. Refused (exit code 3) when conditions differ.

    Two evaluations are paired example by example; of two sides the tested one is taken (RUN:before: the other).
    """
    from vlmconsole.compare.evaluations import compare_evaluations, evaluated_side
    from vlmconsole.compare.runs import COMPARABLE_MEANS, compare_sides, side
    from vlmconsole.compare.sweeps import compare_sweeps, is_sweep
    from vlmconsole.compare.trainings import compare_trainings, family, refusal

    (first, cell), (second, other_cell) = _named(a), _named(b)
    doubts = _doubts(first, second)
    if why := refusal(first, second):
        value = {"a": first.name, "b": second.name, "comparable": False, "sentence": why, "not_intact": doubts}
        emit(value, why)
        raise typer.Exit(CANNOT_JUDGE)
    if family(first) == family(second) == "evaluation":
        sides = (evaluated_side(first, cell), evaluated_side(second, other_cell))
        evaluated = compare_evaluations(*sides, only or None)
        emit(
            {**evaluated.to_json(), "not_intact": doubts}, lambda console: _show_evaluations(console, evaluated, doubts)
        )
        raise typer.Exit(0 if evaluated.comparison.comparable else CANNOT_JUDGE)
    if family(first) == family(second) == "training":
        trained = compare_trainings(first, second, only or None)
        emit({**trained.to_json(), "not_intact": doubts}, lambda console: _show_trainings(console, trained, doubts))
        raise typer.Exit(0 if trained.comparison.comparable else CANNOT_JUDGE)
    if not cell and not other_cell and is_sweep(first) and is_sweep(second):
        result = compare_sweeps(first, second, only or None)
        value = {**result.to_json(), "not_intact": doubts}
        emit(value, lambda console: _show_sweeps(console, result, doubts))
        raise typer.Exit(0 if result.comparable else CANNOT_JUDGE)
    left, right = side(first, cell), side(second, other_cell)
    comparison, rows = compare_sides(left, right, only or None)
    value = {"a": left.name, "b": right.name, **comparison.to_json(), "sentence": comparison.sentence()}
    value["not_intact"] = doubts
    value["remarks"] = remarks = _remarks(left, right)
    if comparison.comparable:
        value["figures"] = [{**vars(row), "change": row.change} for row in rows]

    def human(console: Console) -> None:
        _show_names(console, left.name, right.name, doubts, remarks)
        _show_pair(console, comparison, rows, means=COMPARABLE_MEANS)

    emit(value, human)
    raise typer.Exit(0 if comparison.comparable else CANNOT_JUDGE)


def _remarks(a: ComparedSide, b: ComparedSide, cell: str = "") -> list[str]:
    """What is worth knowing of both sides and refuses nothing."""
    return [f"{cell}{name}: {side.remark}" for name, side in (("a", a), ("b", b)) if side.remark]


def _show_names(console: Console, a: str, b: str, doubts: list[str], remarks: list[str]) -> None:
    from rich.text import Text

    from vlmconsole.measure.machine_load import BUSY_MEANS

    console.print(Text(f"a {a}\nb {b}"), soft_wrap=True)
    for doubt in doubts:
        console.print(Text(f"! {doubt}", style="bold red"), soft_wrap=True)
    for remark in remarks:
        console.print(Text(f"! {remark}", style="yellow"), soft_wrap=True)
    if remarks:
        console.print(Text(f"  {BUSY_MEANS}", style="yellow"), soft_wrap=True)


def _show_pair(
    console: Console,
    comparison: Comparison,
    rows: list[ComparedFigure],
    counted: str = "n",
    means: str = "",
    interval_means: str = "",
) -> None:
    """The verdict, then the figures, or the conditions that differ.

    `counted` is what the figures' n are, `means` what being comparable means, `interval_means` what an interval is of.
    """
    from rich.table import Table
    from rich.text import Text

    from vlmconsole.compare.resampling import INTERVAL_MEANS
    from vlmconsole.compare.runs import shown, told_by_one

    console.print(Text(comparison.sentence(), style="" if comparison.comparable else "bold red"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    if not comparison.comparable and not comparison.differs:
        return
    if not comparison.comparable:
        for name in ("differs", "a", "b"):
            table.add_column(name)
        for difference in comparison.differs:
            table.add_row(
                difference.label, Text(shown(difference.key, difference.a)), Text(shown(difference.key, difference.b))
            )
        console.print(table)
        if len(comparison.differs) == 1 and not comparison.invalid:
            key = comparison.differs[0].key
            console.print(f"If that is the experiment: --only {key}", markup=False)
        return
    if means:
        console.print(Text(means, style="dim"), soft_wrap=True)
    judged = any(row.noise for row in rows)
    for name in ("", "a", "b", "", "change", *([INTERVAL] if judged else [])):
        table.add_column(name, justify="left" if name in ("", INTERVAL) else "right")
    for row in rows:
        table.add_row(row.name, figure(row.a), figure(row.b), row.unit, _change(row), *([row.noise] if judged else []))
    console.print(table)
    if judged:
        console.print(Text(interval_means or INTERVAL_MEANS, style="dim"), soft_wrap=True)
    console.print(f"{counted}: a {rows[0].n_a}, b {rows[0].n_b}" if rows else "no figures", markup=False)
    if comparison.unknown:
        console.print(f"unknown for both: {', '.join(comparison.unknown)}", markup=False, soft_wrap=True)
    if comparison.one_sided:
        console.print(told_by_one(comparison.one_sided), markup=False, soft_wrap=True)


def _show_evaluations(console: Console, comparison: EvaluationComparison, doubts: list[str]) -> None:
    """The verdict, scores with the paired difference, wins and losses."""
    from rich.text import Text

    from vlmconsole.compare.evaluations import INTERVAL_MEANS

    _show_names(console, comparison.a.name, comparison.b.name, doubts, [])
    for remark in comparison.remarks:
        console.print(Text(f"! {remark}", style="yellow"), soft_wrap=True)
    _show_pair(console, comparison.comparison, comparison.rows, "examples", interval_means=INTERVAL_MEANS)
    for line in comparison.lines:
        console.print(Text(line), soft_wrap=True)


def _show_trainings(console: Console, comparison: TrainingComparison, doubts: list[str]) -> None:
    """The verdict and the figures, then each curve of both on one scale."""
    from rich.text import Text

    from vlmconsole.compare.trainings import NO_VERDICT, drawn_curves

    _show_names(console, comparison.a.name, comparison.b.name, doubts, [])
    _show_pair(console, comparison.comparison, comparison.rows, "steps")
    if not comparison.comparison.comparable:
        return
    for line in drawn_curves(comparison, 48):
        console.print(Text(line), soft_wrap=True)
    console.print(NO_VERDICT, style="dim")


def _show_sweeps(console: Console, sweeps: SweepComparison, doubts: list[str]) -> None:
    """One table a figure's worth of cells, then each refusal with its reasons."""
    from rich.table import Table
    from rich.text import Text

    from vlmconsole.compare.resampling import INTERVAL_MEANS
    from vlmconsole.compare.runs import COMPARABLE_MEANS

    remarks = [remark for pair in sweeps.pairs for remark in _remarks(pair.a, pair.b, f"{pair.name} ")]
    _show_names(console, sweeps.a, sweeps.b, doubts, remarks)
    console.print(Text(sweeps.sentence(), style="" if sweeps.comparable else "bold red"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    if sweeps.comparable:
        console.print(Text(COMPARABLE_MEANS, style="dim"), soft_wrap=True)
    judged = any(row.noise for pair in sweeps.pairs for row in pair.rows)
    for name in ("cell", "figure", "a", "b", "", "change", "n a", "n b", *([INTERVAL] if judged else [])):
        table.add_column(name, justify="left" if name in ("cell", "figure", INTERVAL) else "right")
    for pair in sweeps.pairs:
        name = pair.name
        for row in pair.rows if pair.comparison.comparable else ():
            if row.key in SHOWN_OF_CELLS:
                counts = ("" if n is None else str(n) for n in (row.n_a, row.n_b))
                more = [row.noise] if judged else []
                cells = (figure(row.a), figure(row.b), row.unit, _change(row), *counts, *more)
                table.add_row(Text(name), row.name, *cells)
                name = ""
    if table.row_count:
        console.print(table)
        if judged:
            console.print(Text(INTERVAL_MEANS, style="dim"), soft_wrap=True)
    for pair in sweeps.pairs:
        if not pair.comparison.comparable:
            console.print(Text(f"{pair.name}: {pair.comparison.sentence()}", style="bold red"), soft_wrap=True)
    keys = {difference.key for pair in sweeps.pairs for difference in pair.comparison.differs}
    if len(keys) == 1 and not any(pair.comparison.invalid for pair in sweeps.pairs):
        console.print(f"If that is the experiment: --only {keys.pop()}", markup=False)
    for line in sweeps.alone:
        console.print(Text(f"not compared: {line}"), soft_wrap=True)


def _doubts(*runs: RunFolder) -> list[str]:
    """What the seals say against the files behind the figures; nothing for runs that are intact."""
    from vlmconsole.ledger.chain import Ledger

    ledger = Ledger(state.lab.places.ledger)
    verdicts = [ledger.verify(run) for run in {run.path: run for run in runs}.values()]
    return [f"{verdict.run} is {verdict.status}: {verdict.why}" for verdict in verdicts if verdict.status != "intact"]


def _named(name: str) -> tuple[RunFolder, str]:
    """The run that RUN or RUN:CELL names, and the cell ("" when none is named)."""
    from vlmconsole.runs.folder import NoRunError, find_run

    runs = state.lab.places.runs
    try:
        return find_run(runs, name), ""
    except NoRunError:
        run, colon, cell = name.rpartition(":")
        if not colon:
            raise
        return find_run(runs, run), cell


def _change(row: ComparedFigure) -> str:
    return "" if row.change is None or not row.better else change(row.change)
