"""Streams that are not as they should be: every piece is read or counted, in a time that goes with the length."""

import gzip
import json
import time

import pytest
from folders import ROOT
from test_stream import chunk, whole

from vlmconsole.client.answer import Answer
from vlmconsole.client.sight import LOCAL, PROBE, TextTokens, look
from vlmconsole.evaluation.run import ENDINGS
from vlmconsole.evaluation.served import _said as said_of
from vlmconsole.models.messages import Message
from vlmconsole.streams import sse, stream
from vlmconsole.streams.ending import NO_ANSWER, remarks
from vlmconsole.streams.sse import EventSplitter
from vlmconsole.streams.stream import StreamParser
from vlmconsole.streams.timing import timing
from vlmconsole.vision.images import open_picture

PICTURE = ROOT / "assets" / "pictures" / "scene-few.png"
DONE = "data: [DONE]\n\n"


def obj(text: str, **more: object) -> str:
    return json.dumps(
        {"id": "c-1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}], **more}
    )


@pytest.mark.parametrize(
    ("body", "text", "unreadable"),
    [
        (f"data: {obj('a')}{obj('b')}\n\n", "ab", 0),
        (f"data: {obj('a')} data: {obj('b')}\n\n", "ab", 0),
        (f"data: {obj('a')}\n\ndata: {obj('b')}data: [DONE]\n\n", "ab", 0),
        (f"data: {obj('a')}[DONE]\n\n", "a", 0),
        (f'data: {{"id":"c-1","object":"chdata: {obj("b")}\n\n', "b", 1),
        (f'data: {{"id":"c-1","object":"ch{obj("b")}\n\n', "b", 1),
        (f'data: {obj("a")}\n\ndata: {{"id":"c-1","object":"ch\n\ndata: {obj("b")}\n\n', "ab", 1),
        (f'data: {{"id":"c-1","object":"ch\ndata: {obj("b")}\ndata: {obj("c")}\n', "bc", 1),
        (f"data: {obj('a')}}}\n\n", "a", 1),
        (f"data: {obj('a')}\n\nupstream connect error\n\ndata: {obj('b')}\n\n", "ab", 1),
        (f"data: {obj('a')}\n\ndata: 7\n\n", "a", 1),
        (f"data:{obj('a')}\r\rdata:{obj('b')}\n\r\n\r", "ab", 0),
        (f"\ufeffdata: {obj('a')}\n\n\ufeffdata: {obj('b')}\n\n", "ab", 0),
        (f"data: {obj('a')}\0\n\n\0data: {obj('b')}\n\n", "ab", 0),
        (f"  data: {obj('a')}\n \ndata: {obj('b')}\n\n", "ab", 0),
        (f"data:\n\ndata: {obj('a')}\n\nevent: ping\ndata: now\n\nx-note: 1\n\n", "a", 0),
        ('data: {"choices": [{"delta": {"content": "a\tb"}}]}\n\n', "a\tb", 0),
        (f"data: {obj('a')}\ndata: {obj('b')}\ndata: [DONE]", "ab", 0),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_glued_and_cut_events_are_read_or_counted(body: str, text: str, unreadable: int, size: int) -> None:
    data = (body + ("" if "[DONE]" in body else "\n" + DONE)).encode()
    parser = StreamParser(sent=0.0)
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size], 1.0)
    parser.finish(1.0)
    result = parser.result
    assert (result.text, result.unreadable, result.ended, result.error) == (text, unreadable, "done", None)
    assert bool(result.loss) == bool(unreadable)


def test_data_over_several_lines_with_objects_inside_is_one_event() -> None:
    lines = [
        '{"choices": [',
        '{"delta": {"content": "a"},',
        '"index": 0',
        "}",
        '], "usage": ',
        '{"prompt_tokens": 4}',
        "}",
    ]
    result = whole("".join(f"data: {line}\n" for line in lines) + f"data: {obj('b')}\n\n" + DONE)
    assert (result.text, result.unreadable, result.usage.prompt_tokens) == ("ab", 0, 4)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gzip.compress((chunk("red") + DONE).encode()), "gzip"),
        ((chunk("red") + DONE).encode("utf-16"), "UTF-16"),
        ((chunk("red") + DONE).encode("utf-16-be"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(256)), "zstd"),
    ],
    ids=["gzip", "utf-16", "utf-16-be", "zstd"],  # packed bytes hold the time, and workers must agree on a test's name
)
def test_a_packed_body_is_named(body: bytes, words: str) -> None:
    result = whole(body)
    assert result.ended == "error" and words in (result.error or "")


