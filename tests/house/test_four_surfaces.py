"""Cut, glued and reordered streams: chat screen, command, `bench` and evaluation read them alike and say the same.

Each is asked through its own code over a real socket: the screen's `ChatTurn`, the command's question and its ending, a
cell of the load client in its own process, and an evaluation's server side.
"""

import asyncio
import contextlib
import io
import json
import random
import re
import threading
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from odd_pictures import flag, saved
from recorded import body as bytes_of
from recorded import documented
from replay import Reply, json_reply, replay
from test_stream import whole

from vlmconsole.chats.store import ChatStore
from vlmconsole.cli import chat as command
from vlmconsole.cli.common import Failure, state
from vlmconsole.client.lag import LagMeter
from vlmconsole.data.example import Example, ExampleTurn
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.evaluation.resolve import resolve
from vlmconsole.evaluation.served import served
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.lab import LabSettings
from vlmconsole.measure.bench import MeasuredServer
from vlmconsole.measure.load import REQUESTS, Body, LoadCell, Target, run_cell
from vlmconsole.models.messages import Message
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.chat.message import foot
from vlmconsole.screens.chat.turn import ChatTurn
from vlmconsole.screens.link import ServerLink
from vlmconsole.streams.stream import StreamParser
from vlmconsole.text.plain import one_line

