"""What is in a picture, read from its pixels alone: colours by hue, objects as connected areas, shapes by fit.

Nothing here knows how scenes are generated or drawn (that is the point: an audit that asked the generator
would repeat its mistakes). It knows what the task says: separate, visible circles, squares and triangles
in five named colours on a pale or dark ground, filled or as outlines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HUES = {"red": 0.0, "yellow": 48.0, "green": 139.0, "blue": 224.0, "purple": 286.0}  # degrees
CHROMA = 84  # max − min of RGB: less is ground, outline or grain; a gap of three pixels stays below it too
SMALLEST = 40  # pixels an object must cover
SURE = 0.8  # an area that fits its best shape worse than this (intersection over union) is no single object


@dataclass(frozen=True)
class Found:
    """One connected area: what it looks like, its centroid and size (pixels), and how well the shape fits (0–1)."""

    colour: str
    shape: str
    x: float
    y: float
    area: int
    fit: float
    hollow: bool

    @property
    def name(self) -> str:
        """As people say it: `red circle`."""
        return f"{self.colour} {self.shape}"


def find_objects(picture: Image.Image) -> list[Found]:
    """Return every coloured object of an RGB picture, from top to bottom.

    Overlapping objects of one colour come out as one area with a poor `fit`; of two colours, as cut shapes.
    """
    from scipy import ndimage

    # Evens out grain; the objects are many times larger than three pixels.
    rgb = ndimage.uniform_filter(np.asarray(picture.convert("RGB"), dtype=np.float32), (3, 3, 0), mode="nearest")
    coloured = _chroma(rgb) >= CHROMA
    hue = _hue(rgb[coloured])
    names = list(HUES)
    away = np.stack([np.abs((hue - HUES[name] + 180.0) % 360.0 - 180.0) for name in names])
    nearest = np.full(coloured.shape, -1, dtype=np.int8)
    nearest[coloured] = away.argmin(axis=0)
    objects: list[Found] = []
    eight = np.ones((3, 3))
    areas, _ = ndimage.label(coloured, structure=eight)
    for label, place in enumerate(ndimage.find_objects(areas), start=1):
        here = np.where(areas[place] == label, nearest[place], -1)
        for number in np.unique(here[here >= 0]):
            parts, n = ndimage.label(here == number, structure=eight)
            for part in range(1, n + 1):
                mask = np.pad(parts == part, 1)
                if mask.sum() >= SMALLEST:
                    objects.append(_found(names[number], mask, place[1].start - 1, place[0].start - 1))
    return sorted(objects, key=lambda each: (each.y, each.x))


def count(objects: list[Found], colour: str, shape: str) -> int:
    """Return how many of them are of that colour and shape."""
    return sum(each.colour == colour and each.shape == shape for each in objects)


def _found(colour: str, mask: NDArray[np.bool_], left: int, top: int) -> Found:
    from scipy import ndimage

    whole = ndimage.binary_fill_holes(mask)
    shape, fit = _shape(whole)
    rows, columns = np.nonzero(whole)
    hollow = bool(mask.sum() < 0.97 * whole.sum())
    return Found(colour, shape, float(columns.mean() + left), float(rows.mean() + top), int(mask.sum()), fit, hollow)


def _chroma(rgb: NDArray[np.float32]) -> NDArray[np.float32]:
    """Largest minus smallest channel; pairwise, since a reduction over three values is ten times slower."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    return np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)


def _hue(rgb: NDArray[np.float32]) -> NDArray[np.float32]:
    """Hue in degrees of each coloured pixel (n × 3)."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, chroma = np.maximum(np.maximum(red, green), blue), _chroma(rgb)
    sixth = np.where(
        high == red,
        ((green - blue) / chroma) % 6.0,
        np.where(high == green, (blue - red) / chroma + 2.0, (red - green) / chroma + 4.0),
    )
    return (sixth * 60.0).astype(np.float32)


def _shape(mask: NDArray[np.bool_]) -> tuple[str, float]:
    """The shape of the same area and centroid that covers a filled area best, and their intersection over union."""
    rows, columns = np.mgrid[: mask.shape[0], : mask.shape[1]].astype(np.float32)
    area = float(mask.sum())
    dy, dx = rows - rows[mask].mean(), columns - columns[mask].mean()
    side = np.sqrt(4.0 * area / np.sqrt(3.0))  # of the equilateral triangle
    height = side * np.sqrt(3.0) / 2.0
    ideal = {
        "circle": dx * dx + dy * dy <= area / np.pi,
        "square": np.maximum(np.abs(dx), np.abs(dy)) <= np.sqrt(area) / 2.0,
        # Point up: the centroid lies a third of the height above the base.
        "triangle": (dy <= height / 3.0) & (np.abs(dx) <= (dy + 2.0 * height / 3.0) / np.sqrt(3.0)),
    }
    fits = {name: float((mask & other).sum() / (mask | other).sum()) for name, other in ideal.items()}
    best = max(fits, key=lambda name: fits[name])
    return best, fits[best]
