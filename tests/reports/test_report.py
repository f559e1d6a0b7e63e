"""Reports: whole, self-contained, and inert whatever a run folder holds."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from recorded_runs import ATTACK, BENCH, GRID, PROBE, failed_run, hostile_run, lab_with_runs, tuned_run

from vlmconsole.cli import main
from vlmconsole.measure.views import Bar, cells, grid, pairs, parts, shortest, waterfalls
from vlmconsole.reports import book, flat, save
from vlmconsole.reports.svg import PlotMark, scatter, ticks
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

TAGS = frozenset(
    {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "nav",
        "ol",
        "ul",
        "li",
        "strong",
    }
    | {"a", "span", "section", "div", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "pre"}
    | {"svg", "line", "text", "circle", "polyline", "rect", "g"}
)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return lab_with_runs(tmp_path / "home")


def run_of(places: Places, name: str) -> RunFolder:
    return RunFolder(places.runs / name)


class Page(HTMLParser):
    """What a browser would see of a page: tags, attributes, text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def test_a_report_holds_every_table_plot_condition_and_raw_file(places: Places, tmp_path: Path) -> None:
    out = tmp_path / "out" / "report.html"
    runs = [run_of(places, name) for name in (GRID, PROBE, BENCH)]
    page = Page(book.html(runs, places, beside=out))
    for cell in ("c1-b1", "c2-b1", "c4-b1", "c1-b4", "c2-b4", "c4-b4"):
        assert f"Requests of {cell}" in page.text
    for said in (
        "Throughput against TTFT", "Throughput by C", "TTFT p50 by C", "Verdict: hit proven",
        "448 of 449 cached", "running limit B", "timing window", "Sealed and intact", "Percentiles",
        "below 60 requests (here 8)",
    ):  # fmt: skip
        assert said in page.text, said
    assert page.tags.count("svg") == 7 + 3 + 1 + page.text.count("points. First")  # waterfalls, plots, pairs; curves
    links = [value for key, value in page.attributes if key == "href" and not value.startswith("#")]
    assert links and all((out.parent / link).resolve().is_file() for link in links)


