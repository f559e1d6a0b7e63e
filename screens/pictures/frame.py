"""A place in which images are drawn as large as it is: side by side where there are several, anew on resize."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from vlmconsole.errors import LabError
from vlmconsole.screens.background import in_background
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.plain import inert

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

MOST = 6  # images drawn beside each other


class PictureFrame(Horizontal):
    """Shows what `show` was called with last; images are read in a thread."""

    def __init__(self, drawing: Callable[[], Drawing], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._drawing = drawing
        self._wanted: tuple[Hashable, Callable[[], Sequence[Picture]]] | None = None
        self._drawn: Hashable = None

    def show(self, key: Hashable, load: Callable[[], Sequence[Picture]]) -> None:
        """Draw the images that `load` gives, unless those of `key` are there. `load` may raise LabError, OSError."""
        self._wanted = (key, load)
        self._draw_soon()

    def clear(self) -> None:
        """Draw nothing."""
        self._wanted = None
        self._draw_soon()

    def on_resize(self) -> None:
        self._draw_soon()

    def _draw_soon(self) -> None:
        size = self.size
        drawn = (self._wanted[0], size.width, size.height) if self._wanted is not None else None
        if drawn == self._drawn and drawn is not None:
            return
        self._drawn = drawn
        in_background(self, partial(self._draw, self._wanted), "picture", exclusive=True)

    async def _draw(self, wanted: tuple[Hashable, Callable[[], Sequence[Picture]]] | None) -> None:
        size, drawing = self.size, self._drawing()
        if wanted is None or drawing == "off" or min(size) < 2:
            await self.remove_children()
            return
        views: list[Widget]
        try:
            pictures = (await asyncio.to_thread(wanted[1]))[:MOST]
        except (LabError, OSError) as error:
            fault = Said()
            fault.say(Content(inert(str(error))).stylize("$warning"))
            views = [fault]
        else:
            wide = max(2, size.width // max(1, len(pictures)))
            views = [picture_view(picture, wide - (len(pictures) > 1), size.height, drawing) for picture in pictures]
        await self.remove_children()
        await self.mount_all(views)
