"""Thumbnails of the gallery as pixels, for terminals that draw sixels or kitty's images; never imported for half cells.

Textual sees blanks where a tile's image is; the pixels come when a line is written (`screens/pictures/graphics.py`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.strip import Strip

from vlmconsole.screens.pictures.graphics import KittyPart, PixelStrip, SixelPart, fit_pixels
from vlmconsole.screens.terminal.terminal import Drawing, cell_pixels

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.screens.pictures.kitty import KittyImage
    from vlmconsole.screens.pictures.sixel import Sixels


class TilePixels:
    """A thumbnail of its final size in pixels; `key` tells it from others. Made in a thread."""

    def __init__(self, data: bytes, room: tuple[int, int], drawing: Drawing, key: str) -> None:
        from PIL import Image

        self.cell = cell_pixels()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        size, self.cells = fit_pixels(image.size, *room, self.cell)
        scaled = image.resize(size, Image.Resampling.LANCZOS)
        self.image: KittyImage | None = None
        self.sixels: Sixels | None = None
        if drawing == "kitty":
            from vlmconsole.screens.pictures.kitty import KittyImage

            self.image = KittyImage(scaled, self.cells, key)
        else:
            from vlmconsole.screens.pictures.sixel import Sixels

            self.sixels = Sixels(scaled)

    def part(self, left: int, top: int, right: int, bottom: int) -> str:
        """Return the sixels of some of its cells."""
        assert self.sixels is not None
        wide, high = self.cell
        return self.sixels.part(left * wide, top * high, right * wide, bottom * high)

    def painting(self, sight: Region) -> SixelPart | KittyPart:
        """Return what writes it in one painting; `sight`: which of its cells are in sight."""
        return KittyPart(self.image) if self.image is not None else SixelPart(self, sight)


class TileLine(Strip):
    """One line of several tiles: strips beside each other, some of which are pixels, however it is cut."""

    def __init__(self, parts: Iterable[Strip]) -> None:
        self._parts = [part for part in parts if part.cell_length]
        super().__init__([segment for part in self._parts for segment in part], sum(p.cell_length for p in self._parts))

    def crop(self, start: int, end: int | None = None) -> Strip:
        end = self.cell_length if end is None else min(self.cell_length, end)
        at, cut = 0, []
        for part in self._parts:
            first, last = max(start, at), min(end, at + part.cell_length)
            if first < last:
                cut.append(part.crop(first - at, last - at))
            at += part.cell_length
        return TileLine(cut)

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        edges = [cut for cut in cuts if cut <= self.cell_length]
        return [self.crop(start, end) for start, end in zip([0, *edges], edges, strict=False)]

    def render(self, console: Console) -> str:
        return "".join(part.render(console) for part in self._parts)


def with_pixels(blanks: Strip, images: Iterable[tuple[int, int, SixelPart | KittyPart, TilePixels]]) -> Strip:
    """Return a line with its images over `blanks`: each as (first cell, line within the image, painting, image)."""
    parts, at = [], 0
    for left, row, painting, image in images:
        right = left + image.cells[0]
        if left >= at and right <= blanks.cell_length:
            parts += [
                blanks.crop(at, left),
                PixelStrip(list(blanks.crop(left, right)), painting, row, 0, image.cells[0]),
            ]
            at = right
    return TileLine([*parts, blanks.crop(at)]) if parts else blanks
