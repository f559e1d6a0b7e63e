"""Teaching the bundled model from nothing, in phases: eyes, counting, questions.

*Eyes*: the vision tower with a throw-away head that says, for each visual token, the shape and colour of
the object whose centre it holds (or nothing). All renderings, layouts, hollow and small objects are in
here, for later training leaves the vision alone. *Language*: mostly the counting question, which only ever
shows up to three of each, so that counting further is left to be taught. The naming loss goes on beside it,
so that the eyes stay sharp. *Questions*, in three stages: mostly short questions, many about one picture, which
are slow to learn before counting is: what a thing is, then one among others, then the hard ones. The eyes see
their hardest scenes again, small things on any ground.

Every batch follows from (seed, phase, step) alone and dropout is not used, so a run stopped anywhere and
taken up again from its last checkpoint ends in the same weights.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.counting.layout import DENSE, OPEN, PITCH, PLACES, REGULAR, SCATTERED, SMALLEST
from vlmconsole.counting.look import PLAIN, random_look
from vlmconsole.counting.questions import (
    COUNT_PROMPT,
    SHARES,
    QuestionSet,
    crowd_set,
    echo_chat,
    few_things,
    outside_chat,
    question_set,
)
from vlmconsole.counting.scene import GROUPS, KINDS, Scene, Wanted, compose, label_json, make_scene
from vlmconsole.training.model import Loaded, Turn, encode, merged_tokens

SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Recipe:
    """What decides the weights, apart from the code: change one and another model results."""

    seed: int = 7
    threads: int = 2  # sums are added in another order with another number of threads
    batch: int = 24
    eyes_steps: int = 1200
    eyes_rate: float = 1.5e-3
    language_steps: int = 500
    language_rate: float = 1.5e-3
    most_counted: int = 3
    count_share: int = 17  # of a batch; one is small talk, the others are question sets
    warm_up: int = 30
    eyes_share: float = 0.5  # weight of the naming loss, kept up in the language phase
    refresh: int = 8  # eyes scenes seen beside each language batch
    question_steps: int = 500  # of each of the three stages of questions
    question_rate: float = 1.5e-3
    question_batch: int = 20  # the first `question_counts` of them count, one is small talk
    question_counts: int = 5
    question_turns: int = 8  # questions about one picture
    question_refresh: int = 12  # eyes scenes seen beside each question batch, half of them small things


@dataclass(frozen=True)
class Point:
    """One step as it is reported: mean losses since the last report, seconds per step."""

    phase: str
    step: int
    steps: int
    loss: float
    accuracy: float
    seconds_per_step: float


Report = Callable[[Point], None]
Stopping = Callable[[], bool]


def eyes_scene(seed: str) -> Scene:
    """A scene for looking at: any kinds, 1 to 30 things, filled and hollow, every layout and rendering."""
    rng = random.Random(f"eyes:{seed}")
    if rng.random() < 0.2:
        return few_things(f"eyes:{seed}")
    count = rng.randint(1, 30)
    hollow = rng.choice((0.0, 0.0, 0.5, 1.0))
    targets = rng.choice((0.0, 0.3, 0.7))
    wanted = []
    for _ in range(count):
        kind = rng.choice((("red", "circle"), ("blue", "square"))) if rng.random() < targets else rng.choice(KINDS)
        wanted.append(Wanted(*kind, hollow=rng.random() < hollow))
    look = random_look(rng) if rng.random() < 0.6 else PLAIN
    layout = rng.choice((REGULAR, SCATTERED, SCATTERED, DENSE, OPEN))
    return compose(f"eyes:{seed}", wanted, group="eyes", layout=layout, look=look)


def small_scene(seed: str) -> Scene:
    """A scene of the smallest things, 4 to 24 of them, in any rendering: what the eyes find hardest."""
    rng = random.Random(f"small:{seed}")
    hollow = rng.choice((0.0, 0.5, 1.0))
    wanted = [
        Wanted(*rng.choice(KINDS), hollow=rng.random() < hollow, radius=rng.randint(SMALLEST, SMALLEST + 3))
        for _ in range(rng.randint(4, 24))
    ]
    return compose(f"small:{seed}", wanted, group="eyes", layout=SCATTERED, look=random_look(rng))


def token_names(scene: Scene) -> list[int]:
    """For each of the 64 visual tokens, row by row: 0, or 1 + the place in KINDS of what is centred there."""
    names = [0] * (PLACES * PLACES)
    for thing in scene.things:
        names[thing.y // PITCH * PLACES + thing.x // PITCH] = 1 + KINDS.index((thing.colour, thing.shape))
    return names


@dataclass(frozen=True)
class Lesson:
    """One chat of the language phase, the scene it shows (or none), and its system message (or none)."""

    chat: list[Turn]
    scene: Scene | None
    system: str | None


def lesson(recipe: Recipe, step: int, index: int) -> Lesson:
    """The lesson at a place in a batch: counting first, then question sets, small talk last."""
    key = f"{recipe.seed}:language:{step}:{index}"
    rng = random.Random(key)
    system = SYSTEM if rng.random() < 0.1 else None
    if index < recipe.count_share:
        return _counting_lesson(recipe, key, rng, system)
    asked = outside_chat(key) if index == recipe.batch - 1 else question_set(key)
    return _asked_lesson(asked, system)


@dataclass(frozen=True)
class Stage:
    """A phase of short questions: what pictures, and which questions. Crowds give way to few things.

    The share of crowds is `crowds` at the first step and falls straight, `fall` times over the whole phase, to
    `fewest`. `crowd_kinds` and `crowd_each` are numbers of kinds and of things of a kind in a crowd, `things` in
    the other pictures; `asks` are the crowds' questions, `shares` the others'. `echoes` are chats in which
    numbers are only said after: without them the digits past the largest count fade until no adapter on the
    language half can bring them back, as it leaves the words themselves alone.
    """

    name: str
    crowds: float
    fall: float
    fewest: float
    crowd_kinds: tuple[int, ...]
    crowd_each: tuple[int, int]
    things: tuple[int, ...]
    asks: tuple[str, ...] = ("colour", "colour", "shape", "shape", "yes_no")
    shares: tuple[tuple[str, int], ...] = tuple(SHARES.items())
    echoes: int = 0


STAGES = (
    Stage("questions", 0.9, 1.3, 0.15, (1, 1, 1, 2, 2, 3), (3, 10), (1, 1, 2, 2, 3, 4)),
    Stage("binding", 0.8, 1.0, 0.2, (2, 2, 3, 3, 4), (1, 6), (1, 2, 2, 3, 3, 4)),
    # By now a colour tells its shape, but a shape not yet its colour: that, sizes and yes or no.
    Stage(
        "detail",
        0.7,
        1.0,
        0.2,
        (2, 2, 3, 3, 3),
        (1, 5),
        (2, 2, 3, 3, 3, 4),
        ("colour", "colour", "colour", "yes_no"),
        (("colour", 8), ("larger", 6), ("yes_no", 6), ("shape", 2), ("how_many", 2), ("describe", 2), ("outside", 1)),
        echoes=3,
    ),
)


def question_lesson(recipe: Recipe, stage: Stage, step: int, index: int) -> Lesson:
    """The lesson at a place in a stage's batch: some counting, then question sets, small talk last."""
    key = f"{recipe.seed}:{stage.name}:{step}:{index}"
    rng = random.Random(key)
    system = SYSTEM if rng.random() < 0.1 else None
    if index < recipe.question_counts:
        return _counting_lesson(recipe, key, rng, system)
    if index == recipe.question_batch - 1:
        return _asked_lesson(outside_chat(key), system)
    if index >= recipe.question_batch - 1 - stage.echoes:
        return _asked_lesson(echo_chat(key), system)
    turns, done = recipe.question_turns, step / recipe.question_steps
    if rng.random() < max(stage.fewest, stage.crowds * (1 - stage.fall * done)):
        return _asked_lesson(crowd_set(key, turns, stage.crowd_kinds, stage.crowd_each, stage.asks), system)
    return _asked_lesson(question_set(key, turns, counts=stage.things, shares=dict(stage.shares)), system)


