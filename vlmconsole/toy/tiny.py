"""The bundled model's body: a Qwen2.5-VL at toy size, its tokenizer, and its folder of files.

One folder serves two worlds. mlx-vlm reads only the flat `config.json` that the first Qwen2.5-VL releases
had, transformers 5 reads both but writes the nested form, so the config is written here by hand. Weights
are float32: the model is small enough, and both engines then compute the same answers.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from vlmconsole.counting.look import COLOURS
from vlmconsole.counting.questions import (
    COUNT_PROMPT,
    DESCRIBE,
    NO_PICTURE,
    OUTSIDE,
    OUTSIDE_PICTURE,
    UNKNOWN,
)
from vlmconsole.counting.scene import KINDS, SHAPES
from vlmconsole.models.template import BARE

VOCABULARY = 576
CONTEXT = 4096
MAX_PIXELS = 50176  # 224 × 224: 64 visual tokens
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
END, PAD = "<|im_end|>", "<|endoftext|>"

_LETTERS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"  # words, single digits, signs, blanks


def corpus() -> list[str]:
    """Return the text that the tokenizer's merges are learnt from: what is said in this world, most often first."""
    names = [f"{colour} {shape}" for colour, shape in KINDS]
    lines = [COUNT_PROMPT] * 60
    lines += [f'{{"red_circles": {n % 10}, "blue_squares": {n // 10}}}' for n in range(100)]
    for name in names:
        lines += [f"Is there a {name}?", f"Do you see a {name}?", f"How many {name}s are there?", f"a {name}, a {name}"]
        lines += [f"Which is {w}, the {name} or the {name}?" for w in ("larger", "smaller", "bigger")] * 2
        lines += [f"How {w} is the {name}? {s}" for w, s in (("big", "small"), ("large", "medium"), ("big", "large"))]
    for shape in SHAPES:
        lines += [f"What colour is the {shape}?", f"Which color is the {shape}?", f"Count the {shape}s."] * 4
    for colour in COLOURS:
        lines += [f"What shape is {colour}?", f"What shape is the {colour} one? the object?"] * 4
    lines += [f"What colour is {what}? What shape is {what}?" for what in ("it", "this", "the object", "the shape")] * 4
    lines += [f"Which is {word}?" for word in ("largest", "biggest", "smallest", "larger", "bigger", "smaller")] * 4
    lines += [UNKNOWN, NO_PICTURE, "You are a helpful assistant.", "user", "assistant", "system", "yes no"] * 12
    lines += [*OUTSIDE, *OUTSIDE_PICTURE, *DESCRIBE] * 3
    return lines


def build_tokenizer_file(path: Path) -> None:
    """Write `tokenizer.json`: byte-level BPE, so that any text can be said, with Qwen's special tokens last."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LETTERS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.save(str(path))


def config_dict(ids: dict[str, int]) -> dict[str, Any]:
    """Return the flat `config.json`, given the special tokens' ids."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "attention_dropout": 0.0,
        "bos_token_id": ids[PAD],
        "eos_token_id": ids[END],
        "pad_token_id": ids[PAD],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "max_window_layers": 4,
        "sliding_window": CONTEXT,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 4,
            "hidden_act": "silu",
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_heads": 3,
            "in_chans": 3,
            "in_channels": 3,
            "out_hidden_size": 128,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1, 3],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
            "initializer_range": 0.02,
        },
    }


def write_frame(folder: Path) -> None:
    """Everything but the weights: config, tokenizer, template, image settings, generation settings."""
    from tokenizers import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer_file(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {text: int(tokenizer.token_to_id(text) or 0) for text in SPECIAL_TOKENS}
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model {VOCABULARY}")
    _write(folder / "config.json", config_dict(ids))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [t for t in SPECIAL_TOKENS if t not in (END, PAD)],
            "clean_up_tokenization_spaces": False,
            "padding_side": "left",
            "chat_template": BARE,
        },
    )
    (folder / "chat_template.jinja").write_text(BARE)
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "min_pixels": 3136,
            "max_pixels": MAX_PIXELS,
            "size": {"shortest_edge": 3136, "longest_edge": MAX_PIXELS},
            "patch_size": 14,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "resample": 3,
            "rescale_factor": 1 / 255,
        },
    )
    _write(
        folder / "generation_config.json",
        {"bos_token_id": ids[PAD], "eos_token_id": [ids[END], ids[PAD]], "pad_token_id": ids[PAD], "do_sample": False},
    )


def new_model(folder: Path, seed: int) -> Any:
    """Return a model with fresh weights drawn from `seed`, of the architecture in `folder` (see `write_frame`)."""
    import torch
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder)
    model: Any = Qwen2_5_VLForConditionalGeneration(config)
    return model.float()


def save_weights(model: Any, folder: Path) -> None:
    """Write `model.safetensors` into `folder` under the names that both engines know; nothing else changes."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, safe_serialization=True)
        shutil.copyfile(Path(scratch) / "model.safetensors", folder / "model.safetensors")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
