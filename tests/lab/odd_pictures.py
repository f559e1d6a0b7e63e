"""Odd pictures, made here: files of every kind, with the faults that real ones have."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import pillow_heif
from PIL import Image, ImageCms, PngImagePlugin

pillow_heif.register_heif_opener()

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


def keyed_grey(depth: int, key: int) -> bytes:
    """A grey PNG, 4×1: the see-through value, the one above it, black and white."""
    top = 2**depth - 1
    bits = "".join(f"{value:0{depth}b}" for value in (key, key + 1, 0, top))
    row = b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    head = struct.pack(">IIBBBBB", 4, 1, depth, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"tRNS", struct.pack(">H", key)), (b"IDAT", zlib.compress(row)), (b"IEND", b""))
    return png_chunks(*chunks)


def heic_with_informative_exif() -> bytes:
    """EXIF says 6, irot nothing: the pixels are upright as they are (libheif#227)."""
    exif = Image.Exif()
    exif[0x0113] = 6
    data = bytearray(saved(flag(), "HEIF", exif=exif.tobytes(), quality=100))
    for order in "<>":
        if (entry := struct.pack(f"{order}HHI", 0x0113, 3, 1)) in data:
            data[data.index(entry) : data.index(entry) + 2] = struct.pack(f"{order}H", 0x0112)
    return bytes(data)


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


UPPER_LEFT, UPPER_RIGHT, LOWER_LEFT, LOWER_RIGHT = (3, 3), (36, 3), (3, 20), (36, 20)
AS_IS = {UPPER_LEFT: BLUE, UPPER_RIGHT: RED, LOWER_LEFT: RED, LOWER_RIGHT: WHITE}
PLAIN = saved(Image.effect_noise((120, 90), 80).convert("RGB"), "PNG")
JPEG = saved(Image.effect_noise((120, 90), 80).convert("RGB"), "JPEG")


def small_frame(size: tuple[int, int] = (20, 12), at: tuple[int, int] = (10, 6), **options: Any) -> bytes:
    """A GIF of 40×24 whose one frame is smaller: the rest would be painted in the palette's first colour, red."""
    frame = Image.new("P", size, 1)
    frame.putpalette([255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0])
    gif = bytearray(saved(frame, "GIF", optimize=False, interlace=0, **options))
    gif[6:10] = struct.pack("<HH", 40, 24)
    frame_at = gif.index(b"\x2c" + struct.pack("<4H", 0, 0, *size))
    gif[frame_at + 1 : frame_at + 5] = struct.pack("<HH", *at)
    return bytes(gif)


def ended(jpeg: bytes, share: float) -> bytes:
    """A JPEG with only `share` of its data, and an end mark as if that were all."""
    return jpeg[: int(len(jpeg) * share)] + b"\xff\xd9"


def holed(jpeg: bytes) -> bytes:
    """A JPEG with zeros in place of an eighth of its data."""
    at, n = len(jpeg) // 2, len(jpeg) // 8
    return jpeg[:at] + bytes(n) + jpeg[at + n :]


def noise(width: int, height: int) -> Image.Image:
    """An RGB image full of detail, the same one each time."""
    return Image.frombytes("RGB", (width, height), random.Random(0).randbytes(3 * width * height))


def noisy(**options: Any) -> bytes:
    """A JPEG full of detail, 200×160."""
    return saved(noise(200, 160), "JPEG", quality=90, **options)