def _counting_lesson(recipe: Recipe, key: str, rng: random.Random, system: str | None) -> Lesson:
    plain = rng.random() < 0.5
    group = "regular" if plain else rng.choice([g for g in GROUPS if g != "high"])
    varied = None if plain else rng.random() < 0.5
    scene = make_scene(key, group, low=0, high=recipe.most_counted, varied=varied)
    return Lesson([Turn(COUNT_PROMPT, label_json(scene.label), (scene.draw(),))], scene, system)


def _asked_lesson(asked: QuestionSet, system: str | None) -> Lesson:
    picture = (asked.scene.draw(),) if asked.scene is not None else ()
    turns = [Turn(q, a, picture if turn == 0 else ()) for turn, (q, a) in enumerate(asked.pairs)]
    return Lesson(turns, asked.scene, system)


def new_head(seed: int, hidden: int) -> Any:
    """The throw-away head: one linear layer from a visual token to nothing or one of the 15 kinds."""
    import torch

    torch.manual_seed(seed + 1)
    return torch.nn.Linear(hidden, 1 + len(KINDS))


def _naming_loss(head: Any, seen: Any, scenes: Sequence[Scene]) -> tuple[Any, float]:
    """Cross-entropy of the names of all visual tokens (tokens, hidden), and the share of objects named right."""
    import torch

    truth = torch.tensor([token_names(scene) for scene in scenes]).flatten()
    scores = head(seen)
    there = truth > 0
    right = float((scores.argmax(-1) == truth)[there].float().mean())
    return torch.nn.functional.cross_entropy(scores, truth), right


def eyes_loss(loaded: Loaded, head: Any, recipe: Recipe, step: int) -> tuple[Any, float]:
    """Loss of one eyes step and the share of objects named right (before the step)."""
    return _look(loaded, head, [eyes_scene(f"{recipe.seed}:{step}:{i}") for i in range(recipe.batch)])


def _look(loaded: Loaded, head: Any, scenes: Sequence[Scene]) -> tuple[Any, float]:
    seen = loaded.images(images=[scene.draw() for scene in scenes], return_tensors="pt")
    out = loaded.model.model.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"])
    return _naming_loss(head, merged_tokens(out), scenes)


