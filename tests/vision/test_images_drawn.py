"""All combinations of transparency and orientation, against pixels known without Pillow; and the words beside them."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
import pytest
from odd_pictures import flag, oriented, saved
from PIL import Image
from written_pngs import DEPTHS, Written, every_kind
from written_tiffs import ASSOCIATED, RGB, UNASSOCIATED, UNSPECIFIED, tiff

from vlmconsole.vision.images import Picture, PictureError, open_picture

# pytest puts aside the filter by which the package keeps Pillow's own warnings off the screen.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

PNGS = every_kind()


@pytest.mark.parametrize("colour", DEPTHS)
def test_png_is_white_where_it_is_see_through_and_nowhere_else(colour: int) -> None:
    files = [file for file in PNGS if file.name.startswith(f"type {colour},")]
    for file, ground in product(files, (1.0, 0.0)):
        picture = open_picture(file.data, name="x", background="white" if ground else "black")
        sent = np.asarray(picture.image()).astype(float)
        for (x, y), colours in file.over(ground).items():
            assert np.abs(sent[y, x] - colours).max() < 2, f"{file.name} at {x},{y}: {sent[y, x]}, not {colours}"
        assert ("transparency drawn over" in picture.description) == _see_through(file), (
            file.name,
            picture.description,
        )
        if file.name.endswith("opaque") or "absent" in file.name:
            assert "empty transparency" in picture.description
        assert ("channel reduced" in picture.description) == (" 16 bits" in file.name)
    assert len(files) >= 8


def _see_through(file: Written) -> bool:
    return any(round(opacity * 255) < 255 for *_, opacity in file.pixels.values())


@pytest.mark.parametrize(("photometric", "bits", "extra"), product((0, 1, 2), (8, 16), (None, 0, 1, 2)))
def test_tiff_is_white_where_it_is_see_through_or_refused(photometric: int, bits: int, extra: int | None) -> None:
    data, shown = tiff(photometric, bits, extra)
    # Pillow 13 reads these layouts; the others must be refused by name, whichever version reads them.
    readable = extra is None or photometric == RGB or (photometric, bits) == (1, 8)
    try:
        picture = open_picture(data, name="x.tif")
    except PictureError as error:
        assert not readable and "layout" in str(error)
        return
    sent = np.asarray(picture.image()).astype(float)[0]
    assert np.abs(sent - shown).max() < 2.5, f"{sent} instead of {shown}"
    assert ("transparency drawn" in picture.description) == (extra in (ASSOCIATED, UNASSOCIATED))
    assert ("unspecified" in picture.note) == (extra == UNSPECIFIED)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("WEBP", {"lossless": True, "exact": True}),
        ("WEBP", {"quality": 95}),
        ("AVIF", {"quality": 100}),
        ("HEIF", {"quality": -1}),
        ("JPEG2000", {}),
        ("ICO", {"sizes": [(40, 24)]}),
        ("ICO", {"sizes": [(40, 24)], "bitmap_format": "bmp"}),
        ("GIF", {}),
    ],
)
def test_other_containers_are_white_where_they_are_see_through(kind: str, options: dict[str, object]) -> None:
    image = Image.new("RGBA", (40, 24), (0, 0, 255, 0))
    image.paste((255, 0, 0, 255), (0, 0, 20, 24))
    if kind != "GIF":
        image.paste((0, 0, 0, 102), (0, 12, 20, 24))
    picture = open_picture(saved(image, kind, **options), name="x")
    sent = picture.image()
    assert "transparency" in picture.description and "white" in picture.description
    expected = {(3, 3): (255, 0, 0), (36, 3): (255, 255, 255), (36, 20): (255, 255, 255)}
    expected[3, 20] = (255, 0, 0) if kind == "GIF" else (153, 153, 153)
    for at, colour in expected.items():
        assert max(abs(a - b) for a, b in zip(sent.getpixel(at), colour, strict=True)) < 5, (at, sent.getpixel(at))


# --- which way up ---
UPRIGHT = {  # EXIF's number → what a viewer does with the stored rows, by the standard's own table (JEITA CP-3451)
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><a tiff:Orientation="{}"/></rdf:RDF></x:xmpmeta>'


def assert_shows(picture: Picture, expected: np.ndarray, orientation: int, stored: tuple[int, int] = (40, 24)) -> None:
    sent = np.asarray(picture.image()).astype(float)
    assert sent.shape == expected.shape
    inner = slice(3, None, 6)  # beside the edges between two colours, which lossy files blur
    assert np.abs(sent[inner, inner] - expected[inner, inner]).max() < 12
    said = picture.description
    assert (f"orientation {orientation})" in said) == (orientation != 1), said
    assert picture.original_size == stored


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("MPO", {"quality": 95, "save_all": True, "append_images": [flag()]}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("HEIF", {"quality": 100}),
        ("AVIF", {"quality": 100}),
    ],
)
def test_every_container_is_turned_as_it_says(kind: str, options: dict[str, object], orientation: int) -> None:
    picture = open_picture(oriented(kind, orientation, **options), name="x")
    assert_shows(picture, UPRIGHT[orientation](np.asarray(flag()).astype(float)), orientation)
    assert orientation == 1 or ("HEIF" if kind in ("HEIF", "AVIF") else "EXIF") in picture.description


_STAND_IN = 0x0113


def template(kind: str) -> bytes:
    """A HEIF file that holds both irot and imir (orientation 5), and the flag's pixels as they are."""
    exif = Image.Exif()
    exif[0x0112], exif[_STAND_IN] = 5, 2
    data = bytearray(saved(flag(), kind, exif=exif.tobytes(), quality=100))
    for order in "<>":
        if (entry := struct.pack(f"{order}HHI", 0x0112, 3, 1)) in data:
            data[data.index(entry) : data.index(entry) + 2] = struct.pack(f"{order}H", 0x0111)
    return bytes(data)


