"""GRPO's arithmetic: advantages inside a group, the clipped loss, and one optimizer step with its evidence.

No critic and no KL term: an answer is judged only against the other answers to the same question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vlmconsole.models.qwen2_5_vl import IMAGE
from vlmconsole.training.model import Loaded
from vlmconsole.training.rollout import Prompts, SampledAnswers, log_probabilities

EPSILON = 1e-6  # beside the spread, as in verl


@dataclass(frozen=True)
class GrpoStep:
    """What one optimizer step did. Entropy is in nats a token; `clip_fraction` the share of tokens whose ratio was
    cut; `grad_norm` before clipping."""

    loss: float
    grad_norm: float
    entropy: float
    clip_fraction: float


def advantages(rewards: Any) -> Any:
    """(r − mean) / (std + 1e-6) inside each group, std with ddof 1; (groups, n) in and out. Equal rewards give 0.

    Groups of one have nothing to be compared with: their mean counts as 0 and their spread as 1, as in verl.
    """
    if rewards.shape[-1] == 1:
        return rewards / (1.0 + EPSILON)
    spread = rewards.std(-1, keepdim=True, correction=1)
    return (rewards - rewards.mean(-1, keepdim=True)) / (spread + EPSILON)


def clipped_loss(new: Any, old: Any, advantage: Any, mask: Any, *, clip: float) -> tuple[Any, Any]:
    """Sums over the tokens, not yet divided: the clipped policy loss, and how many tokens were cut.

    `new`, `old` are log probabilities and `mask` 0 or 1, all (rows, tokens); `advantage` is (rows,). The mean over
    all tokens of a step is what is minimised, so the caller divides by the number of tokens.
    """
    import torch

    ratio = torch.exp(new - old)
    plain = -advantage[:, None] * ratio
    cut = -advantage[:, None] * ratio.clamp(1.0 - clip, 1.0 + clip)
    return (torch.maximum(plain, cut) * mask).sum(), ((cut > plain) * mask).sum()


def freeze_eyes(model: Any) -> list[Any]:
    """Freeze the vision tower; returns the language half's parameters, which are to be trained."""
    for name, tensor in model.named_parameters():
        tensor.requires_grad_("visual." not in name)
    return [tensor for tensor in model.parameters() if tensor.requires_grad]


def update(
    loaded: Loaded,
    optimizer: Any,
    prompts: Prompts,
    answers: SampledAnswers,
    advantage: Any,
    *,
    clip: float,
    max_norm: float,
    temperature: float,
    passes: int = 1,
    micro: int = 4,
) -> list[GrpoStep]:
    """`passes` optimizer steps on one batch of sampled answers, `micro` questions a forward pass.

    `advantage` is (rows,). The policy that sampled is the one before the first pass, so with one pass every ratio is 1
    and nothing is cut. Raises FloatingPointError, with the weights as they were, when the loss or the gradient is no
    longer a number.
    """
    import torch

    n, questions = answers.n, prompts.ids.shape[0]
    image_id = loaded.tokenizer.convert_tokens_to_ids(IMAGE)
    tokens = answers.mask.sum()
    taught = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    old: dict[int, Any] = {}
    made: list[GrpoStep] = []
    for _ in range(passes):
        optimizer.zero_grad(set_to_none=True)
        loss = entropy = cut = 0.0
        for start in range(0, questions, micro):
            stop = min(start + micro, questions)
            rows = slice(start * n, stop * n)
            part = SampledAnswers(answers.ids[rows], answers.mask[rows], n)
            picked = prompts.pick(start, stop, image_id)
            new, spread = log_probabilities(loaded, picked, part, temperature=temperature)
            before = old.setdefault(start, new.detach())
            sums, clipped = clipped_loss(new, before, advantage[rows], part.mask, clip=clip)
            (sums / tokens).backward()
            loss += float(sums.detach())
            entropy += float((spread * part.mask).sum())
            cut += float(clipped)
        norm = float(torch.nn.utils.clip_grad_norm_(taught, max_norm, foreach=False))
        step = GrpoStep(loss / int(tokens), norm, entropy / int(tokens), cut / int(tokens))
        if not (math.isfinite(step.loss) and math.isfinite(norm)):
            optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the loss is {step.loss} and the gradient's norm {norm}")
        optimizer.step()
        made.append(step)
    optimizer.zero_grad(set_to_none=True)
    return made


def zero_share(groups: Iterable[Iterable[float]]) -> float:
    """Share of groups whose rewards are all equal: they teach nothing."""
    kinds = [len(set(group)) == 1 for group in groups]
    return sum(kinds) / len(kinds)
