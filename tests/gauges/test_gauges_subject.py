"""Every figure of the gauges belongs to the server or run that it names, also after a switch."""

from __future__ import annotations

from pathlib import Path

import pytest
from metrics_server import Clock

from vlmconsole.chats.store import ChatStore
from vlmconsole.gauges.board import Board
from vlmconsole.gauges.figures import Batch, Figure
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.runs.folder import RunFolder


def answer(store: ChatStore, server: str, ttft: float, tokens: int = 40) -> None:
    chat = store.new_chat(server=server)
    message = store.add(chat.id, "assistant", "", state="streaming", server=server)
    timing = {"ttft_s": ttft, "tpot_s": 0.02, "e2e_s": 1.0}
    store.finish(message.id, text="x", state="done", answer={"timing": timing, "usage": {"completion_tokens": tokens}})


def source(folder: Path, tick: Clock, server: str) -> OwnRequests:
    return OwnRequests(folder / "runs", folder / "chats.sqlite", server=server, clock=tick, wall=Clock(5000.0))


def run(folder: Path, name: str) -> RunFolder:
    made = RunFolder.create(folder / "runs", kind="bench", preset=name, spec={}, title=name, home=folder)
    made.set_state("running")
    return made


def test_answers_of_another_server_are_never_this_servers(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures", clock=Clock(4990.0))
    answer(store, "box-a", 0.631)
    answer(store, "demo", 0.1)
    answer(store, "box-a", 0.7)
    tick = Clock(0.0)
    own = source(tmp_path, tick, "demo")
    assert [batch.figures["own.ttft"].samples for batch in own.past()] == [(0.1,)]
    own.read()
    answer(store, "box-a", 0.8)
    waiting = store.add(store.new_chat(server="box-a").id, "assistant", "", state="streaming", server="box-a")
    tick.at = 1.0
    figures = own.read().figures
    assert "own.ttft" not in figures and figures["own.in_flight"].value == 0 and figures["own.throughput"].value == 0
    answer(store, "demo", 0.2)
    tick.at = 2.0
    figures = own.read().figures
    assert (figures["own.ttft"].samples, figures["own.ttft"].subject) == ((0.2,), "demo")
    assert waiting.state == "streaming"
    own.close()
    store.close()


def test_a_server_that_never_answered_shows_no_other_ones_past(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures", clock=Clock(4990.0))
    answer(store, "box-a", 0.631)
    store.close()
    wall, tick = Clock(5000.0), Clock(0.0)
    board, own = Board(wall), source(tmp_path, tick, "demo")
    board.expect(own.name, own.keys)
    for batch in [*own.past(), own.read()]:
        board.take(batch)
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.value, tile.p50, tile.p95) == (None, None, None)
    own.close()


def test_a_run_that_measures_begins_a_curve_of_its_own_and_so_does_the_chat_after_it(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures", clock=Clock(4990.0))
    wall, tick = Clock(5000.0), Clock(0.0)
    board, own = Board(wall), source(tmp_path, tick, "demo")
    board.expect(own.name, own.keys)
    answer(store, "demo", 0.1)
    for batch in [*own.past(), own.read()]:
        board.take(batch)
    measured = run(tmp_path, "grid")
    tick.at = 6.0
    board.take(own.read())  # the run is seen
    measured.events.metric("in_flight", 4)
    tick.at = 7.0
    board.take(own.read())
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.subject, tile.value, tile.p50) == (measured.name, None, None)
    measured.events.emit("request", ttft_s=0.9, tpot_s=0.01, output_tokens=128)
    answer(store, "demo", 0.1)
    tick.at = 8.0
    batch = own.read()
    board.take(batch)
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.subject, tile.value, tile.p50) == (measured.name, 0.9, 0.9)
    assert "1 chat answer" in tile.why
    assert board.snapshot().marks[-1].text.endswith(measured.name)
    assert batch.figures["own.throughput"].value == pytest.approx(128.0)
    measured.set_state("done")
    answer(store, "demo", 0.2)
    tick.at = 14.0
    board.take(own.read())
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.subject, tile.value, tile.p95) == ("demo", 0.2, 0.2)
    own.close()
    store.close()


def test_of_two_runs_that_measure_one_is_shown_and_the_other_named(tmp_path: Path) -> None:
    first, second = run(tmp_path, "a"), run(tmp_path, "b")
    tick = Clock(0.0)
    own = source(tmp_path, tick, "demo")
    own.read()
    for made, ttft in ((first, 0.1), (second, 0.9)):
        made.events.metric("in_flight", 2)
        made.events.emit("request", ttft_s=ttft, tpot_s=None, output_tokens=1)
    tick.at = 1.0
    batch = own.read()
    newest = max(first, second, key=lambda made: made.name)
    assert batch.figures["own.ttft"].samples == ((0.1,) if newest is first else (0.9,))
    assert batch.figures["own.in_flight"].value == 2
    assert "1 other run" in batch.figures["own.ttft"].note
    assert batch.job is not None and batch.job["run"] == newest.name
    own.close()


def test_a_server_that_came_up_at_another_address_begins_a_curve_of_its_own() -> None:
    board = Board(Clock(10.0))
    for at, value, subject in ((1.0, 5.0, "http://127.0.0.1:1"), (2.0, 7.0, "http://127.0.0.1:2")):
        board.take(Batch("server", at, {"server.running": Figure(value, subject=subject)}))
    series = board.series("server.running")
    assert series is not None and series.points() == [(2.0, 7.0)]


def test_a_subject_survives_a_recording() -> None:
    batch = Batch("own", 1.0, {"own.ttft": Figure(0.1, subject="demo"), "own.lag": Figure(None)})
    assert Batch.from_json(batch.to_json()) == batch
