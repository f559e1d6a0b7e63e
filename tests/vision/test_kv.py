"""The KV cache's size, from numbers and from the configurations that models really ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from vlmconsole.vision.kv import KVError, from_config, kv_bytes, shape_of

QWEN = {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048}
WINDOW = {"sliding_window": 32768, "max_window_layers": 70}


def test_the_labs_figure() -> None:
    assert kv_bytes(36, 2, 128, 2, 1) == 36 * 1024
    assert kv_bytes(36, 2, 128, 2, 4096) == 144 * 2**20
    assert kv_bytes(36, 2, 128, 2, 4096, 4) == 576 * 2**20
    assert kv_bytes(36, 2, 128, 0.5, 1) == 9 * 1024
    with pytest.raises(KVError):
        kv_bytes(36, -2, 128, 2, 1)


@pytest.mark.parametrize(
    "config",
    [
        {**QWEN, "torch_dtype": "bfloat16", **WINDOW, "use_sliding_window": False},
        {"torch_dtype": "bfloat16", "text_config": QWEN},
        {"text_config": {**QWEN, "dtype": "float16"}},
        {**QWEN, "head_dim": 128, "dtype": "bfloat16"},
    ],
)
def test_flat_and_nested_configurations(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for place in (tmp_path, tmp_path / "config.json"):
        shape = from_config(place)
        assert (shape.layers, shape.kv_heads, shape.head_dim, shape.bytes_per_element) == (36, 2, 128, 2)
        assert shape.bytes(4096) == 144 * 2**20 and not shape.notes


def test_what_is_assumed_is_said() -> None:
    bare = shape_of({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64})
    assert bare.kv_heads == 4 and bare.head_dim == 16
    assert any("no num_key_value_heads" in note for note in bare.notes)
    assert any("2 bytes" in note for note in bare.notes)
    quantised = shape_of({**QWEN, "torch_dtype": "float16", "quantization": {"bits": 4}})
    assert quantised.bytes_per_token == 36 * 1024
    assert any("KV cache" in note for note in quantised.notes)
    assert not any("KV cache" in note for note in bare.notes)
    assert shape_of({**QWEN, "dtype": "float32"}).bytes_per_token == 72 * 1024


def test_windows_and_hybrids() -> None:
    windowed = shape_of({**QWEN, "dtype": "bfloat16", "sliding_window": 1024})
    assert windowed.bytes(512) == 512 * 36 * 1024
    assert windowed.bytes(4096) == 1024 * 36 * 1024
    kinds = ["sliding_attention", "full_attention"] * 18
    mixed = shape_of({**QWEN, "dtype": "bfloat16", "sliding_window": 1024, "layer_types": kinds})
    assert mixed.bytes(4096) == (1024 + 4096) * 18 * 1024
    hybrid = shape_of({**QWEN, "dtype": "bfloat16", "layer_types": ["linear_attention"] * 27 + ["full_attention"] * 9})
    assert hybrid.bytes_per_token == 9 * 1024 and any("hybrid: 27 of 36" in note for note in hybrid.notes)
    partly = shape_of({**QWEN, "dtype": "bfloat16", **WINDOW, "use_sliding_window": True, "max_window_layers": 30})
    assert partly.windowed_layers == 6


@pytest.mark.parametrize(
    ("text", "code", "noun"),
    [
        ("{}", "config-incomplete", "num_hidden_layers"),
        ('{"num_hidden_layers": "x"}', "config-invalid", "num_hidden_layers is 'x'"),
        ('{"num_hidden_layers": true}', "config-invalid", "num_hidden_layers is True"),
        ("nonsense", "json-invalid", "JSON"),
        ("[]", "config-invalid", "JSON object"),
        (json.dumps({**QWEN, "kv_lora_rank": 512}), "attention-unknown", "latent attention"),
    ],
)
def test_configurations_that_cannot_be_used(tmp_path: Path, text: str, code: str, noun: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with refused(code, noun, "config.json", error=KVError):
        from_config(tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(KVError, match="does not exist"):
        from_config(tmp_path)
