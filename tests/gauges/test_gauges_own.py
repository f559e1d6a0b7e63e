"""What feeds the gauges on this machine: own requests, running jobs, the machine itself; and the command."""

import errno
import io
import json
import os
import sqlite3
import time
from pathlib import Path

import pytest
from metrics_server import Clock
from refusals import check_stderr, mentions
from rich.console import Console

from vlmconsole.chats.store import ChatStore
from vlmconsole.cli import main
from vlmconsole.cli.gauges import _table
from vlmconsole.engines.profile import make_profile
from vlmconsole.gauges.board import Board, GaugeTile, Snapshot, SourceState
from vlmconsole.gauges.feed import RequestFeed
from vlmconsole.gauges.figures import Batch, SourceError
from vlmconsole.gauges.machine import HostSource, NvidiaSource, parse_vm_stat
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.gauges.sources import Gauges, default_sources
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.units import in_unit

# -- series ------------------------------------------------------------------------------------------------------


def own(tmp_path: Path, tick: Clock, feed: RequestFeed | None = None) -> OwnRequests:
    return OwnRequests(tmp_path / "runs", tmp_path / "chats.sqlite", feed, clock=tick, wall=Clock(5000.0))


def test_what_is_fed_in_becomes_figures(tmp_path: Path) -> None:
    feed, tick = RequestFeed(), Clock(0.0)
    source = own(tmp_path, tick, feed)
    source.read()
    with feed.request() as done, feed.request():
        tick.at = 1.0
        assert source.read().figures["own.in_flight"].value == 2
        done(ttft_s=0.2, tpot_s=0.01, output_tokens=100)
    with feed.request() as done:
        done(ttft_s=None, tpot_s=None, output_tokens=None)
    tick.at = 2.0
    figures = source.read().figures
    assert figures["own.in_flight"].value == 0
    assert figures["own.ttft"].samples == (0.2,)
    assert figures["own.throughput"].value == pytest.approx(50)
    assert mentions(figures["own.throughput"].note, "1 answer", "without a token count")
    tick.at = 3.0
    assert "own.ttft" not in source.read().figures
    tick.at = 12.5
    assert source.read().figures["own.throughput"].value == 0
    source.close()


@pytest.mark.parametrize("period", [0.96, 1.0, 1.04, 1.3])
def test_throughput_is_over_the_time_that_was_counted_however_far_apart_the_looks_are(
    tmp_path: Path, period: float
) -> None:
    """Ten looks 1.04 s apart hold 10.4 s of answers: over a round 10 s they would be 4 % too many."""
    feed, tick = RequestFeed(), Clock(0.0)
    source = own(tmp_path, tick, feed)
    for look in range(90):
        tick.at = look * period
        value = source.read().figures["own.throughput"].value
        assert look == 0 or value == pytest.approx(100)
        with feed.request() as done:
            done(ttft_s=0.1, tpot_s=0.01, output_tokens=round(100 * period))
    source.close()


def test_answers_of_a_chat_in_another_process_are_seen(tmp_path: Path) -> None:
    tick = Clock(0.0)
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    chat = store.new_chat()
    answer = {"timing": {"ttft_s": 0.3, "tpot_s": 0.02}, "usage": {"completion_tokens": 40}}
    old = store.add(chat.id, "assistant", "", state="streaming")
    store.finish(old.id, text="old", state="done", answer=answer)
    source = own(tmp_path, tick)
    assert "own.ttft" not in source.read().figures, "what was answered before is not of now"
    new = store.add(chat.id, "assistant", "", state="streaming")
    tick.at = 1.0
    assert source.read().figures["own.in_flight"].value == 1
    store.finish(new.id, text="new", state="done", answer=answer)
    quick = store.add(chat.id, "assistant", "", state="streaming")  # begins and ends between two readings
    store.finish(quick.id, text="x", state="stopped", answer={"timing": {"ttft_s": 0.5}, "usage": {}})
    tick.at = 2.0
    figures = source.read().figures
    assert sorted(figures["own.ttft"].samples) == [0.3, 0.5]
    assert figures["own.in_flight"].value == 0
    assert figures["own.throughput"].value == pytest.approx(20)
    tick.at = 3.0
    assert "own.ttft" not in source.read().figures
    source.close()
    store.close()


