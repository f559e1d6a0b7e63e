"""Questions about scenes and their true answers: the counting prompt, and short everyday questions.

A question set is a picture with a few questions, so that one look at it teaches several answers. Answers
are short and always true; where several would be true, the question is not asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vlmconsole.counting.layout import OPEN, SCATTERED
from vlmconsole.counting.look import COLOURS, PLAIN, random_look
from vlmconsole.counting.scene import KINDS, SHAPES, Scene, Thing, Wanted, compose, label_json

COUNT_PROMPT = (
    "Count the red circles and the blue squares. "
    'Answer with exactly one JSON object like {"red_circles": 3, "blue_squares": 2}.'
)
UNKNOWN = "I only know coloured shapes."
NO_PICTURE = "I only know coloured shapes. Show me a picture of some."

# Talk from outside its world, so that a first chat is not answered with noise.
OUTSIDE = (
    "Hello", "Hi", "hello!", "Hi there", "Hey", "Who are you?", "What are you?", "What can you do?", "Help",
    "What is the capital of France?", "Tell me a joke.", "Write a poem.", "What is 2 + 2?", "How are you?",
    "Good morning", "What model are you?", "Who made you?", "Explain gravity.", "What time is it?", "Test",
    "Translate this sentence.", "Summarize the text.", "Write a story about a dog.", "Thanks", "Thank you!",
    "What is your name?", "Why is the sky blue?", "Can you help me?", "What do you know?", "Are you there?",
)  # fmt: skip
OUTSIDE_PICTURE = (
    "Read the text.", "What does the sign say?", "Who is this person?", "Is there a dog?", "Is there a cat?",
    "Where was this photo taken?", "What is written here?", "How old is she?", "What brand is this?",
    "Is it raining?", "How many people are there?", "What is the man doing?", "Is there a car?",
)  # fmt: skip
DESCRIBE = (
    "Describe the picture.", "Describe this image.", "What is this?", "What do you see?",
    "What is in the picture?", "What is in this image?", "What's in this picture?", "Describe the image.",
)  # fmt: skip
CLEARLY = 1.35  # how many times larger across one thing has to be to be called larger than another
# Circumradii in pixels that are called so; those between are not asked about.
SIZES = {"small": (0, 20), "medium": (22, 38), "large": (44, 1000)}


@dataclass(frozen=True)
class QuestionSet:
    """One picture (or none) and question–answer pairs about it; `kinds` names each question's kind."""

    scene: Scene | None
    pairs: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]


Ask = Callable[[random.Random, tuple[Thing, ...]], tuple[str, str] | None]


def _article(name: str) -> str:
    return f"a {name}"


def _colour(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str] | None:
    shapes = [t.shape for t in things]
    lone = [t for t in things if shapes.count(t.shape) == 1]
    if not lone:
        return None
    thing = rng.choice(lone)
    word = rng.choice(("colour", "color"))
    text = rng.choice((f"What {word} is the {thing.shape}?", f"Which {word} is the {thing.shape}?"))
    return text, thing.colour


def _shape(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str] | None:
    colours = [t.colour for t in things]
    lone = [t for t in things if colours.count(t.colour) == 1]
    if not lone:
        return None
    thing = rng.choice(lone)
    text = rng.choice(
        (
            f"What shape is {thing.colour}?",
            f"Which shape is {thing.colour}?",
            f"What shape is the {thing.colour} one?",
            f"What shape is the {thing.colour} object?",
        )
    )
    return text, thing.shape


def _compare(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str] | None:
    names = [t.name for t in things]
    lone = [t for t in things if names.count(t.name) == 1]
    rng.shuffle(lone)
    for shape in lone:
        for other in lone:
            small, large = sorted((shape.radius, other.radius))
            # Told apart by eye: at least a third larger across.
            if shape is not other and large >= CLEARLY * small:
                word = rng.choice(("larger", "smaller", "bigger"))
                wanted = min if word == "smaller" else max
                answer = wanted((shape, other), key=lambda t: t.radius)
                return f"Which is {word}, the {shape.name} or the {other.name}?", f"the {answer.name}"
    return None


def _extreme(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str] | None:
    ordered = sorted(things, key=lambda t: t.radius)
    word = rng.choice(("larger", "bigger", "smaller") if len(things) == 2 else ("largest", "biggest", "smallest"))
    if word.startswith("small"):
        ordered.reverse()
        clear = len(things) > 1 and ordered[-2].radius >= CLEARLY * ordered[-1].radius
    else:
        clear = len(things) > 1 and ordered[-1].radius >= CLEARLY * ordered[-2].radius
    return (f"Which is {word}?", f"the {ordered[-1].name}") if clear else None


def _size(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str] | None:
    names = [t.name for t in things]
    lone = [t for t in things if names.count(t.name) == 1]
    if not lone:
        return None
    thing = rng.choice(lone)
    word = next((word for word, (low, high) in SIZES.items() if low <= thing.radius <= high), None)
    return (f"How {rng.choice(('big', 'large'))} is the {thing.name}?", word) if word else None


