"""The kind `report`: one HTML page of several runs, as the last step of a flow: `vlmconsole run lab-tiny`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, not_installed
from vlmconsole.jobs.preflight import LATER
from vlmconsole.runs.folder import RunFolder, find_run, to_json, write_atomic
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import PathOrName

PAGE, FLAT = "report.html", "report.json"


class ReportSpec(Spec):
    """What is reported, in this order."""

    title: str = Field("", description="Page title; empty: how many runs it holds")
    runs: list[PathOrName] = Field([], description="Runs, by name or folder; one that is not there is said")
    steps: dict[str, str | None] = Field(
        {}, description="A flow's steps with their runs, after those; none for a step that never ran, which is said"
    )

    @model_validator(mode="after")
    def _something(self) -> ReportSpec:
        if not self.runs and not self.steps:
            raise ValueError("name at least one run")
        return self


def run(context: Context, spec: ReportSpec) -> dict[str, Any]:
    """Write `report.html` and `report.json` into this run. A run that is not there is named, not hidden."""
    try:
        from vlmconsole.reports import book, flat
    except ImportError as error:
        raise not_installed(error, "a report", "report") from None

    folders, absent = _found(context.places, [*spec.runs, *(run for run in spec.steps.values() if run)])
    absent += [f"step {name}" for name, run in spec.steps.items() if not run]
    for name in absent:
        context.events.note(f"not in the report: {name} (it has no run)", "warning")
    if not folders:
        raise JobError(
            "None of the runs to report is there.", "Name runs that `vlmconsole runs list` shows.", code="runs-missing"
        )
    page = context.run.file(PAGE)
    context.events.progress(0, 2, unit="file")
    labels = {run: name for name, run in spec.steps.items() if run}
    text = book.html(folders, context.places, beside=page, absent=absent, title=spec.title, labels=labels)
    write_atomic(page, text.encode("utf-8", "replace"))
    context.events.progress(1, 2, unit="file")
    write_atomic(context.run.file(FLAT), to_json(flat.as_json(folders, context.places, absent)))
    context.events.progress(2, 2, unit="file")
    states: dict[str, int] = {}
    for folder in folders:
        state = str(folder.state().get("state"))
        states[state] = states.get(state, 0) + 1
    return {"report": str(page), "runs": len(folders), "absent": absent, "states": states}


def _found(places: Places, names: list[str]) -> tuple[list[RunFolder], list[str]]:
    folders, absent = [], []
    for name in names:
        path = Path(name)
        if path.is_absolute() and (path / "job.json").exists():
            folders.append(RunFolder(path))
            continue
        try:
            folders.append(find_run(places.runs, name))
        except LabError:
            absent.append(name)
    return folders, absent


def _problems(spec: ReportSpec, places: Places, alone: bool) -> list[str]:
    """One run that is missing is named in the report; with none of them there is no report."""
    names = [*spec.runs, *(run for run in spec.steps.values() if run)]
    if not alone or any(LATER in name for name in names) or _found(places, names)[0]:
        return []
    return ["none of the runs to report is there: name runs that `vlmconsole runs list` shows"]


KIND = JobKind(
    name="report",
    title="Report of several runs",
    spec=ReportSpec,
    run=run,
    estimate=lambda spec: Estimate(20 + 5 * (len(spec.runs) + len(spec.steps))),
    problems=_problems,
)
