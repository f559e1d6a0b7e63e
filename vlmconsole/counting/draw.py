"""Stamps: one shape drawn once, as a coverage mask, and kept.

A shape is drawn at four times its size and averaged down, so its edge is smooth without any drawing
library's own idea of anti-aliasing; `smooth=False` cuts the same mask at one half. A stamp is a square
greyscale picture of side 2·radius + 3 whose middle pixel is the shape's centre.
"""

from __future__ import annotations

import math
from functools import lru_cache

from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")

_FINE = 4  # drawn this many times finer than shown


def _outline(shape: str, radius: float, middle: float) -> list[tuple[float, float]]:
    """Corners on the circle of `radius` (fine pixels) around `middle`; empty for a circle."""
    start, corners = {"circle": (0.0, 0), "square": (45.0, 4), "triangle": (-90.0, 3)}[shape]
    angles = [math.radians(start + 360.0 * i / corners) for i in range(corners)]
    return [(middle + radius * math.cos(a), middle + radius * math.sin(a)) for a in angles]


def _fill(pen: ImageDraw.ImageDraw, shape: str, radius: float, middle: float, value: int) -> None:
    corners = _outline(shape, radius, middle)
    if corners:
        pen.polygon(corners, fill=value)
    else:
        pen.ellipse((middle - radius, middle - radius, middle + radius, middle + radius), fill=value)


def inner_radius(shape: str, radius: float, stroke: float) -> float:
    """Circumradius (pixels) of the hole that leaves an outline `stroke` pixels thick on every side."""
    return radius - stroke * {"circle": 1.0, "square": math.sqrt(2.0), "triangle": 2.0}[shape]


@lru_cache(maxsize=8192)
def stamp(shape: str, radius: int, hollow_stroke: int = 0, smooth: bool = True) -> Image.Image:
    """Coverage mask (mode L, side 2·radius + 3) of a shape whose corners lie on the circle of `radius` pixels.

    `hollow_stroke` > 0 leaves only an outline of that many pixels. The mask is shared: do not write to it.
    """
    side = 2 * radius + 3
    fine = Image.new("L", (side * _FINE, side * _FINE), 0)
    pen = ImageDraw.Draw(fine)
    middle = side * _FINE / 2 - 0.5
    _fill(pen, shape, radius * _FINE, middle, 255)
    if hollow_stroke:
        _fill(pen, shape, inner_radius(shape, radius, hollow_stroke) * _FINE, middle, 0)
    mask = fine.reduce(_FINE)
    return mask if smooth else mask.point(lambda v: 255 if v >= 128 else 0)
