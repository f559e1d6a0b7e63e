import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import ENGINES, body, documented, exchanges

from vlmconsole.streams import sse
from vlmconsole.streams.stream import MAX_TEXT, StreamParser, StreamResult, error_code, error_text
from vlmconsole.streams.timing import gaps, timing

RECORDED = documented()


def replay(lines: list[tuple[float, str]]) -> StreamResult:
    parser = StreamParser(sent=0.0)
    for at, line in lines:
        parser.feed(line.encode(), at)
    parser.finish(lines[-1][0] if lines else 0.0)
    return parser.result


def whole(data: bytes | str) -> StreamResult:
    parser = StreamParser(sent=0.0)
    parser.feed(data.encode() if isinstance(data, str) else data, 1.0)
    parser.finish(1.0)
    return parser.result


def chunk(text: str | None = None, **choice: object) -> str:
    delta = {} if text is None else {"content": text}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, **choice}]}) + "\n\n"


def test_the_recordings_are_here() -> None:
    assert len(RECORDED) > 130
    assert {name.split("/")[0] for name, _ in RECORDED} == set(ENGINES)


@pytest.mark.parametrize(("name", "exchange"), RECORDED, ids=[name for name, _ in RECORDED])
def test_recorded_stream_gives_its_documented_figures(name: str, exchange: dict) -> None:
    said = exchange["documented"]
    result = replay(exchange["lines"])
    times = timing(result)
    assert times.ttft_s == said["ttft"]
    assert result.events == said["events"]
    assert result.finish_reason == said["finish"]
    assert result.usage.events == said.get("usage_events", 0)
    assert result.usage.prompt_tokens == said.get("prompt")
    assert result.usage.completion_tokens == said.get("completion")
    assert result.usage.cached_tokens == said.get("cached")
    assert (result.error is not None) == said["error"]
    assert result.unreadable == 0
    if said["error"]:
        assert result.ended == "error"
    elif exchange["ended"] == "last chunk":
        assert result.ended == "done"
        assert times.e2e_s is not None and abs(times.e2e_s - said["end"]) < 0.12
    else:
        assert result.ended == "cut" and times.e2e_s is None


def test_every_recorded_error_body_is_said_in_one_line() -> None:
    seen = 0
    for engine in ENGINES:
        for case, some in exchanges(engine).items():
            for exchange in some:
                if (exchange["status"] or 0) < 400 or not body(exchange).startswith(b"{"):
                    continue
                seen += 1
                said = error_text(json.loads(body(exchange)))
                assert said and "\n" not in said and len(said) <= 300 and not said.startswith("{"), case
    assert seen > 50


def test_any_split_of_any_recorded_stream_gives_the_same() -> None:
    for _, exchange in RECORDED[::4]:
        data = body(exchange)
        expected = whole(data)
        for size in (1, 2, 3, 7, 64):
            parser = StreamParser(sent=0.0)
            for start in range(0, len(data), size):
                parser.feed(data[start : start + size], 1.0)
            parser.finish(1.0)
            assert parser.result == expected


ODD = (
    ": ping\n\n"
    'data: {"choices": []}\n\n'
    'data: {"id": "no choices at all"}\n\n'
    'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\r\n\r\n'
    'data: {"choices": [{"delta": {"role": "assistant", "content": "né\u2028\u0085\U0001f34e"}}]}\r\r'
    'data: {"choices": [{"delta": {"reasoning": "hm"}}], "usage": null}\n\n'
    'data: {"choices": [{"delta": {"content": null}, "finish_reason": "stop", "logprobs": NaN}]}\n\n'
    "data: {broken\n\n"
    "event: ping\ndata: {}\n\n"
    'data: {"choices": [], "usage": {"input_tokens": 9, "output_tokens": 5, "prompt_tokens_details": null}}\n\n'
    "id: 7\nretry: 10\n\n"
    "data: [DONE]\n\n"
).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, len(ODD)), max_size=40))
def test_odd_stream_split_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ODD)]
    parser = StreamParser(sent=0.0)
    told = []
    for start, end in pairwise(edges):
        told += parser.feed(ODD[start:end], 1.0)
    parser.finish(1.0)
    result = parser.result
    assert result.text == "né\u2028\u0085\U0001f34e" == "".join(d.text for d in told if d.kind == "text")
    assert result.reasoning == "hm" and result.finish_reason == "stop" and result.ended == "done"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (9, 5, None)
    assert result.unreadable == 1 and result.error is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_can_break_the_parser(pieces: list[bytes]) -> None:
    parser = StreamParser(sent=0.0)
    for piece in pieces:
        parser.feed(piece, 1.0)
    parser.finish(1.0)
    parser.result.text.encode()  # always valid text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40), st.integers(1, 7))
