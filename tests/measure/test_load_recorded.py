"""Every recorded stream of the real engines through the load client: over sockets, and at its recorded times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import documented
from replay import recorded_reply, replay

from vlmconsole.measure.client.framing import Framing, Mode
from vlmconsole.measure.client.replay import understand
from vlmconsole.measure.client.spill import CLOSED, WHOLE, Raw
from vlmconsole.measure.load import Body, LoadCell, Target, run_cell
from vlmconsole.runs.folder import RunFolder

RECORDED = documented()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_every_recorded_stream_over_real_sockets_gives_its_figures(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="bench", preset="recorded", spec={}, title="t", home=tmp_path)

    def pick(request: Any) -> Any:
        return recorded_reply(RECORDED[request["number"]][1])

    async with replay({"POST /v1/chat/completions": pick}) as player:
        bodies = [Body([json.dumps({"number": number}).encode()]) for number in range(len(RECORDED))]
        cell = LoadCell("recorded", Target.of(f"{player.url}/v1/chat/completions"), bodies, 8, lag_limit_s=60.0)
        await asyncio.to_thread(run_cell, cell, run)
    rows = {row["index"]: row for row in run.read_jsonl("requests.jsonl")}
    assert len(rows) == len(RECORDED)
    for number, (name, exchange) in enumerate(RECORDED):
        row, said = rows[number], exchange["documented"]
        assert row["finish_reason"] == said["finish"], name
        assert row["prompt_tokens"] == said.get("prompt"), name
        assert row["output_tokens"] == said.get("completion"), name
        assert row["cached_tokens"] == said.get("cached"), name
        assert (row["ttft_s"] is None) == (said["ttft"] is None), name
        failed = said["error"] or exchange["ended"] != "last chunk"
        assert (row["failure"] is not None) == failed, name
        assert row["counted"] != failed, name


@pytest.mark.parametrize(("name", "exchange"), RECORDED, ids=[name for name, _ in RECORDED])
def test_raw_reads_at_recorded_times_give_the_documented_ttft(name: str, exchange: dict[str, Any]) -> None:
    reads = [(1, [], HEAD)]
    for at, line in exchange["lines"]:
        data = line.encode()
        reads.append((round(at * 1e9), [], b"%x\r\n%s\r\n" % (len(data), data)))
    whole = exchange["ended"] == "last chunk"
    last = reads[-1][0]
    if whole:
        reads.append((last, [], b"0\r\n\r\n"))
    one = understand(Raw(0, "measured", 0, 0, 0, 0, None, 0, 1, last, WHOLE if whole else CLOSED, "", reads))
    said = exchange["documented"]
    assert one.timing.ttft_s == pytest.approx(said["ttft"])
    assert one.result.events == said["events"]
    assert one.reads == len(reads)
    assert (one.failure is None) == (whole and not said["error"])


@given(st.integers(0, len(RECORDED) - 1), st.lists(st.integers(1, 400), max_size=60))
def test_framing_finds_the_end_however_the_bytes_are_split(number: int, cuts: list[int]) -> None:
    exchange = RECORDED[number][1]
    lines = [line.encode() for _, line in exchange["lines"]]
    data = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines) + b"0\r\n\r\n"
    framing, at, ended = Framing(), 0, []
    for size in [*cuts, len(data)]:
        piece = data[at : at + size]
        at += size
        if piece:
            ended.append(framing.feed(piece))
    assert ended[-1]
    assert not any(ended[:-1])
    assert framing.keep_alive
    assert framing.status == 200


@pytest.mark.parametrize(
    ("data", "mode", "ended", "keep"),
    [
        (b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno", Mode.LENGTH, True, True),
        (b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nno", Mode.LENGTH, False, True),
        (b"HTTP/1.1 200 X\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n", Mode.CHUNKED, False, False),
        (b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", Mode.CHUNKED, True, True),
        (b"HTTP/1.0 200 X\r\n\r\ndata", Mode.UNTIL_CLOSE, False, False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 X\r\n\r\n", Mode.HEAD, True, True),
        (b"HTTP/1.1 ", Mode.HEAD, False, True),
        (b"SSH-2.0-OpenSSH", Mode.GARBAGE, True, False),
        (b"HTTP/1.1 abc\r\n\r\n", Mode.GARBAGE, True, False),
    ],
)
def test_framing_of_each_kind_of_response(data: bytes, mode: Mode, ended: bool, keep: bool) -> None:
    framing = Framing()
    assert framing.feed(data) is ended
    assert (framing.mode, framing.keep_alive) == (mode, keep)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_no_bytes_whatever_break_the_reader_or_the_parser(pieces: list[bytes]) -> None:
    framing = Framing()
    for piece in pieces:
        framing.feed(piece)
    reads = [(i + 1, [], piece) for i, piece in enumerate(pieces)]
    one = understand(Raw(0, "measured", 0, 0, 0, 0, None, 0, 1, len(pieces) + 1, CLOSED, "", reads))
    assert one.failure is not None
    assert one.failure.detail


def test_a_large_first_read_with_head_and_body_is_no_endless_head() -> None:
    framing = Framing()
    assert framing.feed(HEAD + b"11170\r\n" + b"x" * 0x11170 + b"\r\n0\r\n\r\n")
    assert framing.keep_alive
    assert Framing().feed(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)
