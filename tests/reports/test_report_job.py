"""The report as a job: the last step of a flow, over the runs of the steps before it."""

from pathlib import Path

from refusals import refused

from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.jobs.report import ReportSpec, run
from vlmconsole.reports import book
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
    told = run(Context(own, places), ReportSpec(title="A <flow>", steps={"first": str(good.path), "never": None}))
    page = own.file("report.html").read_text("utf-8")
    assert "<h1>A &lt;flow&gt;</h1>" in page and "first: Title" in page and "step never" in page
    assert told["absent"] == ["step never"]
    with refused("runs-missing", "runs", error=JobError):
        run(Context(own, places), ReportSpec(runs=["never"]))


def test_the_last_page_says_what_no_plan_judged_and_what_broke(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    tried = RunFolder.create(
        places.runs, kind="evaluate", preset="tried", spec={}, title="Tried <b>it</b>", home=places.home
    )
    tried.set_state("done")
    groups = {
        "regular": {"paired": {"difference": 0.01, "interval": [-0.02, 0.04]}},
        "hollow": {"paired": {"difference": -0.2, "interval": [-0.3, -0.1]}},
        "high": {"before": {"answered": 4}},
        "odd": {"paired": {"difference": "x", "interval": [1]}},
    }
    tried.write_json("summary.json", {"groups": groups})
    page = book.html([tried, made(places, "bad", "failed")], places)
    assert 'href="#claims"' in page and "Tried &lt;b&gt;it&lt;/b&gt;, regular: partial reward +0.0100" in page
    assert "−0.0200 … +0.0400: no difference" in page and "−0.3000 … −0.1000: a loss" in page
    assert "bad: failed" in page and "(the server died)" in page and "high: partial" not in page
    assert 'id="claims"' not in book.html([tried], places)


def test_the_list_at_the_top_says_what_each_audit_came_to(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    good, bad = made(places, "good", "done"), made(places, "bad", "done")
    for one, verdict in ((good, "PASS"), (bad, "FAIL")):
        one.write_json("audit.json", {"verdict": verdict, "findings": [{"name": "scores", "state": "ok", "text": "x"}]})
    page = book.html([good, bad], places)
    assert '<strong class="">audit: pass</strong>' in page and '<strong class="bad">audit: fail</strong>' in page
