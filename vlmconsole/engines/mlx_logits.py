"""Compares a converted adapter with the weights it was made from, in real mlx-vlm. Runs under the *server's* Python.

    python mlx_logits.py BASE MLX_ADAPTER PEFT_ADAPTER SCALES

Three sets of next-token logits over the same tokens: the base's, those with the MLX adapter as mlx-vlm loads it, and
those of the base whose weights got `scale · B·A` added straight from the PEFT file. SCALES is JSON,
{layer: scale}. One line of JSON comes out.
"""

import sys

if sys.path and sys.path[0].rstrip("/").endswith("engines"):
    # Started by file name: this folder holds `profile.py`, which must not stand in for the standard library's.
    del sys.path[0]

import json
import os
import runpy
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

TOKENS = 24


def logits(model: Any, tokens: Sequence[int]) -> Any:
    """(tokens, vocabulary) in float32."""
    mx = import_module("mlx.core")
    out = model.language_model(mx.array([list(tokens)]))
    return out.logits[0].astype(mx.float32)


def merged(model: Any, peft: Path, scales: Mapping[str, float]) -> Any:
    """Return the model with a PEFT adapter's product added to its weights; returns the model."""
    mx = import_module("mlx.core")
    halves = mx.load(str(peft / "adapter_model.safetensors"))
    changed = []
    for name, a in halves.items():
        if ".lora_A." not in name:
            continue
        b = halves[name.replace(".lora_A.", ".lora_B.")]
        module: Any = model.language_model.model
        words = name[name.index("layers.") :].partition(".lora_A.")[0].split(".")
        for word in words:
            module = module[int(word)] if word.isdigit() else getattr(module, word)
        weight, scale = module.weight, scales[".".join(words)]
        total = weight.astype(mx.float32) + scale * (b.astype(mx.float32) @ a.astype(mx.float32))
        changed.append((".".join(["language_model", "model", *words, "weight"]), total.astype(weight.dtype)))
    model.load_weights(changed, strict=False)
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints `{tokens, from_base, from_merged, scale, same_choices}`: largest differences, and the logits' own size."""
    *folders, scales = sys.argv[1:] if arguments is None else arguments
    base, adapter, peft = (Path(word) for word in folders)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.platform.startswith("linux"):
        os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    runpy.run_path(str(Path(__file__).with_name("mlx_server.py")))["hide"]()
    mx, utils = import_module("mlx.core"), import_module("mlx_vlm.utils")
    # Any tokens do: arithmetic is compared. A fixed spread over the vocabulary, without the special ones at its end.
    config = json.loads((base / "config.json").read_text("utf-8"))
    vocabulary = int({**config, **(config.get("text_config") or {})}["vocab_size"])
    tokens = [(7919 * (i + 1)) % (vocabulary * 9 // 10) for i in range(TOKENS)]
    plain = logits(utils.load_model(base), tokens)
    with_adapter = logits(utils.apply_lora_layers(utils.load_model(base), str(adapter)), tokens)
    in_weights = logits(merged(utils.load_model(base), peft, json.loads(scales)), tokens)
    print(
        json.dumps(
            {
                "tokens": TOKENS,
                "from_base": float(mx.abs(with_adapter - plain).max()),
                "from_merged": float(mx.abs(with_adapter - in_weights).max()),
                "scale": float(mx.abs(in_weights).max()),
                "same_choices": int((with_adapter.argmax(-1) == in_weights.argmax(-1)).sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