def test_bytes_that_are_no_text_are_said() -> None:
    latin = 'data: {"choices": [{"delta": {"content": "caf\xe9"}}]}\n\n'.encode("latin-1")
    result = whole(latin + DONE.encode())
    assert (result.text, result.garbled, result.unreadable) == ("caf\ufffd", 1, 0) and "UTF-8" in result.loss


def test_a_stream_without_data_in_front_is_read_without_times() -> None:
    result = whole(obj("a") + "\n" + obj("b").replace('"delta"', '"finish_reason": "stop", "delta"') + "\n")
    assert (result.text, result.ended, result.streamed, result.unreadable) == ("ab", "done", False, 0)
    assert whole(obj("a") + "\n" + obj("b") + "\n").ended == "cut"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"message": "slot lost", "code": 500}, "slot lost"),
        ({"type": "error", "error": {"type": "overloaded", "message": "later"}}, "later"),
        ({"errors": [{"message": "no room"}]}, "no room"),
        ({"title": "Bad", "status": 500, "detail": {"error": "boom"}}, "boom"),
        ({"error": {"error": {"error": {"message": "deep"}}}}, "deep"),
    ],
)
def test_an_error_of_any_shape_in_mid_stream_keeps_its_words(value: dict, words: str) -> None:
    result = whole(chunk("half") + f"data: {json.dumps(value)}\n\n")
    assert (result.text, result.ended, result.error) == ("half", "error", words)


def test_every_name_of_a_model_is_kept_in_order() -> None:
    events = [obj("a", model="asked"), obj("b", model="other"), obj("c", model="asked"), obj("d", model=7)]
    result = whole("".join(f"data: {event}\n\n" for event in events) + DONE)
    assert (result.models, result.model) == (["asked", "other"], "asked")