def _yes_no(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str]:
    names = {t.name for t in things}
    present = rng.random() < 0.5
    absent = sorted({f"{colour} {shape}" for colour, shape in KINDS} - names)
    name = rng.choice(sorted(names)) if present else rng.choice([*absent, f"{rng.choice(COLOURS)} star"])
    return rng.choice((f"Is there a {name}?", f"Do you see a {name}?")), "yes" if present else "no"


def _how_many(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str]:
    names = [t.name for t in things]
    name = rng.choice(sorted(set(names))) if rng.random() < 0.8 else " ".join(rng.choice(KINDS))
    return f"How many {name}s are there?", str(names.count(name))


def _describe(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str]:
    names = list(dict.fromkeys(f"{c} {s}" for c, s in KINDS if any(t.name == f"{c} {s}" for t in things)))
    return rng.choice(DESCRIBE), ", ".join(_article(name) for name in names)


def _outside(rng: random.Random, things: tuple[Thing, ...]) -> tuple[str, str]:
    return rng.choice(OUTSIDE_PICTURE), UNKNOWN


ASKERS: dict[str, Ask] = {
    "colour": _colour,
    "shape": _shape,
    "larger": _compare,
    "extreme": _extreme,
    "size": _size,
    "yes_no": _yes_no,
    "how_many": _how_many,
    "describe": _describe,
    "outside": _outside,
}
SHARES = {
    "colour": 5,
    "shape": 5,
    "larger": 3,
    "extreme": 3,
    "size": 3,
    "yes_no": 5,
    "how_many": 3,
    "describe": 2,
    "outside": 1,
}


def few_things(seed: str, counts: Sequence[int] = (1, 2, 2, 3, 3, 4)) -> Scene:
    """Return one to four things of clearly different sizes, often larger than in counting scenes, any look."""
    rng = random.Random(f"few:{seed}")
    count = rng.choice(counts)
    kinds = rng.sample(KINDS, count)
    if rng.random() < 0.5:  # all of different shape and colour, so that every question can be asked
        colours, shapes = rng.sample(COLOURS, count), rng.sample(SHAPES * 2, count)
        kinds = list(zip(colours, shapes, strict=True))
    sizes = [rng.choice((16, 18, 24, 34, 46, 60)) + rng.randint(-2, 2) for _ in kinds]
    hollow = 0.0 if rng.random() < 0.7 else 1.0
    wanted = [
        Wanted(colour, shape, rng.random() < hollow, radius)
        for (colour, shape), radius in zip(kinds, sizes, strict=True)
    ]
    look = random_look(rng) if rng.random() < 0.5 else PLAIN
    return compose(f"few:{seed}", wanted, group="few", layout=rng.choice((OPEN, SCATTERED)), look=look)


def question_set(
    seed: str,
    turns: int = 4,
    kind: str | None = None,
    counts: Sequence[int] = (1, 2, 2, 3, 3, 4),
    shares: Mapping[str, int] = SHARES,
) -> QuestionSet:
    """Return a few-things picture with up to `turns` questions; of one `kind` only, if given (see ASKERS).

    `counts` are the numbers of things to choose from, `shares` how often each kind is asked.
    """
    rng = random.Random(f"ask:{seed}")
    attempt = 0
    while True:
        scene = few_things(f"{seed}:{attempt}", counts)
        pairs: list[tuple[str, str]] = []
        kinds: list[str] = []
        for _ in range(turns):
            name = kind or rng.choices(list(shares), list(shares.values()))[0]
            pair = ASKERS[name](rng, scene.things)
            if pair is not None and pair not in pairs:
                pairs.append(pair)
                kinds.append(name)
        if pairs:
            return QuestionSet(scene, tuple(pairs), tuple(kinds))
        attempt += 1


def lone_scene(seed: str) -> Scene:
    """Return one thing of any size, up to half the picture across, or two of the same size: what people draw to try it
    out.
    """
    rng = random.Random(f"lone:{seed}")
    count = rng.choice((1, 1, 1, 2))
    radius = round(14 * (110 / 14) ** rng.random()) if count == 1 else rng.randint(14, 70)
    hollow = rng.choice((0.0, 0.0, 1.0))
    wanted = [Wanted(*kind, rng.random() < hollow, radius) for kind in rng.sample(KINDS, count)]
    look = random_look(rng) if rng.random() < 0.5 else PLAIN
    return compose(f"lone:{seed}", wanted, group="lone", layout=OPEN, look=look)