def test_any_text_survives(text: str, size: int) -> None:
    data = (chunk(text) + "data: [DONE]\n\n").encode()
    raw = (
        chunk(None) + f"data: {json.dumps({'choices': [{'delta': {'content': text}}]}, ensure_ascii=False)}\n\n"
    ).encode()
    for stream in (data, raw):
        parser = StreamParser(sent=0.0)
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size], 1.0)
        parser.finish(1.0)
        assert parser.result.text == text


def test_usage_twice_keeps_the_last_number_of_each_field() -> None:
    first = {
        "prompt_tokens": 5,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 3, "image_tokens": 2},
    }
    last = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}
    result = whole("".join(f"data: {json.dumps({'usage': u})}\n\n" for u in (first, last)) + "data: [DONE]\n\n")
    usage = result.usage
    assert (usage.completion_tokens, usage.cached_tokens, usage.image_tokens, usage.events) == (7, 3, 2, 2)
    assert usage.raw == [first, last]


def test_without_usage_nothing_is_guessed() -> None:
    result = whole(chunk("one two three") + chunk("four") + "data: [DONE]\n\n")
    assert result.usage.completion_tokens is None and result.usage.cached_tokens is None
    assert timing(result).tpot_s is None and timing(result).output_tokens_per_s is None


def test_wrong_types_in_usage_are_unknown_not_wrong() -> None:
    odd = {"prompt_tokens": True, "completion_tokens": "8", "cached_tokens": -1, "prompt_tokens_details": [1]}
    usage = whole(f"data: {json.dumps({'usage': odd})}\n\n").usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (None, None, None)


@pytest.mark.parametrize(
    ("tail", "said", "code"),
    [
        ('data: {"error": {"message": "full", "code": 503}}\n\ndata: [DONE]\n\n', "full", 503),
        ('data: {"error": "[metal] none"}\n\n', "[metal] none", None),
        ('event: error\ndata: {"message": "lost"}\n\n', "lost", None),
        ("event: error\ndata: out of memory\n\n", "out of memory", None),
        ('data: {"object": "error", "message": "flat", "code": 400}\n\n', "flat", 400),
        ('data: {"detail": "Not Found"}\n\n', "Not Found", None),
    ],
)
def test_error_in_mid_stream_keeps_the_text_before_it(tail: str, said: str, code: int | None) -> None:
    result = whole(chunk("half an ans") + tail)
    assert (result.text, result.ended, result.error, result.error_code) == ("half an ans", "error", said, code)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('{"error": {"message": "bad key"}}', "bad key"),
        ('{"detail": [{"loc": ["body", "messages"], "msg": "Field required"}]}', "body.messages: Field required"),
        ('{\n "object": "error",\n "message": "pretty"\n}', "pretty"),
    ],
)
def test_error_body_under_status_200(page: str, said: str) -> None:
    result = whole(page)
    assert (result.ended, result.error, result.text) == ("error", said, "")


@pytest.mark.parametrize("page", ["<html><body>Bad gateway</body></html>", "[1, 2]"])
def test_a_page_under_status_200_is_shown_as_it_came(page: str) -> None:
    result = whole(page)
    assert (result.ended, result.text) == ("error", "")
    assert result.error is not None and "chat stream" in result.error and result.error.endswith(page)


