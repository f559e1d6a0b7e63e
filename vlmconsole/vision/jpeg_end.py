"""Whether a JPEG's data last as long as its pixels: libjpeg fills what is missing with grey and says nothing.

The proof is by decoding once more with noise laid in before the end mark. A decoder that has had all its data never
reads it; one that ran short takes it for pixels. So no picture is judged by its looks, a grey one no more than others.
"""

from __future__ import annotations

import io
import random
import re

from PIL import Image, ImageChops
from PIL.JpegImagePlugin import JpegImageFile

_MARK = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)  # not stuffing, not a restart inside the data
_END, _SCAN, _BASELINE, _PROGRESSIVE = 0xD9, 0xDA, (0xC0, 0xC1), 0xC2
_LONE = (0x01, 0xD8)  # marks without a length
_NOISE = bytes(random.Random(0).choices(range(255), k=2048))  # no 0xFF: nothing in it is a mark
_HOLE = bytes(64)
_TAIL = 32


def jpeg_shortage(data: bytes, image: Image.Image) -> str:
    """Return what of `image`, the decoded first picture of `data`, the file does not hold, in words; "" for nothing.

    Arithmetic coding is not judged: its encoders may leave out trailing zeros. Nor are passes that are wholly absent
    from a progressive picture, which the format allows.
    """
    start, end, coding = _extent(data)
    if end is None or start is None or coding not in (*_BASELINE, _PROGRESSIVE):
        return ""
    rows = image.height
    top = _first_change(image, data[:end] + _padding(data, start, end))
    if top is not None:
        if coding == _PROGRESSIVE or data[start + 2] < len(image.getbands()):  # a scan is not the whole of a row
            return f"the data end early: a pass over the {rows} rows breaks off"
        return f"the data end early: the lower {rows - top} of {rows} rows are missing"
    hole = data.find(_HOLE, start, end)
    # Data left over behind a hole: what came after it was read as other pixels. Only where the last bytes are dense
    # with data does it prove anything that noise in their place changes nothing.
    dense = len(set(data[end - 2 * _TAIL : end])) >= 16
    if coding not in _BASELINE or hole < 0 or not dense:
        return ""
    if _first_change(image, data[: end - _TAIL] + _NOISE[:_TAIL]) is not None:
        return ""
    top = _first_change(image, data[:hole] + _NOISE[:_TAIL] + data[hole + _TAIL : end]) or 0
    return f"the data have a hole of zeros: the lower {rows - top} of {rows} rows are not the image's own"


def _extent(data: bytes) -> tuple[int | None, int | None, int | None]:
    """(where the first scan's header is, where the end mark does, the kind of coding) of the first picture."""
    at, start, coding = 2, None, None
    while mark := _MARK.search(data, at):
        kind, at = mark[1][0], mark.end()
        if kind == _END:
            return start, mark.start(), coding
        if kind in _LONE:
            continue
        if kind == _SCAN and start is None:
            start = at
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            coding = kind
        at += int.from_bytes(data[at : at + 2], "big")
    return start, None, coding


def _padding(data: bytes, start: int, end: int) -> bytes:
    """Noise, then the restart marks due next, each with noise: a decoder that stands at a restart skips to its mark."""
    _, last = max((data.rfind(bytes([0xFF, mark]), start, end), mark) for mark in range(0xD0, 0xD8))
    begun = data.rfind(bytes([0xFF, _SCAN]), start, end)  # each scan counts its restarts from 0
    due = last - 0xD0 + 1 if data.rfind(bytes([0xFF, last]), start, end) > begun else 0
    return _NOISE + b"".join(bytes([0xFF, 0xD0 + (due + n) % 8]) + _NOISE[:512] for n in range(8))


def _first_change(image: Image.Image, body: bytes) -> int | None:
    """The first row in which `body`, ended, shows other pixels than `image`; None where it shows the same."""
    other = JpegImageFile(io.BytesIO(body + bytes([0xFF, _END])))
    try:
        other.load()
    except OSError:  # noise that a decoder gives up on proves nothing
        return None
    step = max(1, 4_000_000 // image.width)
    for top in range(0, image.height, step):  # in bands: no third copy of a large picture
        band = (0, top, image.width, min(top + step, image.height))
        parts = zip(image.crop(band).split(), other.crop(band).split(), strict=True)
        tops = [box[1] for a, b in parts if (box := ImageChops.difference(a, b).getbbox())]
        if tops:
            return top + min(tops)
    return None