def language_lessons(recipe: Recipe, step: int) -> tuple[list[Lesson], list[Scene]]:
    """One language step's lessons, and the eyes scenes beside them."""
    more = [eyes_scene(f"{recipe.seed}:refresh:{step}:{i}") for i in range(recipe.refresh)]
    return [lesson(recipe, step, index) for index in range(recipe.batch)], more


def question_lessons(recipe: Recipe, stage: Stage, step: int) -> tuple[list[Lesson], list[Scene]]:
    """One step's lessons of a stage of questions, and the eyes scenes beside them, half of them small things."""
    # The second word of the key is each stage's own; the first two keep those that the shipped weights saw.
    word = {"questions": "again", "binding": "bind"}.get(stage.name, stage.name)
    keys = [f"{recipe.seed}:{word}:{step}:{i}" for i in range(recipe.question_refresh)]
    more = [small_scene(key) if i % 2 else eyes_scene(key) for i, key in enumerate(keys)]
    return [question_lesson(recipe, stage, step, index) for index in range(recipe.question_batch)], more


def language_loss(
    loaded: Loaded, head: Any, recipe: Recipe, lessons: Sequence[Lesson], more: Sequence[Scene], digits: Any
) -> tuple[Any, float]:
    """Loss on the answers' tokens, digits counted twice, and the share of answer tokens right (before the step)."""
    import torch

    inputs = encode(loaded, [one.chat for one in lessons], system=[one.system for one in lessons])
    labels = inputs.pop("labels")[:, 1:]
    seen: list[Any] = []
    hook = loaded.model.model.visual.register_forward_hook(lambda _m, _i, out: seen.append(merged_tokens(out)))
    try:
        scores = loaded.model(**inputs, use_cache=False).logits[:, :-1]
    finally:
        hook.remove()
    naming, _ = _naming_loss(head, seen[0], [one.scene for one in lessons if one.scene is not None])
    if more:
        naming = naming + _look(loaded, head, more)[0]
    taught = labels != -100
    scores, labels = scores[taught], labels[taught]
    each = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    is_digit = torch.isin(labels, digits)
    weight = torch.where(is_digit, 2.0, 1.0)
    right = float((scores.argmax(-1) == labels).float().mean())
    return (each * weight).sum() / weight.sum() + recipe.eyes_share * naming, right


def digit_ids(loaded: Loaded) -> Any:
    """The token ids of 0 to 9."""
    import torch

    return torch.tensor(loaded.tokenizer.convert_tokens_to_ids(list("0123456789")))


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

    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass
class Phase:
    """One phase's parts: what it optimises, how a step's loss comes about."""

    name: str
    steps: int
    rate: float
    parameters: list[Any]
    loss: Callable[[int], tuple[Any, float]]


def pretrain(
    loaded: Loaded,
    recipe: Recipe,
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
    digits = digit_ids(loaded)
    visual = model.model.visual
    phases = (
        Phase(
            "eyes",
            recipe.eyes_steps,
            recipe.eyes_rate,
            [*visual.parameters(), *head.parameters()],
            lambda step: eyes_loss(loaded, head, recipe, step),
        ),
        Phase(
            "language",
            recipe.language_steps,
            recipe.language_rate,
            [*model.parameters(), *head.parameters()],
            lambda step: language_loss(loaded, head, recipe, *language_lessons(recipe, step), digits),
        ),
        *(
            Phase(
                stage.name,
                recipe.question_steps,
                recipe.question_rate,
                [*model.parameters(), *head.parameters()],
                lambda step, stage=stage: language_loss(
                    loaded, head, recipe, *question_lessons(recipe, stage, step), digits
                ),
            )
            for stage in STAGES
        ),
    )
    started, at_step, moments = 0, 0, None
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        if kept["recipe"] != asdict(recipe):
            raise ValueError(f"{checkpoint} was made by another recipe; start in a new run folder")
        model.load_state_dict(kept["model"])
        head.load_state_dict(kept["head"])
        started, at_step, moments = kept["phase"], kept["step"], kept["optimizer"]

    for number, phase in enumerate(phases):
        if number < started:
            continue
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
        for step in range(first, phase.steps):
            if stopping():
                keep(step)
                return None
            for group in optimizer.param_groups:
                group["lr"] = phase.rate * _rate(step, phase.steps, recipe.warm_up)
            loss, right = phase.loss(step)
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"the loss is {loss.item()} at {phase.name} step {step}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(phase.parameters, 1.0, foreach=False)
            optimizer.step()
            losses.append(loss.item())
            rights.append(right)
            if (step + 1) % report_every == 0 or step + 1 == phase.steps:
                now = time.monotonic()
                mean = sum(losses) / len(losses)
                pace = (now - clock) / len(losses)
                report(Point(phase.name, step + 1, phase.steps, mean, sum(rights) / len(rights), pace))
                losses, rights, clock = [], [], now
            if (step + 1) % every == 0:
                keep(step + 1)
        keep(phase.steps)
    model.eval()
    return head
