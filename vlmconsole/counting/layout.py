"""Where things stand: seeded places that cannot overlap.

The picture is a board of 8 × 8 places, 56 pixels each; a place holds at most one object's centre. So 64
objects of any allowed size always fit, and 12 red circles, 12 blue squares and their distractors fit with
room to spare. (56 pixels are also one visual token of the bundled model. That is on purpose: its eyes are
one and a half million parameters small, and have to name what stands at a place, not to separate two
things in one.) Within its place an object moves as far as the layout lets it and its neighbours leave
room; an arrangement that does not fit is drawn again with smaller moves and sizes, down to the centre of
the place and the smallest size, which always fits.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

SIDE = 448
PLACES = 8
PITCH = SIDE // PLACES
SMALLEST = 14  # circumradius, pixels
LARGEST = 26  # the largest that can share a crowded board
GAP = 3  # pixels between circumscribed circles, and to the picture's edge
_REACH = PITCH // 2 - 2  # a centre stays this close to its place's middle, so never on a border


@dataclass(frozen=True)
class Layout:
    """How a group is laid out: centres move up to `jitter` pixels; radii (pixels) lie in `sizes`."""

    jitter: int
    sizes: tuple[int, int]
    packed: bool = False  # neighbouring places around one point rather than anywhere


REGULAR = Layout(jitter=6, sizes=(16, 24))
SCATTERED = Layout(jitter=_REACH, sizes=(SMALLEST, LARGEST))
DENSE = Layout(jitter=5, sizes=(20, LARGEST), packed=True)
OPEN = Layout(jitter=16, sizes=(15, 25))

Spot = tuple[int, int, int]  # x, y, radius


def _cells(rng: random.Random, count: int, layout: Layout) -> list[tuple[int, int]]:
    board = [(column, row) for row in range(PLACES) for column in range(PLACES)]
    rng.shuffle(board)
    if layout.packed:
        x, y = rng.uniform(1.5, 5.5), rng.uniform(1.5, 5.5)
        board.sort(key=lambda cell: (cell[0] - x) ** 2 + (cell[1] - y) ** 2)
        board = board[:count]
        rng.shuffle(board)
    return board[:count]


def clear(spots: list[Spot], spot: Spot) -> bool:
    """Return whether `spot`'s circumscribed circle keeps its distance from all others and lies in the picture."""
    x, y, radius = spot
    edge = radius + GAP
    if not (edge <= x <= SIDE - 1 - edge and edge <= y <= SIDE - 1 - edge):
        return False
    return all(math.hypot(x - a, y - b) >= radius + r + GAP for a, b, r in spots)


def _try(rng: random.Random, radii: list[int], layout: Layout, ease: float) -> list[Spot] | None:
    jitter = round(layout.jitter * ease)
    spots: list[Spot] = []
    for (column, row), wanted in zip(_cells(rng, len(radii), layout), radii, strict=True):
        radius = max(SMALLEST, round(wanted * ease))
        edge = radius + GAP
        for _ in range(12):
            x = column * PITCH + PITCH // 2 + rng.randint(-jitter, jitter)
            y = row * PITCH + PITCH // 2 + rng.randint(-jitter, jitter)
            spot = (min(max(x, edge), SIDE - 1 - edge), min(max(y, edge), SIDE - 1 - edge), radius)
            if clear(spots, spot):
                spots.append(spot)
                break
        else:
            return None
    return spots


def arrange(rng: random.Random, radii: list[int], layout: Layout) -> list[Spot]:
    """Return a place and final radius for each wanted radius, in order. Radii above 26 need an empty-ish board.

    Raises ValueError when more than 64 objects are asked for.
    """
    if len(radii) > PLACES * PLACES:
        raise ValueError(f"{len(radii)} objects do not fit: the board has {PLACES * PLACES} places")
    ease = 1.0
    while True:
        for _ in range(3):
            spots = _try(rng, radii, layout, ease)
            if spots is not None:
                return spots
        ease = ease * 0.9 if ease > 0.1 else 0.0
