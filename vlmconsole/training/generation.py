"""Greedy answers of a model in this process, many at a time, each with the evidence of what it was asked.

Rows of a batch are padded on the left. Padding and other rows change the last digits of a sum, so whether a batch
gives the same answers as single questions is a fact to be checked (`invariance`), not assumed; every answer says in
which company it was made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlmconsole.data.example import Example
from vlmconsole.models.qwen2_5_vl import END, PAD
from vlmconsole.training.model import Loaded, encode
from vlmconsole.training.prompts import Turn, turns_of


@dataclass(frozen=True)
class Prompt:
    """One question. `uid` names it among the batch's members; `places` are its images', as in `prompts.Turn`; `earlier`
    are the turns before it, answered.
    """

    uid: str
    question: str
    pictures: tuple[Image.Image, ...] = ()
    system: str | None = None
    places: tuple[int, ...] = ()
    earlier: tuple[Turn, ...] = ()

    @property
    def chat(self) -> list[Turn]:
        """The whole conversation, up to where the model is to answer."""
        return [*self.earlier, Turn(self.question, None, self.pictures, self.places)]


def prompt_of(example: Example) -> Prompt:
    """Return an example's last question, with all that stands before it. Raises DataError for an image that is none."""
    images = [picture.image() for picture in example.pictures()]
    *earlier, last = turns_of(example, images, answered=False)
    return Prompt(example.id, last.text, last.pictures, example.system, last.places, tuple(earlier))


@dataclass(frozen=True)
class Generated:
    """One answer.

    `token_ids` hold the end mark where one came; `finish` is "stop" for it and "length" at the ceiling. `tensor_sha256`
    is of this question's own tensors, unpadded, so it does not depend on the batch. `batch` counts from 0.
    """

    text: str
    token_ids: list[int]
    finish: str
    prompt_tokens: int
    tensor_sha256: str
    batch: int
    batch_members: tuple[str, ...]


@dataclass(frozen=True)
class Invariance:
    """Whether batches gave the answers of single questions, token by token; `differing` names those that did not."""

    invariant: bool
    n: int
    batch: int
    differing: tuple[str, ...]

    def __str__(self) -> str:
        if self.invariant:
            return f"batch-invariant: {self.n} of {self.n} answers are the same alone and in batches of {self.batch}"
        return f"not batch-invariant: {len(self.differing)} of {self.n} answers differ in batches of {self.batch}"


