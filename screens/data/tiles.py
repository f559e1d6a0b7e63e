"""How the gallery's tiles lie, and what stands on them: a thumbnail in half cells over question and truth."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from vlmconsole.data.browse import image_count
from vlmconsole.data.example import Example, truth_text
from vlmconsole.evaluation.example_query import Answered
from vlmconsole.gates.figures import short_answer
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.text.fitting import fitted
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import BAD, CAUTION, GOOD, NOTHING, Sign

WIDTH = 18  # cells of a tile at least
HEIGHTS = (7, 6, 5)  # lines of a thumbnail: of these the one that leaves most tiles whole
GAP = 1  # blank cells to the left of a tile, of which the chosen one's carry its mark
CAPTION = 2  # lines below a thumbnail
MARKS = 4  # answers marked on a tile


@dataclass(frozen=True)
class TileGrid:
    """Tiles in a room of `width` × `height` cells; `pictures`: whether thumbnails are drawn."""

    width: int
    height: int
    count: int
    pictures: bool = True

    @cached_property
    def columns(self) -> int:
        return max(1, self.width // WIDTH)

    @cached_property
    def tile(self) -> tuple[int, int]:
        """(width, height) of a tile, with its gap and the blank line below it."""
        return self.width // self.columns, self.cells[1] + CAPTION + 1

    @cached_property
    def cells(self) -> tuple[int, int]:
        """(columns, rows) of cells for a thumbnail."""
        high = max(HEIGHTS, key=lambda high: (self.height + 1) // (high + CAPTION + 1)) if self.pictures else 0
        return max(1, self.width // self.columns - GAP - 1), high

    @property
    def lines(self) -> int:
        """Lines of all tiles."""
        return -(-self.count // self.columns) * self.tile[1]

    def top(self, index: int) -> int:
        """Return the first line of a tile."""
        return index // self.columns * self.tile[1]

    def at(self, x: int, y: int) -> int | None:
        """Return the tile on a cell; None for none."""
        column = x // self.tile[0]
        index = y // self.tile[1] * self.columns + column
        return index if column < self.columns and index < self.count else None

    def within(self, first: int, last: int) -> range:
        """Return the tiles that lie on some of the lines `first` up to `last`."""
        high = self.tile[1]
        return range(first // high * self.columns, min(self.count, -(-last // high) * self.columns))


@lru_cache(maxsize=8)
def tile_grid(width: int, height: int, count: int, pictures: bool) -> TileGrid:
    """Return the grid of that room; asked for with every line that is drawn."""
    return TileGrid(width, height, count, pictures)


class Caption(NamedTuple):
    """What stands below a thumbnail: question, truth, and a mark for each of the newest answers."""

    question: str
    truth: str
    marks: tuple[Sign, ...]
    noted: bool = False


def caption(example: Example, answered: Answered, noted: bool) -> Caption:
    """Return the caption of an example."""
    more = image_count(example)
    question = one_line(" ".join(example.question.split()), 120) or one_line(example.id, 120)
    if example.truth is None:  # what was answered stands in the place of the truth, and which image it is above
        first = next((prediction for _, prediction in answered), None)
        reply = (
            "…"
            if first is None
            else "✗ failed"
            if first.failed
            else one_line(" ".join((first.answer or "").split()), 120)
        )
        return Caption(one_line(example.id, 120), reply or "(empty)", (), noted)
    return Caption(
        f"{more}× {question}" if more > 1 else question,
        short_truth(example),
        tuple(mark_of(prediction.right, prediction.valid, prediction.failed) for _, prediction in answered[:MARKS]),
        noted,
    )


def short_truth(example: Example) -> str:
    """Return a truth in a few words: counts as `3/2`, a list by its first, "–" for none."""
    truth = example.truth
    if truth is None:
        return "–"
    if isinstance(truth, list):
        return one_line(truth_text(truth[0]), 60) if truth else "–"
    return short_answer(truth) if isinstance(truth, str) else one_line(truth_text(truth), 60)


def mark_of(right: bool | None, valid: bool, failed: bool) -> Sign:
    """Return the sign of an answer: right, wrong, not to be read, not scored or not come."""
    if failed or right is None:
        return NOTHING
    return GOOD if right else BAD if valid else CAUTION


class TileImage(NamedTuple):
    """A thumbnail in half cells, or words in its place, as lines of one width; blank lines stand `above`.

    `pixels` (`tile_graphics.TilePixels`) are drawn over the blanks that a tile without lines has.
    """

    lines: list[Strip]
    width: int
    above: int
    pixels: object = None

    def line(self, row: int, width: int, blank: Style) -> list[Segment]:
        """Line `row` of the tile, in its middle of `width` cells."""
        left = (width - self.width) // 2
        drawn = list(self.lines[row - self.above]) if 0 <= row - self.above < len(self.lines) else []
        if not drawn:
            return [Segment(" " * width, blank)]
        return [Segment(" " * left, blank), *drawn, Segment(" " * (width - self.width - left), blank)]


def tile_image(data: bytes, cells: tuple[int, int], pixels: Drawing | None = None, key: str = "") -> TileImage:
    """Return a thumbnail (JPEG) for `cells` (columns, rows), as `pixels` where the terminal draws them, else in half
    cells.
    """
    if pixels is not None:
        from vlmconsole.screens.data.tile_graphics import TilePixels

        tile = TilePixels(data, cells, pixels, key)
        return TileImage([], tile.cells[0], (cells[1] - tile.cells[1]) // 2, tile)
    from PIL import Image

    from vlmconsole.screens.pictures.halfcell import fit, strips

    image = Image.open(io.BytesIO(data))
    columns, rows = fit(image.size, *cells)
    return TileImage(strips(image, columns, rows), columns, (cells[1] - rows) // 2)


def tile_note(text: str, cells: tuple[int, int], style: Style) -> TileImage:
    """Return a few words in the place of a thumbnail."""
    words = in_cells(text, min(cells[0], len(text)))
    return TileImage([Strip([Segment(words, style)])], len(words), cells[1] // 2)


def in_cells(text: str, width: int) -> str:
    """Return one line of text in exactly `width` cells."""
    return fitted(text, max(0, width))
