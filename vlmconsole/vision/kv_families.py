"""What a family's configuration leaves out: sizes that its class falls back on, and which layers keep what.

As transformers 5.24 builds each from a `config.json`; `tests/vision/test_kv_families.py` compares every case
with its classes.
A family that cannot be put into the formula has its reason here, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
STATELESS = frozenset({LINEAR, "mamba", "mamba2", "conv", "moe", "mlp", "recurrent"})
"""Layers that keep a fixed state, or none, instead of keys and values."""
Values = Mapping[str, Any]
Rule = Callable[[Values, int], list[str]]

_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "sliding_window",
)
# Published files of models with eyes leave out what their class says anyway, all of it in the case of LLaVA.
_DEFAULTS: dict[str, tuple[int | None, ...]] = {
    "llama": (32, 32, None, 4096, None, None),
    "mistral": (32, 32, 8, 4096, None, 4096),
    "mixtral": (32, 32, 8, 4096, None, None),
    "ministral": (32, 32, 8, 4096, None, 4096),
    "gemma": (28, 16, 16, 3072, 256, None),
    "gemma2": (26, 8, 4, 2304, 256, 4096),
    "gemma3_text": (26, 8, 4, 2304, 256, 4096),
    "gemma3n_text": (35, 8, 2, 2048, 256, 512),
    "qwen2": (32, 32, 32, 4096, None, 4096),
    "qwen2_moe": (24, 16, 16, 2048, None, 4096),
    "qwen2_vl_text": (80, 64, 8, 8192, None, 4096),
    "qwen2_5_vl_text": (80, 64, 8, 8192, None, 4096),
    "qwen3": (32, 32, 32, 4096, 128, 4096),
    "qwen3_moe": (24, 32, 4, 2048, None, 4096),
    "qwen3_vl_text": (32, 32, 32, 4096, 128, None),
    "qwen3_next": (48, 16, 2, 2048, 256, None),
    "qwen3_5_text": (32, 16, 4, 4096, 256, None),
    "phi3": (32, 32, None, 3072, None, None),
    "starcoder2": (30, 24, 2, 3072, None, None),
    "cohere2": (40, 64, None, 8192, None, 4096),
    "gpt_oss": (36, 64, 8, 2880, 64, 128),
    "olmo3": (32, 32, None, 4096, None, 4096),
    "exaone4": (32, 32, 32, 4096, None, 4096),
    "llama4_text": (48, 40, 8, 5120, 128, None),
    "glm": (40, 32, 2, 4096, 128, None),
    "glm4": (40, 32, 2, 4096, 128, None),
}
_HEAD_DIM = {
    64: ("sarvam_moe",),
    128: (
        "afmoe", "cohere2_moe", "cosmos3_edge_text", "cwm", "ernie4_5", "helium", "hy_v3", "internlm3", "iquestcoder",
        "kolibri1", "laguna", "lfm3", "mellum", "minimax_m2", "minimax_m3_vl_text", "ministral3", "molmo2_text",
        "muse_glimmer_text", "paddleocr_vl_text", "seed_oss", "solar_open", "step3p5", "flint", "beam",
    ),
    256: ("vaultgemma", "qwen3_5_moe_text", "dory"),
}  # fmt: skip
_ALIASES = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
}


def _every(key: str, default: int, kind: str = SLIDING) -> Rule:
    """All layers of `kind` but each n-th, which is full; n is the config's `key`."""

    def kinds(values: Values, layers: int) -> list[str]:
        n = next((values[name] for name in (key, f"_{key}") if values.get(name) is not None), default)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{key} is {n!r}: which layers have a window cannot be told without layer_types")
        return [kind if (layer + 1) % n else FULL for layer in range(layers)]

    return kinds


def _whole_window(values: Values, layers: int) -> list[str]:
    """All layers alike: a window, where there is one, holds for each."""
    return [SLIDING if values.get("sliding_window") else FULL] * layers


def _unnamed(values: Values, layers: int) -> list[str]:
    """A config without a `model_type`: a window holds for all layers, or for those from `max_window_layers` on."""
    used = bool(values.get("sliding_window")) and values.get("use_sliding_window") is not False
    first = values.get("max_window_layers")
    return [SLIDING if used and layer >= (first if isinstance(first, int) else 0) else FULL for layer in range(layers)]


def _qwen(values: Values, layers: int) -> list[str]:
    used = bool(values.get("use_sliding_window")) and bool(values.get("sliding_window"))
    first = values.get("max_window_layers")
    first = first if isinstance(first, int) else (80 if str(values.get("model_type")).endswith("vl_text") else 28)
    return [SLIDING if used and layer >= first else FULL for layer in range(layers)]


def _qwen_moe(values: Values, layers: int) -> list[str]:
    used = bool(values.get("use_sliding_window")) and bool(values.get("sliding_window"))
    return [SLIDING if used else FULL] * layers


def _llama4(values: Values, layers: int) -> list[str]:
    rope = values.get("no_rope_layers")
    if not isinstance(rope, list) or not rope:
        interval = values.get("no_rope_layer_interval") or 4
        rope = [(layer + 1) % interval != 0 for layer in range(layers)]
    return [CHUNKED if with_rope else FULL for with_rope in rope]


