"""Counting scenes: coloured shapes on a plain ground, made from a seed, with the truth beside the picture.

`make_scene(seed)` decides what is there; `Scene.draw()` paints it. The same seed and arguments give the
same bytes on every machine: all choices come from the standard library's generator, seeded with text.
Pictures are 448 × 448 RGB. The count asked for is always of red circles and blue squares, filled or
hollow; all other shapes and colours distract.
"""

from __future__ import annotations

import io
import json
import random
from dataclasses import asdict, dataclass

import numpy as np
from PIL import Image

from vlmconsole.counting.draw import SHAPES, stamp
from vlmconsole.counting.layout import DENSE, LARGEST, OPEN, REGULAR, SCATTERED, SIDE, Layout, arrange, clear
from vlmconsole.counting.look import COLOURS, PALETTES, PLAIN, SceneLook, add_grain, backdrop, random_look

GROUPS = ("regular", "variants", "scattered", "dense", "hollow", "high")
KINDS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)
TARGETS = {"red_circles": ("red", "circle"), "blue_squares": ("blue", "square")}
DISTRACTORS = tuple(kind for kind in KINDS if kind not in TARGETS.values())
MOST_DISTRACTORS = 6

_LAYOUTS = {"scattered": SCATTERED, "dense": DENSE, "hollow": OPEN, "high": OPEN}


