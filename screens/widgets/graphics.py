"""Pictures as pixels for kitty and sixel terminals, through textual-image without its questions to the terminal.

Importing textual-image asks the terminal for its size and its abilities and waits for the answers. Both are known
here already, so its import sees no terminal and finds the cell size filled in. Never imported for half cells.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.widget import Widget
from vlmconsole.screens.terminal import Drawing
from vlmconsole.screens.widgets.halfcell import fit
from vlmconsole.screens.widgets.picture import Loadable, small_image

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture


def cell_pixels() -> tuple[int, int]:
    """Pixels of one cell from the kernel's idea of the terminal; 10×20 where it has none. Asks nobody."""
    import fcntl
    import struct
    import termios

    try:
        packed = fcntl.ioctl(sys.__stdout__ or 1, termios.TIOCGWINSZ, b"\0" * 8)
    except (OSError, ValueError):
        return 10, 20
    rows, columns, width, height = struct.unpack("HHHH", packed)
    return (width // columns, height // rows) if rows and columns and width >= columns and height >= rows else (10, 20)


@cache
def _classes() -> dict[str, Any]:
    from textual_image import _terminal

    # The package remembers its first answer here and never asks again.
    setattr(_terminal.get_cell_size, "_result", _terminal.CellSize(*cell_pixels()))  # noqa: B010
    held = sys.__stdout__
    with Path(os.devnull).open("w") as nobody:
        setattr(sys, "__stdout__", nobody)  # noqa: B010 - no terminal to ask while it is imported
        try:
            from textual_image.widget import SixelImage, TGPImage
        finally:
            setattr(sys, "__stdout__", held)  # noqa: B010
    return {"kitty": TGPImage, "sixel": SixelImage}


class GraphicsView(Widget):
    """A picture of pixels that takes the same cells as the half-cell drawing would."""

    DEFAULT_CSS = """
    GraphicsView { width: auto; height: auto; background: $surface; }
    GraphicsView > * { width: 1fr; height: 1fr; }
    """

    def __init__(self, source: Picture | Loadable, columns: int, rows: int, drawing: Drawing) -> None:
        super().__init__()
        self.source = source
        self._drawing = drawing
        self.cells = fit(source.size, columns, rows)
        self.styles.width, self.styles.height = self.cells

    def compose(self) -> ComposeResult:
        yield _classes()[self._drawing]()

    def on_mount(self) -> None:
        self.run_worker(self._load(), exit_on_error=False)

    async def _load(self) -> None:
        image = await small_image(self.source)
        view: Any = self.children[0]
        view.image = image