def test_a_report_needs_nothing_from_the_network_and_runs_nothing(places: Places) -> None:
    page = Page(book.html([run_of(places, GRID)], places))
    assert set(page.tags) <= TAGS
    assert not [value for key, value in page.attributes if key in ("src", "href") and "//" in value]
    policy = next(value for key, value in page.attributes if key == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'") and "script" not in policy


def test_what_failed_stays_in_the_report_with_its_cause(places: Places) -> None:
    page = Page(book.html([failed_run(places)], places))
    for said in (
        "exited with 137",
        "lag p99 31 ms",
        "INVALID",
        "FAILED",
        "out of memory",
        "Not sealed",
    ):
        assert said in page.text, said


def test_a_tuning_shows_its_rule_its_steps_and_that_it_was_not_confirmed(places: Places) -> None:
    page = Page(book.html([tuned_run(places)], places))
    for said in ("1. usable: 2 of 3 cells", "dead: failed: ", "not confirmed", "+26.2 %",
                 "−13.7 MiB", "161 MiB", "server --max-num-seqs 2", "5d" * 32):  # fmt: skip
        assert said in page.text, said


def test_a_training_shows_its_curves_epochs_answers_and_pictures(places: Places) -> None:
    run = RunFolder.create(places.runs, kind="grpo", preset="grpo", spec={"lr": 1e-6}, title="GRPO", home=places.home)
    run.file("pictures").mkdir()
    Image.new("RGB", (8, 8), "red").save(run.file("pictures/0123456789abcdef.png"))
    for step in (1, 2, 3):
        run.append_jsonl("training.jsonl", {"step": step, "loss": 1 / step, "reward_mean": 0.2 * step})
        for answer, reward in (("a", 1.0), ("b", 0.0)):
            row = {
                "step": step,
                "uid": f"u{step}",
                "truth": "T",
                "answer": answer,
                "reward": reward,
                "advantage": reward,
            }
            run.append_jsonl("rollouts.jsonl", {**row, "picture": "pictures/0123456789abcdef.png"})
    for epoch, right in ((2, False), (4, True)):
        run.append_jsonl(f"dev-epoch{epoch}.jsonl", {"all_correct": right, "reward": float(right)})
    run.write_json("summary.json", {"epoch": 4})
    run.write_json(
        "weights.json", {"visual": {"tensors_changed": 0}, "tensors": [{"name": "q_proj", "change_l2": 0.5}]}
    )
    html = book.html([run], places)
    page = Page(html)
    for said in ("loss", "mean reward", "3 points. First 0.200, last 0.600.", "4 1 100.0 1 kept", "q_proj 0.5",
                 "without advantage 0", "visual · tensors changed 0"):  # fmt: skip
        assert said in page.text, said
    assert page.tags.count("img") == 3 and page.tags.count("svg") == 3
    assert html.count("data:image/png;base64,") == 3


def test_a_run_that_was_changed_after_sealing_says_so(places: Places) -> None:
    run = run_of(places, BENCH)
    run.file("summary.json").write_text(run.file("summary.json").read_text().replace('"failures": 0', '"failures": 1'))
    text = Page(book.html([run], places)).text
    assert "CHANGED" in text and "changed: summary.json" in text


def test_hostile_text_is_text(places: Places) -> None:
    page = Page(book.html([hostile_run(places)], places))
    assert set(page.tags) <= TAGS, set(page.tags) - TAGS
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert "document.title='owned'" in page.text  # shown, as what it is


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *(
        "name",
        "state",
        "why",
        "work",
        "settings",
        "summary",
        "conditions",
        "ttft_s",
        "itl_s",
        "p50",
        "n",
        "phase",
        "sent",
    ),
    *(
        "first_text",
        "done",
        "end",
        "index",
        "cell",
        "counted",
        "arm",
        "pair",
        "cold",
        "warm",
        "cached",
        "tokens",
        "step",
    ),
    *("loss", "reward", "uid", "truth", "answer", "all_correct", "client_concurrency", "running_limit", "set_aside"),
    *("failures", "lag", "probe", "tensors", "verdict", "reasons", "gates", "epoch", "notes"),
]
ROW = st.dictionaries(
    st.sampled_from(KEYS), JSON | st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), max_size=8
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, max_size=4), whole=ROW)
def test_no_damaged_run_breaks_a_report(tmp_path: Path, rows: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    places = Places(tmp_path)
    run = RunFolder(places.runs / "20261129-000000-odd-0000")
    shutil.rmtree(run.path, ignore_errors=True)
    run.path.mkdir(parents=True)
    for name in ("job", "state", "summary", "conditions", "weights", "mask", "selection", "plan", "audit", "manifest"):
        run.file(f"{name}.json").write_text(json.dumps(whole))
    for name in (
        "cells",
        "requests",
        "pairs",
        "training",
        "rollouts",
        "before",
        "after",
        "dev-epoch2",
        "events",
        "samples",
    ):
        run.file(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    assert book.chapter(run, places).name == run.name
    assert run.name in book.html([run], places)
    flat.as_csv([run])
    json.dumps(flat.as_json([run], places), allow_nan=False)


def test_csv_has_a_line_for_each_cell_pair_and_failure(places: Places) -> None:
    runs = [run_of(places, GRID), run_of(places, PROBE), failed_run(places)]
    rows = list(csv.DictReader(io.StringIO(flat.as_csv(runs))))
    assert [row["row"] for row in rows] == ["cell"] * 6 + ["pair"] * 10 + ["cell"] * 2
    assert rows[2]["condition.client_concurrency"] == "4" and rows[2]["condition.running_limit"] == "1"
    assert rows[-1]["state"] == "failed" and rows[-1]["why"] == "the server ended"


def test_a_spreadsheet_runs_no_formula_of_a_run(places: Places) -> None:
    run = failed_run(places)
    run.append_jsonl("cells.jsonl", {"name": "=HYPERLINK(1)", "state": "failed", "why": "@x"})
    last = list(csv.DictReader(io.StringIO(flat.as_csv([run]))))[-1]
    assert (last["name"], last["why"]) == ("'=HYPERLINK(1)", "'@x")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("\n=1", "'\n=1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\x1b[31m=1", "'=1"),
        ("a\x00b", "ab"),
        ("plain", "plain"),
    ],
)
def test_neither_cells_nor_headers_run_or_move_anything(places: Places, text: str, cell: str) -> None:
    run = failed_run(places)
    run.append_jsonl("training.jsonl", {"step": 1, text: 2, "note": text, "run": "another"})
    table = flat.as_csv([run])
    last = list(csv.DictReader(io.StringIO(table)))[-1]
    assert last[cell] == "2" and last["note"] == cell and last["run"] == run.name and last["row"] == "step"
    assert "\x1b" not in table and "\x00" not in table