def test_what_was_asked_before_the_first_look_is_told_with_its_own_time(tmp_path: Path) -> None:
    """Who asks in the chat and then opens the gauges sees the figures of what was asked."""
    wall = Clock(1000.0)
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures", clock=wall)
    chat = store.new_chat()
    for at, ttft in ((1000.0, 9.0), (1900.0, 0.3), (1990.0, 0.5)):
        wall.at = at
        asked = store.add(chat.id, "assistant", "", state="streaming")
        answer = {"timing": {"ttft_s": ttft, "tpot_s": 0.02, "e2e_s": 1.5}, "usage": {"completion_tokens": 40}}
        store.finish(asked.id, text="x", state="done", answer=answer)
    store.finish(
        store.add(chat.id, "assistant", "", state="streaming").id, text="?", state="failed", answer={"timing": 3}
    )
    wall.at = 2000.0
    board = Board(wall)
    source = OwnRequests(tmp_path / "runs", tmp_path / "chats.sqlite", clock=Clock(0.0), wall=wall)
    board.expect(source.name, source.keys)
    for batch in [*source.past(), source.read()]:
        board.take(batch)
    series = board.series("own.ttft")
    assert series is not None and series.points() == [(1901.5, 0.3), (1991.5, 0.5)]
    tile = board.snapshot().tiles["own.ttft"]
    assert (tile.value, tile.age_s, tile.state) == (0.5, 8.5, "ok")
    assert source.read().figures["own.throughput"].value in (None, 0), "what ended before is no throughput of now"
    source.close()
    store.close()
    (tmp_path / "chats.sqlite").write_bytes(b"no database at all" * 40)
    broken = OwnRequests(tmp_path / "runs", tmp_path / "chats.sqlite", clock=Clock(0.0), wall=wall)
    assert broken.past() == []
    broken.close()


@pytest.mark.parametrize(
    "kept",
    ['{"timing": {"ttft_s": "abc"}}', '{"timing": {"ttft_s": -5, "tpot_s": true}}', "[" * 100_000, "[1]",
     '{"timing": [1], "usage": [1]}', '{"timing": {"ttft_s": ' + "9" * 400 + ', "e2e_s": ' + "9" * 400 + "}}"],
)  # fmt: skip
def test_a_damaged_answer_is_no_figure_and_no_end_of_the_readings(tmp_path: Path, kept: str) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures", clock=Clock(4990.0))
    chat = store.new_chat()
    asked = store.add(chat.id, "assistant", "", state="streaming")
    store.finish(asked.id, text="x", state="done", answer={"timing": {"ttft_s": 0.3}})
    store.close()
    with sqlite3.connect(tmp_path / "chats.sqlite") as db:
        db.execute("UPDATE messages SET answer = ?", (kept,))
    source = own(tmp_path, Clock(0.0))
    assert source.past() == []
    assert "own.ttft" not in source.read().figures
    source.close()


def test_a_fault_in_what_was_before_does_not_keep_back_what_is_now(tmp_path: Path) -> None:
    class Faulty(OwnRequests):
        def past(self) -> list[Batch]:
            raise KeyError("fault")

    with Gauges([Faulty(tmp_path / "runs", tmp_path / "chats.sqlite")], interval=0.05) as gauges:
        until = time.monotonic() + 20
        while gauges.snapshot().sources["own"].state != "ok" and time.monotonic() < until:
            time.sleep(0.02)
        assert gauges.snapshot().sources["own"].state == "ok"