def answers(
    loaded: Loaded,
    asks: Sequence[Prompt],
    *,
    max_new_tokens: int = 64,
    batch: int = 32,
    on_progress: Callable[[int, int], None] | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Iterator[Generated]:
    """Greedy answers in the order of `asks`, yielded batch by batch. A stop is heeded after the next token, and the
    batch that it cuts short is not given.

    on_progress(done, total) is called after each batch. The model is put into evaluation mode meanwhile. Any adapter
    that is in the model takes part. Raises ValueError for a batch or a ceiling below 1.
    """
    if batch < 1 or max_new_tokens < 1:
        raise ValueError("batch and max_new_tokens are at least 1")
    for number, start in enumerate(range(0, len(asks), batch)):
        if stopping is not None and stopping():
            return
        made = _one_batch(loaded, asks[start : start + batch], number, max_new_tokens, stopping)
        if made is None:
            return
        yield from made
        if on_progress is not None:
            on_progress(min(start + batch, len(asks)), len(asks))


def texts(
    loaded: Loaded,
    questions: Sequence[tuple[str, tuple[Image.Image, ...]]],
    *,
    max_new_tokens: int = 64,
    batch: int = 32,
) -> list[str]:
    """Only the answers' texts, for (question, pictures) pairs."""
    asks = [Prompt(str(i), text, pictures) for i, (text, pictures) in enumerate(questions)]
    return [answer.text for answer in answers(loaded, asks, max_new_tokens=max_new_tokens, batch=batch)]


def invariance(loaded: Loaded, asks: Sequence[Prompt], *, max_new_tokens: int = 64, batch: int = 32) -> Invariance:
    """Answers each question alone and in batches, and compares the token ids. Costs both."""
    alone = answers(loaded, asks, max_new_tokens=max_new_tokens, batch=1)
    together = answers(loaded, asks, max_new_tokens=max_new_tokens, batch=batch)
    differing = tuple(ask.uid for ask, a, b in zip(asks, alone, together, strict=True) if a.token_ids != b.token_ids)
    return Invariance(not differing, len(asks), batch, differing)


def tensor_sha256(inputs: dict[str, Any]) -> str:
    """SHA-256 of one question's unpadded tensors, ids and pixels and grid: their names, types, shapes and bytes."""
    import torch

    total = hashlib.sha256()
    for name in ("input_ids", "pixel_values", "image_grid_thw"):
        value = inputs.get(name)
        if value is None:
            continue
        value = value.detach().cpu().contiguous()
        kind = str(value.dtype).removeprefix("torch.")
        total.update(f"{name} {kind} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _one_batch(
    loaded: Loaded, asks: Sequence[Prompt], number: int, max_new_tokens: int, stopping: Callable[[], bool] | None
) -> list[Generated] | None:
    """The answers to one batch; None when a stop cut them short."""
    import torch

    model = base_model(loaded.model)
    singles = [encode(loaded, [ask.chat], system=[ask.system]) for ask in asks]
    inputs = _together(singles, loaded.tokenizer.convert_tokens_to_ids(PAD))
    ends = end_ids(loaded)
    training, own = model.training, model.generation_config
    model.eval()
    # In the model's place, not beside it: the 3B's own brings a repetition penalty, which would be mixed into ours.
    model.generation_config = _greedy(loaded, ends, max_new_tokens)
    cut, between = _between_tokens(stopping)
    try:
        with torch.inference_mode():
            model.model.rope_deltas = None  # left from the last batch, and of its size
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            ids = model.generate(**inputs, stopping_criteria=between)
    finally:
        model.generation_config = own
        model.train(training)
    if cut:
        return None
    fresh = ids[:, inputs["input_ids"].shape[1] :].tolist()
    members = tuple(ask.uid for ask in asks)
    made = []
    for single, row in zip(singles, fresh, strict=True):
        stop = next((i for i, token in enumerate(row) if token in ends), None)
        kept = row if stop is None else row[: stop + 1]
        made.append(
            Generated(
                text=loaded.tokenizer.decode(kept, skip_special_tokens=True),
                token_ids=kept,
                finish="length" if stop is None else "stop",
                prompt_tokens=int(single["input_ids"].shape[1]),
                tensor_sha256=tensor_sha256(single),
                batch=number,
                batch_members=members,
            )
        )
    return made


def _between_tokens(stopping: Callable[[], bool] | None) -> tuple[list[bool], Any]:
    """(a list that holds something once a stop has cut the generation short, what looks for one after each token)."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    cut: list[bool] = []
    if stopping is None:
        return cut, StoppingCriteriaList()
    asked: Callable[[], bool] = stopping

    class Stop(StoppingCriteria):  # type: ignore[misc]  # it is Any where transformers is not there to be looked at
        def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
            if not cut and asked():
                cut.append(True)
            return torch.full((len(input_ids),), bool(cut), dtype=torch.bool, device=input_ids.device)

    return cut, StoppingCriteriaList([Stop()])


def base_model(model: Any) -> Any:
    """Return the model itself, when it comes wrapped with an adapter (which is inside it and stays in force)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def end_ids(loaded: Loaded) -> frozenset[int]:
    """Tokens that end an answer, by the model's own generation settings."""
    named = getattr(base_model(loaded.model).generation_config, "eos_token_id", None)
    if named is None:
        named = loaded.tokenizer.convert_tokens_to_ids(END)
    return frozenset(named if isinstance(named, list) else [named])


def _greedy(loaded: Loaded, ends: frozenset[int], max_new_tokens: int) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=loaded.tokenizer.convert_tokens_to_ids(PAD),
        use_cache=True,
    )


def _together(singles: Sequence[dict[str, Any]], pad: int) -> dict[str, Any]:
    """One batch of the single questions' tensors: rows padded on the left, pixels one after the other."""
    import torch

    length = max(int(single["input_ids"].shape[1]) for single in singles)
    out: dict[str, Any] = {}
    for name, fill in (("input_ids", pad), ("attention_mask", 0), ("mm_token_type_ids", 0)):
        if name in singles[0]:
            rows = [
                torch.nn.functional.pad(single[name][0], (length - single[name].shape[1], 0), value=fill)
                for single in singles
            ]
            out[name] = torch.stack(rows)
    for name in ("pixel_values", "image_grid_thw"):
        parts = [single[name] for single in singles if name in single]
        if parts:
            out[name] = torch.cat(parts)
    return out