def patched(data: bytes, angle: int, mirror: int | None, exif: int, *, mirror_first: bool = False) -> bytes:
    """A HEIF file of both irot and imir with others in their place, and another orientation in its EXIF."""
    out = bytearray(data)
    out[data.index(b"irot") + 4] = angle
    out[data.index(b"imir") + 4] = mirror or 0
    # Pillow takes the orientation out of an AVIF's EXIF: another tag is renamed to it.
    order = "<" if struct.pack("<HHI", _STAND_IN, 3, 1) in data else ">"
    at = data.index(struct.pack(f"{order}HHI", _STAND_IN, 3, 1))
    out[at : at + 2] = struct.pack(f"{order}H", 0x0112)
    out[at + 8 : at + 10] = struct.pack(f"{order}H", exif)
    numbers, (turn, flip) = _associations(data)
    if mirror is None:
        out[numbers + flip] = 0
    elif mirror_first:
        out[numbers + turn], out[numbers + flip] = out[numbers + flip], out[numbers + turn]
    return bytes(out)


def _associations(data: bytes) -> tuple[int, tuple[int, int]]:
    """Where the first item's property numbers begin, and which of them are irot and imir."""
    at = data.index(b"ipma") + 4
    assert data[at] == 0 and not data[at + 3] & 1, "16-bit items, 8-bit numbers"
    numbers = data[at + 11 : at + 11 + data[at + 10]]
    properties = []
    box = data.index(b"ipco") + 4
    end = box - 8 + struct.unpack(">I", data[box - 8 : box - 4])[0]
    while box < end:
        properties.append(data[box + 4 : box + 8])
        box += struct.unpack(">I", data[box : box + 4])[0]
    kinds = [properties[(number & 0x7F) - 1] for number in numbers]
    return at + 11, (kinds.index(b"irot"), kinds.index(b"imir"))


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_a_heif_container_is_turned_by_irot_and_imir_and_exif_is_informative(kind: str) -> None:
    both = template(kind)
    stored = np.asarray(flag()).astype(float)
    for angle, mirror, exif in product(range(4), (None, 0, 1), (1, 3, 6)):
        # libavif refuses a mirror before a turn, as MIAF does.
        for mirror_first in (False, True) if mirror is not None and kind == "HEIF" else (False,):
            expected = stored
            for step in ("imir", "irot") if mirror_first else ("irot", "imir"):
                if step == "irot":
                    expected = np.rot90(expected, angle)  # anti-clockwise, as the standard counts
                elif mirror is not None:
                    expected = expected[:, ::-1] if mirror else expected[::-1]
            number = next(n for n, turn in UPRIGHT.items() if np.array_equal(turn(stored), expected))
            picture = open_picture(patched(both, angle, mirror, exif, mirror_first=mirror_first), name="x")
            assert_shows(picture, expected, number)
            if kind == "HEIF":  # Pillow gives an AVIF's EXIF with the container's own value in it
                assert ("not applied" in picture.note) == (exif not in (1, number)), (picture.note, exif, number)


