"""Images encoded anew: at another quality, or with one pixel changed so that no cache knows them."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import replace

from PIL import Image, JpegImagePlugin

from vlmconsole.vision.images import Picture, pixel_sha256


def reencoded(picture: Picture, quality: int) -> Picture:
    """Return the image as a JPEG of this quality, 1 to 100."""
    image, file = picture.image(), io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    data = file.getvalue()
    sent = Image.open(io.BytesIO(data)).convert("RGB")
    return replace(
        picture,
        data=data,
        mime="image/jpeg",
        sha256=hashlib.sha256(data).hexdigest(),
        pixel_sha256=pixel_sha256(sent),
        changes=(*picture.changes, f"encoded as JPEG, quality {quality}"),
    )


def salted(url: str, turn: int) -> str:
    """Return a data URL with the image's pixel number `turn` changed; a JPEG keeps its own quantisation tables.

    In a JPEG a block of 8 × 8 pixels changes, as one pixel alone would be lost between its neighbours.
    """
    head, _, data = url.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    kind, file = image.format, io.BytesIO()
    options: dict[str, object] = {"compress_level": 1} if kind == "PNG" else {"lossless": True}
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        options = {"qtables": image.quantization, "subsampling": JpegImagePlugin.get_sampling(image)}
    pixels = image.convert(image.mode if image.mode in ("RGB", "L") else "RGB")
    side = 8 if kind == "JPEG" else 1
    across, down = max(1, pixels.width // side), max(1, pixels.height // side)
    column, row = turn % across, turn // across % down
    box = (column * side, row * side, min(pixels.width, (column + 1) * side), min(pixels.height, (row + 1) * side))
    # Another shade on each lap around the image: no two turns are alike until 200 laps.
    shade = 30 + 37 * (turn // (across * down)) % 200
    pixels.paste(pixels.crop(box).point(lambda value: (value + shade) % 256), box)
    pixels.save(file, kind, **options)
    return f"{head},{base64.b64encode(file.getvalue()).decode('ascii')}"
