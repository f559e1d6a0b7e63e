"""A model folder in memory and its inputs.

The stock Qwen2.5-VL processor wants torchvision for videos; here the tokenizer and the image processor are
loaded on their own and joined, which needs neither torchvision nor a network.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from PIL import Image

from vlmconsole.models.base import BaseReadError, check_loadable, read_base
from vlmconsole.models.door import Door, door
from vlmconsole.models.qwen2_5_vl import HARMLESS, IMAGE, PAD
from vlmconsole.training.prompts import Chat, spell


@dataclass
class Loaded:
    """A model with what turns words and pictures into its inputs. `folder` is where it was read from.

    `template` writes its prompts where it is not the folder's own.
    """

    model: Any
    tokenizer: Any
    images: Any
    folder: Path
    template: Door | None = None


def image_processor(folder: Path) -> Any:
    """Return the folder's image processor on Pillow alone, in transformers 4.57 and 5."""
    from importlib import import_module

    package = "transformers.models.qwen2_vl."
    try:
        kind = import_module(package + "image_processing_pil_qwen2_vl").Qwen2VLImageProcessorPil
    except ImportError:  # before transformers 5 the class without a suffix is the one on Pillow
        kind = import_module(package + "image_processing_qwen2_vl").Qwen2VLImageProcessor
    return kind.from_pretrained(folder)


def load(folder: Path, *, dtype: str = "float32", device: str = "cpu") -> Loaded:
    """Read a Qwen2.5-VL folder. Raises BaseReadError for another model or weights that are not whole.

    From then on transformers draws no bars in this process: jobs tell their progress by events, and logs are read.
    """
    check_loadable(read_base(folder))
    import torch
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()
    # What peft reads of every model, whoever uses it: nothing that a person could change.
    warnings.filterwarnings("ignore", r"`is_gradient_checkpointing` is deprecated", FutureWarning)
    kind: Any = Qwen2_5_VLForConditionalGeneration
    model, loading = kind.from_pretrained(folder, dtype=getattr(torch, dtype), output_loading_info=True)
    # What the check above foresees; said again by the library itself, whatever its version.
    for what, names in loading.items():
        odd = sorted(str(name) for name in names if not HARMLESS.search(str(name)))
        if odd:
            what = what.replace("_", " ")
            raise BaseReadError(f"{folder} was not loaded whole: {what} {odd[0]}.", "Take another base.")
    model = model.to(device)
    return Loaded(model.eval(), AutoTokenizer.from_pretrained(folder), image_processor(folder), folder)


def at_once(model: Any, base: str) -> str:
    """Return what to do when a training's very first step gives no number: no rate can be to blame for that."""
    import torch

    broken = next((name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())), "")
    if broken:
        whose = f"the base {base}" if base else "the bundled model"
        broken = broken.removeprefix("base_model.model.").replace(".base_layer.", ".")  # an adapter's wrapping
        return f"{broken} of {whose} holds NaN or infinity: take its weights from their source again."
    return "No step came before it, so lr is not to blame. Try precision=float32, or another base."


def parameters(model: Any) -> int:
    """Return how many numbers were learnt; tied ones count once."""
    return sum(p.numel() for p in model.parameters())


def encode(
    loaded: Loaded, chats: Sequence[Chat], *, system: Sequence[str | None] | None = None, left: bool = False
) -> dict[str, Any]:
    """Token ids, masks and pixels of a batch of chats, padded on the right (on the left for generation).

    Shapes: `input_ids`, `attention_mask`, `mm_token_type_ids`, `labels` (batch, tokens); `pixel_values`
    (patches, 1176), `image_grid_thw` (pictures, 3). `labels` hold the answers' tokens with their end mark and
    −100 everywhere else. The prompt is the one that the model's own chat template writes. Raises TemplateError.
    """
    import torch

    tokenizer, merge = loaded.tokenizer, loaded.images.merge_size**2
    pictures = [p for chat in chats for turn in chat for p in turn.pictures]
    out: dict[str, Any] = {}
    if pictures:
        seen = loaded.images(images=pictures, return_tensors="pt")
        out["pixel_values"], out["image_grid_thw"] = seen["pixel_values"], seen["image_grid_thw"]
    counts = iter([int(g.prod()) // merge for g in out["image_grid_thw"]] if pictures else [])
    rows: list[tuple[list[int], list[int]]] = []
    for pieces in spell(chats, loaded.template or door(loaded.folder), system):
        ids: list[int] = []
        labels: list[int] = []
        for piece in pieces:
            before, *after = piece.text.split(IMAGE) if piece.images else (piece.text,)
            text = before + "".join(IMAGE * next(counts) + rest for rest in after)
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += tokens
            labels += tokens if piece.taught else [-100] * len(tokens)
        rows.append((ids, labels))
    length = max(len(ids) for ids, _ in rows)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    blank = [(length - len(ids)) for ids, _ in rows]

    def block(values: list[list[int]], fill: int) -> Any:
        padded = [[fill] * n + v if left else v + [fill] * n for v, n in zip(values, blank, strict=True)]
        return torch.tensor(padded)

    out["input_ids"] = block([ids for ids, _ in rows], pad)
    out["attention_mask"] = block([[1] * len(ids) for ids, _ in rows], 0)
    out["labels"] = block([labels for _, labels in rows], -100)
    if "mm_token_type_ids" in signature(loaded.model.forward).parameters:  # transformers 5 tells pictures by it
        out["mm_token_type_ids"] = (out["input_ids"] == tokenizer.convert_tokens_to_ids(IMAGE)).int()
    return out


def merged_tokens(out: Any) -> Any:
    """Return the vision tower's output as (visual tokens of all pictures, hidden): bare before transformers 5."""
    return out.pooler_output if hasattr(out, "pooler_output") else out


def features(loaded: Loaded, pictures: Sequence[Image.Image]) -> Any:
    """Return what the vision tower hands to the language half: (pictures, visual tokens, hidden); equal sizes only."""
    import torch

    seen = loaded.images(images=list(pictures), return_tensors="pt")
    with torch.inference_mode():
        out = loaded.model.model.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"])
    merged = merged_tokens(out)
    return merged.reshape(len(pictures), -1, merged.shape[-1])
