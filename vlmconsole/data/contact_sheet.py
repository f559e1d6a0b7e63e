"""Contact sheets: a grid of a split's pictures with index and truth under each, as one PNG."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from vlmconsole.data.example import Example, truth_text
from vlmconsole.data.rows import Row
from vlmconsole.text.plain import one_line

CELL = 150  # pixels, width of one picture
CAPTION = 18


def caption(row: Row) -> str:
    """Return what is written under a picture: its index, and its truth in short."""
    try:
        counts = json.loads(row.truth)
        counted = f"{counts['red_circles']} red · {counts['blue_squares']} blue"
    except (ValueError, KeyError, TypeError):
        counted = row.truth
    return f"{row.index}: {counted}"


def contact_sheet(rows: Sequence[Row], *, columns: int = 8) -> Image.Image:
    """Return the rows' pictures in a grid, `columns` wide, each scaled to fit 150 × 150 pixels. Raises ValueError for
    none.
    """
    if not rows:
        raise ValueError("a contact sheet needs at least one image")
    return _grid([(row.image(), caption(row)) for row in rows], columns)


def example_sheet(examples: Sequence[Example], *, columns: int = 8) -> Image.Image | None:
    """Return every image of the examples in a grid, with index and truth; None where they have none."""
    cells = [
        (Image.open(io.BytesIO(image)), f"{example.index}: {truth_text(example.truth)}")
        for example in examples
        for image in example.images
    ]
    return _grid(cells, columns) if cells else None


def _grid(cells: Sequence[tuple[Image.Image, str]], columns: int) -> Image.Image:
    columns = min(columns, len(cells))
    pad = 6
    wide, high = CELL + pad, CELL + CAPTION + pad
    sheet = Image.new("RGB", (columns * wide + pad, math.ceil(len(cells) / columns) * high + pad), (245, 245, 245))
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=12)
    for number, (picture, text) in enumerate(cells):
        left, top = pad + number % columns * wide, pad + number // columns * high
        image = picture.convert("RGB")
        image.thumbnail((CELL, CELL), Image.Resampling.LANCZOS)
        pen.rectangle((left - 1, top - 1, left + CELL, top + CELL), outline=(200, 200, 200))
        sheet.paste(image, (left + (CELL - image.width) // 2, top + (CELL - image.height) // 2))
        text = one_line(text, 80)
        while pen.textlength(text, font=font) > CELL and len(text) > 4:
            text = text[:-2].rstrip("…") + "…"
        pen.text((left + 2, top + CELL + 2), text, fill=(20, 20, 20), font=font)
    return sheet
