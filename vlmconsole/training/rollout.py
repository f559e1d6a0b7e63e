"""Sampled answers, and how likely the model finds them: the two halves of a policy gradient.

The vision tower is frozen, so each picture is looked at once a step; and the n answers to a question share its
prompt, which is therefore run once and its keys and values repeated n times, in sampling and, with gradients, in
training. Both are the same sums as a full forward pass over every row (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from vlmconsole.models.qwen2_5_vl import IMAGE, PAD, VIDEO
from vlmconsole.training.generation import Prompt, end_ids
from vlmconsole.training.model import Loaded, encode, merged_tokens


@dataclass(frozen=True)
class Prompts:
    """Questions ready to be answered, padded on the left.

    Shapes: `ids`, `mask` (questions, tokens); `seen` (visual tokens of all images, hidden), without gradient;
    `positions` (3, questions, tokens), the three axes of Qwen2.5-VL's rotary embedding.
    """

    ids: Any
    mask: Any
    seen: Any
    positions: Any

    def pick(self, start: int, stop: int, image_id: int) -> Prompts:
        """Return the questions from `start` up to `stop`, with their own visual tokens."""
        counts = (self.ids == image_id).sum(1)
        first, last = int(counts[:start].sum()), int(counts[:stop].sum())
        rows = slice(start, stop)
        return Prompts(self.ids[rows], self.mask[rows], self.seen[first:last], self.positions[:, rows])


@dataclass(frozen=True)
class SampledAnswers:
    """Sampled tokens, n rows a question, questions in order. `ids` and `mask` are (rows, tokens); `mask` is 1 up to
    and including the end mark, where one came."""

    ids: Any
    mask: Any
    n: int

    def tokens(self, row: int) -> list[int]:
        kept: list[int] = self.ids[row][self.mask[row].bool()].tolist()
        return kept


def look(loaded: Loaded, asks: Sequence[Prompt]) -> Prompts:
    """Encode questions and run the vision tower over all their images once."""
    import torch

    inner, device = loaded.model.model, loaded.model.device
    encoded = encode(loaded, [ask.chat for ask in asks], system=[ask.system for ask in asks], left=True)
    inputs = {key: value.to(device) for key, value in encoded.items()}
    grid, wanted = inputs.get("image_grid_thw"), signature(inner.get_rope_index).parameters
    with torch.no_grad():
        if grid is None:
            seen = torch.empty(0, loaded.model.get_input_embeddings().embedding_dim, device=device)
        else:
            seen = merged_tokens(inner.visual(inputs["pixel_values"].to(inner.visual.dtype), grid_thw=grid))
        # transformers 5 tells pictures by mm_token_type_ids, 4.57 by the ids themselves.
        given = {key: inputs[key] for key in ("mm_token_type_ids",) if key in wanted}
        positions, _ = inner.get_rope_index(
            inputs["input_ids"], image_grid_thw=grid, attention_mask=inputs["attention_mask"], **given
        )
    return Prompts(inputs["input_ids"], inputs["attention_mask"], seen, positions)


def sample(
    loaded: Loaded, prompts: Prompts, *, n: int, generator: Any, max_new_tokens: int, temperature: float = 1.0
) -> SampledAnswers:
    """n answers a question, drawn from the whole distribution (no top-k, no top-p), pad tokens of pictures barred.

    Every draw comes from `generator`. Raises FloatingPointError when the model's scores are no longer numbers.
    """
    import torch

    ends = torch.tensor(sorted(end_ids(loaded)), device=loaded.model.device)
    pad = loaded.tokenizer.convert_tokens_to_ids(PAD)
    barred = barred_ids(loaded)
    with torch.inference_mode():
        hidden, cache = _prompt(loaded, prompts, n)
        mask = prompts.mask.repeat_interleave(n, 0)
        position = _after(prompts).repeat_interleave(n)
        alive = torch.ones_like(position, dtype=torch.bool)
        ids, kept = [], []
        for _ in range(max_new_tokens):
            scores = loaded.model.lm_head(hidden).float() / temperature
            scores[:, barred] = float("-inf")
            chances = torch.softmax(scores, -1)
            if not bool(torch.isfinite(chances).all()):
                raise FloatingPointError("the model's scores are no longer numbers")
            drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
            drawn = torch.where(alive, drawn, pad)
            ids.append(drawn)
            kept.append(alive.long())
            alive = alive & ~torch.isin(drawn, ends)
            if not bool(alive.any()):
                break
            mask = torch.cat([mask, kept[-1][:, None]], 1)
            hidden = _run(
                loaded, loaded.model.get_input_embeddings()(drawn[:, None]), position[None, :, None], mask, cache
            )
            hidden, position = hidden[:, -1], position + 1
    return SampledAnswers(torch.stack(ids, 1), torch.stack(kept, 1), n)


def log_probabilities(
    loaded: Loaded, prompts: Prompts, answers: SampledAnswers, *, temperature: float = 1.0
) -> tuple[Any, Any]:
    """Return how likely each token of each answer is, and the entropy where it stands: two (rows, tokens) tensors, in
    nats.

    The distribution is the one that `sample` drew from. Gradients flow into the language half; the entropy has none.
    """
    import torch

    last, cache = _prompt(loaded, prompts, answers.n)
    mask = torch.cat([prompts.mask.repeat_interleave(answers.n, 0), answers.mask], 1)
    length = answers.ids.shape[1]
    steps = torch.arange(length, device=answers.ids.device)
    positions = _after(prompts).repeat_interleave(answers.n)[:, None] + steps
    hidden = last[:, None]
    if length > 1:
        fed = loaded.model.get_input_embeddings()(answers.ids[:, :-1])
        hidden = torch.cat([hidden, _run(loaded, fed, positions[None, :, :-1], mask[:, :-1], cache)], 1)
    scores = loaded.model.lm_head(hidden).float() / temperature
    barred = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
    barred[barred_ids(loaded)] = True
    logs = torch.log_softmax(scores.masked_fill(barred, float("-inf")), -1)
    with torch.no_grad():
        entropy = -(logs.exp() * logs.masked_fill(barred, 0.0)).sum(-1)
    return logs.gather(-1, answers.ids[..., None])[..., 0], entropy


def barred_ids(loaded: Loaded) -> list[int]:
    """Tokens that stand for pictures and may never be answered: an answer holding one could not be fed back."""
    return [loaded.tokenizer.convert_tokens_to_ids(text) for text in (IMAGE, VIDEO)]


def _prompt(loaded: Loaded, prompts: Prompts, n: int) -> tuple[Any, Any]:
    """Run the questions; their last hidden state (questions · n, hidden) and a cache, each repeated n times."""
    from transformers import DynamicCache

    cache = DynamicCache()
    fed = loaded.model.get_input_embeddings()(prompts.ids)
    images = prompts.ids == loaded.tokenizer.convert_tokens_to_ids(IMAGE)
    fed = fed.masked_scatter(images[..., None], prompts.seen.to(fed.dtype))
    hidden = _run(loaded, fed, prompts.positions, prompts.mask, cache)[:, -1]
    cache.batch_repeat_interleave(n)
    return hidden.repeat_interleave(n, 0), cache


def _run(loaded: Loaded, fed: Any, positions: Any, mask: Any, cache: Any) -> Any:
    language = loaded.model.model.language_model
    key = "cache" if "cache" in signature(language.forward).parameters else "past_key_values"  # its name before 5.2x
    positions = positions.expand(3, *positions.shape[1:])
    out = language(inputs_embeds=fed, position_ids=positions, attention_mask=mask, use_cache=True, **{key: cache})
    return out.last_hidden_state


def _after(prompts: Prompts) -> Any:
    """The position of the first answer token of each question: one past the largest so far, on all three axes."""
    return prompts.positions.masked_fill(prompts.mask[None] == 0, 0).amax((0, 2)) + 1
