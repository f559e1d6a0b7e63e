"""From any picture file's bytes to plain 8-bit RGB pixels, with every change on the way named."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass, field

from PIL import Image, UnidentifiedImageError

from vlmconsole.text.plain import one_line
from vlmconsole.vision.colours import eight_bits, to_rgb
from vlmconsole.vision.jpeg_end import jpeg_shortage
from vlmconsole.vision.limits import SHRINK_HINT, PictureError, looks_cut_off
from vlmconsole.vision.orientation import TURNS, container_orientation
from vlmconsole.vision.png_key import key_opacity

# Everything that matters in them is refused or named below; as warnings they would scribble over a screen.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Only these decoders ever see the bytes: Pillow also has some that start other programs.
_DECODERS = {
    "PNG": ["PNG"],
    "JPEG": ["JPEG", "MPO"],
    "GIF": ["GIF"],
    "WebP": ["WEBP"],
    "BMP": ["BMP"],
    "TIFF": ["TIFF"],
    "ICO": ["ICO"],
    "HEIC": ["HEIF"],
    "AVIF": ["AVIF"],
    "JPEG 2000": ["JPEG2000"],
    "PPM": ["PPM"],
}
_SENDABLE = {"PNG": "image/png", "JPEG": "image/jpeg", "WebP": "image/webp"}
_ORIENTATION = 0x0112
_GPS = 0x8825


@dataclass
class Decoded:
    """8-bit RGB pixels of one picture, and what happened to the file's own pixels."""

    image: Image.Image
    original_size: tuple[int, int]
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mime_as_is: str | None = None  # set when the file's own bytes show exactly these pixels everywhere


def decode(
    data: bytes, kind: str, name: str, *, background: str, max_pixels: int, max_ratio: float, frame: int
) -> Decoded:
    """Decode `data`, a file of format `kind`, into 8-bit RGB; `name` is for errors and must be printable.

    Raises PictureError before decoding when the picture is larger than `max_pixels` or longer than
    `max_ratio`:1, and for files that are cut off or damaged.
    """
    opened = _opened(data, kind, name, max_pixels, max_ratio, frame)
    image, changes, notes = opened.image, opened.changes, opened.notes
    decoded = Decoded(image, opened.size, changes, notes)
    if kind == "JPEG" and image.mode == "CMYK" and "adobe" not in image.info:
        # Pillow takes every CMYK JPEG for Adobe's upside-down ink values; without Adobe's mark they are upright.
        decoded.image = Image.eval(image, lambda ink: 255 - ink)
    if kind == "TIFF" and image.mode.startswith("I;16") and opened.white_is_zero:
        # Pillow turns such greys over for 8 bits and fewer only.
        decoded.image = image.convert("I").point(lambda value: value * -1 + 65535)
    if kind == "PNG" and (opacity := key_opacity(image, data, frame)) is not None:
        grey = image.mode != "RGB"
        parts = (eight_bits(image).convert("L"),) if grey else image.split()
        decoded.image = Image.merge("LA" if grey else "RGBA", (*parts, opacity))
        if image.mode == "1":
            changes.append("1-bit black and white widened to 8 bits")
    _turn(decoded, opened.orientation, opened.orientation_source, kind)
    decoded.image, recoloured = to_rgb(decoded.image, image.info.get("icc_profile"), background)
    changes += recoloured
    if not changes and kind in _SENDABLE and image.mode in ("L", "RGB"):
        if looks_cut_off(data, kind):
            changes.append("the file's missing end replaced; all its pixels were there")
        else:
            decoded.mime_as_is = _SENDABLE[kind]
            if opened.has_gps:
                notes.append("the file's GPS position is part of what is sent")
    return decoded


@dataclass
class _Opened:
    image: Image.Image
    size: tuple[int, int]
    orientation: int
    orientation_source: str
    has_gps: bool
    changes: list[str]
    notes: list[str]
    white_is_zero: bool = False  # of a TIFF: its greys are stored upside down


