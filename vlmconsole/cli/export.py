"""`vlmconsole runs export RUN…`: a report of one run or of several as HTML, their figures as CSV or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmconsole.cli.common import USAGE, emit, fail, state


def export(
    runs: Annotated[list[str], typer.Argument(help="Runs: names or parts of them, paths, or `last`")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report: one page without scripts")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a CSV file: a line for each cell, pair or step")
    ] = None,
) -> None:
    """Save runs as a report (--html) or as a table (--csv); with --json everything as one value on stdout."""
    from vlmconsole.reports import save
    from vlmconsole.reports.flat import as_json
    from vlmconsole.runs.folder import find_run

    places = state.lab.places
    if html is None and csv is None and not state.json:
        fail("Choose a format.", "--html FILE, --csv FILE or --json", USAGE)
    folders = [find_run(places.runs, name) for name in runs]
    written = [
        save.save(folders, places, form, path) for form, path in (("html", html), ("csv", csv)) if path is not None
    ]
    if written:
        emit({"files": [str(path) for path in written]}, "\n".join(str(path) for path in written))
    else:
        emit(as_json(folders, places))
