"""What the bundled model is shown, step by step: scenes for its eyes, chats for its tongue.

Everything follows from the recipe's seed and the step, so a training can be taken up anywhere. The shipped
weights were made from exactly these; another key or another order of draws gives another model.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, replace

from vlmconsole.counting.layout import DENSE, OPEN, PITCH, PLACES, REGULAR, SCATTERED, SMALLEST
from vlmconsole.counting.look import PLAIN, random_look
from vlmconsole.counting.questions import (
    COUNT_PROMPT,
    SHARES,
    QuestionSet,
    crowd_set,
    echo_chat,
    few_things,
    lone_scene,
    lone_set,
    outside_chat,
    question_set,
    said_set,
)
from vlmconsole.counting.scene import GROUPS, KINDS, Scene, Wanted, compose, label_json, make_scene
from vlmconsole.training.prompts import Turn

# Circumradii in pixels: a thing's size is told in steps of about a third, as its kind is, and not as a number. A number
# is learnt as faintly as its error allows, and what is faint in the features the words do not learn to read.
BOUNDS = (16, 21, 28, 37, 50, 67, 90)
SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class LessonRecipe:
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
    question_steps: int = 500  # of each stage of questions, but for what a stage makes `longer`
    question_rate: float = 1.5e-3
    question_batch: int = 20  # the first `question_counts` of them count, one is small talk
    question_counts: int = 5
    question_turns: int = 8  # questions about one picture
    question_refresh: int = 12  # eyes scenes seen beside each question batch, half of them small things


def eyes_scene(seed: str) -> Scene:
    """Return a scene for looking at: any kinds, 1 to 30 things, filled and hollow, every layout and rendering."""
    rng = random.Random(f"eyes:{seed}")
    if (draw := rng.random()) < 0.25:
        return few_things(f"eyes:{seed}") if draw < 0.17 else lone_scene(f"eyes:{seed}")
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
    """Return a scene of the smallest things, 4 to 24 of them, in any rendering: what the eyes find hardest."""
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


def token_sizes(scene: Scene) -> list[int]:
    """For each visual token, as in `token_names`: 0, or 1 + the place in BOUNDS of the size centred there."""
    sizes = [0] * (PLACES * PLACES)
    for thing in scene.things:
        sizes[thing.y // PITCH * PLACES + thing.x // PITCH] = 1 + bisect_left(BOUNDS, thing.radius)
    return sizes


@dataclass(frozen=True)
class Lesson:
    """One chat of the language phase, the scene it shows (or none), and its system message (or none)."""

    chat: list[Turn]
    scene: Scene | None
    system: str | None


def lesson(recipe: LessonRecipe, step: int, index: int) -> Lesson:
    """Return the lesson at a place in a batch: counting first, then question sets, small talk last."""
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
    language half can bring them back, as it leaves the words themselves alone. `said` are sets of questions that name
    their own answer, `lone` sets about one or two things of any size, `counts` counting pictures in place of the
    recipe's, `longer` and `rate` multiply the recipe's steps and learning rate, `colours` is the weight of a colour
    word in the loss, and `eyes` says whether the vision half is trained too: where it is not, a step takes two thirds
    of the time and the words have still features to learn on.
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
    said: int = 0
    lone: int = 0
    counts: int | None = None
    longer: float = 1.0
    rate: float = 1.0
    colours: float = 1.0
    eyes: bool = True

    def steps(self, recipe: LessonRecipe) -> int:
        """Return how many steps it takes under a recipe."""
        return round(recipe.question_steps * self.longer)


ALL = Stage(
    "all",
    0.3,
    1.0,
    0.15,
    (2, 2, 3),
    (1, 4),
    (2, 2, 3, 3, 4),
    ("colour", "colour", "yes_no", "yes_no"),
    (
        ("colour", 5),
        ("larger", 8),
        ("extreme", 4),
        ("size", 4),
        ("yes_no", 5),
        ("shape", 2),
        ("how_many", 4),
        ("describe", 4),
        ("outside", 1),
    ),
    echoes=2,
    said=2,
    lone=2,
    counts=4,
    longer=2.0,
    colours=2.0,
    eyes=False,
)
# To compare two things is learnt as colours were: for a while almost nothing else.
SIZED = (("larger", 4), ("extreme", 3), ("size", 2), ("colour", 1))
MIXED = (
    ("colour", 5),
    ("larger", 8),
    ("extreme", 5),
    ("size", 2),
    ("yes_no", 8),
    ("shape", 2),
    ("how_many", 4),
    ("describe", 3),
    ("outside", 1),
)
STAGES = (
    Stage("questions", 0.9, 1.3, 0.15, (1, 1, 1, 2, 2, 3), (3, 10), (1, 1, 2, 2, 3, 4), said=2, lone=3),
    # What colour has that shape: the last token has to learn to look at the words first. Nothing else for a while.
    Stage(
        "names",
        0.6,
        0.0,
        0.6,
        (2, 2, 3),
        (1, 4),
        (2, 2, 3),
        ("colour",),
        (("colour", 1),),
        echoes=1,
        said=5,
        lone=1,
        counts=1,
        longer=1.2,
        rate=1.4,
        colours=3.0,
        eyes=False,
    ),
    ALL,
    replace(ALL, name="sizes", crowds=0.0, fewest=0.0, shares=SIZED, echoes=1, lone=1, counts=1, longer=1.0),
    replace(ALL, name="rest", crowds=0.2, shares=MIXED, echoes=1, lone=1, longer=1.4, rate=0.8),
)
#: the eyes by themselves once more: before which stage, how many steps for twelve of the first, share of their rate
LOOKS = {"sharpen": ("names", 5, 0.7), "polish": ("sizes", 4, 0.3)}


def phase_steps(recipe: LessonRecipe) -> dict[str, int]:
    """Return every phase of the training in its order, and its steps under a recipe."""
    steps = {"eyes": recipe.eyes_steps, "language": recipe.language_steps}
    for stage in STAGES:
        for name, (before, twelfths, _) in LOOKS.items():
            if stage.name == before:
                steps[name] = -(-recipe.eyes_steps * twelfths // 12)
        steps[stage.name] = stage.steps(recipe)
    return steps


def looking_scenes(recipe: LessonRecipe, name: str, step: int) -> list[Scene]:
    """Return what the eyes look at by themselves in one of LOOKS: small things, few things, anything."""
    make = (
        small_scene,
        few_things,
        eyes_scene,
        small_scene,
        lone_scene,
        eyes_scene if name == "sharpen" else small_scene,
    )
    return [make[i % 6](f"{recipe.seed}:{name}:{step}:{i}") for i in range(recipe.batch)]


def question_lesson(recipe: LessonRecipe, stage: Stage, step: int, index: int) -> Lesson:
    """Return the lesson at a place in a stage's batch: some counting, then question sets, small talk last."""
    key = f"{recipe.seed}:{stage.name}:{step}:{index}"
    rng = random.Random(key)
    system = SYSTEM if rng.random() < 0.1 else None
    if index < (recipe.question_counts if stage.counts is None else stage.counts):
        return _counting_lesson(recipe, key, rng, system)
    if index == recipe.question_batch - 1:
        return _asked_lesson(outside_chat(key), system)
    if index >= recipe.question_batch - 1 - stage.echoes:
        return _asked_lesson(echo_chat(key), system)
    if index >= recipe.question_batch - 1 - stage.echoes - stage.said:
        return _asked_lesson(said_set(key), system)
    if index >= recipe.question_batch - 1 - stage.echoes - stage.said - stage.lone:
        return _asked_lesson(lone_set(key), system)
    turns, done = recipe.question_turns, step / stage.steps(recipe)
    if rng.random() < max(stage.fewest, stage.crowds * (1 - stage.fall * done)):
        return _asked_lesson(crowd_set(key, turns, stage.crowd_kinds, stage.crowd_each, stage.asks), system)
    return _asked_lesson(question_set(key, turns, counts=stage.things, shares=dict(stage.shares)), system)