def lone_set(seed: str, turns: int = 5) -> QuestionSet:
    """Questions about a picture of one or two things, most of them without the thing's name."""
    rng = random.Random(f"alone:{seed}")
    scene = lone_scene(seed)
    pairs: list[tuple[str, str]] = []
    kinds: list[str] = []
    for _ in range(turns):
        name = rng.choice(("colour", "shape", "describe", "size", "yes_no", "how_many"))
        pair = ASKERS[name](rng, scene.things)
        if len(scene.things) == 1 and name in ("colour", "shape"):
            thing, word = scene.things[0], rng.choice(("colour", "color")) if name == "colour" else "shape"
            what = rng.choice(("it", "this", "the object", "the thing", *(("the shape",) if name == "colour" else ())))
            pair = (
                f"{rng.choice(('What', 'Which'))} {word} is {what}?",
                thing.colour if name == "colour" else thing.shape,
            )
        if pair is not None and pair not in pairs:
            pairs.append(pair)
            kinds.append(name)
    return QuestionSet(scene, tuple(pairs), tuple(kinds)) if pairs else lone_set(f"{seed}+", turns)


def crowd_set(
    seed: str,
    turns: int = 8,
    kinds_of: Sequence[int] = (1, 1, 1, 2, 2, 3),
    each: tuple[int, int] = (3, 10),
    asks: Sequence[str] = ("colour", "colour", "shape", "shape", "yes_no"),
) -> QuestionSet:
    """Many things of few kinds, and up to `turns` questions about what the kinds are; never about how many.

    A kind that is there several times is seen by a model that does not yet know where to look. `kinds_of` are
    the numbers of kinds to choose from, `each` how often a kind comes (lowest, highest), `asks` the kinds of
    question.
    """
    rng = random.Random(f"crowd:{seed}")
    kinds = rng.sample(KINDS, rng.choice(kinds_of))
    hollow = rng.choice((0.0, 0.0, 1.0))
    wanted = [Wanted(*kind, hollow=rng.random() < hollow) for kind in kinds for _ in range(rng.randint(*each))]
    look = random_look(rng) if rng.random() < 0.5 else PLAIN
    scene = compose(f"crowd:{seed}", wanted, group="crowd", layout=rng.choice((OPEN, SCATTERED)), look=look)
    pairs: list[tuple[str, str]] = []
    names: list[str] = []
    for _ in range(turns):
        name = rng.choice(asks)
        colour, shape = rng.choice(kinds)
        pair: tuple[str, str] | None = None
        if name == "yes_no":
            pair = _yes_no(rng, scene.things)
        elif name == "colour" and sum(s == shape for _, s in kinds) == 1:
            word = rng.choice(("colour", "color"))
            pair = (rng.choice((f"What {word} are the {shape}s?", f"What {word} is the {shape}?")), colour)
        elif name == "shape" and sum(c == colour for c, _ in kinds) == 1:
            pair = (rng.choice((f"What shape is {colour}?", f"Which shape is {colour}?")), shape)
        if pair is not None and pair not in pairs:
            pairs.append(pair)
            names.append(name)
    if not pairs:
        return question_set(seed, turns)
    return QuestionSet(scene, tuple(pairs), tuple(names))


def echo_chat(seed: str, turns: int = 6) -> QuestionSet:
    """Numbers to be said after, 0 to 12, without a picture: the digits are learnt as words, not counted."""
    rng = random.Random(f"echo:{seed}")
    pairs = []
    for _ in range(turns):
        red, blue = rng.randint(0, 12), rng.randint(0, 12)
        if rng.random() < 0.4:
            pairs.append((f"Say {red}.", str(red)))
        else:
            text = f"Write {red} red circles and {blue} blue squares as a JSON object."
            pairs.append((text, label_json({"red_circles": red, "blue_squares": blue})))
    return QuestionSet(None, tuple(pairs), ("echo",) * turns)


def said_set(seed: str, turns: int = 6) -> QuestionSet:
    """Questions that name their own answer ("What shape is the red circle?"), half of them about a picture.

    A model whose last token never looks at the words it was asked about cannot learn where in the picture to look:
    these teach it to, which questions about one thing among others do not by themselves.
    """
    rng = random.Random(f"said:{seed}")
    pairs = []
    for _ in range(turns):
        colour, shape = rng.choice(COLOURS), rng.choice(SHAPES)
        which, word = rng.choice(("What", "Which")), rng.choice(("colour", "color"))
        pairs.append(
            rng.choice(
                (
                    (f"{which} shape is the {shape}?", shape),
                    (f"{which} shape is the {colour} {shape}?", shape),
                    (f"{which} {word} is the {colour} {shape}?", colour),
                )
            )
        )
    scene = few_things(f"said:{seed}", (2, 3)) if rng.random() < 0.5 else None
    return QuestionSet(scene, tuple(pairs), ("said",) * turns)


def outside_chat(seed: str) -> QuestionSet:
    """Return one or two turns of small talk without a picture."""
    rng = random.Random(f"outside:{seed}")
    texts = rng.sample(OUTSIDE, rng.choice((1, 1, 2)))
    return QuestionSet(None, tuple((text, NO_PICTURE) for text in texts), ("outside",) * len(texts))
