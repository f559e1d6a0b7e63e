"""Limits: devices by name, work counted from headers, least times, and what is said beside figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.refusals import refused
from vlmconsole.limits.devices import DevicePeak, devices_of, from_json, known_device
from vlmconsole.limits.limit import limit
from vlmconsole.limits.work import ModelWork, WeightsPart, WorkError, work_of
from vlmconsole.models.weights import Tensor, write_header
from vlmconsole.vision.kv import KVShape

BUNDLED = Path(__file__).resolve().parents[2] / "assets/tiny-qwen2.5-vl"
BIG = DevicePeak("big", ((0.0, math.inf), (2.0**28, 1e12)), {"bfloat16": 1e14})


@pytest.mark.parametrize(
    ("product", "tera", "giga"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3352),
        ("NVIDIA H100 PCIe", 756.4, 2039),
        ("NVIDIA H200", 989.4, 4900),
        ("NVIDIA A100-SXM4-80GB", 311.9, 2039),
        ("NVIDIA A100-PCIE-40GB", 311.9, 1555),
        ("NVIDIA L40S", 362.1, 864),
        ("NVIDIA L4", 121, 300),
        ("AMD Instinct MI300X", 1307.4, 5300),
        ("NVIDIA GeForce RTX 4090", 330.3, 1008),
    ],
)
def test_devices_are_known_by_their_names(product, tera, giga):
    peak = known_device(product)
    assert peak is not None and peak.flops["bfloat16"] == tera * 1e12
    assert peak.bandwidth_of(2**30) == giga * 1e9
    assert peak.bandwidth_of(2**20) == math.inf  # it may lie in the device's cache
    assert peak.flops_of("float32") == tera * 1e12 / 2


def test_what_is_not_known_has_no_peak():
    assert known_device("NVIDIA A100-SXM4-80GB MIG 1g.10gb") is None
    assert known_device("Voodoo 2") is None
    apple = known_device("Apple M2 Pro")
    assert apple is not None and apple.flops_of("float16") is None and apple.bandwidth_of(2**30) == 200e9


def test_a_line_of_hardware():
    two = devices_of("2 × NVIDIA A100-SXM4-80GB, AMD EPYC 7B13, 16 cores")
    assert two is not None and two[1] == 2 and two[0].name == "NVIDIA A100-SXM4-80GB"
    assert devices_of("AMD EPYC 7B13, 2 cores") is None
    assert devices_of("NVIDIA A100-SXM4-80GB, NVIDIA L4") is None  # which of them answered is not known


@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1, 1e14)), min_size=1, max_size=5), st.floats(1, 1e16))
def test_a_measured_device_is_kept(pairs, rate):
    peak = DevicePeak("cpu", ((0.0, math.inf), *sorted(pairs)), {"float32": rate}, "measured", True)
    assert from_json(json.loads(json.dumps(peak.to_json()))) == peak


@pytest.mark.parametrize("value", [None, 3, {}, {"name": "x", "bandwidth": [[1]], "flops": {}}, {"name": "x"}])
def test_a_damaged_device_is_none(value):
    assert from_json(value) is None


def test_the_bundled_model_by_hand():
    work = work_of(BUNDLED)
    layer = 128 * (128 + 64 + 64 + 128) + 3 * 128 * 256
    assert work.language.numbers == 4 * layer
    assert work.head.numbers == 576 * 128  # tied
    assert work.merger.numbers == 384 * (384 + 128)
    assert work.vision.numbers == 3 * 2 * 14**2 * 96 + 4 * (96 * 96 * 4 + 3 * 96 * 256)
    assert work.language.bytes == work.language.numbers * 4
    tokens = 100
    prefill = work.prefill(tokens)
    assert prefill.flops == 2 * (tokens * 4 * layer + 576 * 128) + 4 * 2 * tokens**2 * 128
    assert work.decode(2, 100).bytes == (4 * layer + 576 * 128) * 4 + 2 * 100 * 2 * 4 * 2 * 32 * 4


def folder_of(tmp_path: Path, tensors: dict[str, tuple[str, tuple[int, ...], int]], config: dict) -> Path:
    at, held = 0, {}
    for name, (kind, shape, size) in tensors.items():
        held[name] = Tensor(kind, shape, at, at + size)
        at += size
    (tmp_path / "model.safetensors").write_bytes(write_header(held) + bytes(at))
    text = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", **text, **config}))
    return tmp_path


def test_experts_count_as_far_as_one_token_uses_them_and_packed_weights_by_their_bits(tmp_path):
    tensors = {
        "model.embed_tokens.weight": ("BF16", (10, 8), 160),
        "lm_head.weight": ("BF16", (10, 8), 160),
        "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", (16, 8), 256),
        "model.layers.0.mlp.experts.1.up_proj.weight": ("BF16", (16, 8), 256),
        "model.layers.0.self_attn.q_proj.weight": ("U32", (8, 1), 32),
        "model.layers.0.self_attn.q_proj.scales": ("BF16", (8, 1), 16),
        "model.norm.weight": ("BF16", (8,), 16),
    }
    moe = {"num_experts": 2, "num_experts_per_tok": 1, "quantization": {"bits": 4, "group_size": 64}}
    work = work_of(folder_of(tmp_path, tensors, moe))
    assert work.language == WeightsPart(16 * 8 + 8 * 8, 256 + 32 + 16)
    assert work.head == WeightsPart(80, 160)


def test_a_model_without_known_matrices_has_no_limit(tmp_path):
    with refused("limit-unknown", error=WorkError):
        work_of(folder_of(tmp_path, {"model.norm.weight": ("BF16", (8,), 16)}, {}))
    with refused("limit-unknown", error=WorkError):
        work_of(tmp_path / "absent")


def made(numbers: float, bytes_per_number: float) -> ModelWork:
    return ModelWork(
        WeightsPart(numbers, numbers * bytes_per_number),
        WeightsPart(),
        WeightsPart(),
        WeightsPart(),
        KVShape(1, 1, 1, 2),
        1,
        4,
    )


def test_decoding_is_bound_by_bandwidth_until_the_batch_is_large():
    small = limit(made(1e9, 2), BIG, precision="bfloat16", prompt_tokens=1000)
    assert small.each.bound_by == "bandwidth" and small.tpot_s == pytest.approx(2e9 / 1e12, rel=1e-5)
    assert small.ttft_bound_by == "compute" and small.ttft_s == pytest.approx(2e9 * 1000 / 1e14, rel=1e-3)
    large = limit(made(1e9, 2), BIG, precision="bfloat16", prompt_tokens=1000, batch=400)
    assert large.each.bound_by == "compute" and large.tpot_s > small.tpot_s
    assert large.alone.seconds == small.tpot_s


@given(st.floats(1e6, 1e12), st.integers(1, 8), st.integers(1, 100_000))
def test_half_the_work_and_twice_the_devices_take_half_the_time(numbers, devices, tokens):
    whole = limit(made(numbers, 2), BIG, precision="bfloat16", prompt_tokens=tokens)
    half = limit(made(numbers / 2, 2), BIG, precision="bfloat16", prompt_tokens=tokens)
    assert half.ttft_s <= whole.ttft_s
    spread = limit(made(numbers, 2), BIG, precision="bfloat16", prompt_tokens=tokens, devices=devices)
    assert spread.ttft_s <= whole.ttft_s * (1 + 1e-9)


def test_a_figure_that_beats_its_limit_is_an_alarm():
    known = limit(made(1e9, 2), BIG, precision="bfloat16", prompt_tokens=1000)
    assert "alarm" not in known.beside(known.ttft_s * 3, known.tpot_s * 1.5)
    assert known.beside(known.ttft_s * 3, None)["times_of_limit"] == {"ttft": pytest.approx(3)}
    assert known.beside(known.ttft_s / 2, known.tpot_s / 2)["alarm"] == ["ttft", "tpot"]
    assert "alarm" not in known.beside(known.ttft_s / 2, None, error_s=known.ttft_s)