def called(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_export_writes_files_and_json(places: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, table, home = tmp_path / "a.html", tmp_path / "b" / "a.csv", ["--home", str(places.home)]
    assert called([*home, "runs", "export", "cb-grid", "bench", "--html", str(html), "--csv", str(table)]) == 0
    assert capsys.readouterr().out.split() == [str(html), str(table)]
    assert "2 runs" in html.read_text() and table.read_text().count("\n") == 8
    assert called([*home, "--json", "runs", "export", "cache"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["runs"][0]["seal"]["status"] == "intact" and len(value["runs"][0]["pairs"]) == 10
    assert called([*home, "runs", "export", "cache"]) == 2


def test_a_report_that_cannot_be_written_says_why(places: Places, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(Exception, match="cannot be written"):
        save.save([run_of(places, BENCH)], places, "csv", blocked / "out.csv")


def test_views_of_the_recorded_grid(places: Places) -> None:
    run = run_of(places, GRID)
    table = grid(cells(run))
    assert table is not None and (table.columns, table.rows) == ((1, 2, 4), (1, 4))
    cell = table.cell(4, 1)
    assert cell is not None and cell.name == "c4-b1" and cell.n == 8
    bars = waterfalls(run)["c4-b1"]
    least = shortest(bars)
    assert least is not None and len(bars) == 8
    waits = [parts(bar, least)[0] for bar in bars]
    assert min(waits) == 0 and max(waits) > least  # with C = 4 and B = 1 some waited longer than a prefill takes
    assert {pair.arm for pair in pairs(run_of(places, PROBE))} == {"cache on", "cache off"}


def test_names_of_points_stay_inside_the_drawing() -> None:
    drawn = scatter("t", [PlotMark(f"cell-{i}", 1.0, 2.0) for i in range(300)], "x", "y")
    heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([-\d.]+)" class="name', drawn)]
    assert 0 < len(heights) < 40 and min(heights) > 0 and f"{300 - len(heights)} names" in drawn
    assert "<title>cell-299</title>" in drawn
    assert " names" not in scatter("t", [PlotMark("one", 1.0, 2.0), PlotMark("two", 1.0, 2.0)], "x", "y")


def test_the_parts_of_a_request_add_up_to_its_span() -> None:
    assert parts(Bar(0, 1.0, 3.0, 4.5), 0.5) == (1.5, 0.5, 1.5)
    assert parts(Bar(0, 1.0, None, 4.0), 0.5) == (3.0, 0.0, 0.0)
    assert shortest([Bar(0, 0.0, None, 1.0), Bar(1, 0.0, 0.1, 1.0, failed=True)]) is None


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_cover_the_values_and_are_few(low: float, span: float) -> None:
    found = ticks(low, low + span)
    tiny = 1e-300  # below it a division comes out as zero, and nobody could see the difference
    assert found[0] <= low + 1e-6 * abs(low) + tiny and found[-1] >= (low + span) - 1e-6 * abs(low + span) - tiny
    assert 2 <= len(found) <= 9


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.timeout(120)
def test_a_real_browser_shows_it_without_a_word_on_its_console(places: Places, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    save.save([run_of(places, GRID), run_of(places, PROBE), hostile_run(places)], places, "html", out)
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000", "--dump-dom", out.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, re.findall(r".*CONSOLE.*", done.stderr)
    page = Page(done.stdout)
    assert set(page.tags) <= TAGS
    assert "<title>3 runs</title>" in done.stdout
    assert ATTACK in " ".join(page.pieces)
    assert done.stdout.count("<svg") > 10
