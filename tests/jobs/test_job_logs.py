"""Logs by page, events as a story, pace: against real files, odd ones and very long ones."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from job_queue import lab, run_all

from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.runs.live_view import POINTS, RunStory
from vlmconsole.runs.pace import Pace
from vlmconsole.text.bars import sparkline


def run_folder(folder: Path) -> RunFolder:
    return RunFolder.create(folder, kind="story", preset="story", spec={}, title="", home=folder)


def test_how_a_job_ended_has_a_line_of_its_own_behind_an_open_progress_bar(tmp_path: Path) -> None:
    places = lab(tmp_path / "lab")
    run_all(places, ["steps=2", "mode=fails"])
    (run,) = list_runs(places.runs)
    lines = run.log.read_bytes().splitlines()
    assert (
        lines[-1] == b"failed: the picture scene-0042.png is gone: put it back and retry"
        and b"development" in lines[-2]
    )


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), max_size=60),
    rest=st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"")),
    page=st.integers(8, 200),
)
def test_pages_from_the_end_put_the_whole_file_together(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rest: bytes, page: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "PAGE", page)
        now = logfile.tail(path)
        for _ in range(len(lines) + 400):
            if now.start == 0:
                break
            now = logfile.older(now)
    assert now.start == 0  # also where a line is longer than a page
    if page > 31:  # every line fits on a page: then lines are never cut
        assert list(now.raws) == lines
        assert now.rest == rest
        assert all(path.read_bytes()[at:].startswith(raw) for at, raw in zip(now.offsets, now.raws, strict=True))


def test_what_is_appended_is_read_alone_and_rotation_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\ntwo\nbar 1%")
    page = logfile.tail(path)
    assert [logfile.shown(line) for line in page.lines] == ["one", "two", "bar 1%"]
    with path.open("ab") as file:
        file.write(b"\rbar 99%\rdone\nthree\n")
    page = logfile.grown(page)
    assert [logfile.shown(line) for line in page.lines] == ["one", "two", "done", "three"]
    assert logfile.grown(page) is page
    path.write_bytes(b"new\n")
    assert [logfile.shown(line) for line in logfile.grown(page).lines] == ["new"]


def test_a_page_further_up_stays_while_the_log_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "PAGE", 100)
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join(b"line %04d\n" % number for number in range(200)))
    page = logfile.around(path, 500)
    assert not page.at_end
    with path.open("ab") as file:
        file.write(b"more\n")
    grown = logfile.grown(page)
    assert (grown.raws, grown.start, grown.size) == (page.raws, page.start, page.size + 5)
    page = grown
    while not page.at_end:
        page = logfile.newer(page)
    assert page.lines[-1] == b"more"


def test_a_log_of_a_million_lines_is_never_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        for block in range(1000):
            file.write(b"".join(b"step %07d loss 0.1\n" % (1000 * block + line) for line in range(1000)))
    tracemalloc.start()
    page = last = logfile.tail(path)
    for _ in range(5):
        page = logfile.older(page)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert last.lines[-1] == b"step 0999999 loss 0.1"
    assert len(page.raws) <= logfile.KEPT
    assert most < 12 * 1024 * 1024  # the file has 22 MB
    found = logfile.search(path, "STEP 0123456")
    assert [raw for _, raw in found] == [b"step 0123456 loss 0.1"]
    assert b"step 0123456 loss 0.1" in logfile.around(path, found[0][0]).raws
    assert len(logfile.search(path, "loss")) == logfile.FOUND


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE])
def test_a_line_of_any_text_is_one_inert_line(text: str) -> None:
    for raw in (text.encode("utf-8", "surrogatepass"), text.encode("utf-16", "surrogatepass"), b"\xff\x00" * 5000):
        line = logfile.shown(raw)
        assert len(line) <= logfile.LONGEST
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or 0x202A <= ord(char) <= 0x202E for char in line)


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes("a\u2028b\x85c\vd\n\xe9\n".encode() + b"caf\xe9\r\n")
    assert len(logfile.tail(path).lines) == 3
    assert logfile.shown(b"caf\xe9\r") == "caf\\xe9"


def test_no_log_is_an_empty_page(tmp_path: Path) -> None:
    page = logfile.tail(tmp_path / "none.txt")
    assert page.lines == ()
    assert logfile.older(page) is page
    assert logfile.grown(page) is page
    assert logfile.search(tmp_path / "none.txt", "x") == []


def test_a_story_gathers_curves_notes_progress_and_load(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    for step in range(1, 4):
        run.events.metric("loss", 1 / step, step, "nats")
    run.events.metric("loss", float("nan"), 4)
    run.events.metric("wild", 7)
    run.events.note("odd", "warning")
    run.events.emit("sample", cpu_percent=99.5, rss_bytes=2**20)
    run.events.progress(3, 9, note="epoch 1")
    story = RunStory(run)
    told = story.read()
    assert [(curve.name, curve.unit, curve.steps, curve.last) for curve in told.curves] == [
        ("loss", "nats", True, 1 / 3),
        ("wild", "", False, 7.0),
    ]
    assert told.curves[0].points == ((1.0, 1.0), (2.0, 0.5), (3.0, 1 / 3))
    assert [(note.text, note.level) for note in told.notes] == [("odd", "warning")]
    assert told.cpu is not None
    assert told.cpu.last == 99.5
    assert told.progress is not None
    assert (told.progress.share, told.progress.note) == (3 / 9, "epoch 1")
    assert story.read() is told


def test_a_story_bears_hostile_events_and_stays_small(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    odd = [
        {"kind": "metric", "name": {"a": 1}, "value": "NaN"},
        {"kind": "metric", "name": ["x"], "value": 1, "step": "no"},
        {"kind": "progress", "done": "half", "total": None},
        {"kind": "progress", "t": "now", "done": 1},
        {"kind": "note", "text": None},
        {"kind": 7},
        {"kind": "sample", "cpu_percent": True},
        {},
    ]
    with run.file("events.jsonl").open("w") as file:
        for event in odd:
            file.write(json.dumps(event) + "\n")
        file.write("{torn\n")
        for step in range(3 * POINTS):
            file.write(json.dumps({"t": step, "kind": "metric", "name": "loss", "value": step, "step": step}) + "\n")
        for name in range(200):
            file.write(json.dumps({"t": 0, "kind": "metric", "name": f"m{name}", "value": 1}) + "\n")
        file.write('{"kind": "metric", "name": "last", "value"')
    told = RunStory(run).read()
    loss = next(curve for curve in told.curves if curve.name == "loss")
    assert len(loss.points) <= POINTS
    assert (loss.last, loss.thinned) == (3 * POINTS - 1, 4)
    assert len(told.curves) <= 64
    assert told.bad == 1
    assert told.progress is None


def progress(t: float, done: float, total: float | None = 100, **more: object) -> dict[str, object]:
    return {"kind": "progress", "t": t, "done": done, "total": total, **more}


def test_pace_counts_down_and_begins_anew_with_another_phase() -> None:
    pace = Pace()
    for second in range(11):
        assert pace.add(progress(1000 + second, 2 * second))
    assert pace.now is not None and pace.now.left(1010) is None  # 20 % done, but in the first seconds
    pace = Pace(began=950)
    for second in range(11):
        assert pace.add(progress(1000 + second, 2 * second))
    now = pace.now
    assert now is not None
    assert now.rate == pytest.approx(2.0)
    assert now.left(1010) == pytest.approx(40)
    assert now.left(1020) == pytest.approx(30)
    assert now.left(2000) is None
    pace.add(progress(1011, 0, 50))
    assert pace.now is not None
    assert (pace.now.rate, pace.now.left(1011)) == (None, None)


def test_the_time_left_is_not_guessed_from_next_to_nothing() -> None:
    pace = Pace()
    for second in range(0, 61, 10):
        pace.add(progress(1000 + second, second / 15))
    assert pace.now is not None and pace.now.left(1060) is None  # a minute, but 4 % only
    pace.add(progress(1075, 5))
    assert pace.now is not None and pace.now.left(1075) == pytest.approx(95 * 15)


def test_pace_says_nothing_it_cannot_know() -> None:
    pace = Pace()
    assert pace.now is None
    pace.add(progress(1000, 5, None))
    assert pace.now is not None
    assert (pace.now.share, pace.now.left(1001)) == (None, None)
    pace.add(progress(1000.2, 6, None))
    assert pace.now.rate is None


@given(st.lists(st.floats(-1e9, 1e9), max_size=300), st.integers(0, 80))
def test_a_sparkline_fits_its_width(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)


def test_reading_a_long_story_takes_rounds_not_one_long_breath(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    line = json.dumps({"t": 1, "kind": "metric", "name": "loss", "value": 1.5, "step": 1}) + "\n"
    run.file("events.jsonl").write_text(line * 100_000)
    story = RunStory(run)
    begun = time.process_time()
    first = story.read()
    assert time.process_time() - begun < 3
    for _ in range(10):
        last = story.read()
    assert first.curves[0].thinned <= last.curves[0].thinned
    assert story.read() is last
