"""Odd pictures: each is either sent right, with every change named, or refused in one clear line."""

from __future__ import annotations

import hashlib
import io
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_pictures import (
    AS_IS,
    BLACK,
    BLUE,
    CMYK_JPEG,
    JPEG,
    LOWER_RIGHT,
    PLAIN,
    RED,
    SRGB,
    UPPER_LEFT,
    UPPER_RIGHT,
    WHITE,
    animated,
    ended,
    flag,
    half_clear,
    heic_with_informative_exif,
    holed,
    keyed_grey,
    lying_text,
    noise,
    noisy,
    oriented,
    palette_with_hole,
    png16,
    png_claiming,
    saved,
    small_frame,
    swapped_profile,
    without_adobe_mark,
    ycck_jpeg,
)
from PIL import Image
from refusals import check_error, mentions

from vlmconsole.vision.images import Picture, PictureError, open_picture
from vlmconsole.vision.jpeg_end import jpeg_shortage

# pytest puts aside the filter by which the package keeps Pillow's own warnings off the screen.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

# name → (bytes, size sent, the nouns of `said`, {pixel: colour})
Right = tuple[Callable[[], bytes] | bytes, tuple[int, int], str, dict[tuple[int, int], tuple[int, int, int]]]
RIGHT: dict[str, Right] = {
    "plain PNG": (saved(flag(), "PNG"), (40, 24), "sent as is", AS_IS),
    "plain JPEG": (saved(flag(), "JPEG", quality=95), (40, 24), "sent as is", AS_IS),
    "progressive JPEG": (saved(flag(), "JPEG", quality=95, progressive=True), (40, 24), "sent as is", AS_IS),
    "plain WebP": (saved(flag(), "WEBP", lossless=True), (40, 24), "sent as is", AS_IS),
    "grey PNG": (saved(flag("L"), "PNG"), (40, 24), "sent as is", {LOWER_RIGHT: WHITE, UPPER_LEFT: (29, 29, 29)}),
    "grey JPEG": (saved(flag("L"), "JPEG"), (40, 24), "sent as is", {LOWER_RIGHT: WHITE}),
    "interlaced-size 1×1": (saved(Image.new("RGB", (1, 1), RED), "PNG"), (1, 1), "sent as is", {(0, 0): RED}),
    "31×639": (saved(Image.new("RGB", (31, 639), BLUE), "PNG"), (31, 639), "sent as is", {(30, 638): BLUE}),
    "200:1 exactly": (saved(Image.new("RGB", (2000, 10), BLUE), "PNG"), (2000, 10), "sent as is", {}),
    "30,000 pixels wide": (saved(Image.new("RGB", (30_000, 160), RED), "PNG"), (30_000, 160), "sent as is", {}),
    "30,000 pixels high": (saved(Image.new("RGB", (160, 30_000), RED), "PNG"), (160, 30_000), "sent as is", {}),
    "EXIF orientation 1": (lambda: oriented("JPEG", 1, quality=95), (40, 24), "sent as is", AS_IS),
    "EXIF orientation 9 (no such)": (lambda: oriented("JPEG", 9, quality=95), (40, 24), "sent as is", AS_IS),
    "EXIF 6 in a PNG": (lambda: oriented("PNG", 6), (24, 40), "EXIF orientation 6", {(20, 3): BLUE, (3, 36): WHITE}),
    "EXIF 6 in a WebP": (
        lambda: oriented("WEBP", 6, lossless=True),
        (24, 40),
        "EXIF orientation 6",
        {(20, 3): BLUE, (3, 36): WHITE},
    ),
    "EXIF 6 in a TIFF": (lambda: oriented("TIFF", 6), (24, 40), "EXIF orientation 6", {(20, 3): BLUE, (3, 36): WHITE}),
    "EXIF 6 in a HEIC": (lambda: oriented("HEIF", 6, quality=100), (24, 40), "orientation 6", {(20, 3): BLUE}),
    "EXIF 6 in an AVIF": (lambda: oriented("AVIF", 6, quality=100), (24, 40), "orientation 6", {(20, 3): BLUE}),
    "EXIF that is garbage": (
        saved(flag(), "JPEG", quality=95, exif=b"Exif\0\0II*\0garbage"),
        (40, 24),
        "sent as is",
        AS_IS,
    ),
    "CMYK JPEG (Adobe, inverted)": (CMYK_JPEG, (40, 24), "CMYK inks", AS_IS),
    "CMYK JPEG without Adobe's mark": (
        lambda: without_adobe_mark(saved(Image.eval(flag("CMYK"), lambda v: 255 - v), "JPEG", quality=95)),
        (40, 24),
        "CMYK inks",
        AS_IS,
    ),
    "YCCK JPEG": (ycck_jpeg, (40, 24), "CMYK inks", {}),
    "CMYK TIFF": (saved(flag("CMYK"), "TIFF"), (40, 24), "CMYK inks", AS_IS),
    "16-bit grey PNG": (
        png16(0, 1),
        (2, 1),
        "16 bits; channel reduced",
        {(0, 0): (128, 128, 128), (1, 0): WHITE},
    ),
    "16-bit RGB PNG": (png16(2, 3), (2, 1), "16 bits; channel reduced", {(0, 0): (128, 128, 128), (1, 0): WHITE}),
    "16-bit RGBA PNG": (png16(6, 4), (2, 1), "drawn over white", {(1, 0): WHITE}),
    "16-bit grey+alpha PNG": (png16(4, 2), (2, 1), "drawn over white", {(1, 0): WHITE}),
    "2-bit grey PNG, 1 see-through": (
        keyed_grey(2, 1),
        (4, 1),
        "drawn over white",
        {(0, 0): WHITE, (1, 0): (170, 170, 170), (2, 0): BLACK},
    ),
    "16-bit grey PNG, 1000 see-through": (
        keyed_grey(16, 1000),
        (4, 1),
        "channel reduced; drawn over white",
        {(0, 0): WHITE, (1, 0): (4, 4, 4), (2, 0): BLACK, (3, 0): WHITE},
    ),
    "HEIC whose EXIF says 6 and whose irot nothing": (
        heic_with_informative_exif,
        (40, 24),
        "HEIC repacked",
        {(3, 3): BLUE, (36, 20): WHITE},
    ),
    "16-bit grey TIFF": (
        saved(Image.frombytes("I;16", (2, 1), struct.pack("<2H", 0, 65535)), "TIFF"),
        (2, 1),
        "16 bits; channel reduced",
        {(0, 0): BLACK, (1, 0): WHITE},
    ),
    "1-bit PNG": (
        saved(flag("L").point(lambda v: 255 * (v > 60)).convert("1"), "PNG"),
        (40, 24),
        "1-bit",
        {UPPER_LEFT: BLACK},
    ),
    "palette PNG": (saved(flag("P"), "PNG"), (40, 24), "palette colours", AS_IS),
    "palette PNG with a hole": (
        palette_with_hole,
        (40, 24),
        "drawn over white",
        {LOWER_RIGHT: WHITE, UPPER_LEFT: RED},
    ),
    "grey+alpha PNG": (saved(half_clear("LA"), "PNG"), (40, 24), "drawn over white", {LOWER_RIGHT: WHITE}),
    "RGBA PNG": (
        saved(half_clear(), "PNG"),
        (40, 24),
        "drawn over white",
        {LOWER_RIGHT: WHITE, UPPER_LEFT: RED},
    ),
    "RGBA WebP": (
        saved(half_clear(), "WEBP", lossless=True),
        (40, 24),
        "drawn over white",
        {LOWER_RIGHT: WHITE},
    ),
    "RGBA PNG, all opaque": (saved(flag("RGBA"), "PNG"), (40, 24), "empty transparency", AS_IS),
    "RGB PNG with a see-through colour": (
        saved(flag(), "PNG", transparency=BLUE),
        (40, 24),
        "drawn over white",
        {UPPER_LEFT: WHITE},
    ),
    "sRGB profile": (saved(flag(), "PNG", icc_profile=SRGB), (40, 24), "sent as is", AS_IS),
    "another profile": (
        lambda: saved(flag(), "PNG", icc_profile=swapped_profile()),
        (40, 24),
        "to sRGB",
        {UPPER_RIGHT: (0, 255, 0), LOWER_RIGHT: WHITE},
    ),
    "profile that is garbage": (
        saved(flag(), "PNG", icc_profile=b"garbage"),
        (40, 24),
        "unusable colour profile",
        AS_IS,
    ),
    "RGB profile on grey": (lambda: saved(flag("L"), "PNG", icc_profile=SRGB), (40, 24), "unusable colour profile", {}),
    "animated GIF": (lambda: animated("GIF"), (40, 24), "frame 1; 3", AS_IS),
    "animated WebP": (lambda: animated("WEBP"), (40, 24), "frame 1; 3", {}),
    "animated PNG": (lambda: animated("PNG"), (40, 24), "frame 1; 3", AS_IS),
    "still GIF": (saved(flag(), "GIF"), (40, 24), "palette colours", AS_IS),
    "GIF whose frame is a part of its screen": (
        small_frame,
        (40, 24),
        "20×12 frame; drawn over white",
        {(0, 0): WHITE, (39, 23): WHITE, (10, 6): BLUE, (29, 17): BLUE, (30, 18): WHITE},
    ),
    "GIF whose frame is the screen's left half": (
        lambda: small_frame((20, 24), (0, 0)),
        (40, 24),
        "20×24 frame",
        {(0, 0): BLUE, (19, 23): BLUE, (20, 0): WHITE, (39, 23): WHITE},
    ),
    "GIF whose small frame declares a see-through colour": (
        lambda: small_frame(transparency=3),
        (40, 24),
        "drawn over white",
        {(0, 0): WHITE, (10, 6): BLUE, (39, 23): WHITE},
    ),
    "two-page TIFF": (lambda: animated("TIFF"), (40, 24), "page 1; 3", AS_IS),
    "two-picture JPEG (MPO)": (
        saved(flag(), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))], quality=95),
        (40, 24),
        "image 1; 2",
        AS_IS,
    ),
    "BMP": (saved(flag(), "BMP"), (40, 24), "BMP repacked", AS_IS),
    "PPM": (saved(flag(), "PPM"), (40, 24), "PPM repacked", AS_IS),
    "JPEG 2000": (saved(flag(), "JPEG2000", irreversible=False), (40, 24), "JPEG 2000 repacked", AS_IS),
    "ICO with sizes": (
        saved(flag(size=(64, 64)), "ICO", sizes=[(16, 16), (64, 64)]),
        (64, 64),
        "largest of 2 sizes",
        {UPPER_LEFT: BLUE},
    ),
    "HEIC": (saved(flag(), "HEIF", quality=100), (40, 24), "HEIC repacked", {}),
    "HEIC of two, the second its main one": (
        lambda: saved(
            Image.new("RGB", (8, 8)), "HEIF", save_all=True, append_images=[flag()], primary_index=1, quality=100
        ),
        (40, 24),
        "main image; 2",
        {},
    ),
    "AVIF": (saved(flag(), "AVIF", quality=100), (40, 24), "AVIF repacked", {}),
    "Lab TIFF": (saved(Image.new("LAB", (8, 8), (255, 128, 128)), "TIFF"), (8, 8), "Lab colours", {(0, 0): WHITE}),
    "YCbCr TIFF": (saved(flag("YCbCr"), "TIFF"), (40, 24), "YCbCr colours converted", {}),
    "PNG that lost only its last chunk": (
        saved(flag(), "PNG")[:-12],
        (40, 24),
        "missing end replaced",
        AS_IS,
    ),
    "PNG with a large text inside": (lambda: lying_text("PNG"), (40, 24), "sent as is", AS_IS),
    "JPEG with bytes after its end": (saved(flag(), "JPEG", quality=95) + bytes(100), (40, 24), "sent as is", AS_IS),
}


