"""Which layers of a family keep what, from files that leave out what their class says: right, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vlmconsole.vision import kv_families
from vlmconsole.vision.kv import KVError, shape_of

BF16 = {"torch_dtype": "bfloat16"}
#: As published: what their classes fall back on is left out.
GEMMA2_9B = {**BF16, "model_type": "gemma2", "head_dim": 256, "hidden_size": 3584, "num_attention_heads": 16,
             "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096}  # fmt: skip
GEMMA3_12B = {**BF16, "model_type": "gemma3", "text_config": {
    "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024}}  # fmt: skip
GEMMA3_27B = {**BF16, "model_type": "gemma3", "text_config": {
    "head_dim": 128, "hidden_size": 5376, "model_type": "gemma3_text", "num_attention_heads": 32,
    "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024}}  # fmt: skip
GEMMA3_4B = {**BF16, "model_type": "gemma3", "text_config": {
    "hidden_size": 2560, "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}}  # fmt: skip
VICUNA_13B = {**BF16, "model_type": "llava", "text_config": {
    "model_type": "llama", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40}}  # fmt: skip
MIB = 2**20


@pytest.mark.parametrize(
    ("config", "layers", "windowed", "kv_heads", "head_dim", "mib_at_32k"),
    [
        (GEMMA2_9B, 42, 21, 8, 256, 21 * 8 * (32768 + 4096) / 1024),
        (GEMMA3_12B, 48, 40, 8, 256, 2048 + 320),
        (GEMMA3_27B, 62, 52, 16, 128, 2560 + 416),
        (GEMMA3_4B, 34, 29, 4, 256, (5 * 32768 + 29 * 1024) * 4 / 1024),
        (VICUNA_13B, 40, 0, 40, 128, 40 * 32768 * 20 / 1024),
        ({**BF16, "model_type": "llava", "text_config": {"model_type": "llama"}}, 32, 0, 32, 128, 32 * 512),
        ({**BF16, "model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}}, 20, 16, 2, 256,
         (4 * 32768 + 16 * 512) * 2 / 1024),
        ({**BF16, "model_type": "qwen3_next", "num_hidden_layers": 48}, 12, 0, 2, 256, 12 * 32768 * 2 / 1024),
        ({**BF16, "model_type": "mistral", "sliding_window": None}, 32, 0, 8, 128, 32 * 128),
        ({**BF16, "model_type": "mistral"}, 32, 32, 8, 128, 32 * 16),
        ({**BF16, "model_type": "gpt_oss"}, 36, 18, 8, 64, 18 * (32768 + 128) * 2 / 1024),
        ({**BF16, "model_type": "cohere2"}, 40, 30, 64, 128, (10 * 32768 + 30 * 4096) * 32 / 1024),
        ({**BF16, "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544},
         32, 0, 1, 64, 32 * 32768 / 4096),
        ({**BF16, "model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096}, 32, 0, 32, 128, 32 * 512),
        ({**BF16, "model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144,
          "attn_config": {"kv_n_heads": 8}}, 40, 0, 8, 128, 40 * 128),
        ({**BF16, "model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
          "num_hidden_layers": 28}, 28, 0, 8, 128, 28 * 128),
        ({**BF16, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 30},
         32, 2, 32, 128, (30 * 32768 + 2 * 1024) * 16 / 1024),
        ({**BF16, "model_type": "lfm2", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
          "hidden_size": 512, "layer_types": ["conv", "conv", "full_attention", "conv"]}, 1, 0, 2, 64, 16),
    ],
)  # fmt: skip
def test_published_files_give_the_bytes_of_their_class(
    config: dict[str, Any], layers: int, windowed: int, kv_heads: int, head_dim: int, mib_at_32k: float
) -> None:
    shape = shape_of(config)
    found = (shape.layers, shape.windowed_layers, shape.kv_heads, shape.head_dim)
    assert found == (layers, windowed, kv_heads, head_dim)
    assert shape.bytes(32768) / MIB == pytest.approx(mib_at_32k)


@pytest.mark.parametrize(
    ("config", "noun"),
    [
        ({"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}}, "cross attention"),
        ({"model_type": "other", "num_hidden_layers": 2, "cross_attention_layers": [1]}, "cross attention"),
        ({"model_type": "deepseek_v3"}, "latent attention"),
        ({"model_type": "kimi_k25", "text_config": {"model_type": "deepseek_v3", "kv_lora_rank": 512}}, "latent"),
        ({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}, "number or size"),
        ({"model_type": "lfm2", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, "fixed state"),
        ({"model_type": "jamba", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, "fixed state"),
        ({"model_type": "falcon", "new_decoder_architecture": True}, "new_decoder_architecture"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "decoder"),
        ({"model_type": "newest", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512,
          "sliding_window": 9}, "sliding_window"),
        ({"model_type": "newest", "num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 512,
          "layer_types": ["indexed_attention"] * 2}, "indexed_attention"),
        ({"model_type": "newest", "num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 512,
          "layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
        ({"model_type": "newest", "num_hidden_layers": 2, "num_attention_heads": [8, 4], "hidden_size": 64}, "number"),
    ],
)  # fmt: skip
def test_what_the_formula_does_not_describe_is_refused_with_the_reason(config: dict[str, Any], noun: str) -> None:
    with pytest.raises(KVError, match=noun):
        shape_of(config)


def test_an_unknown_family_with_plain_keys_is_read_and_said_to_be() -> None:
    keys = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "torch_dtype": "bfloat16"}
    assert any("newest" in note for note in shape_of({**keys, "model_type": "newest"}).notes)
    assert not any("llama" in note for note in shape_of({**keys, "model_type": "llama"}).notes)


def of_transformers(config: Any) -> tuple[int, int, int, int, int] | None:
    """(cached layers, KV heads, head size, windowed layers, window) by the library's own cache; None: uneven."""
    from transformers import DynamicCache

    text = config.get_text_config(decoder=True)
    cache, plain, windows = DynamicCache(config=config), 0, []
    for layer in cache.layers:
        kind = type(layer).__name__
        if kind == "DynamicLayer":
            plain += 1
        elif kind == "DynamicSlidingWindowLayer":
            windows.append(layer.sliding_window)
        elif kind not in ("DummyLayer", "LinearAttentionLayer"):
            return None
    if getattr(text, "kv_lora_rank", None) or len(set(windows)) > 1:
        return None
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if config.model_type == "falcon":
        heads = 1 if text.multi_query else text.num_kv_heads  # the cache is filled by its attention, not by its config
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return plain + len(windows), heads, size, len(windows), windows[0] if windows else 0