def _opened(data: bytes, kind: str, name: str, max_pixels: int, max_ratio: float, frame: int) -> _Opened:
    """The wanted frame, fully decoded. Everything a decoder may raise becomes one line about the file."""
    if kind == "HEIC":
        import pillow_heif  # brings its own decoder library; only paid for when such a file comes

        pillow_heif.register_heif_opener()
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_DECODERS[kind])
        _check_size(image.size, name, max_pixels, max_ratio)
        size = image.size
        changes = _pick_frame(image, kind, name, frame)
        _check_size(image.size, name, max_pixels, max_ratio)
        changes += _deep_bits(image, data, kind, name)
        if kind == "PNG":
            # Pillow's PNG reader decodes inside getexif(); were that to fail there, a second load() would
            # return black pixels without a word. TIFF in turn forgets its orientation while loading.
            image.load()
        notes: list[str] = []
        orientation, has_gps, source = _read_exif(image, notes)
        if kind in ("HEIC", "AVIF"):
            orientation, source = _of_container(orientation, data, kind, frame, notes), "HEIF"
        if kind == "TIFF" and 0 in _whole(image.tag_v2.get(338, ())):  # type: ignore[attr-defined]
            notes.append("a channel of unspecified meaning ignored")
        white_is_zero = kind == "TIFF" and image.tag_v2.get(262) == 0  # type: ignore[attr-defined]
        image.load()
        if kind == "JPEG" and not frame and (shortage := jpeg_shortage(data, image)):
            raise PictureError(
                f"{name} is a damaged JPEG image, {shortage}; copy or download it again", code="picture-damaged"
            )
        if kind == "GIF" and not frame:
            image, opened = _see_through_edge(image)
            changes += opened
    except (PictureError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        claimed = re.search(r"\((\d+) pixels\)", str(error))
        raise PictureError(
            _too_many(name, int(claimed[1]) if claimed else 0, max_pixels), code="pixels-many"
        ) from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        if not any(decoder in Image.OPEN for decoder in _DECODERS[kind]):
            raise PictureError(
                f"{name}: the Pillow installed here cannot read {kind}; export it as PNG", code="picture-unsupported"
            ) from error
        raise PictureError(_why_unreadable(data, kind, name, error), code="picture-damaged") from error
    return _Opened(image, size, orientation, source, has_gps, changes, notes, white_is_zero)


def _see_through_edge(image: Image.Image) -> tuple[Image.Image, list[str]]:
    """A GIF's first frame with the screen around it see-through, where it fills only a part; and what was changed.

    Pillow paints that part in the palette's first colour; where a see-through index is declared, in that.
    """
    x0, y0, x1, y1 = image.dispose_extent  # type: ignore[attr-defined]
    if (x0, y0, x1, y1) == (0, 0, *image.size) or "transparency" in image.info:
        return image, []
    changes = ["palette colours written out"] if image.mode == "P" else []
    opaque = Image.new("L", image.size, 0)
    opaque.paste(255, (x0, y0, x1, y1))
    shown = image.convert("RGBA")
    shown.putalpha(opaque)
    return shown, [*changes, f"{image.width}×{image.height} screen see-through around the {x1 - x0}×{y1 - y0} frame"]


def _whole(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_size(size: tuple[int, int], name: str, max_pixels: int, max_ratio: float) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise PictureError(f"{name} is damaged: it claims to be {width}×{height}", code="picture-damaged")
    if width * height > max_pixels:
        raise PictureError(_too_many(name, width * height, max_pixels), code="pixels-many")
    if max(width, height) > max_ratio * min(width, height):
        raise PictureError(
            f"{name} is {width}×{height}, longer than {max_ratio:g}:1, which the model's image processor refuses:"
            " crop it or cut it into pieces",
            code="picture-long",
        )


def _too_many(name: str, pixels: int, max_pixels: int) -> str:
    claimed = f"{pixels / 1e6:.0f} million pixels" if pixels else "far too many pixels"
    return f"{name} has {claimed}; at most {max_pixels / 1e6:.0f} million are decoded: {SHRINK_HINT}"


def _pick_frame(image: Image.Image, kind: str, name: str, frame: int) -> list[str]:
    """Seek to `frame`; what was left out by that."""
    count = int(getattr(image, "n_frames", 1))
    if not 0 <= frame < count:
        raise PictureError(
            f"{name} has {count} frame{'s' if count > 1 else ''}, so there is no frame {frame + 1}",
            code="frame-missing",
        )
    if kind == "ICO":
        sizes = image.info.get("sizes", set())
        return [f"largest of {len(sizes)} sizes in the icon"] if len(sizes) > 1 else []
    if count == 1:
        return []
    if kind == "HEIC" and not frame:  # such a file opens at its main picture, which need not be its first
        return [f"main image of {count} only"]
    image.seek(frame)
    what = {"TIFF": "page", "JPEG": "image", "HEIC": "image"}.get(kind, "frame")
    return [f"{what} {frame + 1} of {count} only"]


def _read_exif(image: Image.Image, notes: list[str]) -> tuple[int, bool, str]:
    """(orientation 1 to 8; whether a GPS position is in the file; EXIF or XMP, whichever says the orientation)."""
    original = image.info.get("original_orientation")  # the HEIC decoder writes 1 into the EXIF that it gives
    orientation, has_gps, source = 1, False, "EXIF"
    try:  # EXIF blocks are written by thousands of programs, some badly
        exif = image.getexif()  # Pillow puts XMP's orientation into it where EXIF has none
        value = original if original is not None else exif.get(_ORIENTATION, 1)
        orientation = value if value in TURNS else 1
        source = "EXIF" if _in_exif(image) else "XMP"
        has_gps = bool(exif.get_ifd(_GPS))
    except Exception as error:
        notes.append(f"unreadable EXIF ignored ({one_line(error, 60)})")
    return orientation, has_gps, source


def _in_exif(image: Image.Image) -> bool:
    """Whether the orientation stands in EXIF itself (of a TIFF, in its own tags)."""
    if hasattr(image, "tag_v2"):
        return _ORIENTATION in image.tag_v2
    raw, alone = image.info.get("exif"), Image.Exif()
    if raw is None:
        return "Raw profile type exif" in image.info
    alone.load(raw)
    return _ORIENTATION in alone


def _of_container(exif: int, data: bytes, kind: str, frame: int, notes: list[str]) -> int:
    """The orientation by which a HEIF file's main picture is turned: its container's, whatever its EXIF says."""
    orientation = container_orientation(data) if not frame else None
    if orientation is None:
        if exif != 1:
            notes.append(f"shown as the {kind} container turns it")
        return exif if kind == "AVIF" else 1
    if exif not in (1, orientation):
        notes.append(f"EXIF orientation {exif} not applied: in {kind} the container turns the image")
    return orientation


def _deep_bits(image: Image.Image, data: bytes, kind: str, name: str) -> list[str]:
    """The change to report when the file holds more than 8 bits a channel."""
    bits = 8
    if kind == "PNG":
        bits = data[24]
    elif kind == "TIFF":
        stated = getattr(image, "tag_v2", {}).get(258, 8)
        bits = max(stated) if isinstance(stated, tuple) else int(stated)
    elif kind in ("HEIC", "AVIF"):
        bits = int(image.info.get("bit_depth", 8))
    elif image.mode.startswith("I"):
        bits = 16
    if image.mode == "F" or (image.mode == "I" and kind == "TIFF"):
        raise PictureError(
            f"{name} holds 32-bit numbers without a fixed brightness range: export it as 8 or 16 bits a channel",
            code="picture-unsupported",
        )
    return [f"{bits} bits a channel reduced to 8"] if bits > 8 else []


def _turn(decoded: Decoded, orientation: int, source: str, kind: str) -> None:
    if orientation == 1:
        return
    # HEIC and TIFF decoders have turned the pixels already; the others leave it to the viewer.
    if kind not in ("HEIC", "TIFF"):
        decoded.image = decoded.image.transpose(TURNS[orientation])
    elif orientation >= 5:
        decoded.original_size = decoded.image.size[::-1]
    decoded.changes.append(f"turned upright ({source} orientation {orientation})")


def _why_unreadable(data: bytes, kind: str, name: str, error: Exception) -> str:
    if looks_cut_off(data, kind) or "truncated" in str(error).lower():
        return f"{name} is cut off: the {kind} file ends before its image does; copy or download it again"
    if isinstance(error, UnidentifiedImageError):
        return f"{name} is a damaged {kind} image, or of a layout that is not read here: export it as PNG"
    # Pillow names a Python object where it can name nothing else: that is no cause.
    cause = "" if "<_io." in str(error) else f" ({one_line(error, 100)})"
    return f"{name} is a damaged {kind} image{cause}: copy or export it again"