HOSTILE = {
    "lines without blank lines": b'data: {"choices": [\n',
    "an array that never ends": b"data: [\n",
    "text lines": b"data: x\n",
    "quotes": b'data: "\\"\\"\\"\n',
    "glued": b'data: {"a": ["data: [1,\n\n',
    "empty objects": b"data: {}\n\n",
    "an endless line": b"x" * 60,
    "an endless data line": b"data: [" * 9,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_stream_takes_more_than_a_time_that_goes_with_its_length(name: str) -> None:
    """Work is counted, not seconds: twice the bytes may take about twice as long, never four times."""

    def took(reads: int) -> float:
        parser, piece = StreamParser(sent=0.0), HOSTILE[name] * (65536 // len(HOSTILE[name]))
        begun = time.process_time()
        for _ in range(reads):
            parser.feed(piece, 1.0)
        parser.finish(1.0)
        return time.process_time() - begun

    short, long = took(4), took(16)
    assert long < 10 * short + 0.5, (short, long)


def test_an_event_of_many_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 10_000)
    splitter = EventSplitter()
    for _ in range(1000):
        splitter.feed(b"data: {\n", 1.0)
    assert splitter.dropped > 5 and splitter._size <= 10_000
    result = whole(b"data: [\n" * 1000 + (chunk("after") + DONE).encode())
    assert result.text == "after" and result.unreadable > 5


def test_a_stream_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_STREAM", 100_000)
    parser = StreamParser(sent=0.0)
    for _ in range(200):
        parser.feed(b"data: {}\n\n" * 100, 1.0)
    parser.finish(1.0)
    assert parser.full and parser.result.ended == "error" and "one answer" in (parser.result.error or "")


def choices(*each: dict[str, object]) -> str:
    return "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in each) + DONE


def piece(text: str) -> dict[str, object]:
    return {"delta": {"content": text}}


def message(text: object, **more: object) -> dict[str, object]:
    return {"message": {"role": "assistant", "content": text}, **more}


@pytest.mark.parametrize(
    ("body", "text", "unreadable"),
    [
        (choices(piece("four "), piece("dots"), message("four dots", delta={}, finish_reason="stop")), "four dots", 0),
        (choices(piece("four "), piece("dots"), message("four dots", delta=None)), "four dots", 0),
        (choices(*map(message, ("fo", "four", "four do", "four dots"))), "four dots", 0),
        (choices(piece(" four "), piece("dots\n"), message("four dots")), " four dots\n", 0),
        (choices(piece("four "), message("four dots")), "four dots", 0),
        (choices(piece("four "), piece("dots"), message(None)), "four dots", 0),
        (choices(message("four ", **piece("four ")), message("four dots", **piece("dots"))), "four dots", 0),
        (choices(message("", **piece("four ")), message("four ", **piece("dots"))), "four dots", 0),
        (choices(piece("four "), piece("dots"), message("five dots")), "four dots", 1),
        (choices(piece("four "), piece("dots"), message("four")), "four dots", 1),
        (choices(piece("four "), piece("\ud83d"), piece("\ude00"), message("four \U0001f600")), "four \U0001f600", 0),
        (choices(message([{"type": "text", "text": "four"}]), message("four dots")), "four dots", 0),
        (json.dumps({"choices": [message("four dots", finish_reason="stop")]}), "four dots", 0),
    ],
)
def test_a_message_in_a_stream_is_the_text_so_far(body: str, text: str, unreadable: int) -> None:
    result = whole(body)
    assert (result.text, result.unreadable, result.ended) == (text, unreadable, "done")


def test_reasoning_of_a_message_is_not_doubled_and_short_messages_cost_no_square() -> None:
    final = {"message": {"reasoning_content": "hm", "content": "red"}}
    result = whole(choices({"delta": {"reasoning_content": "hm"}}, piece("red"), final))
    assert (result.reasoning, result.text, result.unreadable) == ("hm", "red", 0)
    start = time.monotonic()
    many = whole(choices(*[piece("x" * 100_000)] * 30, *[message("y", **piece("z"))] * 20_000))
    assert (len(many.text), many.unreadable) == (3_020_000, 20_000)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("reasons", "finish"),
    [
        (["", "stop", ""], "stop"),
        (["stop", ""], "stop"),
        (["length", "stop"], "length"),
        (["length", None, " "], "length"),
        (["stop", "length"], "length"),
        (["content_filter", "stop"], "content_filter"),
        ([""], None),
    ],
)
def test_the_first_telling_reason_to_finish_stays(reasons: list[str | None], finish: str | None) -> None:
    assert (
        whole(choices(piece("red"), *({"delta": {}, "finish_reason": one} for one in reasons))).finish_reason == finish
    )


CALL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}]}
STOP = {"delta": {}, "finish_reason": "stop"}
THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}


