"""Pictures from half cells: two pixels a character, colours only, safe in every terminal and multiplexer.

Our own rather than textual-image's: importing that package asks the terminal questions, and its renderer makes a
style object for every cell of every repaint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

if TYPE_CHECKING:
    from PIL.Image import Image


def fit(size: tuple[int, int], columns: int, rows: int) -> tuple[int, int]:
    """Cells (columns, rows) that hold a picture of `size` pixels in its own shape: a cell is one by two pixels."""
    width, height = size
    scale = min(columns / width, rows * 2 / height)
    return max(1, min(columns, round(width * scale))), max(1, min(rows, round(height * scale / 2)))


@lru_cache(maxsize=8192)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))


def strips(image: Image, columns: int, rows: int) -> list[Strip]:
    """Return the picture as `rows` strips of `columns` cells; runs of equal cells become one segment."""
    from PIL.Image import Resampling

    small = image.convert("RGB").resize((columns, rows * 2), Resampling.LANCZOS)
    pixels = small.load()
    assert pixels is not None
    made: list[Strip] = []
    for row in range(rows):
        segments: list[Segment] = []
        run, before = 0, None
        for column in range(columns):
            style = _style(pixels[column, row * 2], pixels[column, row * 2 + 1])
            if style is not before and before is not None:
                segments.append(Segment("▀" * run, before))
                run = 0
            before = style
            run += 1
        segments.append(Segment("▀" * run, before))
        made.append(Strip(segments, columns))
    return made