def test_a_running_job_is_followed_with_its_conditions_and_marks(tmp_path: Path) -> None:
    tick = Clock(0.0)
    run = RunFolder.create(tmp_path / "runs", kind="bench", preset="main", spec={}, title="Main", home=tmp_path)
    run.set_state("running")
    run.write_json("conditions.json", {"client_concurrency": 4, "model": "tiny", "cache": None})
    run.events.emit("request", ttft_s=9.0, output_tokens=1)
    source = own(tmp_path, tick)
    source.read()
    run.events.emit("request", ttft_s=0.25, tpot_s=0.01, output_tokens=128)
    run.events.emit("request", ttft_s="NaN", tpot_s=True, output_tokens="many")
    run.events.metric("in_flight", 4)
    run.events.metric("client_lag_s", 0.0011)
    run.events.emit("mark", text="cell 3")
    run.events.progress(3, 9, "cell")
    tick.at = 1.0
    batch = source.read()
    assert batch.figures["own.ttft"].samples == (0.25,)
    assert batch.figures["own.in_flight"].value == 4 and batch.figures["own.lag"].value == 0.0011
    assert [mark.text for mark in batch.marks] == ["cell 3", f"client figures: {run.name}"]
    assert batch.job is not None and batch.job["run"] == run.name
    assert batch.job["conditions"] == {"client_concurrency": 4, "model": "tiny"}
    assert batch.job["progress"]["done"] == 3
    run.set_state("done")
    tick.at = 7.0
    batch = source.read()
    assert batch.job is None and batch.figures["own.lag"].value is None and batch.figures["own.in_flight"].value == 0
    source.close()


# -- the machine -------------------------------------------------------------------------------------------------


def test_this_machine_and_its_cards(tmp_path: Path) -> None:
    source = HostSource(tmp_path)
    source.read()
    figures = source.read().figures
    cpu, memory, disk = (figures[key] for key in source.keys)
    assert cpu.value is not None and 0 <= cpu.value <= 1
    for figure in (memory, disk):
        assert figure.value is not None and figure.total is not None and 0 < figure.value < figure.total
    try:
        assert "gpu0.memory" in NvidiaSource().read().figures
    except SourceError as error:
        assert error.message.startswith("no NVIDIA GPU: ") and len(error.message) > len("no NVIDIA GPU: ")


def test_vm_stat_of_a_mac_is_read() -> None:
    """Written after Apple's format; not run on a Mac."""
    text = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
