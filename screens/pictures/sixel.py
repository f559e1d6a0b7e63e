"""A picture as sixels, the way real terminals take them.

Every colour is defined before the first pixel: xterm (379) paints what stands before a later definition in that colour.
And one image for a whole picture, never one a line: xterm keeps no more than the last 16 and forgets the others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

#: Colours of one picture: a line of sixels is written once for each colour in it, so more would cost a slow line dear.
COLOURS = 128
BAND = 6  # rows of pixels in a line of sixels
_RUN = re.compile(rb"(.)\1{3,255}", re.DOTALL)


class Sixels:
    """A picture of its final size (pixels), reduced to a palette once; encodes any part of it."""

    def __init__(self, image: Image) -> None:
        from PIL.Image import Dither, Quantize

        reduced = image.convert("RGB").quantize(COLOURS, Quantize.MEDIANCUT, dither=Dither.NONE)
        self.size = image.size
        self._pixels = np.asarray(reduced, dtype=np.uint8)
        palette = np.asarray(reduced.getpalette(), dtype=np.uint32).reshape(-1, 3)
        self._shares = (palette * 100 + 127) // 255  # sixels count colours in per cent

    def part(self, left: int, top: int, right: int, bottom: int) -> str:
        """Return the escape sequence that draws these pixels at the cursor; "" where there are none."""
        pixels = self._pixels[top:bottom, left:right]
        height, width = pixels.shape
        if not height or not width:
            return ""
        used = _used(pixels)
        colours = "".join(f"#{index};2;{';'.join(map(str, self._shares[index]))}" for index in used)
        bands = b"-".join(_band(pixels[at : at + BAND]) for at in range(0, height, BAND))
        return f'\x1bP0;1;0q"1;1;{width};{height}{colours}{bands.decode("ascii")}\x1b\\'


def _used(pixels: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.bincount(pixels.ravel(), minlength=COLOURS))


def _band(pixels: np.ndarray) -> bytes:
    """At most six rows of pixels, colour after colour over the same place."""
    used = _used(pixels)
    places = np.zeros(COLOURS, dtype=np.uint8)
    places[used] = np.arange(len(used))
    columns = np.arange(pixels.shape[1])
    bits = np.zeros((len(used), pixels.shape[1]), dtype=np.uint8)
    for row in range(pixels.shape[0]):
        bits[places[pixels[row]], columns] |= 1 << row
    lines = []
    for index, line in zip(used, bits + 63, strict=True):
        said = line.tobytes().rstrip(b"?")  # what is left blank at the end need not be said
        lines.append(b"#%d" % index + _RUN.sub(lambda run: b"!%d" % len(run[0]) + run[1], said))
    return b"$".join(lines)
