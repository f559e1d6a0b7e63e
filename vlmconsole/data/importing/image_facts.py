"""What is known of an image before it is taken into a dataset: hashes, size, a small grey of it, and what is sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from PIL import Image

from vlmconsole.vision.images import open_picture

GREY = (9, 8)  # columns and rows of the small grey: its neighbours' differences are a 64-bit perceptual hash


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """`sha256` (hex) of the file's bytes, `sent_sha256` of those that are sent (the same where it is sent as it is).

    `pixel_sha256` is "" where it was not needed yet; `grey` are 9 × 8 mean brightnesses, row by row.
    """

    sha256: str
    sent_sha256: str
    pixel_sha256: str
    width: int
    height: int
    grey: bytes

    @property
    def perceptual(self) -> int:
        """64 bits: whether each cell of the small grey is darker than its right neighbour (dHash)."""
        wide = GREY[0]
        bits = 0
        for at, value in enumerate(self.grey):
            if (at + 1) % wide:
                bits = bits << 1 | (value < self.grey[at + 1])
        return bits


def image_facts(data: bytes, sha256: str = "") -> ImageFacts:
    """Look at an image's bytes. Raises PictureError for everything that cannot be sent."""
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    picture = open_picture(data, name="the image")
    return ImageFacts(sha256, picture.sha256, picture.pixel_sha256, *picture.size, small_grey(picture.image()))


def small_grey(image: Image.Image) -> bytes:
    """Mean brightness of 9 × 8 cells, row by row."""
    return image.convert("L").resize(GREY, Image.Resampling.BOX).tobytes()
