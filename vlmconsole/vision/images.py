"""Pictures as they are sent: what is shown is what is sent, and every change on the way is named."""

from __future__ import annotations

import base64
import hashlib
import io
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image

from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import size
from vlmconsole.vision.convert import Decoded, decode
from vlmconsole.vision.limits import (
    MAX_ASPECT_RATIO,
    MAX_BYTES,
    MAX_PIXELS,
    SHRINK_HINT,
    PictureError,
    misnamed,
    read_picture_bytes,
    true_kind,
)

__all__ = ["Picture", "PictureError", "open_picture", "pixel_sha256", "thumbnail"]


@dataclass(frozen=True)
class Picture:
    """One picture, ready to send.

    `data` are the exact bytes that go to the server, `size` their (width, height) in pixels, `sha256` their
    hash; `pixel_sha256` is of the 8-bit RGB pixels, row by row. `changes` names everything done to the file's
    own picture; empty means that the file is sent as is, byte for byte. `note` says what else is worth knowing.
    """

    name: str
    source_path: Path | None
    data: bytes = field(repr=False)
    mime: str
    size: tuple[int, int]
    sha256: str
    pixel_sha256: str
    original_size: tuple[int, int]
    changes: tuple[str, ...] = ()
    note: str = ""

    def data_url(self) -> str:
        """`data:` URL of the bytes, the only form in which pictures leave this machine."""
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode('ascii')}"

    def image(self) -> Image.Image:
        """Return the pixels as sent, decoded from `data`, as 8-bit RGB."""
        return Image.open(io.BytesIO(self.data)).convert("RGB")

    @property
    def description(self) -> str:
        """One line for people: what was done to the picture before sending."""
        return "; ".join(self.changes) or "sent as is"

    def shrunk(self, max_pixels: int) -> Picture:
        """Return this picture with at most `max_pixels` pixels, same shape; itself when it already fits."""
        width, height = self.size
        if max_pixels < 1:
            raise PictureError(f"an image cannot shrink to {max_pixels} pixels")
        if width * height <= max_pixels:
            return self
        scale = math.sqrt(max_pixels / (width * height))
        small_w, small_h = max(1, int(width * scale)), max(1, int(height * scale))
        # A thin side rounded down must not push the picture past the ratio that processors accept.
        return self.resized_to(min(small_w, MAX_ASPECT_RATIO * small_h), min(small_h, MAX_ASPECT_RATIO * small_w))

    def resized_to(self, width: int, height: int) -> Picture:
        """Return this picture scaled to width × height pixels; keeping its shape is the caller's care."""
        if (width, height) == self.size:
            return self
        small = self.image().resize((width, height), Image.Resampling.LANCZOS)
        change = f"shrunk from {self.size[0]}×{self.size[1]} to {width}×{height}"
        data = _png(small)
        return replace(
            self,
            data=data,
            mime="image/png",
            size=small.size,
            sha256=hashlib.sha256(data).hexdigest(),
            pixel_sha256=pixel_sha256(small),
            changes=(*self.changes, change),
        )


def open_picture(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    background: str = "white",
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    max_ratio: float = MAX_ASPECT_RATIO,
    frame: int = 0,
) -> Picture:
    """Read, check and prepare one picture from a file or from bytes.

    A plain 8-bit RGB or grey PNG, JPEG or WebP that needs no turning, has no transparency and no other colour
    profile than sRGB is sent unchanged; everything else becomes a lossless RGB PNG, its changes named.
    `background` is the colour behind transparency, `frame` (from 0) which frame or page of several.
    Raises PictureError, one printable line, for everything that cannot be sent.
    """
    path = None if isinstance(source, bytes) else Path(source)
    shown = one_line(name if name is not None else (path.name or path) if path is not None else "image", 120)
    data = source if isinstance(source, bytes) else read_picture_bytes(Path(source), max_bytes=max_bytes)
    if len(data) > max_bytes:
        raise PictureError(f"{shown} is larger than {size(max_bytes)}", code="file-too-large")
    try:
        decoded = decode(
            data,
            true_kind(data, shown),
            shown,
            background=background,
            max_pixels=max_pixels,
            max_ratio=max_ratio,
            frame=frame,
        )
        return _ready(decoded, data, shown, path)
    except MemoryError as error:
        raise PictureError(
            f"{shown} does not fit into this machine's memory: {SHRINK_HINT}", code="memory-short"
        ) from error


def _ready(decoded: Decoded, data: bytes, name: str, path: Path | None) -> Picture:
    """The picture to send: the file's own bytes where they show exactly these pixels, a PNG of them otherwise."""
    rgb, changes, notes = decoded.image.convert("RGB"), decoded.changes, decoded.notes
    kind = true_kind(data, name)
    if misnamed(kind, name):
        notes = [f"a {kind} image, although the name ends in {Path(name).suffix}", *notes]
    if decoded.mime_as_is is None:
        data = _png(rgb)
        changes = changes or [f"{kind} repacked as PNG, the same pixels"]
    return Picture(
        name=name,
        source_path=path,
        data=data,
        mime=decoded.mime_as_is or "image/png",
        size=rgb.size,
        sha256=hashlib.sha256(data).hexdigest(),
        pixel_sha256=pixel_sha256(rgb),
        original_size=decoded.original_size,
        changes=tuple(changes),
        note="; ".join(notes),
    )


def pixel_sha256(image: Image.Image) -> str:
    """SHA-256 of the picture's 8-bit RGB pixels, row by row, three bytes a pixel; the file format plays no part."""
    return hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()


def thumbnail(picture: Picture, width: int, height: int) -> Image.Image:
    """Return the picture as sent, scaled to fit into width × height pixels (never enlarged), 8-bit RGB."""
    image = Image.open(io.BytesIO(picture.data))
    image.draft("RGB", (width * 2, height * 2))  # lets a large JPEG decode at a fraction of its size
    small = image.convert("RGB")
    small.thumbnail((max(1, width), max(1, height)), Image.Resampling.LANCZOS)
    return small


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.info = {}  # Pillow would write the source's colour profile into a picture already converted
    # Level 3 costs a third of the default's time for a few per cent more bytes: a person is waiting.
    image.save(out, "PNG", compress_level=3)
    return out.getvalue()