Pages active:                            250000.
Pages inactive:                          240000.
Pages speculative:                         1000.
Pages wired down:                        110000.
Pages purgeable:                           2000.
Pages stored in compressor:              300000.
Pages occupied by compressor:             90000.
"""
    assert parse_vm_stat(text) == (250000 + 110000 + 90000) * 16384
    with pytest.raises(SourceError):
        parse_vm_stat("something else")


# -- the command -------------------------------------------------------------------------------------------------


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_gauges_once_as_json_is_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--home", str(tmp_path), "gauges", "--json", "--record", str(tmp_path / "r.jsonl")) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["tiles"]["host.memory"]["value"] > 0 and whole["tiles"]["host.memory"]["source"] == "host"
    assert whole["tiles"]["own.in_flight"]["value"] == 0
    assert whole["sources"]["server"]["state"] == "missing" and "not running" in whole["sources"]["server"]["why"]
    assert run_cli("--home", str(tmp_path), "gauges", "--once", "--replay", str(tmp_path / "r.jsonl")) == 0
    shown = capsys.readouterr().out
    assert mentions(shown, "RAM", "GiB", "server demo", "not running")


def test_a_recording_is_named_as_the_shell_would_and_its_end_before_the_gauges_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("vlmconsole.gauges.recording.LARGEST", 1)
    assert run_cli("--home", str(tmp_path / "lab"), "--quiet", "gauges", "--json", "--record", "~/r.jsonl") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["tiles"], "the snapshot is whole"
    check_stderr(err, "recording", "1 B", str(tmp_path / "r.jsonl"))
    assert run_cli("--home", str(tmp_path / "lab"), "gauges", "--json", "--replay", "~/r.jsonl") == 0


@pytest.mark.parametrize(("largest", "code"), [(1, 1), (1 << 30, 130)])
def test_live_gauges_that_lost_their_recording_end_as_failed_under_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, largest: int, code: int
) -> None:
    def interrupted(_: Gauges) -> Snapshot:
        until = time.monotonic() + 20
        while not (tmp_path / "r.jsonl").stat().st_size and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr("vlmconsole.gauges.recording.LARGEST", largest)
    monkeypatch.setattr("vlmconsole.cli.gauges._settled", interrupted)
    assert run_cli("--home", str(tmp_path), "gauges", "--once", "--record", str(tmp_path / "r.jsonl")) == code
    assert ("the recording ended" in capsys.readouterr().err) == (code == 1)


@pytest.mark.parametrize(
    ("bad", "nouns"),
    [
        ("/dev/full", ("no file",)),
        (".", ("no file",)),
        ("/proc/self/x.jsonl", ("no file",)),
        ("none/r.jsonl", (os.strerror(errno.ENOENT),)),
        ("file/r.jsonl", (os.strerror(errno.ENOTDIR),)),
        ("~nouser-at-all/r.jsonl", ("~", "no user")),
    ],
)
def test_a_recording_that_cannot_be_written_is_refused_before_anything_starts(
    bad: str,
    nouns: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run_cli("--home", str(tmp_path / "lab"), "gauges", "--once", "--record", bad) == 2
    out, err = capsys.readouterr()
    assert out == ""
    check_stderr(err, bad, *nouns)


def test_a_recording_and_a_replay_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--record", str(tmp_path / "a"), "--replay", str(tmp_path / "b"))
    assert run_cli("--home", str(tmp_path), "gauges", *words) == 2
    assert mentions(capsys.readouterr().err, "--record", "--replay") and not (tmp_path / "a").exists()


def test_gauges_of_a_profile_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--home", str(tmp_path), "gauges", "--once", "--server", "nope") == 2
    check_stderr(capsys.readouterr().err, "server profile", "'nope'")


def test_figures_are_said_as_people_read_them() -> None:
    assert [in_unit(0.1643, "s"), in_unit(2.456, "s"), in_unit(0.87, "share"), in_unit(22870000000, "bytes")] == [
        "164 ms",
        "2.46 s",
        "87 %",
        "21.3 GiB",
    ]
    assert [in_unit(341.2, "tok/s"), in_unit(1234.5, "tok/s"), in_unit(4, ""), in_unit(None, "s")] == [
        "341 tok/s",
        "1234 tok/s",
        "4",
        "–",
    ]


def test_default_sources_follow_the_profile(tmp_path: Path) -> None:
    profile = make_profile(
        {"name": "far", "engine": "sglang", "base_url": "http://127.0.0.1:1", "ssh_host": "me@box:2222"}
    )
    names = [source.name for source in default_sources(Places(tmp_path), profile)]
    assert names[:4] == ["own", "server", "gpu", "host"] and names[-1] == "gpu@me@box"


@pytest.mark.parametrize("width", [100, 150])
def test_no_dash_is_without_its_reason(width: int) -> None:
    def tile(title: str, source: str, why: str = "") -> GaugeTile:
        return GaugeTile(title, title, None, "s", None, None, None, (), source, None, "none", why)

    tiles = {
        one.title: one for one in (tile("TTFT", "own"), tile("lag", "own", "no job measures"), tile("KV", "server"))
    }
    sources = {"own": SourceState("ok", "", "", 0.0, 2), "server": SourceState("missing", "not started", "", None)}
    console = Console(width=width, file=io.StringIO())
    console.print(_table(Snapshot(0.0, tiles, sources, (), None), width))
    said = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert mentions(said, "no request", "no job measures")
    assert said.count("not started") == 1, "why a whole source is silent is said once"
