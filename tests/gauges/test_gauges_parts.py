"""What the gauges screen is made of: cards, curves, the running job in words; without a screen."""

from __future__ import annotations

import gzip

import pytest
from folders import DATA
from refusals import mentions

from vlmconsole.gauges.board import Board, Snapshot
from vlmconsole.gauges.curves import curve, thin
from vlmconsole.gauges.figures import Batch, Figure
from vlmconsole.gauges.recording import Replay
from vlmconsole.gauges.words import job_said
from vlmconsole.screens.gauges.cards import HEIGHT, arranged
from vlmconsole.text.units import in_unit

RECORDED = DATA / "gauges" / "bench-mlx.jsonl.gz"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Everything at the recording's end."""
    path = tmp_path_factory.mktemp("recording") / "bench.jsonl"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return Replay(path).to_end()


def test_both_sides_of_a_figure_stand_one_under_the_other(full: Snapshot) -> None:
    rows = arranged(full.tiles, ["gpu"], 6)
    keys = [[card.tile.key for card in row] for row in rows]
    for own, server in zip(keys[0][:3], keys[1][:3], strict=True):
        assert own.partition(".")[2] == server.partition(".")[2]
    assert keys[0][3] == "own.in_flight"
    assert keys[1][3] == "server.running" and rows[1][3].second is not None, "with what waits behind it"
    assert not any(key.startswith("gpu") for row in keys for key in row), "it never answered: a line says so"
    assert sorted(key for row in keys for key in row) == sorted({key for row in keys for key in row})
    for columns in range(1, 9):
        laid = arranged(full.tiles, ["gpu"], columns)
        assert max(len(row) for row in laid) <= columns
        assert sum(len(row) for row in laid) == sum(len(row) for row in rows), "no tile is lost by the width"


@pytest.mark.parametrize("width", [16, 17, 30])
def test_a_card_keeps_its_lines_and_its_width(full: Snapshot, width: int) -> None:
    for row in arranged(full.tiles, [], 6):
        for card in row:
            lines = card.lines(width)
            assert len(lines) == HEIGHT
            assert all(line.cell_length <= width for line in lines), card


def test_a_curve_is_broken_where_nothing_came_and_keeps_its_peaks() -> None:
    board = Board(lambda: 2000.0)
    for at in [*range(1000, 1100), *range(1200, 1300)]:
        board.take(Batch("host", float(at), {"host.cpu": Figure(1.0 if at == 1250 else 0.5)}))
    found = curve(board, "host.cpu", 900.0)
    assert [len(piece) for piece in found.pieces] == [100, 100] and not found.minutes
    assert curve(board, "host.cpu", 1150.0).pieces[0][0][0] == 1200.0
    assert curve(board, "gpu0.memory", 0.0).pieces == ()
    points = [(float(at), 9.0 if at == 4321 else 1.0) for at in range(10_000)]
    kept = thin(points, 600)
    assert len(kept) <= 600 and (4321.0, 9.0) in kept and list(kept) == sorted(kept)


def test_two_requests_far_apart_are_no_line() -> None:
    board = Board(lambda: 2000.0)
    for at in (1000.0, 1004.0, 1090.0):
        board.take(Batch("own", at, {"own.ttft": Figure(0.3, samples=(0.3,))}))
    assert [len(piece) for piece in curve(board, "own.ttft", 900.0).pieces] == [2, 1]


def test_of_a_day_the_minutes_come_before_the_last_fine_hour() -> None:
    board = Board(lambda: 40_000.0)
    for at in range(0, 8_000):
        board.take(Batch("host", float(at), {"host.cpu": Figure(0.5)}))
    found = curve(board, "host.cpu", 0.0)
    assert found.minutes
    times = [at for piece in found.pieces for at, _ in piece]
    assert times == sorted(times) and times[0] < 60 and times[-1] == 7999.0


def test_the_running_job_is_told_with_its_conditions() -> None:
    job = {"title": "Measure", "progress": {"done": 3.0, "total": 9.0, "unit": "cells", "note": "cell 3"}}
    spec = {"concurrency": 4, "image": "448x336", "output_tokens": 128, "server": "demo"}
    asked = job_said({**job, "conditions": {}, "spec": spec})
    assert mentions(asked, "Measure", "3 of 9 cells", "cell 3", "≤128 output", "C4", "server demo", "448x336")
    known = {"input_tokens": 1735, "output_tokens": 128, "client_concurrency": 4, "running_limit": 4, "cache": "off"}
    text = job_said({"title": "Sweep", "conditions": {"C4": {"input_tokens": 1}, "C4 B4": known}})
    assert mentions(text, "Sweep", "1735 input", "128 output", "C4 B4", "cache off")
    assert in_unit(200 * 1024**3, "bytes") == "200 GiB"
