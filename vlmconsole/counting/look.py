"""How a scene is rendered: background, palette, outlines, edges, noise.

The *look* never changes what is there, only how it is painted; the plain look is the lab's regular one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RGB = tuple[int, int, int]

COLOURS = ("red", "blue", "green", "yellow", "purple")

# Each palette keeps the five names apart from one another; which one is used follows from the background,
# so that every object stays visible (`scene.check` measures the contrast).
PALETTES: dict[str, dict[str, RGB]] = {
    "plain": {
        "red": (220, 40, 40),
        "blue": (40, 80, 220),
        "green": (30, 160, 70),
        "yellow": (235, 190, 20),
        "purple": (150, 50, 180),
    },
    "deep": {
        "red": (185, 20, 30),
        "blue": (20, 50, 175),
        "green": (10, 120, 50),
        "yellow": (205, 155, 0),
        "purple": (115, 25, 145),
    },
    "bright": {
        "red": (255, 75, 70),
        "blue": (75, 130, 255),
        "green": (70, 205, 105),
        "yellow": (255, 220, 60),
        "purple": (190, 95, 225),
    },
}
LIGHT: tuple[RGB, ...] = ((255, 255, 255), (250, 248, 240), (236, 238, 240), (226, 234, 246), (244, 232, 236))
DARK: tuple[RGB, ...] = ((0, 0, 0), (24, 26, 32), (38, 34, 30), (16, 32, 40))


@dataclass(frozen=True)
class SceneLook:
    """One rendering: RGB 0–255 throughout, `noise` is the standard deviation of the grain in the same units."""

    background: RGB = (255, 255, 255)
    second: RGB | None = None  # lower edge's colour, where the background is a gradient
    palette: str = "plain"
    outline: RGB | None = None  # a 2-pixel line around filled shapes
    smooth: bool = True
    noise: float = 0.0


PLAIN = SceneLook()


def random_look(rng: random.Random) -> SceneLook:
    """Return a varied rendering; each part changes on its own, about half of them at a time."""
    dark = rng.random() < 0.3
    background = rng.choice(DARK if dark else LIGHT)
    second: RGB | None = None
    if rng.random() < 0.3:
        second = rng.choice(DARK if dark else LIGHT)
    palette = rng.choice(("plain", "bright")) if dark else rng.choice(("plain", "deep"))
    outline: RGB | None = None
    if rng.random() < 0.35:
        outline = (245, 245, 245) if dark else (20, 20, 20)
    smooth = rng.random() < 0.6
    noise = rng.choice((4.0, 8.0, 12.0)) if rng.random() < 0.45 else 0.0
    return SceneLook(background, second, palette, outline, smooth, noise)


@lru_cache(maxsize=64)
def backdrop(top: RGB, bottom: RGB | None, side: int) -> Image.Image:
    """Return the empty picture, `side` × `side`, RGB; shared, so copy before painting."""
    if bottom is None or bottom == top:
        return Image.new("RGB", (side, side), top)
    share = np.linspace(0.0, 1.0, side)[:, None]
    column = np.rint(np.array(top) * (1 - share) + np.array(bottom) * share).astype(np.uint8)
    return Image.fromarray(np.repeat(column[:, None, :], side, axis=1))


@lru_cache(maxsize=4)
def _grain(side: int) -> NDArray[np.int16]:
    """A bank of standard noise × 64, drawn once: each picture takes a window of it at a seeded offset."""
    rng = random.Random("grain")
    # The standard library's generator is stable over versions, NumPy's streams are not promised to be.
    raw = np.frombuffer(rng.randbytes((side + 64) * (side + 64) * 3 * 4), dtype=np.uint8)
    four = raw.reshape(side + 64, side + 64, 3, 4).astype(np.float32)
    # Four uniform bytes summed are near enough to a normal deviate (standard deviation 147.8).
    bank: NDArray[np.int16] = np.rint((four.sum(axis=3) - 510.0) / 147.8 * 64).astype(np.int16)
    return bank


def add_grain(picture: Image.Image, deviation: float, rng: random.Random) -> Image.Image:
    """Return the picture with seeded noise of `deviation` (0–255 units) added and clipped."""
    side = picture.width
    x, y = rng.randrange(64), rng.randrange(64)
    window = _grain(side)[y : y + side, x : x + side]
    noisy = np.asarray(picture, dtype=np.int16) + ((window * np.int16(round(deviation))) >> 6)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