@pytest.mark.parametrize("orientation", (2, 6, 7))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_orientation_in_xmp_alone_is_said_as_it_is_done(kind: str, orientation: int) -> None:
    xmp = XMP.format(orientation)
    if kind == "PNG":
        from PIL import PngImagePlugin

        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp)
        data = saved(flag(), kind, pnginfo=info)
    elif kind == "TIFF":
        data = saved(flag(), kind, tiffinfo={700: xmp.encode()})
    else:
        data = saved(flag(), kind, xmp=xmp.encode(), **({"quality": 95} if kind == "JPEG" else {"lossless": True}))
    picture = open_picture(data, name="x")
    turned = "orientation" in picture.description
    expected = UPRIGHT[orientation if turned else 1](np.asarray(flag()).astype(float))
    assert_shows(picture, expected, orientation if turned else 1)
    assert not turned or "XMP orientation" in picture.description


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_broken_position_does_not_hide_the_orientation(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x8825] = {1: "N", 2: (52.0, 31.0, 0.0)}
    raw = bytearray(exif.tobytes())
    at = raw.index(struct.pack("<HH", 0x8825, 4)) if b"II*" in raw else raw.index(struct.pack(">HH", 0x8825, 4))
    raw[at + 8 : at + 12] = b"\xf0\xff\xff\x7f" if b"II*" in raw else b"\x7f\xff\xff\xf0"
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    picture = open_picture(saved(flag(), kind, exif=bytes(raw), **options), name="x")
    assert_shows(picture, UPRIGHT[6](np.asarray(flag()).astype(float)), 6)


# --- files of Windows and the old web, written by hand ---
MASK = b"".join(struct.pack(">I", 0xF0 << 24) for _ in range(8))  # the left half of 8×8 see-through
LEFT, RIGHT = (1, 1), (6, 1)
PALETTE = b"\x00\x00\x00\x00\x00\x00\xff\x00" + bytes(4 * 254)  # black, red


def icon(bits: int, rows: bytes, palette: bytes, mask: bytes) -> bytes:
    body = struct.pack("<IiiHHIIiiII", 40, 8, 16, 1, bits, 0, 0, 0, 0, 0, 0) + palette + rows + mask
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 8, 8, 0, 0, 1, bits, len(body), 22) + body


def bitmap(alpha_mask: int) -> bytes:
    """A version 4 bitmap, red, its left half with an opacity of 0 where the header names one."""
    rows = (b"\0\0\xff\0" * 4 + b"\0\0\xff\xff" * 4) * 8
    head = struct.pack("<IiiHHIIiiII", 108, 8, 8, 1, 32, 3, len(rows), 0, 0, 0, 0)
    head += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, alpha_mask) + b"BGRs" + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(rows), 0, 0, 14 + len(head)) + head + rows


@pytest.mark.parametrize(
    "data",
    [
        icon(1, b"\xff\0\0\0" * 8, PALETTE[:8], MASK),
        icon(4, bytes([0x11] * 32), PALETTE[:64], MASK),
        icon(8, bytes([1] * 64), PALETTE, MASK),
        icon(24, b"\0\0\xff" * 64, b"", MASK),
        icon(32, (b"\0\0\xff\0" * 4 + b"\0\0\xff\xff" * 4) * 8, b"", bytes(32)),
        bitmap(0xFF000000),
    ],
)
def test_icons_and_bitmaps_are_white_where_they_are_see_through(data: bytes) -> None:
    picture = open_picture(data, name="x")
    sent = picture.image()
    assert (sent.getpixel(LEFT), sent.getpixel(RIGHT)) == ((255, 255, 255), (255, 0, 0))
    assert "transparency" in picture.description and "white" in picture.description


def test_a_bitmap_whose_header_names_no_opacity_is_opaque() -> None:
    picture = open_picture(bitmap(0), name="x")
    assert picture.image().getpixel(LEFT) == (255, 0, 0) and "transparency" not in picture.description
