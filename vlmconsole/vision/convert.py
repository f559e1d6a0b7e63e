"""From any picture file's bytes to plain 8-bit RGB pixels, with every change on the way named."""

from __future__ import annotations

import io
import re
import struct
import warnings
from dataclasses import dataclass, field
from typing import Any

from PIL import Image, ImageChops, ImageCms, ImageColor

from vlmconsole.runs.plain import one_line
from vlmconsole.vision.limits import SHRINK_HINT, PictureError, looks_cut_off

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
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
    if kind == "HEIC":
        import pillow_heif  # brings its own decoder library; only paid for when such a file comes

        pillow_heif.register_heif_opener()
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_DECODERS[kind])
        _check_size(image.size, name, max_pixels, max_ratio)
        original_size = image.size
        changes, notes = _pick_frame(image, kind, name, frame)
        _check_size(image.size, name, max_pixels, max_ratio)
        depth = _deep_bits(image, data, kind, name)
        if kind == "PNG":
            # Pillow's PNG reader decodes inside getexif(); were that to fail there, a second load() would
            # return black pixels without a word. TIFF in turn forgets its orientation while loading.
            image.load()
        orientation, has_gps = _read_exif(image, notes)
        image.load()
        icc = image.info.get("icc_profile")
    except PictureError:
        raise
    except Image.DecompressionBombError as error:
        claimed = re.search(r"\((\d+) pixels\)", str(error))
        raise PictureError(_too_many(name, int(claimed[1]) if claimed else 0, max_pixels)) from error
    except MemoryError as error:
        raise PictureError(f"{name} does not fit into this machine's memory: {SHRINK_HINT}") from error
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise PictureError(_why_unreadable(data, kind, name, error)) from error

    decoded = Decoded(image, original_size, changes, notes)
    if kind == "JPEG" and image.mode == "CMYK" and "adobe" not in image.info:
        # Pillow takes every CMYK JPEG for Adobe's upside-down ink values; without Adobe's mark they are upright.
        decoded.image = Image.eval(image, lambda ink: 255 - ink)
    if depth:
        changes.append(depth)
    _turn(decoded, orientation, kind)
    _to_rgb(decoded, icc, background, name)
    if has_gps:
        notes.append("the file's GPS position is part of what is sent")
    plain = not changes and kind in _SENDABLE and image.mode in ("L", "RGB")
    if plain and looks_cut_off(data, kind):
        changes.append("the file's missing end replaced; all its pixels were there")
    elif plain:
        decoded.mime_as_is = _SENDABLE[kind]
    if changes and has_gps:
        notes.pop()
    return decoded


def _check_size(size: tuple[int, int], name: str, max_pixels: int, max_ratio: float) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise PictureError(f"{name} is damaged: it claims to be {width}×{height}")
    if width * height > max_pixels:
        raise PictureError(_too_many(name, width * height, max_pixels))
    if max(width, height) > max_ratio * min(width, height):
        raise PictureError(
            f"{name} is {width}×{height}, longer than {max_ratio:g}:1, which the model's image processor refuses:"
            " crop it or cut it into pieces"
        )


def _too_many(name: str, pixels: int, max_pixels: int) -> str:
    claimed = f"{pixels / 1e6:.0f} million pixels" if pixels else "far too many pixels"
    return f"{name} has {claimed}; at most {max_pixels / 1e6:.0f} million are decoded: {SHRINK_HINT}"


def _pick_frame(image: Image.Image, kind: str, name: str, frame: int) -> tuple[list[str], list[str]]:
    """Seek to `frame`; (changes, notes)."""
    count = int(getattr(image, "n_frames", 1))
    if not 0 <= frame < count:
        raise PictureError(f"{name} has {count} frame{'s' if count > 1 else ''}, so there is no frame {frame + 1}")
    if kind == "ICO":
        sizes = image.info.get("sizes", set())
        return ([f"largest of {len(sizes)} sizes in the icon"] if len(sizes) > 1 else []), []
    if count == 1:
        return [], []
    image.seek(frame)
    what = {"TIFF": "page", "JPEG": "picture", "HEIC": "picture"}.get(kind, "frame")
    return [f"{what} {frame + 1} of {count} only"], []


def _read_exif(image: Image.Image, notes: list[str]) -> tuple[int, bool]:
    """(orientation 1 to 8, whether a GPS position is in the file)."""
    original = image.info.get("original_orientation")  # HEIC decoders turn the picture themselves
    try:
        exif = image.getexif()
        value = original if original is not None else exif.get(_ORIENTATION, 1)
        return (value if value in _TURNS else 1), bool(exif.get_ifd(_GPS))
    except Exception as error:  # EXIF blocks are written by thousands of programs, some badly
        notes.append(f"unreadable EXIF ignored ({one_line(error, 60)})")
        return 1, False