def test_a_whole_answer_instead_of_a_stream_has_no_inner_times() -> None:
    answer = {"choices": [{"message": {"content": "red"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
    result = whole(json.dumps(answer))
    times = timing(result)
    assert (result.text, result.ended, result.streamed) == ("red", "done", False)
    assert (times.ttft_s, times.tpot_s, times.e2e_s, times.output_tokens_per_s) == (None, None, 1.0, 2.0)


@pytest.mark.parametrize(
    "body",
    [
        "data: [DONE]\n\n",
        "data: 7\n\ndata: [DONE]\n\n",
        'data: {"choices": "yes"}\n\ndata: [DONE]\n\n',
        'data: {"x": 1}\n\ndata: [DONE]\n\n',
    ],
)
def test_a_stream_that_never_held_an_answer_is_no_empty_answer(body: str) -> None:
    result = whole(body)
    assert result.ended == "error" and "without an answer" in (result.error or "")
    assert whole(chunk("") + "data: [DONE]\n\n").ended == "done"  # an empty answer is one


def test_absurd_usage_is_unknown_and_a_burst_has_no_time_per_token() -> None:
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 1e30, "completion_tokens": 3}}\n\n'
    result = whole(chunk("a") + chunk("b") + chunk("c") + usage + "data: [DONE]\n\n")
    assert result.usage.prompt_tokens is None and result.usage.completion_tokens == 3
    assert timing(result).tpot_s is None


def test_cut_cancelled_and_empty() -> None:
    parser = StreamParser(sent=0.0)
    parser.feed((chunk("par") + chunk("tial") + 'data: {"choices": [{"del').encode(), 1.0)
    parser.finish(2.0, cancelled=True)
    assert (parser.result.text, parser.result.ended, parser.result.stamps.done) == ("partial", "cancelled", None)
    assert whole("").ended == "cut" and whole("").error is None
    assert whole(chunk("x", finish_reason="stop")).ended == "cut"
    assert whole(chunk("x") + "data: [DONE]").ended == "done"


def test_events_without_blank_lines_and_data_over_several_lines() -> None:
    lines = (
        chunk("a").strip() + "\n" + chunk("b").strip() + '\ndata: {"choices":\ndata: [{"delta": {"content": "c"}}]}\n\n'
    )
    assert whole(lines).text == "abc"


def test_a_character_in_two_escaped_halves() -> None:
    halves = 'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n'
    assert whole(halves % "\\ud83d" + halves % "\\udc4d!").text == "\U0001f44d!"
    assert whole(halves % "\\ud83d").text == "�"


def test_content_in_parts_and_other_choices() -> None:
    data = {
        "choices": [{"index": 1, "delta": {"content": "no"}}, {"delta": {"content": [{"type": "text", "text": "yes"}]}}]
    }
    assert whole(f"data: {json.dumps(data)}\n\n").text == "yes"


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    parser = StreamParser(sent=0.0)
    for _ in range(100):
        parser.feed(b"data: " + b"x" * 100, 1.0)
    assert len(parser._events._line) <= 1000
    parser.feed(b"\n\n" + chunk("after").encode(), 2.0)
    parser.finish(2.0)
    assert (parser.result.text, parser.result.unreadable) == ("after", 1)


def test_an_endless_answer_is_bounded() -> None:
    parser = StreamParser(sent=0.0)
    piece = chunk("y" * 1_000_000).encode()
    for _ in range(20):
        parser.feed(piece, 1.0)
    parser.finish(1.0)
    assert len(parser.result.text) <= MAX_TEXT and parser.result.ended == "error"


def test_definitions_on_a_schedule() -> None:
    parser = StreamParser(sent=10.0)
    parser.feed(chunk("").encode(), 10.5)  # a role event: no text, no TTFT
    for at, piece in ((11.0, "a"), (11.2, "bc"), (11.5, ""), (12.0, "d")):
        parser.feed(chunk(piece).encode(), at)
    parser.feed(b'data: {"choices": [], "usage": {"completion_tokens": 6}}\n\ndata: [DONE]\n\n', 13.0)
    parser.finish(13.5)
    times = timing(parser.result)
    assert (times.ttft_s, times.e2e_s, times.output_tokens_per_s) == (1.0, 3.0, 2.0)
    assert times.tpot_s == pytest.approx(0.2)  # (12.0 − 11.0) / 5
    assert gaps(parser.result) == pytest.approx([0.2, 0.8])
    assert parser.result.stamps.first_any == 10.5


def test_text_alone_counts_for_ttft_and_reasoning_stands_beside_it() -> None:
    parser = StreamParser(sent=0.0)
    parser.feed(b'data: {"choices": [{"delta": {"reasoning_content": "so"}}]}\n\n', 1.0)
    parser.feed(chunk("a").encode(), 2.0)
    parser.feed(chunk("b").encode(), 3.0)
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    parser.feed(f"data: {json.dumps({'usage': usage})}\n\ndata: [DONE]\n\n".encode(), 4.0)
    parser.finish(4.0)
    times = timing(parser.result)
    assert (times.ttfr_s, times.ttft_s) == (1.0, 2.0)
    assert times.tpot_s == pytest.approx(1.0 / 4)  # five text tokens, four gaps
    parser.result.usage.reasoning_tokens = None
    assert timing(parser.result).tpot_s is None  # how many of the nine were text is not known


def test_error_code_and_text_of_odd_values() -> None:
    assert error_code({"code": True}) is None and error_code([]) is None
    assert error_text({}) == "{}" and error_text(None) == "None"
    assert error_text("a\x1b[31m\n\n" + "b" * 500).startswith("a [31m b") and len(error_text("b" * 500)) == 300