def _counting_lesson(recipe: LessonRecipe, key: str, rng: random.Random, system: str | None) -> Lesson:
    plain = rng.random() < 0.5
    group = "regular" if plain else rng.choice([g for g in GROUPS if g != "high"])
    varied = None if plain else rng.random() < 0.5
    # Some in full pictures, so that the form of the answer holds where there is more than it was ever told to count.
    others = rng.randint(8, 24) if rng.random() < 0.2 else None
    scene = make_scene(key, group, low=0, high=recipe.most_counted, others=others, varied=varied)
    return Lesson([Turn(COUNT_PROMPT, label_json(scene.label), (scene.draw(),))], scene, system)


def _asked_lesson(asked: QuestionSet, system: str | None) -> Lesson:
    picture = (asked.scene.draw(),) if asked.scene is not None else ()
    turns = [Turn(q, a, picture if turn == 0 else ()) for turn, (q, a) in enumerate(asked.pairs)]
    return Lesson(turns, asked.scene, system)


def language_lessons(recipe: LessonRecipe, step: int) -> tuple[list[Lesson], list[Scene]]:
    """Return one language step's lessons, and the eyes scenes beside them."""
    more = [eyes_scene(f"{recipe.seed}:refresh:{step}:{i}") for i in range(recipe.refresh)]
    return [lesson(recipe, step, index) for index in range(recipe.batch)], more


def question_lessons(recipe: LessonRecipe, stage: Stage, step: int) -> tuple[list[Lesson], list[Scene]]:
    """Return one step's lessons of a stage of questions, and the eyes scenes beside them, half of them small things."""
    # The second word of the key is each stage's own; the first two keep those that the shipped weights saw.
    word = {"questions": "again"}.get(stage.name, stage.name)
    keys = [f"{recipe.seed}:{word}:{step}:{i}" for i in range(recipe.question_refresh)]
    more = [small_scene(key) if i % 2 else eyes_scene(key) for i, key in enumerate(keys)]
    return [question_lesson(recipe, stage, step, index) for index in range(recipe.question_batch)], more