@dataclass(frozen=True)
class Thing:
    """One object: centre and circumradius in pixels; `stroke` is the outline's thickness, 0 when filled."""

    colour: str
    shape: str
    x: int
    y: int
    radius: int
    stroke: int = 0

    @property
    def hollow(self) -> bool:
        """Whether only the outline is drawn."""
        return self.stroke > 0

    @property
    def name(self) -> str:
        """As people say it: `red circle`."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Wanted:
    """What the caller wants somewhere in the scene; `radius` None lets the layout choose (pixels)."""

    colour: str
    shape: str
    hollow: bool = False
    radius: int | None = None


@dataclass(frozen=True)
class Scene:
    """What is in a picture and how it is painted. `things` are in no special order."""

    seed: str
    group: str
    things: tuple[Thing, ...]
    look: SceneLook

    @property
    def label(self) -> dict[str, int]:
        """The true counts: `{"red_circles": 3, "blue_squares": 2}`."""
        return {field: sum((t.colour, t.shape) == kind for t in self.things) for field, kind in TARGETS.items()}

    def draw(self) -> Image.Image:
        """Return the picture, 448 × 448 RGB; the same on every call."""
        picture = backdrop(self.look.background, self.look.second, SIDE).copy()
        palette = PALETTES[self.look.palette]
        for thing in self.things:
            if self.look.outline is not None and not thing.hollow:
                _press(picture, thing, self.look.outline, stamp(thing.shape, thing.radius, 0, self.look.smooth))
                inside = stamp(thing.shape, thing.radius - 3, 0, self.look.smooth)
                _press(picture, thing, palette[thing.colour], inside)
            else:
                mask = stamp(thing.shape, thing.radius, thing.stroke, self.look.smooth)
                _press(picture, thing, palette[thing.colour], mask)
        if self.look.noise:
            picture = add_grain(picture, self.look.noise, random.Random(f"{self.seed}:grain"))
        return picture

    def png(self) -> bytes:
        """Return the picture as PNG bytes."""
        buffer = io.BytesIO()
        self.draw().save(buffer, "PNG", compress_level=3)
        return buffer.getvalue()

    def truth(self) -> dict[str, object]:
        """Label, group, seed, look and object list as plain JSON values."""
        return {
            "seed": self.seed,
            "group": self.group,
            "label": self.label,
            "objects": [{**asdict(t), "hollow": t.hollow} for t in self.things],
            "look": asdict(self.look),
        }


def _press(picture: Image.Image, thing: Thing, colour: tuple[int, int, int], mask: Image.Image) -> None:
    half = mask.width // 2
    picture.paste(colour, (thing.x - half, thing.y - half), mask)


def compose(
    seed: str, wanted: list[Wanted], *, group: str = "regular", layout: Layout = REGULAR, look: SceneLook = PLAIN
) -> Scene:
    """Return a scene of exactly the wanted things, each at a seeded place. Raises ValueError past 64 things."""
    rng = random.Random(f"{seed}:places")
    radii = [w.radius if w.radius is not None else rng.randint(*layout.sizes) for w in wanted]
    spots = arrange(rng, radii, layout)
    things = []
    for want, (x, y, radius) in zip(wanted, spots, strict=True):
        # At least four pixels: half of that is left when a small model sees the picture at half size.
        stroke = max(4, round(radius * rng.uniform(0.2, 0.3))) if want.hollow else 0
        things.append(Thing(want.colour, want.shape, x, y, radius, stroke))
    return Scene(seed, group, tuple(things), look)


def make_scene(
    seed: int | str,
    group: str = "regular",
    *,
    red: int | None = None,
    blue: int | None = None,
    low: int | None = None,
    high: int | None = None,
    others: int | None = None,
    hollow: float | None = None,
    varied: bool | None = None,
) -> Scene:
    """Return a seeded scene of one group: regular, variants, scattered, dense, hollow or high.

    `red` and `blue` fix the counts of red circles and blue squares; a count left open is drawn from `low` to
    `high` (0–7; 8–12 in the group `high`). `others` fixes the number of distractors (else 0–6). `hollow` is
    the share of objects drawn as outlines (1 in the group hollow, else 0), `varied` asks for a varied
    rendering (only the group variants has one otherwise). Raises ValueError for an unknown group or more
    than 64 objects.
    """
    if group not in GROUPS:
        raise ValueError(f"unknown group {group!r}: one of {', '.join(GROUPS)}")
    low = low if low is not None else (8 if group == "high" else 0)
    high = high if high is not None else (12 if group == "high" else 7)
    share = hollow if hollow is not None else (1.0 if group == "hollow" else 0.0)
    key = f"scene:{seed}:{group}:{red}:{blue}:{low}-{high}:{others}:{share}:{varied}"
    rng = random.Random(key)
    counts = (
        red if red is not None else rng.randint(low, high),
        blue if blue is not None else rng.randint(low, high),
    )
    kinds = [kind for kind, n in zip(TARGETS.values(), counts, strict=True) for _ in range(n)]
    extra = others if others is not None else rng.randint(0, MOST_DISTRACTORS)
    kinds += [rng.choice(DISTRACTORS) for _ in range(extra)]
    wanted = [Wanted(colour, shape, rng.random() < share) for colour, shape in kinds]
    rng.shuffle(wanted)
    look = random_look(rng) if (varied if varied is not None else group == "variants") else PLAIN
    return compose(key, wanted, group=group, layout=_LAYOUTS.get(group, REGULAR), look=look)


def check(scene: Scene) -> list[str]:
    """Return what is wrong with a scene, from its geometry and its pixels; empty when all is as it should be.

    Checked: every object inside the picture, circumscribed circles apart, no pixel claimed twice, each object
    covers at least 40 pixels, and its colour stands out from the ground and the other names' colours.
    """
    wrong: list[str] = []
    claimed = np.zeros((SIDE, SIDE), dtype=bool)
    before: list[tuple[int, int, int]] = []
    for thing in scene.things:
        spot = (thing.x, thing.y, thing.radius)
        if not clear(before, spot):
            wrong.append(f"{thing.name} at {thing.x},{thing.y} leaves the picture or touches another object")
            continue
        before.append(spot)
        mask = np.asarray(stamp(thing.shape, thing.radius, thing.stroke, scene.look.smooth)) > 0
        half = mask.shape[0] // 2
        window = claimed[thing.y - half : thing.y + half + 1, thing.x - half : thing.x + half + 1]
        if (window & mask).any():
            wrong.append(f"{thing.name} at {thing.x},{thing.y} overlaps another object")
        window |= mask
        if mask.sum() < 40:
            wrong.append(f"{thing.name} at {thing.x},{thing.y} is too small to see")
        for ground in (scene.look.background, scene.look.second or scene.look.background):
            if _apart(PALETTES[scene.look.palette][thing.colour], ground) < 90:
                wrong.append(f"{thing.name} does not stand out from the background {ground}")
    return wrong


def _apart(first: tuple[int, int, int], second: tuple[int, int, int]) -> float:
    return float(np.linalg.norm(np.subtract(first, second, dtype=float)))


def label_json(label: dict[str, int]) -> str:
    """Return the exact answer to the counting question."""
    return json.dumps({field: label[field] for field in TARGETS})


__all__ = [
    "COLOURS",
    "GROUPS",
    "KINDS",
    "LARGEST",
    "SHAPES",
    "SIDE",
    "TARGETS",
    "Scene",
    "Thing",
    "Wanted",
    "check",
    "compose",
    "label_json",
    "make_scene",
]
