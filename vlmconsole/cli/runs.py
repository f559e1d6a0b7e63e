"""`vlmconsole runs list | show RUN | compare A B | export RUN…`: what was run, and how it ended."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmconsole.cli.common import emit, state
from vlmconsole.cli.compare import compare
from vlmconsole.cli.export import export
from vlmconsole.cli.run import ending
from vlmconsole.runs.folder import RunFolder, find_run, list_runs
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import number
from vlmconsole.text.times import duration
from vlmconsole.text.toml import toml_lines

if TYPE_CHECKING:
    from vlmconsole.desks.runs import RunLine


UNSET: tuple[object, ...] = (None, "", [], {})  # a preset would leave it out


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Runs: what was run, with its conditions.")
    group.command("list")(list_command)
    group.command("show")(show)
    group.command("compare")(compare)
    group.command("export")(export)
    app.add_typer(group, name="runs")


def brief(run: RunFolder) -> dict[str, Any]:
    """One line's worth of a run. Its files may be anything: what is no text or number there is not told as one."""
    job, now = run.job(), run.state()
    attempt = now.get("attempt", 1)
    return {
        "run": run.name,
        **{key: _text(job.get(key)) for key in ("preset", "kind", "title")},
        **{key: _text(now.get(key)) for key in ("state", "reason")},
        "attempt": attempt if isinstance(attempt, int) else None,
        "started": number(now.get("started")),
        "ended": number(now.get("ended")),
        "path": str(run.path),
    }


def _result(line: "RunLine") -> str | None:
    """Why it ended so, else what cannot be read, its verdict, its figure; None where it has none of them yet.

    An evaluation's verdict stands with its score.
    """
    judged = " · ".join(filter(None, [line.verdict, line.said if line.kind == "evaluate" else ""]))
    return line.reason or line.wrong or judged or line.said or None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def list_command(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of runs, newest first")] = 50,
) -> None:
    """The runs of this lab, newest first."""
    from vlmconsole.desks.runs import line_of

    runs = [brief(run) | {"result": _result(line_of(run))} for run in list_runs(state.lab.places.runs)[:limit]]

    def human(console: Console) -> None:
        if not runs:
            console.print("no runs yet: start one with `vlmconsole run PRESET`")
            return
        table = Table(box=None, pad_edge=False)
        for column in ("run", "state", "took", "result"):
            table.add_column(column, overflow="fold" if column == "result" else "ellipsis", no_wrap=column == "run")
        for row in runs:
            cells = (row["run"], row["state"] or "?", took(row), row["result"] or "")
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)

    emit({"runs": runs}, human)


def show(run: Annotated[str, typer.Argument(help="Run: a name or part of one, a path, or `last`")]) -> None:
    """One run: settings, state, conditions, summary, files."""
    folder = find_run(state.lab.places.runs, run)
    job = folder.job()
    files = {
        path.relative_to(folder.path).as_posix(): path.stat().st_size
        for path in sorted(folder.path.rglob("*"))
        if path.is_file()
    }
    value = {
        **brief(folder),
        "spec": job.get("spec", {}),
        "conditions": folder.read_json("conditions.json"),
        "summary": folder.read_json("summary.json"),
        "files": files,
        "unreadable": folder.unreadable(),
    }
    spec, lines = value["spec"], [f"{value['title']} ({value['kind']})"]
    if isinstance(spec, dict):
        lines += toml_lines({key: setting for key, setting in spec.items() if setting not in UNSET})
    else:
        lines.append("  settings = cannot be read")

    def human(console: Console) -> None:
        from vlmconsole.cli.measured import is_measurement, show_measured
        from vlmconsole.cli.plots import show_plots

        single = is_measurement(folder)  # its figures stand in their block, in their units
        last = [ending(folder, figures=not single), f"{many(len(files), 'file')}, {many(sum(files.values()), 'byte')}"]
        console.print("\n".join([*lines, *last]), markup=False, soft_wrap=True)
        show_measured(console, folder)
        show_plots(console, folder)

    emit(value, human)


def took(row: dict[str, Any]) -> str:
    """How long a run took, `1:02:03`; of a running one until now."""
    if not row["started"]:
        return ""
    end = row["ended"] or (time.time() if row["state"] == "running" else None)
    if end is None:
        return "?"
    return duration(end - row["started"])
