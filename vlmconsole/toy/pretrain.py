"""Teaching the bundled model from nothing, in phases: eyes, counting, questions.

*Eyes*: the vision tower with a throw-away head that says, for each visual token, the shape and colour of
the object whose centre it holds (or nothing). All renderings, layouts, hollow and small objects are in
here, for later training leaves the vision alone. *Language*: mostly the counting question, which only ever
shows up to three of each, so that counting further is left to be taught. The naming loss goes on beside it,
so that the eyes stay sharp. *Questions*: mostly short ones, many about one picture, which are slow to learn before
counting is. Then the eyes look by themselves once more (*sharpen*: small things, few things, anything) and are left
alone; on features that no longer move, the words learn what is asked about one thing among others (*names*: the last
token has to look at the words first), and then everything together (*all*).

Every batch follows from (seed, phase, step) alone and dropout is not used, so a run stopped anywhere and
taken up again from its last checkpoint ends in the same weights.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.counting.look import COLOURS
from vlmconsole.counting.scene import KINDS, Scene
from vlmconsole.toy.lessons import (
    BOUNDS,
    LOOKS,
    STAGES,
    Lesson,
    LessonRecipe,
    Stage,
    eyes_scene,
    language_lessons,
    looking_scenes,
    phase_steps,
    question_lessons,
    token_names,
    token_sizes,
)
from vlmconsole.training.model import Loaded, encode, merged_tokens


@dataclass(frozen=True)
class LossPoint:
    """One step as it is reported: mean losses since the last report, seconds per step."""

    phase: str
    step: int
    steps: int
    loss: float
    accuracy: float
    seconds_per_step: float


SIZE_SHARE = 0.05  # weight of the size classes' loss, which is of objects only, beside that of all tokens' names

Report = Callable[[LossPoint], None]
Stopping = Callable[[], bool]


def new_head(seed: int, hidden: int) -> Any:
    """Return the throw-away head: one linear layer from a visual token to nothing or one of the 15 kinds, and a size
    class.
    """
    import torch

    torch.manual_seed(seed + 1)
    return torch.nn.Linear(hidden, 1 + len(KINDS) + 1 + len(BOUNDS))


def _looking_loss(head: Any, seen: Any, scenes: Sequence[Scene]) -> tuple[Any, float]:
    """Loss of names and sizes of all visual tokens (tokens, hidden), and the share of objects named right.

    Cross-entropy of the names, and SIZE_SHARE of that of the size classes where an object is: naming alone leaves the
    size of a thing so faint in the features that no question about larger and smaller can be learnt from them.
    """
    import torch

    truth = torch.tensor([token_names(scene) for scene in scenes]).flatten()
    sizes = torch.tensor([token_sizes(scene) for scene in scenes]).flatten()
    scores, guessed = head(seen).split([1 + len(KINDS), 1 + len(BOUNDS)], dim=-1)
    present = truth > 0
    right = float((scores.argmax(-1) == truth)[present].float().mean())
    naming = torch.nn.functional.cross_entropy(scores, truth)
    return naming + SIZE_SHARE * torch.nn.functional.cross_entropy(guessed[present], sizes[present] - 1), right


def plain_patches(visual: Any) -> None:
    """Let the first layer, a convolution whose steps are as wide as its kernel, be computed as one product.

    The same sums; the convolution's backward alone was a sixth of an eyes step on a CPU.
    """
    import torch

    layer = visual.patch_embed.proj
    visual.patch_embed.forward = lambda patches: torch.nn.functional.linear(
        patches.to(layer.weight.dtype), layer.weight.flatten(1), layer.bias
    )


def eyes_loss(loaded: Loaded, head: Any, recipe: LessonRecipe, step: int) -> tuple[Any, float]:
    """Loss of one eyes step and the share of objects named right (before the step)."""
    return _look(loaded, head, [eyes_scene(f"{recipe.seed}:{step}:{i}") for i in range(recipe.batch)])


def _look(loaded: Loaded, head: Any, scenes: Sequence[Scene]) -> tuple[Any, float]:
    seen = loaded.images(images=[scene.draw() for scene in scenes], return_tensors="pt")
    out = loaded.model.model.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"])
    return _looking_loss(head, merged_tokens(out), scenes)


def language_loss(
    loaded: Loaded,
    head: Any,
    recipe: LessonRecipe,
    lessons: Sequence[Lesson],
    more: Sequence[Scene],
    digits: Any,
    colours: Any | None = None,
    colour_weight: float = 1.0,
    eyes: bool = True,
) -> tuple[Any, float]:
    """Loss on the answers' tokens, digits counted twice, and the share of answer tokens right (before the step).

    `colours` are token ids that count `colour_weight` times; without `eyes` what the eyes see is no part of the loss.
    """
    import torch

    inputs = encode(loaded, [lesson.chat for lesson in lessons], system=[lesson.system for lesson in lessons])
    labels = inputs.pop("labels")[:, 1:]
    seen: list[Any] = []
    hook = loaded.model.model.visual.register_forward_hook(lambda _m, _i, out: seen.append(merged_tokens(out)))
    try:
        scores = loaded.model(**inputs, use_cache=False).logits[:, :-1]
    finally:
        hook.remove()
    taught = labels != -100
    scores, labels = scores[taught], labels[taught]
    each = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    is_digit = torch.isin(labels, digits)
    weight = torch.where(is_digit, 2.0, 1.0)
    if colours is not None and colour_weight != 1.0:
        weight = torch.where(torch.isin(labels, colours), colour_weight, weight)
    right = float((scores.argmax(-1) == labels).float().mean())
    loss = (each * weight).sum() / weight.sum()
    if not eyes:
        return loss, right
    looking, _ = _looking_loss(head, seen[0], [lesson.scene for lesson in lessons if lesson.scene is not None])
    if more:
        looking = looking + _look(loaded, head, more)[0]
    return loss + recipe.eyes_share * looking, right


def digit_ids(loaded: Loaded) -> Any:
    """Return the token ids of 0 to 9."""
    import torch

    return torch.tensor(loaded.tokenizer.convert_tokens_to_ids(list("0123456789")))


def colour_ids(loaded: Loaded) -> Any:
    """Return the token ids that colour words are made of, at the beginning of an answer."""
    import torch

    return torch.tensor(sorted({token for colour in COLOURS for token in loaded.tokenizer(colour)["input_ids"]}))


def _rate(step: int, steps: int, warm_up: int) -> float:
    """Share of the learning rate at a step: a short linear warm-up, then half a cosine down to 2 %."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _optimizer(parameters: list[Any], rate: float) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, foreach=False)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all: beside, flushed to disk, then renamed."""
    import torch

    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@dataclass