def near(a: Any, b: Any) -> bool:
    return all(abs(x - y) <= 6 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", RIGHT)
def test_sent_right(name: str) -> None:
    made, size, said, pixels = RIGHT[name]
    data = made() if callable(made) else made
    picture = open_picture(data, name="x")
    assert picture.size == size
    assert mentions(picture.description, *said.split("; ")), picture.description
    sent = Image.open(io.BytesIO(picture.data))
    sent.load()
    assert sent.size == size and sent.mode in ("RGB", "L"), "what a server decodes is what was shown"
    for at, colour in pixels.items():
        assert near(sent.convert("RGB").getpixel(at), colour), f"{at}: {sent.convert('RGB').getpixel(at)}"
    assert picture.sha256 == hashlib.sha256(picture.data).hexdigest()
    assert picture.pixel_sha256 == hashlib.sha256(sent.convert("RGB").tobytes()).hexdigest()
    if said == "sent as is":
        assert picture.data == data and picture.changes == ()
    else:
        assert picture.mime == "image/png" and picture.data != data
        assert not {"icc_profile", "exif"} & sent.info.keys(), "a reader must have nothing left to interpret"


# name → (bytes, code, noun)
REFUSED: dict[str, tuple[bytes, str, str]] = {
    "zero bytes": (b"", "file-empty", "0 bytes"),
    "only zeros": (bytes(5000), "picture-missing", "only zeros"),
    "text": (b"hello, this is a note\n", "picture-missing", "but text"),
    "PDF": (b"%PDF-1.7\n", "picture-missing", "PDF document"),
    "zip": (b"PK\x03\x04\x14\0", "picture-missing", "zip archive"),
    "web page saved as .jpg": (b"<!DOCTYPE html><html>404</html>", "picture-missing", "web page"),
    "web page with spaces first": (b"\n\n  <HTML><body>no</body>", "picture-missing", "web page"),
    "JSON error saved as .png": (b'{"error": "not found"}', "picture-missing", "JSON text"),
    "SVG": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "picture-missing", "SVG"),
    "program": (b"\x7fELF\x02\x01\x01", "picture-missing", "a program"),
    "video": (b"\0\0\0\x20ftypisom\0\0\x02\0isommp42" + bytes(64), "picture-missing", "video"),
    "Photoshop": (b"8BPS\0\x01", "picture-missing", "Photoshop"),
    "JPEG XL": (b"\xff\x0a\xfa\x7f", "picture-missing", "JPEG XL"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "picture-missing", "git lfs pull"),
    "random bytes": (bytes(range(128, 256)), "picture-missing", "kind known"),
    "JPEG without its last 128 bytes": (JPEG[:-128], "picture-damaged", "cut off"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "picture-damaged", "cut off"),
    "half a JPEG, ended": (ended(noisy(), 0.5), "picture-damaged", "end early"),
    "a JPEG without its last tenth, ended": (ended(noisy(), 0.9), "picture-damaged", "end early"),
    "half a progressive JPEG, ended": (ended(noisy(progressive=True), 0.5), "picture-damaged", "160 rows"),
    "half a JPEG with restart marks, ended": (ended(noisy(restart_marker_rows=1), 0.5), "picture-damaged", "end early"),
    "JPEG with a hole of zeros": (holed(noisy()), "picture-damaged", "image's own"),
    "half a PNG": (PLAIN[: len(PLAIN) // 2], "picture-damaged", "cut off"),
    "half a WebP": (saved(flag(size=(200, 200)), "WEBP")[:-60], "picture-damaged", "cut off"),
    "half a GIF": (saved(Image.effect_noise((90, 90), 80), "GIF")[:3000], "picture-damaged", "cut off"),
    "half a BMP": (saved(flag(), "BMP")[:900], "picture-damaged", "cut off"),
    "half a HEIC": (saved(flag(size=(200, 200)), "HEIF")[:-100], "picture-damaged", "cut off"),
    "half an AVIF": (saved(flag(size=(200, 200)), "AVIF")[:-30], "picture-damaged", "cut off"),
    "half a TIFF": (saved(Image.effect_noise((120, 90), 80), "TIFF")[:5000], "picture-damaged", "TIFF"),
    "only a JPEG's first bytes": (b"\xff\xd8\xff\xe0", "picture-damaged", "cut off"),
    "only a PNG's signature": (b"\x89PNG\r\n\x1a\n", "picture-damaged", "cut off"),
    "PNG with a broken stream": (PLAIN.replace(b"IDAT", b"IDAT\x01", 1), "picture-damaged", "damaged"),
    "PNG of 0 pixels": (png_claiming(0, 10), "picture-damaged", "damaged"),
    "201:1": (saved(Image.new("RGB", (2010, 10)), "PNG"), "picture-long", "200:1"),
    "1×30,000": (saved(Image.new("RGB", (1, 30_000)), "PNG"), "picture-long", "200:1"),
    "400 megapixels": (png_claiming(20_000, 20_000), "pixels-many", "400 million pixels"),
    "150 megapixels": (png_claiming(15_000, 10_000), "pixels-many", "150 million pixels"),
    "4 gigapixels": (png_claiming(65_000, 65_000), "pixels-many", "4225 million pixels"),
    "32-bit numbers": (saved(Image.new("F", (8, 8), 0.5), "TIFF"), "picture-unsupported", "brightness range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_clear_line(name: str, tmp_path: Path) -> None:
    data, code, noun = REFUSED[name]
    path = tmp_path / "picture.jpg"
    path.write_bytes(data)
    started = time.perf_counter()
    with pytest.raises(PictureError) as caught:
        open_picture(path)
    assert time.perf_counter() - started < 5, "a bomb is refused before it is decoded"
    line = str(caught.value)
    check_error(caught.value, code, noun, "picture.jpg")
    assert line.isprintable(), "one line, nothing that a terminal would obey"


SEEDS = [saved(flag(), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO", "AVIF", "HEIF", "PPM")]


@pytest.mark.parametrize("quality", [5, 50, 75, 95, 100])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"optimize": True},
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 3},
        {"progressive": True, "restart_marker_rows": 2},
        {"subsampling": 0},
    ],
    ids=str,
)
def test_a_whole_jpeg_passes_whatever_it_shows(options: dict[str, Any], quality: int) -> None:
    grey = Image.new("RGB", (203, 161), (128, 128, 128))
    half = grey.copy()
    half.paste(noise(203, 80), (0, 0))
    for image in (half, grey, Image.new("RGB", (203, 161)), half.rotate(180), half.convert("L"), half.convert("CMYK")):
        data = saved(image, "JPEG", quality=quality, **options)
        picture = open_picture(data)
        assert picture.size == image.size
        if image.mode != "CMYK":
            assert picture.data == data and picture.description == "sent as is"
        assert open_picture(data + b"camera notes\xff\x00" * 40).size == image.size


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"optimize": True}], ids=str)
def test_missing_rows_are_counted(options: dict[str, Any]) -> None:
    whole = noisy(**options)
    image = Image.open(io.BytesIO(whole))
    image.load()
    assert jpeg_shortage(whole, image) == ""
    for share in (0.3, 0.6, 0.9):
        short = ended(whole, share)
        cut = Image.open(io.BytesIO(short))
        cut.load()
        rows = int(jpeg_shortage(short, cut).split("the lower ")[1].split()[0])
        assert abs(rows - (1 - share) * 160) < 24
        kept = (0, 0, 200, 160 - rows)
        assert cut.crop(kept).tobytes() == image.crop(kept).tobytes()


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4)), max_size=6),
    st.integers(0, 200),
)
def test_damaged_files_are_decoded_or_refused_never_more(seed: bytes, edits: list[tuple[int, bytes]], cut: int) -> None:
    data = bytearray(seed)
    for at, piece in edits:
        at %= len(data)
        data[at : at + len(piece)] = piece
    try:
        picture = open_picture(bytes(data[: max(0, len(data) - cut)]))
    except PictureError as error:
        assert str(error).isprintable()
    else:
        assert isinstance(picture, Picture)
        assert Image.open(io.BytesIO(picture.data)).size == picture.size
