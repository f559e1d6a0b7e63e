"""A picture in the transcript: the bytes that were sent, drawn small, loaded off the screen's own loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from vlmconsole.screens.pictures.halfcell import fit, strips

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlmconsole.vision.images import Picture

#: Longest side of a kept thumbnail (pixels): enough for a full 120×40 screen of half cells.
THUMBNAIL = 320
#: Thumbnails kept in memory: at most about 64 × 300 KiB.
KEPT = 64


class Loadable(Protocol):
    """A stored picture: known by its hash, read from disk only when it is seen."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> tuple[int, int]: ...
    def load(self) -> Picture: ...


_thumbnails: OrderedDict[str, Image] = OrderedDict()


async def small_image(source: Picture | Loadable, side: int = THUMBNAIL) -> Image:
    """Return the picture's thumbnail, decoded in a thread; raises PictureError when its file is gone.

    One whose longest `side` is to be larger (pixels) is made for this once.
    """
    if side > THUMBNAIL:
        return await asyncio.to_thread(_decode, source, side)
    if source.sha256 in _thumbnails:
        _thumbnails.move_to_end(source.sha256)
        return _thumbnails[source.sha256]
    image = await asyncio.to_thread(_decode, source)
    _thumbnails[source.sha256] = image
    while len(_thumbnails) > KEPT:
        _thumbnails.popitem(last=False)
    return image


def _decode(source: Picture | Loadable, side: int = THUMBNAIL) -> Image:
    from vlmconsole.vision.images import Picture, thumbnail

    return thumbnail(source if isinstance(source, Picture) else source.load(), side, side)


class PictureView(Widget):
    """Half-cell drawing that fits into `columns` × `rows` cells, in the picture's own shape."""

    DEFAULT_CSS = """
    PictureView { width: auto; height: auto; background: $surface; }
    """

    def __init__(self, source: Picture | Loadable, columns: int, rows: int, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.source = source
        self.cells = fit(source.size, columns, rows)
        self.styles.width, self.styles.height = self.cells
        self._strips: list[Strip] = []
        self._fault = ""

    def on_mount(self) -> None:
        self.run_worker(self._load(), exit_on_error=False)

    async def _load(self) -> None:
        from vlmconsole.vision.images import PictureError

        try:
            image = await small_image(self.source)
        except (PictureError, OSError) as error:
            self._fault = str(error)
        else:
            self._strips = strips(image, *self.cells)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y]
        style = self.rich_style
        text = self._fault[y * self.cells[0] : (y + 1) * self.cells[0]] if self._fault else ""
        return Strip([Segment(text.ljust(self.size.width), style)], self.size.width)
