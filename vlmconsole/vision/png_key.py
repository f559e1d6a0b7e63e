"""The one colour that a PNG calls see-through (its tRNS chunk), compared at the file's own depth.

Pillow compares after it has changed the depth: a grey of 2, 4 or 16 bits and RGB of 16 bits would keep their
see-through pixels, or lose others. Source: W3C PNG, third edition, 11.3.1.1.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

_GREY, _RGB = 0, 2


def key_opacity(image: Image.Image, data: bytes, frame: int = 0) -> Image.Image | None:
    """Opacity (mode L: 0 or 255) of `image`, the decoded frame of the PNG `data`; None where no colour is named."""
    depth, colour = data[24], data[25]
    body = _chunk(data, b"tRNS")
    length = {_GREY: 2, _RGB: 6}.get(colour)
    if body is None or length is None or len(body) < length or image.mode not in ("1", "L", "I;16", "RGB"):
        return None
    # Only the lowest bits of each value count where a sample has fewer than 16.
    key = [value & (2**depth - 1) for value in struct.unpack(f">{length // 2}H", body[:length])]
    if colour == _GREY:
        grey: Any = np.asarray(image.convert("L") if image.mode == "1" else image)
        see_through = grey == key[0] * (255 // (2**depth - 1) if depth < 8 else 1)
    elif depth == 8:
        see_through = (np.asarray(image) == key).all(axis=-1)
    else:
        low = np.asarray(_low_bytes(data, frame))
        see_through = (np.asarray(image) == [value >> 8 for value in key]).all(axis=-1)
        see_through &= (low == [value & 255 for value in key]).all(axis=-1)
    return Image.fromarray(np.where(see_through, 0, 255).astype(np.uint8))


def _low_bytes(data: bytes, frame: int) -> Image.Image:
    """The lower byte of every 16-bit sample: Pillow's reader told that the samples are little-endian."""
    image = Image.open(io.BytesIO(data), formats=["PNG"])
    image.seek(frame)
    image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
    image.load()
    return image


def _chunk(data: bytes, name: bytes) -> bytes | None:
    """Body of the first chunk of that name before the pixels."""
    at = 8
    while at + 8 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind = data[at + 4 : at + 8]
        if kind == name:
            return data[at + 8 : at + 8 + length]
        if kind == b"IDAT":
            return None
        at += 12 + length
    return None
