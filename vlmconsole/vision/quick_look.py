"""A plain JPEG judged without decoding it whole: that it can be sent as it is, its size, and a small grey of it.

Every bit of its data is read, at an eighth of the size, which costs a third of a full decode. Whatever is not plain
(turned, another colour profile, progressive, cut off) is left to `open_picture`, which decides.
Fewer than about 24 missing bytes at the very end (a few blocks of the last row) pass unseen.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from vlmconsole.vision.colours import to_rgb
from vlmconsole.vision.limits import MAX_ASPECT_RATIO, MAX_BYTES, MAX_PIXELS

GREY = (9, 8)  # columns and rows of the small grey
_END = b"\xff\xd9"
_AHEAD = bytes(range(1, 9))  # after the data: what a decoder may fetch before it needs it; no 0xFF, so no mark
_HOLE = bytes(64)
_SMALL = 128 * 128  # pixels: below it a full decode costs nothing
_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class QuickLook:
    """Size in pixels, and the mean brightness of 9 × 8 cells, row by row."""

    width: int
    height: int
    grey: bytes


def quick_look(data: bytes) -> QuickLook | None:
    """Look at an image's bytes; None for all that needs `open_picture`."""
    if not data.startswith(b"\xff\xd8\xff") or len(data) > MAX_BYTES:
        return None
    end = data.rfind(_END)
    if end < 0 or len(data) - end > 4096 or data.find(_HOLE, 512, end) >= 0:
        return None
    try:
        # Without its end mark: a decoder that lacks data for its last row waits for more, and that is an error here.
        image = JpegImageFile(io.BytesIO(data[:end] + _AHEAD))
        width, height = image.size
        if not _plain(image, width, height):
            return None
        image.draft("L", (GREY[0] * 8, GREY[1] * 8))
        image.load()
    except Exception:  # `open_picture` names what is wrong with it
        return None
    scale = (image.width / width, image.height / height)
    box = (0.0, 0.0, min(image.width, width * _step(scale[0])), min(image.height, height * _step(scale[1])))
    return QuickLook(width, height, small_grey(image, box))


def small_grey(image: Image.Image, box: tuple[float, float, float, float] | None = None) -> bytes:
    """Mean brightness of 9 × 8 cells of an image, or of the part in `box`, row by row."""
    return image.convert("L").resize(GREY, Image.Resampling.BOX, box=box).tobytes()


def _step(scale: float) -> float:
    """The exact eighths that a draft was scaled by: sizes are rounded up, cells must not be."""
    return round(scale * 8) / 8 or 1 / 8


def _plain(image: JpegImageFile, width: int, height: int) -> bool:
    """Whether a header says that the file's own bytes would be sent."""
    info = image.info
    if image.mode not in ("L", "RGB") or "progressive" in info or "progression" in info:
        return False
    if not _SMALL <= width * height <= MAX_PIXELS or max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        return False
    if "mp" in info:  # several images in one file
        return False
    if ("exif" in info or "xmp" in info) and image.getexif().get(_ORIENTATION, 1) != 1:
        return False
    return "icc_profile" not in info or _profile_changes_nothing(info["icc_profile"], image.mode)


@lru_cache(maxsize=64)
def _profile_changes_nothing(icc: bytes, mode: str) -> bool:
    return not to_rgb(Image.new(mode, (2, 2)), icc, "white")[1]
