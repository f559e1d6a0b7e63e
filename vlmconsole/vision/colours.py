"""Colours of any picture brought to 8-bit sRGB: depth, palettes, inks, colour profiles, transparency."""

from __future__ import annotations

import io
import struct
from typing import Any

from PIL import Image, ImageChops, ImageCms, ImageColor

from vlmconsole.text.plain import one_line
from vlmconsole.vision.limits import PictureError


def to_rgb(image: Image.Image, icc: bytes | None, background: str) -> tuple[Image.Image, list[str]]:
    """`image` of any mode as 8-bit RGB, or L where it is plain grey; and what was changed, each named.

    `icc` is the file's own colour profile, `background` the colour (a name or #rrggbb) behind transparency.
    Raises PictureError for a background that is no colour.
    """
    changes: list[str] = []
    image = eight_bits(image)
    if image.mode == "1":
        changes.append("1-bit black and white widened to 8 bits")
        image = image.convert("L")
    see_through = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    if image.mode in ("P", "PA"):
        changes.append("palette colours written out")
        image = image.convert("RGBA" if see_through else "RGB")
    if see_through:
        grey = image.mode in ("L", "LA", "La")
        if image.mode == "La":  # colours multiplied by their opacity: this one Pillow undoes only in its own mode
            image = image.convert("LA")
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
        colour = _through_profile(image.convert("L" if grey and icc else "RGB"), icc, changes)
        image = _over(colour.convert("RGB"), alpha, background, changes)
    else:
        image = _through_profile(image, icc, changes)
    return image, changes


def eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey; any other picture as it is."""
    if not image.mode.startswith("I"):
        return image
    # 257 maps 65535 to 255 exactly.
    return image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")


def _over(colour: Image.Image, alpha: Image.Image, background: str, changes: list[str]) -> Image.Image:
    low, _ = alpha.getextrema()
    if low == 255:
        changes.append("empty transparency channel removed")
        return colour
    try:
        backdrop = Image.new("RGB", colour.size, ImageColor.getrgb(background)[:3])
    except ValueError as error:
        raise PictureError(
            f"background {one_line(background, 40)!r} is not a colour: try white or #202020", code="colour-unknown"
        ) from error
    backdrop.paste(colour, mask=alpha)
    changes.append(f"transparency drawn over {background}")
    return backdrop


def _through_profile(image: Image.Image, icc: bytes | None, changes: list[str]) -> Image.Image:
    """To sRGB by the file's own colour profile where it has one; plain conversion otherwise."""
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
    return max(difference.tobytes()) <= 2


def _profile_name(profile: Any) -> str:
    try:
        text = ImageCms.getProfileDescription(profile).strip()
    except ImageCms.PyCMSError:
        text = ""
    return one_line(text, 40) or "its own colour profile"
