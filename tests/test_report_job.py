"""The report as a job: the last step of a flow, over the runs of the steps before it."""

from pathlib import Path

import pytest
from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.jobs.report import ReportSpec, run

from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


def made(places: Places, name: str, state: str) -> RunFolder:
    folder = RunFolder.create(
        places.runs, kind="bench", preset=name, spec={}, title=f"Title of {name}", home=places.home
    )
    folder.set_state(state, "the server died" if state == "failed" else None)
    return folder


def test_a_page_of_all_runs_with_the_failed_one_and_what_never_ran(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    good, own = made(places, "good", "done"), made(places, "own", "running")
    made(places, "bad", "failed")
    summary = run(Context(own, places), ReportSpec(runs=[str(good.path), "bad", "never"]))
    page = own.file("report.html").read_text("utf-8")
    assert "Title of good" in page and "Title of bad" in page and "the server died" in page
    assert summary["runs"] == 2 and summary["absent"] == ["never"] and summary["states"] == {"done": 1, "failed": 1}
    assert own.file("report.json").exists()
    with pytest.raises(JobError, match="None of the runs"):
        run(Context(own, places), ReportSpec(runs=["never"]))
