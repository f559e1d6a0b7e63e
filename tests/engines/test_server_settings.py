"""Conditions hold every setting that a server tells: the known by name, the rest in a hash, passing things never."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded import body, exchanges

from vlmconsole.client.chat import ChatClient
from vlmconsole.compare.runs import Comparison, compare
from vlmconsole.engines.compared import capacity
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import make_profile
from vlmconsole.engines.served_model import picture_settings
from vlmconsole.engines.sglang_settings import OTHER
from vlmconsole.engines.supported.sglang import from_server_info
from vlmconsole.evaluation.served import cache_remark
from vlmconsole.models.messages import Message
from vlmconsole.runs.conditions import Conditions
from vlmconsole.vision.kv import KVShape
from vlmconsole.vision.tokens import visual_tokens


def info(**change: Any) -> dict[str, Any]:
    """A recorded answer of SGLang 0.5.23 with some keys changed."""
    recorded: dict[str, Any] = json.loads(body(exchanges("sglang-0.5.23")["server_info_route"][0]))
    return recorded | change


def conditions(told: dict[str, Any]) -> Conditions:
    found = from_server_info(told)
    return Conditions(engine="SGLang", running_limit=found.running_limit, settings=found.values)


def compared(**change: Any) -> Comparison:
    return compare(conditions(info()), conditions(info(**change)))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("dp_size", 2),
        ("pp_size", 2),
        ("ep_size", 4),
        ("tp_size", 2),
        ("quantization", "fp8"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("speculative_algorithm", "EAGLE"),
        ("speculative_num_draft_tokens", 4),
        ("schedule_policy", "lpm"),
        ("stream_interval", 8),
        ("page_size", 64),
        ("max_prefill_tokens", 4096),
        ("enable_hierarchical_cache", True),
        ("disaggregation_mode", "prefill"),
        ("mm_process_config", {"image": {"max_pixels": 50176}}),
        ("reasoning_parser", "qwen3"),
    ],
)
def test_what_decides_speed_is_a_condition_by_its_name(flag: str, value: Any) -> None:
    found = compared(**{flag: value})
    assert not found.comparable
    assert f"server setting {flag.replace('_', '-')}" in found.sentence()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("enable_two_batch_overlap", True),
        ("hicache_mem_layout", "layer_first"),
        ("flashinfer_mla_disable_ragged", True),
        ("a_flag_of_tomorrow", 7),
        ("preferred_sampling_params", {"temperature": 0.2}),
    ],
)
def test_any_other_setting_is_in_the_hash(flag: str, value: Any) -> None:
    found = compared(**{flag: value})
    assert not found.comparable and OTHER in found.sentence()


def test_what_passes_is_no_condition() -> None:
    found = compared(
        host="0.0.0.0",
        port=31000,
        nccl_port=4711,
        dist_init_addr="10.0.0.1:5000",
        startup_time={"load_weight": 9.0},
        launch_command="--port 31000",
        status="warming",
        max_total_num_tokens=8190,
        log_level="debug",
        internal_states=[{"memory_usage": {"graph": 1.0}}],
        grpc_port=1,
        disaggregation_bootstrap_port=8999,
        crash_dump_folder="/tmp/x",
    )
    assert found.comparable, found.sentence()


def test_a_run_from_before_stays_comparable_and_what_it_lacks_is_named() -> None:
    now = conditions(info(dp_size=2))
    assert now.settings is not None
    old = now.model_copy(
        update={"settings": {key: value for key, value in now.settings.items() if key in ("dtype", "tp-size")}}
    )
    found = compare(old, now)
    assert found.comparable
    assert {"dp-size", "kv-cache-dtype", OTHER} <= set(found.one_sided)
    assert found.to_json()["told_by_one"] == found.one_sided
    assert not compare(now, now).one_sided


def test_limits_of_several_ranks_are_those_of_all_together() -> None:
    bare = info(internal_states=[{}])
    state = {"effective_max_running_requests_per_dp": 4}
    for told, limit, tokens in (
        (bare, 4, 8192),
        (bare | {"dp_size": 2}, 8, 16384),
        (bare | {"dp_size": 2, "internal_states": [state, state]}, 8, 16384),
        (bare | {"dp_size": 4, "internal_states": [state]}, 16, 32768),
        (bare | {"dp_size": 2, "internal_states": [{"effective_max_running_requests_per_dp": 3}, state]}, 7, 16384),
        (bare | {"dp_size": 2, "enable_dp_attention": True}, 4, 16384),
        (bare | {"dp_size": True}, 4, 8192),
    ):
        found = from_server_info(told)
        assert (found.running_limit, found.kv_tokens) == (limit, tokens)
        assert any("ranks" in note for note in found.notes) == (found.ranks > 1)


@pytest.mark.parametrize(
    ("change", "size"),
    [({}, 2), ({"dtype": "float32"}, 4), ({"kv_cache_dtype": "fp8_e4m3"}, 1), ({"kv_cache_dtype": "bf16"}, 2)],
)
def test_kv_bytes_are_of_the_dtype_read_back(tmp_path: Path, change: dict[str, Any], size: int) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    profile = make_profile({"name": "x", "engine": "sglang", "model": str(tmp_path), "base_url": "http://127.0.0.1:1"})
    told = from_server_info(info(**change))
    kib = 2 * 2 * 64 * size * 8192 / 1024
    assert f"{kib // 1024:.0f} MiB" in capacity(profile, told)


PROCESSOR = {"min_pixels": 3136, "max_pixels": 12845056}


@pytest.mark.parametrize(
    ("image", "tokens"),
    [
        ({}, 192),
        ({"max_pixels": 50176}, 54),
        ({"min_pixels": 401408}, 540),
        ({"min_pixels": 784, "max_pixels": 1568}, 1),
        ({"max_pixels": 50176, "resample": 3}, None),
        ({"max_pixels": "50176 px"}, None),
        ({"size": {"longest_edge": 100}}, None),
        (7, None),
    ],
)
def test_picture_limits_of_the_launch_line_decide_the_expected_tokens(image: Any, tokens: int | None) -> None:
    """They are told in the server info; the model's own limits would raise a false alarm."""
    values = {"name": "x", "engine": "sglang", "base_url": "http://127.0.0.1:1", "processor": PROCESSOR}
    profile, told = make_profile(values), from_server_info(info(mm_process_config={"image": image}))
    found = picture_settings(profile, told)
    assert (None if found is None else visual_tokens(448, 336, found).visual_tokens) == tokens
    assert picture_settings(profile, None) == profile.processor


async def test_the_budget_counts_with_the_context_that_was_read_back() -> None:
    values = {"name": "x", "engine": "sglang", "base_url": "http://127.0.0.1:1", "context": 32768}
    for told, context in ((from_server_info(info(context_length=256)), 256), (EffectiveSettings("sglang"), 32768)):
        client = ChatClient(make_profile(values), told)
        found = await client.budget([Message("user", "Hi")], 300)
        assert found.context == context


def test_a_dtype_that_is_not_known_changes_nothing() -> None:
    shape = KVShape(2, 2, 64, 4)
    assert shape.stored_as("nvfp9").bytes_per_element == shape.stored_as(None).bytes_per_element == 4
    assert shape.stored_as("torch.bfloat16").bytes_per_element == 2
    assert shape.stored_as("fp4_e2m1").bytes_per_element == 0.5


@pytest.mark.parametrize(("off", "remark"), [(False, True), (True, False), (None, False)])
def test_an_evaluation_on_a_server_with_its_prefix_cache_on_gets_a_remark(off: bool | None, remark: bool) -> None:
    told = from_server_info(info(disable_radix_cache=off))
    assert bool(cache_remark(told)) is remark
    assert not remark or "prefix cache" in cache_remark(told)
