"""Odd pictures, made here: each is either sent right, with every change named, or refused in one clear line."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, PngImagePlugin

from vlmconsole.vision.images import Picture, PictureError, open_picture, pixel_sha256, thumbnail

pillow_heif.register_heif_opener()
# pytest puts aside the filter by which the package keeps Pillow's own warnings off the screen.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def flag(mode: str = "RGB", size: tuple[int, int] = (40, 24)) -> Image.Image:
    """Red, with a blue upper left quarter and a white lower right one: every turn and mirror looks different."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (0, 0, size[0] // 2, size[1] // 2))
    image.paste(WHITE, (size[0] // 2, size[1] // 2, *size))
    return image.convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def oriented(kind: str, orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(flag(), kind, exif=exif.tobytes(), **options)


def png_chunks(*chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in chunks)


def png16(colour: int, channels: int) -> bytes:
    """A 2×1 PNG of 16 bits a channel: 0x80FF everywhere, then 0xFFFF."""
    row = b"\x00" + b"\x80\xff" * channels + b"\xff\xff" * channels
    head = struct.pack(">IIBBBBB", 2, 1, 16, colour, 0, 0, 0)
    return png_chunks((b"IHDR", head), (b"IDAT", zlib.compress(row)), (b"IEND", b""))


def png_claiming(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png_chunks((b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))


def animated(kind: str) -> bytes:
    frames = [flag(), Image.new("RGB", (40, 24), BLUE), Image.new("RGB", (40, 24), BLACK)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)


def half_clear(mode: str = "RGBA") -> Image.Image:
    image = Image.new("RGBA", (40, 24), (0, 0, 255, 0))
    image.paste((255, 0, 0, 255), (0, 0, 20, 24))
    return image.convert(mode)


def swapped_profile() -> bytes:
    """A profile whose red and green are exchanged: what it does cannot be overlooked."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = {}
    for index in range(struct.unpack(">I", profile[128:132])[0]):
        entry = 132 + 12 * index
        at[bytes(profile[entry : entry + 4])] = entry
    red, green = at[b"rXYZ"], at[b"gXYZ"]
    profile[red + 4 : red + 12], profile[green + 4 : green + 12] = (
        profile[green + 4 : green + 12],
        profile[red + 4 : red + 12],
    )
    return bytes(profile)


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
CMYK_JPEG = saved(flag("CMYK"), "JPEG", quality=95)


def without_adobe_mark(jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xee")
    return jpeg[:at] + jpeg[at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big") :]


def palette_with_hole() -> bytes:
    image = half_clear("RGB").convert("P", palette=Image.Palette.ADAPTIVE, colors=4)
    return saved(image, "PNG", transparency=image.getpixel((39, 0)))


def ycck_jpeg() -> bytes:
    """The CMYK JPEG relabelled as YCCK: the same stored planes, now read as luma, chroma and black."""
    at = CMYK_JPEG.index(b"Adobe")
    return CMYK_JPEG[: at + 11] + b"\x02" + CMYK_JPEG[at + 12 :]


def lying_text(kind: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text("Title", "x" * 200_000, zip=True)
    return saved(flag(), kind, pnginfo=info)


# name → (bytes, size sent, what `said` must hold, {pixel: colour})
Right = tuple[Callable[[], bytes] | bytes, tuple[int, int], str, dict[tuple[int, int], tuple[int, int, int]]]
UPPER_LEFT, UPPER_RIGHT, LOWER_LEFT, LOWER_RIGHT = (3, 3), (36, 3), (3, 20), (36, 20)
AS_IS = {UPPER_LEFT: BLUE, UPPER_RIGHT: RED, LOWER_LEFT: RED, LOWER_RIGHT: WHITE}
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
        "16 bits a channel reduced to 8",
        {(0, 0): (128, 128, 128), (1, 0): WHITE},
    ),
    "16-bit RGB PNG": (png16(2, 3), (2, 1), "16 bits a channel reduced to 8", {(0, 0): (128, 128, 128), (1, 0): WHITE}),
    "16-bit RGBA PNG": (png16(6, 4), (2, 1), "transparency drawn over white", {(1, 0): WHITE}),
    "16-bit grey+alpha PNG": (png16(4, 2), (2, 1), "transparency drawn over white", {(1, 0): WHITE}),
    "16-bit grey TIFF": (
        saved(Image.frombytes("I;16", (2, 1), struct.pack("<2H", 0, 65535)), "TIFF"),
        (2, 1),
        "16 bits a channel reduced to 8",
        {(0, 0): BLACK, (1, 0): WHITE},
    ),
    "1-bit PNG": (
        saved(flag("L").point(lambda v: 255 * (v > 60)).convert("1"), "PNG"),
        (40, 24),
        "1-bit",
        {UPPER_LEFT: BLACK},
    ),
    "palette PNG": (saved(flag("P"), "PNG"), (40, 24), "palette colours written out", AS_IS),
    "palette PNG with a hole": (
        palette_with_hole,
        (40, 24),
        "transparency drawn over white",
        {LOWER_RIGHT: WHITE, UPPER_LEFT: RED},
    ),
    "grey+alpha PNG": (saved(half_clear("LA"), "PNG"), (40, 24), "transparency drawn over white", {LOWER_RIGHT: WHITE}),
    "RGBA PNG": (
        saved(half_clear(), "PNG"),
        (40, 24),
        "transparency drawn over white",
        {LOWER_RIGHT: WHITE, UPPER_LEFT: RED},
    ),
    "RGBA WebP": (
        saved(half_clear(), "WEBP", lossless=True),
        (40, 24),
        "transparency drawn over white",
        {LOWER_RIGHT: WHITE},
    ),
    "RGBA PNG, all opaque": (saved(flag("RGBA"), "PNG"), (40, 24), "empty transparency channel removed", AS_IS),
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
    "animated GIF": (lambda: animated("GIF"), (40, 24), "frame 1 of 3 only", AS_IS),
    "animated WebP": (lambda: animated("WEBP"), (40, 24), "frame 1 of 3 only", {}),
    "animated PNG": (lambda: animated("PNG"), (40, 24), "frame 1 of 3 only", AS_IS),
    "still GIF": (saved(flag(), "GIF"), (40, 24), "palette colours written out", AS_IS),
    "two-page TIFF": (lambda: animated("TIFF"), (40, 24), "page 1 of 3 only", AS_IS),
    "two-picture JPEG (MPO)": (
        saved(flag(), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))], quality=95),
        (40, 24),
        "picture 1 of 2 only",
        AS_IS,
    ),
    "BMP": (saved(flag(), "BMP"), (40, 24), "BMP repacked as PNG", AS_IS),
    "PPM": (saved(flag(), "PPM"), (40, 24), "PPM repacked as PNG", AS_IS),
    "JPEG 2000": (saved(flag(), "JPEG2000", irreversible=False), (40, 24), "JPEG 2000 repacked", AS_IS),
    "ICO with sizes": (
        saved(flag(size=(64, 64)), "ICO", sizes=[(16, 16), (64, 64)]),
        (64, 64),
        "largest of 2 sizes",
        {UPPER_LEFT: BLUE},
    ),
    "HEIC": (saved(flag(), "HEIF", quality=100), (40, 24), "HEIC repacked as PNG", {}),
    "HEIC of two, the second its main one": (
        lambda: saved(
            Image.new("RGB", (8, 8)), "HEIF", save_all=True, append_images=[flag()], primary_index=1, quality=100
        ),
        (40, 24),
        "main picture of 2 only",
        {},
    ),
    "AVIF": (saved(flag(), "AVIF", quality=100), (40, 24), "AVIF repacked as PNG", {}),
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
    assert said in picture.said
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


PLAIN = saved(Image.effect_noise((120, 90), 80).convert("RGB"), "PNG")
JPEG = saved(Image.effect_noise((120, 90), 80).convert("RGB"), "JPEG")

# name → (bytes, what the one line must say)
REFUSED: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "is empty (0 bytes)"),
    "only zeros": (bytes(5000), "only zeros"),
    "text": (b"hello, this is a note\n", "but text"),
    "PDF": (b"%PDF-1.7\n", "PDF document"),
    "zip": (b"PK\x03\x04\x14\0", "zip archive"),
    "web page saved as .jpg": (b"<!DOCTYPE html><html>404</html>", "web page"),
    "web page with spaces first": (b"\n\n  <HTML><body>no</body>", "web page"),
    "JSON error saved as .png": (b'{"error": "not found"}', "JSON text"),
    "SVG": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "program": (b"\x7fELF\x02\x01\x01", "a program"),
    "video": (b"\0\0\0\x20ftypisom\0\0\x02\0isommp42" + bytes(64), "video"),
    "Photoshop": (b"8BPS\0\x01", "Photoshop"),
    "JPEG XL": (b"\xff\x0a\xfa\x7f", "JPEG XL"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "random bytes": (bytes(range(128, 256)), "of a kind known here"),
    "JPEG without its last 128 bytes": (JPEG[:-128], "is cut off"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "is cut off"),
    "half a PNG": (PLAIN[: len(PLAIN) // 2], "is cut off"),
    "half a WebP": (saved(flag(size=(200, 200)), "WEBP")[:-60], "is cut off"),
    "half a GIF": (saved(Image.effect_noise((90, 90), 80), "GIF")[:3000], "is cut off"),
    "half a BMP": (saved(flag(), "BMP")[:900], "is cut off"),
    "half a HEIC": (saved(flag(size=(200, 200)), "HEIF")[:-100], "is cut off"),
    "half an AVIF": (saved(flag(size=(200, 200)), "AVIF")[:-30], "is cut off"),
    "half a TIFF": (saved(Image.effect_noise((120, 90), 80), "TIFF")[:5000], "TIFF"),
    "only a JPEG's first bytes": (b"\xff\xd8\xff\xe0", "cut off"),
    "only a PNG's signature": (b"\x89PNG\r\n\x1a\n", "cut off"),
    "PNG with a broken stream": (PLAIN.replace(b"IDAT", b"IDAT\x01", 1), "damaged"),
    "PNG of 0 pixels": (png_claiming(0, 10), "damaged"),
    "201:1": (saved(Image.new("RGB", (2010, 10)), "PNG"), "longer than 200:1"),
    "1×30,000": (saved(Image.new("RGB", (1, 30_000)), "PNG"), "longer than 200:1"),
    "400 megapixels": (png_claiming(20_000, 20_000), "400 million pixels"),
    "150 megapixels": (png_claiming(15_000, 10_000), "150 million pixels"),
    "4 gigapixels": (png_claiming(65_000, 65_000), "4225 million pixels"),
    "32-bit numbers": (saved(Image.new("F", (8, 8), 0.5), "TIFF"), "without a fixed brightness range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_clear_line(name: str, tmp_path: Path) -> None:
    data, why = REFUSED[name]
    path = tmp_path / "picture.jpg"
    path.write_bytes(data)
    started = time.perf_counter()
    with pytest.raises(PictureError) as caught:
        open_picture(path)
    assert time.perf_counter() - started < 5, "a bomb is refused before it is decoded"
    line = str(caught.value)
    assert why in line and "picture.jpg" in line
    assert line.isprintable(), "one line, nothing that a terminal would obey"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_turned_upright(orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = flag().transpose(undo[orientation]) if orientation in undo else flag()
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = open_picture(saved(stored, "PNG", exif=exif.tobytes()))
    assert picture.pixel_sha256 == pixel_sha256(flag())
    assert picture.original_size == stored.size


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "HEIF", "AVIF"])
def test_original_size_is_the_stored_one(kind: str) -> None:
    picture = open_picture(oriented(kind, 6))
    assert (picture.size, picture.original_size) == ((24, 40), (40, 24))


def test_a_chosen_frame_and_background() -> None:
    assert open_picture(animated("GIF"), frame=1).image().getpixel((3, 3)) == BLUE
    assert "frame 3 of 3 only" in open_picture(animated("GIF"), frame=2).said
    with pytest.raises(PictureError, match="3 frames, so there is no frame 4"):
        open_picture(animated("GIF"), frame=3)
    dark = open_picture(saved(half_clear(), "PNG"), background="#202020")
    assert dark.image().getpixel(LOWER_RIGHT) == (32, 32, 32) and "over #202020" in dark.said
    with pytest.raises(PictureError, match="not a colour"):
        open_picture(saved(half_clear(), "PNG"), background="blurple")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    locked = tmp_path / "locked.png"
    locked.write_bytes(PLAIN)
    (tmp_path / "loop.png").symlink_to("loop.png")
    cases: dict[str | Path, str] = {
        tmp_path: "is a folder",
        tmp_path / "none.png": "does not exist on this machine",
        tmp_path / "pipe.png": "is a pipe, socket or device",
        "/dev/zero": "is a pipe, socket or device",
        locked / "x.png": "not a folder",
        tmp_path / "loop.png": "cannot be read",
        tmp_path / ("x" * 300): "cannot be read",
        "a\0b.png": "cannot be read",
        tmp_path / "new\nline\x1b[31m.png": "new\\nline\\x1b[31m.png does not exist",
    }
    for path, why in cases.items():
        with pytest.raises(PictureError) as caught:
            open_picture(path)
        assert why in str(caught.value) and str(caught.value).isprintable()
    locked.chmod(0)
    if os.geteuid() != 0:  # root may read everything
        with pytest.raises(PictureError, match="may not be read"):
            open_picture(locked)


def test_permission_denied_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.png"
    path.write_bytes(PLAIN)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PictureError, match=r"may not be read: check its permissions"):
        open_picture(path)


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import vlmconsole.vision.convert as convert

    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(convert, "to_rgb", exhausted)
    with pytest.raises(PictureError, match=r"big\.png does not fit into this machine's memory: shrink it"):
        open_picture(PLAIN, name="big.png")


def test_byte_limit(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    path.write_bytes(PLAIN)
    for source in (path, PLAIN):
        with pytest.raises(PictureError, match="larger than"):
            open_picture(source, max_bytes=1000)


def test_a_name_that_lies_is_noted_and_a_position_too(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    exif = Image.Exif()
    exif[0x8825] = {1: "N", 2: (52.0, 31.0, 0.0)}
    path.write_bytes(saved(flag(), "JPEG", exif=exif))
    picture = open_picture(path)
    assert picture.mime == "image/jpeg" and picture.said == "sent as is"
    assert "JPEG picture, although the name ends in .png" in picture.note
    assert "GPS position" in picture.note
    exif[0x0112] = 3
    turned = open_picture(saved(flag(), "JPEG", exif=exif))
    assert "GPS" not in turned.note, "the repacked picture carries no EXIF"


def test_pixel_hash_ignores_the_file_format() -> None:
    hashes = {open_picture(saved(flag(), kind)).pixel_sha256 for kind in ("PNG", "BMP", "TIFF", "PPM")}
    assert hashes == {pixel_sha256(flag())}


def test_shrinking_keeps_shape_and_says_so() -> None:
    picture = open_picture(saved(Image.effect_noise((400, 300), 80), "PNG"))
    small = picture.shrunk(50_176)
    assert small.size[0] * small.size[1] <= 50_176 and abs(small.size[0] / small.size[1] - 4 / 3) < 0.02
    assert f"shrunk from 400×300 to {small.size[0]}×{small.size[1]}" in small.said
    assert Image.open(io.BytesIO(small.data)).size == small.size
    assert small.original_size == (400, 300) and small.sha256 != picture.sha256
    assert picture.shrunk(10**9) is picture
    assert open_picture(saved(Image.new("RGB", (2000, 10)), "PNG")).shrunk(300).size == (200, 1)


def test_data_url_and_thumbnail() -> None:
    picture = open_picture(saved(flag(), "PNG"))
    assert picture.data_url().startswith("data:image/png;base64,iVBOR")
    small = thumbnail(picture, 20, 20)
    assert small.size == (20, 12) and small.mode == "RGB"
    assert thumbnail(picture, 500, 500).size == (40, 24)
    assert thumbnail(open_picture(saved(flag("L"), "JPEG")), 10, 10).mode == "RGB"


def test_a_phone_photo_is_ready_soon() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = saved(flag(size=(4000, 3000)), "JPEG", exif=exif.tobytes())
    started = time.process_time()
    picture = open_picture(photo)
    assert picture.size == (3000, 4000) and "EXIF orientation 6" in picture.said
    assert time.process_time() - started < 6, "12 million pixels; about half a second of one quiet core"


SEEDS = [saved(flag(), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO", "AVIF", "HEIF", "PPM")]


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
