"""Pictures as pixels, for terminals that draw sixels or kitty's pictures.

Our own rather than textual-image's (0.12): that one asks the terminal questions when it is imported, writes to it
beside Textual's writer, and its sixels are painted in wrong colours by xterm. Textual sees lines of blanks, which it
may cut where something lies over them; the pixels come when a line is written out. Never imported for half cells.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip

from vlmconsole.screens.pictures.picture import Loadable, PictureView, small_image
from vlmconsole.screens.terminal.terminal import Drawing, cell_pixels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from PIL.Image import Image
    from rich.console import Console

    from vlmconsole.screens.pictures.kitty import KittyImage
    from vlmconsole.screens.pictures.sixel import Sixels
    from vlmconsole.vision.images import Picture

#: Encoded parts of one picture that are kept: what is half scrolled away is another part with every line.
PARTS = 8


def fit_pixels(
    size: tuple[int, int], columns: int, rows: int, cell: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(pixels, cells) of a picture in its own shape within columns × rows cells of `cell` pixels."""
    scale = min(columns * cell[0] / size[0], rows * cell[1] / size[1])
    wide, high = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    return (wide, high), (min(columns, ceil(wide / cell[0])), min(rows, ceil(high / cell[1])))


class PixelSource(Protocol):
    """What gives the sixels of some of a picture's cells."""

    def part(self, left: int, top: int, right: int, bottom: int) -> str: ...


class SixelPart:
    """The part of a picture that is in sight, for one painting of it, from its top line down.

    Its first line that is written draws all that is below; the other lines then only move on. Something that lies
    over it is written after it: it stands further right or in a lower line.
    """

    def __init__(self, view: PixelSource, sight: Region) -> None:
        self._view, self._sight = view, sight
        self._drawn: list[tuple[int, int]] = []

    def line(self, row: int, left: int, right: int, blanks: str) -> str:
        """`blanks` are those cells' own; returns what draws them, the cursor then behind them."""
        onward = f"\x1b[{right - left}C"
        if any(row >= top and left >= edge for top, edge in self._drawn):
            return onward
        self._drawn.append((row, left))
        # What stands beneath goes first: a terminal shows it again where the picture leaves a part of a cell free.
        wiped = "".join(
            f"\x1b8\x1b[{at}B{blanks}" if at else f"\x1b8{blanks}" for at in range(self._sight.bottom - row)
        )
        return f"\x1b7{wiped}\x1b8{self._view.part(left, row, self._sight.right, self._sight.bottom)}\x1b8{onward}"


class KittyPart:
    """The same for a terminal that takes the picture's cells as text."""

    def __init__(self, image: KittyImage) -> None:
        self._image = image

    def line(self, row: int, left: int, right: int, blanks: str) -> str:
        return self._image.sent() + self._image.row(row, left, right)


class PixelStrip(Strip):
    """One line of a picture: blanks to Textual, pixels to the terminal, however it is cut."""

    def __init__(self, blanks: Iterable[Segment], part: SixelPart | KittyPart, row: int, left: int, right: int) -> None:
        super().__init__(blanks, right - left)
        self._part, self._row, self._left, self._right = part, row, left, right

    def crop(self, start: int, end: int | None = None) -> Strip:
        start, end = max(0, start), self.cell_length if end is None else min(self.cell_length, end)
        if end <= start:
            return Strip([], 0)
        cut = super().crop(start, end)
        return PixelStrip(list(cut), self._part, self._row, self._left + start, self._left + end)

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        edges = [cut for cut in cuts if cut <= self.cell_length]
        return [self.crop(start, end) for start, end in zip([0, *edges], edges, strict=False)]

    def render(self, console: Console) -> str:
        return self._part.line(self._row, self._left, self._right, super().render(console))


class GraphicsView(PictureView):
    """A picture of pixels in at most `columns` × `rows` cells, in its own shape."""

    def __init__(self, source: Picture | Loadable, columns: int, rows: int, drawing: Drawing) -> None:
        super().__init__(source, columns, rows)
        self._drawing, self._room = drawing, (columns, rows)
        self._made: Sixels | KittyImage | None = None
        self._parts: dict[tuple[int, int, int, int], str] = {}
        self._take_measure()

    def _take_measure(self) -> None:
        self._cell = cell_pixels()
        self._pixels, self.cells = fit_pixels(self.source.size, *self._room, self._cell)
        self.styles.width, self.styles.height = self.cells

    async def _load(self) -> None:
        from vlmconsole.vision.images import PictureError

        try:
            image = await small_image(self.source, max(self._pixels))
        except (PictureError, OSError) as error:
            self._fault = str(error)
        else:
            self._made = await asyncio.to_thread(self._make, image)
        self._parts.clear()
        self.refresh()

    def _make(self, image: Image) -> Sixels | KittyImage:
        from PIL.Image import Resampling

        scaled = image.resize(self._pixels, Resampling.LANCZOS)
        if self._drawing == "kitty":
            from vlmconsole.screens.pictures.kitty import KittyImage

            return KittyImage(scaled, self.cells, self.source.sha256)
        from vlmconsole.screens.pictures.sixel import Sixels

        return Sixels(scaled)

    def part(self, left: int, top: int, right: int, bottom: int) -> str:
        """Return the sixels of some of its cells."""
        sixels: Any = self._made
        key = left, top, right, bottom
        if key not in self._parts:
            while len(self._parts) >= PARTS:
                del self._parts[next(iter(self._parts))]
            wide, high = self._cell
            self._parts[key] = sixels.part(left * wide, top * high, right * wide, bottom * high)
        return self._parts[key]

    def render_lines(self, crop: Region) -> list[Strip]:
        blanks = super().render_lines(crop)
        if self._made is None or self._fault or not self.screen.is_active:
            return blanks  # under a dialog a screen is dimmed, which pixels cannot be
        if cell_pixels() != self._cell:  # another font size: measured and made anew
            self._made = None
            self.call_later(self._again)
            return blanks
        from vlmconsole.screens.pictures.kitty import KittyImage

        made = self._made
        part = KittyPart(made) if isinstance(made, KittyImage) else SixelPart(self, crop)
        return [
            PixelStrip(list(strip), part, row, crop.x, crop.right)
            for row, strip in zip(crop.line_range, blanks, strict=False)
            if strip.cell_length == crop.width
        ]

    def _again(self) -> None:
        self._take_measure()
        self.run_worker(self._load(), exit_on_error=False)