_ALIKE = (
    "llama", "gemma", "glm", "glm4", "qwen3_vl_text", "ernie4_5", "granite", "olmo", "olmo2", "cohere", "gpt2",
    "gpt_neox", "gptj", "bloom", "opt", "phi", "stablelm", "seed_oss", "dbrx", "mpt", "falcon", "gpt_bigcode",
    "smolvlm", "internlm3", "paddleocr_vl_text", "mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    "": _unnamed,
    **dict.fromkeys(_ALIKE, _whole_window),
    **dict.fromkeys(("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen2_5_omni_text"), _qwen),
    "qwen3_moe": _qwen_moe,
    **dict.fromkeys(("gemma2", "vaultgemma", "gpt_oss"), _every("layer pattern", 2)),
    "gemma3_text": _every("sliding_window_pattern", 6),
    "gemma3n_text": _every("layer pattern", 5),
    **dict.fromkeys(("cohere2", "exaone4"), _every("sliding_window_pattern", 4)),
    "olmo3": _every("layer pattern", 4),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _every("full_attention_interval", 4, LINEAR)
    ),
    "llama4_text": _llama4,
}  # fmt: skip

_LATENT = "this model compresses its keys and values (latent attention); the formula does not apply"
_CROSS = "some of its layers keep keys and values of the image instead of the text (cross attention)"
_STATES = "most of its layers keep a fixed state instead of keys and values, and which ones is not said"
_UNEVEN = "its layers have heads of different number or size"
_HYBRID = frozenset(
    (
        "mamba", "mamba2", "falcon_mamba", "falcon_h1", "bamba", "jamba", "zamba", "zamba2", "nemotron_h", "rwkv",
        "xlstm", "recurrent_gemma", "granitemoehybrid", "minimax", "lfm2", "lfm2_moe", "olmo_hybrid", "lara_mini",
        "inkling_text", "inkling2_text", "inkling2_loop_text", "kimi_linear",
    )
)  # fmt: skip
"""Families of which only `layer_types` tells what a layer keeps."""
_REFUSED = {
    **dict.fromkeys(("mllama", "mllama_text_model", "idefics", "evolla"), _CROSS),
    **dict.fromkeys(
        (
            "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_vl_v2", "kimi_k2", "kimi_k25",
            "kimi_linear", "longcat_flash", "minicpm3", "mistral4", "mistral_large4_text", "youtu", "sarvam_mla",
            "glm4_moe_lite", "glm_moe_dsa", "glm5_next_text", "bailing_hybrid", "axk1", "axk2", "hy_v4",
            "hy_v4_vl_text",
        ),
        _LATENT,
    ),
    **dict.fromkeys(
        (
            "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "diffusion_gemma_text", "dots3_note_text",
            "mimo_v2_flash", "zaya", "openelm", "deci",
        ),
        _UNEVEN,
    ),
}  # fmt: skip
_REFUSED_KEYS = {
    "kv_lora_rank": _LATENT,
    "cross_attention_layers": _CROSS,
    "cross_layer_interval": _CROSS,
    "is_encoder_decoder": "it is an encoder with a decoder: its caches are two, of different lengths",
    "global_head_dim": _UNEVEN,
    "num_global_key_value_heads": _UNEVEN,
    "per_layer_config": _UNEVEN,
    "block_configs": _UNEVEN,
}
_UNSAID = (
    "sliding_window", "attention_chunk_size", "sliding_window_pattern", "layers_block_type", "hybrid_override_pattern",
    "attn_layer_period", "mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "attn_type_list",
    "full_attention_interval", "num_kv_shared_layers", "attention_layers", "attention_types", "conv_L_cache",
    "global_attn_every_n_layers", "layers_types",
)  # fmt: skip
"""Keys by which a family that is not known here may keep less than all tokens in some layers."""


def family_of(model_type: Any) -> str:
    """Return the name of the family whose rules hold for a `model_type`; "" for none."""
    name = model_type if isinstance(model_type, str) else ""
    return _ALIASES.get(name, name)


def defaults(family: str) -> dict[str, int]:
    """Return the sizes that the family's class falls back on where the config is silent."""
    sizes = {key: n for key, n in zip(_SIZES, _DEFAULTS.get(family, ()), strict=False) if n is not None}
    head = next((size for size, names in _HEAD_DIM.items() if family in names), None)
    return sizes if head is None else {**sizes, "head_dim": head}


def refusal(family: str, values: Values) -> str:
    """Return why the formula does not hold for a model; "" where nothing is known against it."""
    if family in _REFUSED:
        return _REFUSED[family]
    reason = next((why for key, why in _REFUSED_KEYS.items() if values.get(key)), "")
    if reason:
        return reason
    if family == "falcon" and values.get("new_decoder_architecture"):
        return "engines keep its keys and values in different forms (new_decoder_architecture)"
    uneven = [
        key for key in ("num_key_value_heads", "head_dim", "num_attention_heads") if isinstance(values.get(key), list)
    ]
    return _UNEVEN if uneven else ""


def kinds(family: str, values: Values, layers: int) -> tuple[list[str], bool]:
    """(what each layer keeps, whether the family is known). Raises ValueError where it cannot be told."""
    stated = values.get("layer_types")
    known = family in _RULES
    if isinstance(stated, list) and stated:
        if len(stated) != layers:
            raise ValueError(f"layer_types names {len(stated)} layers, num_hidden_layers {layers}")
        strange = sorted({str(kind) for kind in stated} - STATELESS - {FULL, SLIDING, CHUNKED, "attention"})
        if strange:
            raise ValueError(f"what layers of type {strange[0]} keep is not known here")
        return [str(kind) for kind in stated], True
    if family in _HYBRID:
        raise ValueError(_STATES)
    if known:
        return _RULES[family](values, layers), True
    unsaid = [key for key in _UNSAID if values.get(key) not in (None, False, 0, [])]
    if unsaid == ["sliding_window"] and values.get("use_sliding_window") is False:
        unsaid = []
    if unsaid:
        raise ValueError(f"{unsaid[0]} is set, and which layers it holds for is not said (no layer_types)")
    return [FULL] * layers, False
