"""Thousands of examples as tiles, of which only those in sight are drawn; thumbnails come from a thread."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vlmconsole.desks.data import ExamplesView
from vlmconsole.errors import LabError
from vlmconsole.screens.background import in_background
from vlmconsole.screens.data.tiles import (
    CAPTION,
    GAP,
    Caption,
    TileGrid,
    TileImage,
    caption,
    in_cells,
    tile_grid,
    tile_image,
    tile_note,
)
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.text.signs import Sign

HELD = 512  # thumbnails held in half cells
TOGETHER = 6  # thumbnails made between two paints
Thumbnail = Callable[[ExamplesView, int], bytes | None]


class Gallery(ScrollView, can_focus=True, inherit_bindings=False):
    """The examples of a view. Posts `Chosen` when the cursor came to stand on another example."""

    COMPONENT_CLASSES = {  # noqa: RUF012 — as in Textual
        "gallery--plain",
        "gallery--question",
        "gallery--truth",
        "gallery--chosen",
        "gallery--edge",
        "gallery--accent",
        "gallery--error",
        "gallery--warning",
        "gallery--muted",
        "gallery--marked",
    }
    DEFAULT_CSS = """
    Gallery { height: 1fr; background: $background; overflow-x: hidden; overflow-y: scroll; }
    Gallery { scrollbar-size-vertical: 1; }
    Gallery > .gallery--plain { background: $background; }
    Gallery > .gallery--question { color: $muted; background: $background; }
    Gallery > .gallery--truth { color: $foreground; background: $background; text-style: bold; }
    Gallery > .gallery--chosen { color: $foreground; background: $panel; }
    Gallery > .gallery--edge { color: $faint; background: $background; }
    Gallery:focus > .gallery--edge { color: $accent; background: $background; }
    Gallery > .gallery--accent { color: $accent; }
    Gallery > .gallery--error { color: $error; }
    Gallery > .gallery--warning { color: $warning; }
    Gallery > .gallery--muted { color: $muted; }
    Gallery > .gallery--marked { color: $accent; text-style: bold; }
    """
    ALLOW_SELECT = False

    class Chosen(Message):
        """The cursor came to stand on another example, or another view is shown."""

    class Opened(Message):
        """The chosen tile was clicked once more."""

    def __init__(self, thumbnail: Thumbnail, *, id: str) -> None:
        """`thumbnail` gives a small JPEG; called in a thread. It may raise LabError."""
        super().__init__(id=id)
        self._thumbnail = thumbnail
        self._pictures = True
        self._pixels: Drawing | None = None  # how thumbnails are drawn where not in half cells
        self._view: ExamplesView | None = None
        self._drawn: OrderedDict[int, TileImage] = OrderedDict()
        self._captions: dict[int, Caption] = {}
        self._loading = False
        self.cursor = -1
        self.marked: frozenset[str] = frozenset()

    # -- what is shown -------------------------------------------------------------------------------------

    @property
    def grid(self) -> TileGrid:
        width = self.scrollable_content_region.width or self.size.width
        count = len(self._view.shown) if self._view is not None else 0
        return tile_grid(max(1, width), self.size.height, count, self._pictures)

    @property
    def chosen(self) -> int | None:
        """The chosen example's place in its dataset."""
        if self._view is None or not 0 <= self.cursor < len(self._view.shown):
            return None
        return self._view.shown[self.cursor]

    def show(self, view: ExamplesView | None, *, drawing: Drawing = "halfcell") -> None:
        """Show a view; the cursor stays on its example, where that is still there."""
        pictures = drawing != "off"
        self._pixels = drawing if drawing in ("kitty", "sixel") else None
        before, chosen = self._view, self.chosen
        same = before is not None and view is not None and before.opened is view.opened
        if before is view and pictures == self._pictures:
            return
        self._pictures = pictures
        self._view = view
        self._captions.clear()
        if not same:
            self._drawn.clear()
        count = len(view.shown) if view is not None else 0
        if not same or view is None:
            self.cursor = 0 if count else -1
            self.scroll_to(0, 0, animate=False, force=True)
        else:
            self.cursor = view.shown.index(chosen) if chosen in view.shown else (0 if count else -1)
        self._measure()
        if same:
            self._reveal()
        self.refresh()
        self.post_message(self.Chosen())

    def mark(self, ids: frozenset[str]) -> None:
        """These examples, by id, carry the mark."""
        if ids != self.marked:
            self.marked = ids
            self.refresh()

    def choose(self, cursor: int) -> None:
        """Put the cursor on a tile and bring it into sight."""
        count = self.grid.count
        cursor = max(0, min(count - 1, cursor)) if count else -1
        if cursor == self.cursor:
            return
        before, self.cursor = self.cursor, cursor
        scrolled = self._reveal()
        if not scrolled:
            for tile in (before, cursor):
                self._refresh_tile(tile)
        self.post_message(self.Chosen())

    def rows_in_sight(self) -> int:
        """Whole rows of tiles in sight."""
        return max(1, self.size.height // self.grid.tile[1])

    def _reveal(self) -> bool:
        """Scroll by whole rows until the cursor's tile is in sight; whether that was needed."""
        if self.cursor < 0:
            return False
        grid = self.grid
        top, high = grid.top(self.cursor), grid.tile[1]
        at = self.scroll_offset.y
        if at <= top and top + high - 1 <= at + self.size.height:
            return False
        target = top if top < at else max(0, top - (self.rows_in_sight() - 1) * high)
        self.scroll_to(0, target, animate=False, force=True)
        self.refresh()
        return True

    def _measure(self) -> None:
        size = Size(0, self.grid.lines)
        if size != self.virtual_size:
            self.virtual_size = size

    def on_resize(self) -> None:
        self._drawn.clear()
        self._measure()
        self._reveal()
        self.refresh()

    def _refresh_tile(self, tile: int) -> None:
        grid = self.grid
        wide, high = grid.tile
        top = grid.top(tile) - self.scroll_offset.y
        if tile >= 0 and top < self.size.height and top + high > 0:
            self.refresh(Region(tile % grid.columns * wide, max(0, top), wide, min(high, top + high)))

    # -- thumbnails ----------------------------------------------------------------------------------------

    def _missing(self) -> list[int]:
        """Places in the dataset of the tiles in sight without a thumbnail, then of those a screen further on."""
        if self._view is None or not self._pictures or not self.size.height:
            return []
        top, high = self.scroll_offset.y, self.size.height
        in_sight = self.grid.within(top, top + high)
        ahead = self.grid.within(top + high, top + 2 * high)
        shown = self._view.shown
        return [shown[tile] for tile in (*in_sight, *ahead) if shown[tile] not in self._drawn]

    def _load_soon(self) -> None:
        if not self._loading and self.is_mounted and self._missing():
            self._loading = True
            in_background(self, self._load, "thumbnails")

    async def _load(self) -> None:
        try:
            while (view := self._view) is not None and (missing := self._missing()[:TOGETHER]):
                cells = self.grid.cells
                drawn = await asyncio.to_thread(partial(self._draw, view, missing, cells))
                if (
                    view.opened is not (self._view.opened if self._view is not None else None)
                    or cells != self.grid.cells
                ):
                    continue
                self._drawn.update(drawn)
                while len(self._drawn) > HELD:
                    self._drawn.popitem(last=False)
                self._refresh_places(set(drawn))
        finally:
            self._loading = False

    def _draw(self, view: ExamplesView, places: list[int], cells: tuple[int, int]) -> dict[int, TileImage]:
        drawn: dict[int, TileImage] = {}
        faint = Style(dim=True)
        for place in places:
            try:
                data = self._thumbnail(view, place)
            except (LabError, OSError):
                data = b""
            note = "no image" if data is None else "unreadable"
            key = view.opened.key(place)
            drawn[place] = tile_image(data, cells, self._pixels, key) if data else tile_note(note, cells, faint)
        return drawn

    def _refresh_places(self, places: set[int]) -> None:
        if self._view is None:
            return
        top = self.scroll_offset.y
        for tile in self.grid.within(top, top + self.size.height):
            if self._view.shown[tile] in places:
                self._refresh_tile(tile)

    # -- drawing -------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        grid, view = self.grid, self._view
        if y == 0:
            self._load_soon()
        line = y + self.scroll_offset.y
        if view is None or line >= grid.lines:
            return Strip.blank(grid.width, self._plain)
        row, sub = divmod(line, grid.tile[1])
        parts = []
        for tile in range(row * grid.columns, min(grid.count, (row + 1) * grid.columns)):
            parts.append(self._tile_line(grid, view, tile, sub))
        return Strip.join(parts).extend_cell_length(grid.width, self._plain)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines; where the terminal draws pixels, with the thumbnails over their blanks."""
        lines = super().render_lines(crop)
        view = self._view
        if self._pixels is None or view is None or crop.x or not self.screen.is_active:
            return lines  # under a dialog a screen is dimmed, which pixels cannot be
        from vlmconsole.screens.data.tile_graphics import TilePixels, with_pixels

        grid, top = self.grid, self.scroll_offset.y + crop.y
        wide, body = grid.tile[0], grid.cells[0]
        images: dict[int, list[Any]] = {}  # line → what is drawn on it, from the left
        for tile in grid.within(top, top + crop.height):
            image = self._drawn.get(view.shown[tile])
            if image is None or not isinstance(image.pixels, TilePixels):
                continue
            first = grid.top(tile) + image.above
            hidden = max(0, top - first)
            rows = min(image.pixels.cells[1], top + crop.height - first)
            left = tile % grid.columns * wide + GAP + (body - image.width) // 2
            painting = image.pixels.painting(Region(0, hidden, image.width, max(0, rows - hidden)))
            for row in range(hidden, rows):
                images.setdefault(first + row - top, []).append((left, row, painting, image.pixels))
        return [with_pixels(line, images[y]) if y in images else line for y, line in enumerate(lines)]

    @property
    def _plain(self) -> Style:
        """The ground's style, which Textual holds as a component's."""
        return self.get_component_rich_style("gallery--plain")

    def _tile_line(self, grid: TileGrid, view: ExamplesView, tile: int, sub: int) -> Strip:
        wide = grid.tile[0]
        body = wide - GAP - 1
        place = view.shown[tile]
        here = tile == self.cursor
        last = grid.tile[1] - 1
        plain = self._plain
        if sub == last:
            return Strip.blank(wide, plain)
        edge = Segment("▌" if here else " ", self.get_component_rich_style("gallery--edge"))
        end = Segment(" ", plain)
        if sub < last - CAPTION:
            picture = self._drawn.get(place)
            if picture is None:
                return Strip(
                    [edge, Segment("·".center(body) if sub == grid.cells[1] // 2 else " " * body, plain), end], wide
                )
            return Strip([edge, *picture.line(sub, body, plain), end], wide)
        text = self._captions.get(place)
        if text is None:
            example = view.opened.examples[place]
            text = self._captions[place] = caption(example, view.answered(place), bool(view.notes_on(place)))
        if sub == last - CAPTION:
            name = "gallery--chosen" if here else "gallery--question"
            return Strip([edge, Segment(in_cells(text.question, body), self.get_component_rich_style(name)), end], wide)
        return Strip([edge, *self._truth(text, body, here, view.opened.examples[place].id in self.marked), end], wide)

    def _truth(self, text: Caption, body: int, here: bool, marked: bool) -> list[Segment]:
        """The line of truth and marks."""
        ground = self.get_component_rich_style("gallery--chosen" if here else "gallery--truth")
        signs: list[tuple[str, Style]] = [(sign.mark, ground + self._tone(sign)) for sign in text.marks]
        if text.noted:
            signs.append(("✎", ground + self.get_component_rich_style("gallery--warning", partial=True)))
        if marked:
            signs.append(("◆", ground + self.get_component_rich_style("gallery--marked", partial=True)))
        room = max(0, body - len(signs) - 1)
        truth = Segment(in_cells(text.truth, room) + " ", ground + Style(bold=True))
        return [truth, *(Segment(mark, style) for mark, style in signs)][: None if body > len(signs) else 1]

    def _tone(self, sign: Sign) -> Style:
        return self.get_component_rich_style(f"gallery--{sign.tone or 'muted'}", partial=True)

    def on_click(self, event: events.Click) -> None:
        tile = self.grid.at(event.x, event.y + self.scroll_offset.y)
        if tile is not None:
            if tile == self.cursor:
                self.post_message(self.Opened())
            self.choose(tile)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
