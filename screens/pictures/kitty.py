"""A picture for kitty's protocol: sent once, and then placed by text that stands for its cells (kitty 0.28 and later).

Being text, the cells move, are covered and go away as every other text does. Nothing is written beside the screen's
own output: what is sent goes with the first line that shows it.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections import OrderedDict
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

#: Pictures left with the terminal; the one that was sent first goes when another comes.
KEPT = 64
CHUNK = 4096  # bytes of a picture in one escape sequence, as the protocol has it
CELL = "\U0010eeee"
#: The marks that number rows and columns, in the protocol's order: the first of a run, and how many follow it.
_RUNS = """
305 30d+1 310 312 33d+2 346 34a+2 350+2 357 35b 363+12 483+4 592+3 597+2 59c+5 5a8+1 5ab+1 5af 5c4 610+7 657+4 65d+1
6d6+6 6df+3 6e4 6e7+1 6eb+1 730 732+1 735+1 73a 73d 73f+2 743 745 747 749+1 7eb+6 7f3 816+3 81b+8 825+2 829+4 951
953+1 f82+1 f86+1 135d+2 17dd 193a 1a17 1a75+7 1b6b 1b6d+6 1cd0+2 1cda+1 1ce0 1dc0+1 1dc3+6 1dcb+1 1dd1+21 1dfe 20d0+1
20d4+3 20db+1 20e1 20e7 20e9 20f0 2cef+2 2de0+31 a66f a67c+1 a6f0+1 a8e0+17 aab0 aab2+1 aab7+1 aabe+1 aac1 fe20+6
10a0f 10a38 1d185+4 1d1aa+3 1d242+2
"""
MARKS = "".join(
    "".join(map(chr, accumulate(range(int(more or 0)), lambda at, _: at + 1, initial=int(first, 16))))
    for first, _, more in (run.partition("+") for run in _RUNS.split())
)

_there: OrderedDict[int, None] = OrderedDict()


class KittyImage:
    """One picture of `cells` (columns, rows); `name` tells it from others, also the same picture in another size."""

    def __init__(self, image: Image, cells: tuple[int, int], name: str) -> None:
        import hashlib

        out = io.BytesIO()
        image.convert("RGB").save(out, "PNG", compress_level=3)
        self._data = b64encode(out.getvalue()).decode("ascii")
        self.cells = cells
        self.number = int(hashlib.sha256(f"{name} {cells} {image.size}".encode()).hexdigest()[:6], 16) or 1

    def sent(self) -> str:
        """Return what must reach the terminal before a cell of it: the picture, unless it is there already."""
        if self.number in _there:
            _there.move_to_end(self.number)
            return ""
        columns, rows = self.cells
        head = f"a=T,U=1,q=2,f=100,i={self.number},c={columns},r={rows},"
        commands = []
        for at in range(0, len(self._data), CHUNK):
            more = int(at + CHUNK < len(self._data))
            commands.append(f"\x1b_G{head}m={more};{self._data[at : at + CHUNK]}\x1b\\")
            head = "q=2,"
        _there[self.number] = None
        if len(_there) > KEPT:
            commands.append(f"\x1b_Ga=d,d=I,q=2,i={_there.popitem(last=False)[0]}\x1b\\")
        return "".join(commands)

    def row(self, row: int, left: int, right: int) -> str:
        """Return the text of cells `left` up to `right` of a row; the picture's number is its colour."""
        number = self.number
        colour = f"\x1b[38;2;{number >> 16};{number >> 8 & 255};{number & 255}m"
        return colour + CELL + MARKS[row] + MARKS[left] + CELL * (right - left - 1) + "\x1b[39m"
