"""Which widget draws an image on this terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

from vlmconsole.screens.pictures.picture import Loadable, PictureView
from vlmconsole.screens.terminal.terminal import Drawing

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture


def picture_view(source: Picture | Loadable, columns: int, rows: int, drawing: Drawing) -> Widget:
    """Return the widget that draws `source` the way this terminal can; half cells unless it said more."""
    if drawing in ("kitty", "sixel"):
        from vlmconsole.screens.pictures.graphics import GraphicsView

        return GraphicsView(source, columns, rows, drawing)
    return PictureView(source, columns, rows)
