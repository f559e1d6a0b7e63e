"""Which way up a picture is: EXIF's eight orientations, and what a HEIF container (HEIC, AVIF) says instead.

In HEIF the transformative properties irot and imir turn the picture; EXIF's orientation is informative only.
Source: ISO/IEC 23008-12, 6.5.10 and 6.5.12; libheif 1.19 and libavif 1.3 mirror axis 0 top to bottom.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from PIL import Image

#: EXIF's number → what brings the stored pixels upright; 1 needs nothing
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTERS = (None, Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
_MIRRORS = (Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.FLIP_LEFT_RIGHT)


def container_orientation(data: bytes) -> int | None:
    """EXIF's number (1 to 8) for what irot and imir do to the main picture of a HEIF file.

    None where the boxes that say so cannot be read.
    """
    try:
        meta = _child(data, b"meta")[4:]
        properties = _child(meta, b"iprp")
        owned = list(_boxes(_child(properties, b"ipco")))
        main = _main_item(_child(meta, b"pitm"))
        turns = [owned[number - 1] for number in _associated(_child(properties, b"ipma"), main) if number]
        steps = [_step(kind, body[0]) for kind, body in turns if kind in (b"irot", b"imir")]
    except (KeyError, IndexError, struct.error):
        return None
    return _as_one([step for step in steps if step is not None])


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, body) of the ISO media boxes that `data` is a row of."""
    at = 0
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        head = 8
        if length == 1:
            length, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        end = at + length if length else len(data)
        if end < at + head:
            return
        yield kind, data[at + head : end]
        at = end


def _child(data: bytes, kind: bytes) -> bytes:
    for name, body in _boxes(data):
        if name == kind:
            return body
    raise KeyError(kind)


def _main_item(pitm: bytes) -> int:
    return int(struct.unpack(">I" if pitm[0] else ">H", pitm[4 : 8 if pitm[0] else 6])[0])


def _associated(ipma: bytes, item: int) -> list[int]:
    """Numbers (from 1, 0 for none) of the properties of one item, in the order in which they apply."""
    wide_ids, wide_numbers = ipma[0] > 0, ipma[3] & 1
    (entries,) = struct.unpack(">I", ipma[4:8])
    at = 8
    for _ in range(entries):
        (name,) = struct.unpack(">I" if wide_ids else ">H", ipma[at : at + (4 if wide_ids else 2)])
        at += 4 if wide_ids else 2
        count = ipma[at]
        at += 1
        numbers = struct.unpack(f">{count}{'H' if wide_numbers else 'B'}", ipma[at : at + count * (1 + wide_numbers)])
        at += count * (1 + wide_numbers)
        if name == item:  # the highest bit says "essential"
            return [number & (0x7FFF if wide_numbers else 0x7F) for number in numbers]
    return []


def _step(kind: bytes, value: int) -> Image.Transpose | None:
    return _QUARTERS[value & 3] if kind == b"irot" else _MIRRORS[value & 1]


def _as_one(steps: list[Image.Transpose]) -> int:
    """The one orientation that several turns come to, read off a picture in which no two pixels are alike."""
    plain = Image.frombytes("L", (2, 2), bytes(range(4)))
    turned = plain
    for step in steps:
        turned = turned.transpose(step)
    same = (number for number, turn in TURNS.items() if plain.transpose(turn).tobytes() == turned.tobytes())
    return next(same, 1)