def without_defaults(value: Any, mapping: Any) -> Any:
    """A config as an older or shorter file has it: no `layer_types`, no head size that is the class's own."""
    if not isinstance(value, dict):
        return value
    kept = {key: without_defaults(inner, mapping) for key, inner in value.items() if key != "layer_types"}
    name = value.get("model_type")
    own = getattr(mapping[name], "head_dim", None) if name in mapping else None
    if isinstance(own, int) and kept.get("head_dim") == own:
        del kept["head_dim"]
    return kept


@pytest.mark.slow
def test_every_language_model_of_transformers_is_right_or_refused() -> None:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    names = sorted(
        set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        | set(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    )
    wrong, right = [], 0
    for name in names:
        try:
            config = CONFIG_MAPPING[name]()
            wanted = of_transformers(config)
        except Exception:  # a class that cannot be made without settings, or whose heads differ by layer
            continue
        whole = json.loads(config.to_json_string(use_diff=False))
        for form, values in (("whole", whole), ("short", without_defaults(whole, CONFIG_MAPPING))):
            try:
                shape = shape_of(values)
            except KVError:
                continue
            found = (shape.layers, shape.kv_heads, shape.head_dim, shape.windowed_layers)
            window = shape.window if shape.windowed_layers else 0
            right += 1
            if wanted is None or (*found, window) != wanted:
                wrong.append((form, name, (*found, window), wanted))
    assert not wrong and right > 300, (right, wrong)


@pytest.mark.slow
def test_the_tables_are_the_classes_own() -> None:
    from transformers import CONFIG_MAPPING

    for family in kv_families._DEFAULTS:
        cls = CONFIG_MAPPING[family]
        own = {key: getattr(cls, key, None) for key in kv_families._SIZES}
        assert kv_families.defaults(family) == {key: n for key, n in own.items() if isinstance(n, int)}, family
    for size, names in kv_families._HEAD_DIM.items():
        assert {name: getattr(CONFIG_MAPPING[name], "head_dim", None) for name in names} == dict.fromkeys(names, size)


TINY = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 99, "sliding_window": 8, "max_position_embeddings": 64}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gemma2", {}),
        ("gemma3_text", {}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 4}),
        ("qwen3", {}),
        ("mistral", {}),
        ("cohere2", {}),
        ("llama", {"num_key_value_heads": None}),
        ("llama", {"num_key_value_heads": None, "sliding_window": None}),
        ("phi3", {"pad_token_id": 0}),
        ("starcoder2", {}),
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}),
        ("olmo3", {}),
        ("falcon", {"num_key_value_heads": None, "sliding_window": None}),
        ("falcon", {"multi_query": False, "num_key_value_heads": None, "sliding_window": None}),
        ("gpt_bigcode", {"n_embd": 64, "n_layer": 6, "n_head": 4, "sliding_window": None}),
        ("qwen3_next", {"num_experts": 2, "num_experts_per_tok": 1, "decoder_sparse_step": 100}),
    ],
)
def test_what_a_real_models_cache_holds_after_a_forward_pass(family: str, more: dict[str, Any]) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    keys = {key: value for key, value in {**TINY, **more}.items() if value is not None}
    config = CONFIG_MAPPING[family](**keys)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.ones(1, 20, dtype=torch.long), use_cache=True).past_key_values
    kept = [layer.keys for layer in cache.layers if getattr(layer, "keys", None) is not None and layer.keys.numel()]
    shape = shape_of({**keys, "model_type": family})
    assert len(kept) == shape.layers
    # A family's attention may lay its heads out flat; the numbers that a token leaves are the same.
    longest = max(kept, key=lambda keys: keys.numel())
    full = shape.layers > shape.windowed_layers
    assert longest.numel() // (20 if full else longest.shape[-2]) == shape.kv_heads * shape.head_dim
    assert sum(keys.shape[-2] < 20 for keys in kept) == shape.windowed_layers