@pytest.mark.parametrize(
    ("body", "text", "reasoning", "codes"),
    [
        (choices({"delta": {"content": 4}}, STOP), "", "", ["lost"]),
        (choices({"delta": {"content": True}}, STOP), "", "", ["lost"]),
        (choices({"delta": {"content": {"type": "hologram", "data": "x"}}}, STOP), "", "", ["lost"]),
        (choices({"delta": {"content": [{"type": "image_url", "image_url": "x"}]}}, STOP), "", "", ["lost"]),
        (choices({"delta": "four"}, STOP), "", "", ["lost"]),
        (choices({"delta": {"content": {"type": "text", "text": "four"}}}, STOP), "four", "", []),
        (choices({"text": "four "}, {"text": "dots", "finish_reason": "stop"}), "four dots", "", []),
        (
            choices({"delta": {"refusal": "can"}}, {"delta": {"refusal": "not."}}),
            "",
            "",
            ["refused"],
        ),
        (choices({"delta": {"content": [{"type": "refusal", "refusal": "no"}]}}, STOP), "", "", ["refused"]),
        (json.dumps({"choices": [{"message": {"refusal": "I cannot."}}]}), "", "", ["refused", "whole"]),
        (choices({"delta": CALL}, {"delta": CALL}, {"delta": {}, "finish_reason": "tool_calls"}), "", "", ["called"]),
        (choices({"delta": {"function_call": {"name": "look"}}}, STOP), "", "", ["called"]),
        (choices(piece("Let me look."), {"delta": CALL}, STOP), "Let me look.", "", ["tools"]),
        (choices({"delta": {"content": [THINKING]}}, piece("four"), STOP), "four", "hmm", []),
        (choices({"delta": {"content": [THINKING]}}, STOP), "", "hmm", ["reasoning"]),
        (choices({"delta": {"content": "", "thinking": "hmm"}}, STOP), "", "hmm", ["reasoning"]),
        (
            choices({"delta": {"reasoning_details": [{"text": "hmm"}]}}),
            "",
            "hmm",
            ["reasoning"],
        ),
        (choices(STOP), "", "", ["empty"]),
    ],
)
def test_what_came_in_place_of_words_is_named(body: str, text: str, reasoning: str, codes: list[str]) -> None:
    result = whole(body)
    assert (result.text, result.reasoning, result.ended) == (text, reasoning, "done")
    noted = remarks(result)
    assert [remark.code for remark in noted] == codes
    assert bool(text) == NO_ANSWER.isdisjoint(codes)
    assert "refused" not in codes or any("not." in remark.text or "no" in remark.text for remark in noted)


def test_names_and_reasons_of_a_server_stay_on_their_line() -> None:
    forged = {"model": "M\x1b[31m\nwarning: X", "choices": [{"delta": {"content": "a"}, "finish_reason": "x\ny"}]}
    noted = remarks(whole(f"data: {json.dumps(forged)}\n\n{DONE}"), asked="toy\r1", listed=("a\nb",))
    assert {remark.code for remark in noted} == {"ended", "model"}
    assert all(remark.text.isprintable() for remark in noted)


@pytest.mark.parametrize("text", [TextTokens(2, LOCAL), TextTokens(2, PROBE), TextTokens(None, "none")])
@pytest.mark.parametrize("more", [{}, {"prompt_tokens_details": {"image_tokens": 0}}])
def test_a_prompt_of_no_tokens_is_no_alarm(text: TextTokens, more: dict[str, object]) -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, **more}
    result = whole(chunk("red") + f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n" + DONE)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (None, None)
    assert result.usage.raw == [usage]
    sight = look([Message("user", "what?", (open_picture(PICTURE),))], result.usage, text, None)[0]
    assert (sight.state, sight.observed) == ("not verifiable", None)
    assert "prompt tokens" in sight.why and "reported 0" in sight.why


def test_a_zero_after_a_count_takes_nothing_away_and_an_empty_answer_may_have_none() -> None:
    each = ({"prompt_tokens": 9, "completion_tokens": 0}, {"prompt_tokens": 0})
    result = whole(chunk() + "".join(f"data: {json.dumps({'choices': [], 'usage': one})}\n\n" for one in each) + DONE)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (9, 0)


@pytest.mark.parametrize(
    ("body", "code", "answered"),
    [
        (choices({"delta": {"refusal": "no"}}, STOP), "refused", True),
        (choices({"delta": CALL}, STOP), "called", True),
        (choices(piece("red"), {"delta": CALL}, STOP), "tools", True),
        (choices({"delta": {"content": 4}}, STOP), "lost", False),
    ],
)
def test_an_evaluation_keeps_the_remark_or_sets_the_answer_aside(body: str, code: str, answered: bool) -> None:
    result = whole(body)
    kept = said_of(Answer(result, timing(result), remarks=remarks(result)))
    assert kept.remarks == (code,) and code in ENDINGS
    assert (kept.answer is not None) == answered