class PretrainPhase:
    """One phase's parts: what it optimises, how a step's loss comes about."""

    rate: float
    parameters: list[Any]
    loss: Callable[[int], tuple[Any, float]]


def pretrain(
    loaded: Loaded,
    recipe: LessonRecipe,
    *,
    checkpoint: Path,
    report: Report,
    stopping: Stopping,
    every: int = 50,
    report_every: int = 10,
) -> Any | None:
    """Train `loaded.model` in place and return the eyes' head; None when stopped early (checkpoint kept).

    A checkpoint at `checkpoint` made by the same recipe is taken up. Raises ValueError when it belongs to
    another recipe, and FloatingPointError when the loss is no longer a number.
    """
    import torch

    torch.set_num_threads(recipe.threads)
    model = loaded.model.train()
    head = new_head(recipe.seed, model.config.vision_config.out_hidden_size)
    digits, colours = digit_ids(loaded), colour_ids(loaded)
    visual = model.model.visual
    plain_patches(visual)
    seeing = {id(p) for p in visual.parameters()}
    words = [p for p in model.parameters() if id(p) not in seeing]

    def asked(stage: Stage) -> Callable[[int], tuple[Any, float]]:
        return lambda step: language_loss(
            loaded, head, recipe, *question_lessons(recipe, stage, step), digits, colours, stage.colours, stage.eyes
        )

    def alone(name: str) -> Callable[[int], tuple[Any, float]]:
        return lambda step: _look(loaded, head, looking_scenes(recipe, name, step))

    seeing_parts, everything = [*visual.parameters(), *head.parameters()], [*model.parameters(), *head.parameters()]
    made = {
        "eyes": PretrainPhase(recipe.eyes_rate, seeing_parts, lambda step: eyes_loss(loaded, head, recipe, step)),
        "language": PretrainPhase(
            recipe.language_rate,
            everything,
            lambda step: language_loss(loaded, head, recipe, *language_lessons(recipe, step), digits),
        ),
        **{
            name: PretrainPhase(recipe.eyes_rate * rate, seeing_parts, alone(name))
            for name, (_, _, rate) in LOOKS.items()
        },
        **{
            stage.name: PretrainPhase(
                recipe.question_rate * stage.rate, everything if stage.eyes else words, asked(stage)
            )
            for stage in STAGES
        },
    }
    started, at_step, moments = 0, 0, None
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        if kept["recipe"] != asdict(recipe):
            raise ValueError(f"{checkpoint} was made by another recipe; start in a new run folder")
        model.load_state_dict(kept["model"])
        head.load_state_dict(kept["head"])
        started, at_step, moments = kept["phase"], kept["step"], kept["optimizer"]

    for number, (name, steps) in enumerate(phase_steps(recipe).items()):
        if number < started:
            continue
        phase = made[name]
        trained = {id(p) for p in phase.parameters}
        for parameter in visual.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        optimizer = _optimizer(phase.parameters, phase.rate)
        first = at_step if number == started else 0
        if number == started and moments is not None:
            optimizer.load_state_dict(moments)

        def keep(step: int, number: int = number, optimizer: Any = optimizer) -> None:
            save_checkpoint(
                checkpoint,
                {
                    "recipe": asdict(recipe),
                    "phase": number,
                    "step": step,
                    "model": model.state_dict(),
                    "head": head.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
            )

        losses: list[float] = []
        rights: list[float] = []
        clock = time.monotonic()
        for step in range(first, steps):
            if stopping():
                keep(step)
                return None
            for group in optimizer.param_groups:
                group["lr"] = phase.rate * _rate(step, steps, recipe.warm_up)
            loss, right = phase.loss(step)
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"the loss is {loss.item()} at {name} step {step}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(phase.parameters, 1.0, foreach=False)
            optimizer.step()
            losses.append(loss.item())
            rights.append(right)
            if (step + 1) % report_every == 0 or step + 1 == steps:
                now = time.monotonic()
                mean = sum(losses) / len(losses)
                pace = (now - clock) / len(losses)
                report(LossPoint(name, step + 1, steps, mean, sum(rights) / len(rights), pace))
                losses, rights, clock = [], [], now
            if (step + 1) % every == 0:
                keep(step + 1)
        keep(steps)
    visual.requires_grad_(True)
    model.eval()
    return head