CHAT = "POST /v1/chat/completions"
PLAIN = json_reply({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


def events(*values: Any) -> bytes:
    return b"".join(f"data: {json.dumps(value)}\n\n".encode() for value in values)


def delta(model: str = "m", finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"id": "c", "model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 9}}
MADE = {
    "reasoning": events(delta(reasoning="so"), delta(content="re"), delta(content="d é", finish="stop"), USAGE),
    "thought alone": events(delta(reasoning_content="hm"), delta(finish="length"), USAGE),
    "empty": events(delta(role="assistant", content=""), delta(finish="stop"), USAGE),
    "another model": events(delta("other", content="red"), delta("other", finish="stop"), USAGE),
    "error": events(delta(content="half"), {"error": {"message": "out of memory", "code": 500}}),
    "limit": events(delta(content="a long"), delta(finish="length"), USAGE),
}
SMALL = sorted(
    {
        name: data for name, exchange in documented() if len(data := bytes_of(exchange)) < 2500 and b"[DONE]" in data
    }.items(),
    key=lambda item: len(item[1]),
)
STREAMS = [*(data + b"data: [DONE]\n\n" for data in MADE.values()), *(data for _, data in SMALL[:12])]
JUNK = (
    b"\0",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\xff",
    b": ping\n\n",
    b"event: ping\ndata: x\n\n",
    b"{",
    b"stray\n",
    b"data: ",
)


# --- what is done to a stream ---
def _events(data: bytes) -> list[bytes]:
    return [piece + b"\n\n" for piece in data.split(b"\n\n") if piece]


def cut(data: bytes, at: float, other: float) -> bytes:
    return data[: int(at * len(data))]


def glue(data: bytes, at: float, other: float) -> bytes:
    """One event's end and the next one's `data: ` are lost."""
    parts = _events(data)
    n = int(at * len(parts))
    if n + 1 >= len(parts):
        return data
    joined = parts[n].rstrip(b"\n") + (parts[n + 1].removeprefix(b"data: ") if other < 0.5 else parts[n + 1])
    return b"".join([*parts[:n], joined, *parts[n + 2 :]])


def swap(data: bytes, at: float, other: float) -> bytes:
    parts = _events(data)
    a, b = int(at * len(parts)), int(other * len(parts))
    parts[a], parts[b] = parts[b], parts[a]
    return b"".join(parts)


def lose(data: bytes, at: float, other: float) -> bytes:
    start = int(at * len(data))
    return data[:start] + data[start + 1 + int(other * 60) :]


def insert(data: bytes, at: float, other: float) -> bytes:
    start = int(at * len(data))
    return data[:start] + JUNK[int(other * len(JUNK))] + data[start:]


def close_up(data: bytes, at: float, other: float) -> bytes:
    return data.replace(b"\n\n", b"\n")


def ends(data: bytes, at: float, other: float) -> bytes:
    return data.replace(b"\n", b"\r\n" if at < 0.5 else b"\r")


def unchanged(data: bytes, at: float, other: float) -> bytes:
    return data


CHANGES: tuple[Callable[[bytes, float, float], bytes], ...] = (
    cut, glue, swap, lose, insert, close_up, ends, unchanged
)  # fmt: skip
part = st.floats(0, 0.999)
case = st.builds(
    lambda data, change, at, other, size: (change(data, at, other), size),
    st.sampled_from(STREAMS), st.sampled_from(CHANGES), part, part, st.sampled_from([1, 5, 80, 10_000]),
)  # fmt: skip


# --- the four surfaces ---
class Surfaces:
    """Asks all four for each body; `told` holds for each surface what it said of each."""

    def __init__(self, home: Path, bodies: list[bytes], sizes: list[int]) -> None:
        self.home, self.bodies, self.sizes = home, bodies, sizes
        self.url = ""

    def reply(self, request: Any) -> Reply:
        found = re.search(r"case-(\d+)-", json.dumps(request["messages"]))
        if request["max_tokens"] == 1 or found is None:
            return PLAIN  # a probe for the text's own tokens
        data, size = self.bodies[int(found[1])], self.sizes[int(found[1])]
        step = max(size, len(data) // 40 + 1)
        return Reply([data[start : start + step] for start in range(0, len(data), step)])

    def profile(self) -> ServerProfile:
        return ServerProfile(name="box", engine="openai", base_url=self.url, served_model="m")

    def question(self, number: int) -> list[Message]:
        return [Message("user", f"case-{number}-")]

    async def screen(self) -> list[dict[str, Any]]:
        link = ServerLink(self.profile(), Places(self.home).ensure(), lambda: None)
        with contextlib.closing(ChatStore(self.home / "chats.sqlite", self.home / "pictures")) as store:
            told = []
            for number in range(len(self.bodies)):
                chat = store.new_chat(server="box", title="t")
                store.set_chat(chat.id, sampling={"max_tokens": 64})
                chat = store.chat(chat.id)
                store.add(chat.id, "user", f"case-{number}-")
                empty = store.add(chat.id, "assistant", "", state="streaming", server="box")
                turn = ChatTurn(link, store, chat, empty, LabSettings(), show=lambda *_: None)
                message = await turn.run()
                foot_text = foot(message, begun=True).plain
                told.append(
                    {**(message.answer or {}), "kept": message.text, "words": foot_text, "state": message.state}
                )
        await link.close()
        return told

    def command(self) -> list[dict[str, Any]]:
        told = []
        for number in range(len(self.bodies)):
            out, lag = io.StringIO(), LagMeter()
            asked = {"max_tokens": 64, "temperature": 0.0, "chosen": True}
            answer = asyncio.run(command._asked(self.profile(), self.question(number), asked, "", False, lag))
            code, words = 0, ""
            with contextlib.redirect_stdout(out):
                try:
                    command._finish(answer, lag)
                except Failure as failure:
                    code, words = failure.exit_status, failure.message
            facts = json.loads(out.getvalue()) if not code else answer.to_json()
            told.append({**facts, "code": code, "words": words})
        return told

    def bench(self) -> list[dict[str, Any]]:
        run = RunFolder.create(self.home / "runs", kind="bench", preset="t", spec={}, title="t", home=self.home)
        asked = {"model": "m", "max_tokens": 64, "stream": True}
        bodies = [
            Body([json.dumps({**asked, "messages": [{"role": "user", "content": f"case-{n}-"}]}).encode()])
            for n in range(len(self.bodies))
        ]
        cell = LoadCell("t", Target.of(f"{self.url}/v1/chat/completions"), bodies, lag_limit_s=60.0)
        run_cell(cell, run)
        return sorted(run.read_jsonl(REQUESTS), key=lambda row: int(row["index"]))

    def evaluation(self) -> list[Any]:
        there = MeasuredServer(self.profile(), EffectiveSettings("openai", model="m"), "m")
        spec = EvaluateSettings(data=["small"], backend="server", server="box", paired=False, max_new_tokens=64)
        image = saved(flag(), "PNG")
        cases = (
            Example(str(n), (image,), (ExampleTurn("user", f"<image>case-{n}-"),)) for n in range(len(self.bodies))
        )
        items = [Namespace(id=case.id, example=case) for case in cases]
        with served(resolve(spec, Places(self.home)).before, there) as model:
            return model.ask(items)  # type: ignore[arg-type]

    async def ask(self) -> list[list[Any]]:
        async with replay({CHAT: self.reply}) as player:
            self.url = player.url
            return [
                await self.screen(),
                await asyncio.to_thread(self.command),
                await asyncio.to_thread(self.bench),
                await asyncio.to_thread(self.evaluation),
            ]


SAME = ("text", "reasoning", "finish_reason", "ended", "usage", "unreadable", "models", "streamed", "remarks")


def alike(home: Path, cases: list[tuple[bytes, int]]) -> None:
    bodies = [data for data, _ in cases]
    told = asyncio.run(Surfaces(home, bodies, [size for _, size in cases]).ask())
    for data, screen, asked, row, said in zip(bodies, *told, strict=True):
        for key in SAME:
            assert screen.get(key) == asked.get(key), (key, data)
        good = asked["ended"] == "done" and not asked["unreadable"]
        # Screen and command: the same words wherever something is to be said; a failure is never a silent 0.
        empty = not asked["text"].strip()
        assert (asked["code"] == 0) == (good and not empty), (asked, data)
        assert screen["kept"] == asked["text"]
        for remark in asked["remarks"]:
            assert remark["code"] == "whole" or one_line(remark["text"])[:60] in screen["words"], (
                remark,
                screen["words"],
            )
        if asked["ended"] == "error":
            assert one_line(asked["error"])[:60] in screen["words"] and asked["error"][:60] in asked["words"], data
        # Bench: counted just when the answer is whole.
        failure = row["failure"]
        assert (failure is None) == good, (failure, asked, data)
        assert (row["text"], row["models"]) == (asked["text"], asked["models"]), data
        assert row["unreadable"] == asked["unreadable"], data
        if failure is None:
            usage = asked["usage"]
            assert row["finish_reason"] == asked["finish_reason"], data
            assert (row["prompt_tokens"], row["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
        elif asked["ended"] == "error":
            assert asked["error"][:40] in failure["detail"], (failure, asked["error"])
        # Evaluation: an answer just when it is whole.
        assert said.http_ok == good, (said, data)
        if good:
            assert (said.answer, said.finish) == (asked["text"], asked["finish_reason"]), data
            codes = [one["code"] for one in asked["remarks"] if one["code"] not in ("whole", "unlisted")]
            assert list(said.remarks) == codes
        else:
            assert said.error, data


@pytest.fixture(name="home", scope="module")
def home_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("surfaces")


_serial = threading.Lock()


def _drawn(home: Path, cases: list[tuple[bytes, int]]) -> None:
    with _serial:
        was, state.json = state.json, True
        try:
            alike(home, cases)
        finally:
            state.json = was


def test_the_four_surfaces_say_the_same_of_whole_and_of_known_hurt_streams(home: Path) -> None:
    done, ping = b"data: [DONE]\n\n", b"event: ping\ndata: x\n\n"
    whole_body = json.dumps({"model": "m", "choices": [{"message": {"content": "red"}, "finish_reason": "stop"}]})
    known = [
        *STREAMS[: len(MADE)],
        glue(STREAMS[0], 0.3, 0.1), glue(STREAMS[0], 0.3, 0.9), close_up(STREAMS[0], 0, 0), ends(STREAMS[0], 0.9, 0),
        STREAMS[0][:150], b"", done, ping + STREAMS[0], whole_body.encode(), b"<html>no</html>",
        events(delta("m", content="a"), delta("other", content="b")) + done,
        b'data: {"id":"c","object":"ch' + events(delta(content="red"), USAGE) + done,
        events(delta(content="half")) + b"event: error\ndata: the server's own words\n\n",
    ]  # fmt: skip
    _drawn(home, [(data, 7) for data in known])


def test_the_four_surfaces_say_the_same_of_hurt_streams(home: Path) -> None:
    """A drawn handful, always the same one; the slow test below draws a thousand anew each time."""
    draw = random.Random(16)
    changed = [draw.choice(CHANGES)(draw.choice(STREAMS), draw.random(), draw.random()) for _ in range(24)]
    _drawn(home, [(data, draw.choice((1, 5, 80, 10_000))) for data in changed])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(cases=st.lists(case, min_size=40, max_size=40))
def test_the_four_surfaces_say_the_same_of_many_hurt_streams(home: Path, cases: list[tuple[bytes, int]]) -> None:
    _drawn(home, cases)


# --- at every byte, by the parser that all four share ---
@pytest.mark.parametrize("number", range(len(STREAMS)))
def test_a_stream_cut_or_split_at_any_byte_loses_nothing_in_silence(number: int) -> None:
    data = STREAMS[number]
    expected = whole(data)
    end = data.rfind(b"[DONE]") + len(b"[DONE]")
    for at in range(0, len(data), 1 if len(data) < 900 else 7):
        parser = StreamParser(sent=0.0)
        for start, stop in pairwise((0, at, len(data))):
            parser.feed(data[start:stop], 1.0)
        parser.finish(1.0)
        assert parser.result == expected
        short = whole(data[:at])
        assert expected.text.startswith(short.text.rstrip("\N{REPLACEMENT CHARACTER}")) and short.unreadable == 0
        assert short.ended in (("cut", "error") if at < end else ("done", "error"))


@pytest.mark.parametrize("number", range(len(STREAMS)))
def test_what_only_moves_the_frame_changes_nothing(number: int) -> None:
    data = STREAMS[number]
    expected = whole(data)
    parts = _events(data)
    moved = [close_up(data, 0, 0), ends(data, 0, 0), ends(data, 0.9, 0), b"\n".join(parts), b": ping\n\n".join(parts)]
    moved += [glue(data, n / len(parts), other) for n in range(len(parts)) for other in (0.1, 0.9)]
    for changed in moved:
        result = whole(changed)
        assert (result.text, result.reasoning, result.usage, result.finish_reason, result.ended, result.unreadable) == (
            expected.text, expected.reasoning, expected.usage, expected.finish_reason, expected.ended, 0
        ), changed  # fmt: skip


@pytest.mark.parametrize("number", range(0, len(STREAMS), 3))
def test_a_byte_that_is_lost_is_counted_or_leaves_a_whole_object(number: int) -> None:
    """A byte taken out of a text cannot be seen; one that breaks an event always is."""
    data = STREAMS[number]
    expected = whole(data)
    for at in range(0, len(data), 3):
        result = whole(data[:at] + data[at + 1 :])
        if result.events < expected.events and result.ended == "done":
            assert result.unreadable or result.error, (at, data[max(0, at - 20) : at + 20])
