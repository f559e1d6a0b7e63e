"""Exploratory scenes, which no frozen plan contains: objects that overlap, targets partly hidden, counts 13–20.

Their truth is what was painted, so it cannot be read back from connected areas as for the ordinary groups.
Every object keeps at least half of its area in sight.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vlmconsole.counting.draw import stamp
from vlmconsole.counting.layout import OPEN, PITCH, SIDE, arrange
from vlmconsole.counting.look import PLAIN
from vlmconsole.counting.scene import DISTRACTORS, TARGETS, Scene, Thing, make_scene

EXPLORATORY = ("overlap", "occlusion", "beyond")
LEAST_VISIBLE = 0.5


def explore_scene(seed: str, group: str, *, red: int, blue: int, others: int = 0) -> Scene:
    """Return a scene of an exploratory group. Raises ValueError for another group or more things than fit.

    `others` asks for so many distractors in a scene of `occlusion` without targets: all blank ones are alike.
    """
    if group == "beyond":
        return replace(make_scene(seed, "high", red=red, blue=blue), group=group)
    if group not in EXPLORATORY:
        raise ValueError(f"{group!r} is no exploratory group: one of {', '.join(EXPLORATORY)}")
    key = f"explore:{seed}:{group}:{red}:{blue}"
    attempt = 0
    while True:  # the first attempts nearly always do; each is seeded, so the result is the same everywhere
        rng = random.Random(f"{key}:{attempt}")
        scene = Scene(key, group, _pairs(rng, group, red, blue, others), PLAIN)
        if all(share >= LEAST_VISIBLE for share in visible_shares(scene)):
            return scene
        attempt += 1


def _pairs(rng: random.Random, group: str, red: int, blue: int, others: int) -> tuple[Thing, ...]:
    """Things in painting order: the second of each pair lies over the first."""
    targets = [TARGETS["red_circles"]] * red + [TARGETS["blue_squares"]] * blue
    rng.shuffle(targets)
    if group == "overlap":
        extra = rng.randint(0, 4)
        kinds = [*targets, *(rng.choice(DISTRACTORS) for _ in range(extra))]
        rng.shuffle(kinds)
        couples = [kinds[i : i + 2] for i in range(0, len(kinds), 2)]
    else:
        couples = [[target, rng.choice(DISTRACTORS)] if rng.random() < 0.6 else [target] for target in targets]
        couples += [[rng.choice(DISTRACTORS)] for _ in range(others if not couples else 0)]
    spots = arrange(rng, [PITCH // 2 - 4] * len(couples), OPEN)
    things: list[Thing] = []
    for couple, (x, y, _) in zip(couples, spots, strict=True):
        radii = [rng.randint(13, 18) for _ in couple]
        angle = rng.uniform(0, 2 * math.pi)
        apart = sum(radii) * rng.uniform(0.55, 0.75) if len(couple) == 2 else 0.0
        for (colour, shape), radius, side in zip(couple, radii, (-0.5, 0.5), strict=False):
            dx, dy = round(side * apart * math.cos(angle)), round(side * apart * math.sin(angle))
            edge = radius + 3
            place = (min(max(x + dx, edge), SIDE - 1 - edge), min(max(y + dy, edge), SIDE - 1 - edge))
            things.append(Thing(colour, shape, *place, radius))
    return tuple(things)


def visible_shares(scene: Scene) -> list[float]:
    """For each thing, in order, the share of its own area that later things leave in sight (0 to 1)."""
    covered: NDArray[np.bool_] = np.zeros((SIDE, SIDE), dtype=bool)
    shares: list[float] = []
    for thing in reversed(scene.things):
        mask = np.asarray(stamp(thing.shape, thing.radius, thing.stroke, scene.look.smooth)) >= 128
        half = mask.shape[0] // 2
        window = covered[thing.y - half : thing.y + half + 1, thing.x - half : thing.x + half + 1]
        shares.append(float((mask & ~window).sum() / mask.sum()))
        window |= mask
    return shares[::-1]
