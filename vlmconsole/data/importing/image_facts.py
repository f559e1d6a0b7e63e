"""What is known of an image before it is taken into a dataset: hashes, size, a small grey of it, and what is sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vlmconsole.vision.images import open_picture
from vlmconsole.vision.quick_look import GREY, quick_look, small_grey


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


def image_facts(data: bytes, sha256: str = "") -> ImageFacts:
    """Look at an image's bytes. Raises PictureError for everything that cannot be sent."""
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    if quick := quick_look(data):
        return ImageFacts(sha256, sha256, "", quick.width, quick.height, quick.grey)
    picture = open_picture(data, name="the image")
    return ImageFacts(sha256, picture.sha256, picture.pixel_sha256, *picture.size, small_grey(picture.image()))


def perceptual_hashes(greys: list[bytes]) -> NDArray[np.uint64]:
    """64 bits of each small grey: whether each cell is darker than its right neighbour (dHash)."""
    columns, rows = GREY
    cells = np.frombuffer(b"".join(greys), np.uint8).reshape(-1, rows, columns)
    bits = (cells[:, :, :-1] < cells[:, :, 1:]).reshape(len(cells), 64)
    return np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64)