def _deep_bits(image: Image.Image, data: bytes, kind: str, name: str) -> str | None:
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
            f"{name} holds 32-bit numbers without a fixed brightness range: export it as 8 or 16 bits a channel"
        )
    return f"{bits} bits a channel reduced to 8" if bits > 8 else None


def _turn(decoded: Decoded, orientation: int, kind: str) -> None:
    if orientation == 1:
        return
    # HEIC and TIFF decoders have turned the pixels already; the others leave it to the viewer.
    if kind not in ("HEIC", "TIFF"):
        decoded.image = decoded.image.transpose(_TURNS[orientation])
    elif orientation >= 5:
        decoded.original_size = decoded.original_size[::-1]
    decoded.changes.append(f"turned upright (EXIF orientation {orientation})")


def _to_rgb(decoded: Decoded, icc: Any, background: str, name: str) -> None:
    """Bring `decoded.image` to RGB (or leave L): depth, palette, ink, colour profile, transparency."""
    image, changes = decoded.image, decoded.changes
    if image.mode.startswith("I"):  # 16-bit grey; 257 maps 65535 to 255 exactly
        image = image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode == "1":
        changes.append("1-bit black and white widened to 8 bits")
        image = image.convert("L")
    see_through = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    if image.mode in ("P", "PA"):
        changes.append("palette colours written out")
        image = image.convert("RGBA" if see_through else "RGB")
    if see_through:
        grey = image.mode in ("L", "LA", "La")
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
        colour = _through_profile(image.convert("L" if grey and icc else "RGB"), icc, changes, name)
        image = _over(colour.convert("RGB"), alpha, background, changes)
    else:
        image = _through_profile(image, icc, changes, name)
    decoded.image = image


def _over(colour: Image.Image, alpha: Image.Image, background: str, changes: list[str]) -> Image.Image:
    low, _ = alpha.getextrema()
    if low == 255:
        changes.append("empty transparency channel removed")
        return colour
    try:
        backdrop = Image.new("RGB", colour.size, ImageColor.getrgb(background)[:3])
    except ValueError as error:
        raise PictureError(f"background {one_line(background, 40)!r} is not a colour: try white or #202020") from error
    backdrop.paste(colour, mask=alpha)
    changes.append(f"transparency drawn over {background}")
    return backdrop


def _through_profile(image: Image.Image, icc: Any, changes: list[str], name: str) -> Image.Image:
    """To sRGB by the file's own colour profile where it has one; plain conversion otherwise."""
    source = None
    if icc:
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(icc))
            if image.mode not in ("L", "RGB", "CMYK", "LAB"):
                image = image.convert("RGB")
            transform = ImageCms.buildTransform(source, _srgb(), image.mode, "RGB")
            if image.mode in ("L", "RGB") and _changes_nothing(transform, image.mode):
                return image
            converted = transform.apply(image)
            changes.append(f"colours converted from {_profile_name(source)} to sRGB")
            return converted
        except (ImageCms.PyCMSError, OSError, ValueError, TypeError, struct.error):
            changes.append("unusable colour profile ignored")
    if image.mode == "CMYK":
        changes.append("CMYK inks converted to RGB without a colour profile")
    elif image.mode == "LAB":
        lab = ImageCms.createProfile("LAB")
        changes.append("Lab colours converted to sRGB")
        return ImageCms.buildTransform(lab, _srgb(), "LAB", "RGB").apply(image)
    elif image.mode not in ("L", "RGB"):
        changes.append(f"{image.mode} colours converted to RGB")
    return image if image.mode == "L" else image.convert("RGB")


def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")


def _changes_nothing(transform: Any, mode: str) -> bool:
    """True when the profile is sRGB in effect: judged by what it does to a ramp of colours, not by its name."""
    if mode == "L":
        ramp = Image.frombytes("L", (256, 1), bytes(range(256)))
    else:
        steps = range(0, 256, 17)
        ramp = Image.frombytes(
            "RGB", (4096, 1), bytes(v for r in steps for g in steps for b in steps for v in (r, g, b))
        )
    difference = ImageChops.difference(ramp.convert("RGB"), transform.apply(ramp))
    return all(high <= 2 for _, high in difference.getextrema())


def _profile_name(profile: Any) -> str:
    try:
        text = ImageCms.getProfileDescription(profile).strip()
    except ImageCms.PyCMSError:
        text = ""
    return one_line(text, 40) or "its own colour profile"


def _why_unreadable(data: bytes, kind: str, name: str, error: Exception) -> str:
    if looks_cut_off(data, kind) or "truncated" in str(error).lower():
        return f"{name} is cut off: the {kind} file ends before its picture does; copy or download it again"
    return f"{name} is a damaged {kind} picture ({one_line(error, 100)}): copy or export it again"
