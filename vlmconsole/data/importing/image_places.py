"""Where the image of a row lies, and that it may be taken: inside the source's folder, or the one given for images."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.data.user_image import held_image, located
from vlmconsole.text.plain import one_line

_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]{64,}={0,2}\s*")
_TYPED = ("url", "path", "file_name", "bytes")  # keys of a table that names an image, the first that holds something


def image_place(image: Any, folder: Path, root: Path, images: Path | None) -> Path | bytes:
    """Return the file or the bytes of an image reference. `folder`: what paths are relative to; `root`: the source's
    own.

    With `images`, paths are relative to it too; an absolute path is taken as it is. Raises DataError for an address,
    a relative path that leads out, and no image.
    """
    if isinstance(image, Mapping) and not image.get("bytes"):
        image = next((image[key] for key in _TYPED if image.get(key)), None)
    if isinstance(image, Mapping):
        image = {"bytes": image["bytes"], "path": image.get("path")}
    if not held_image(image):
        raise DataError("it has no image: a path, a data: URL or bytes are wanted", code="image-missing")
    if isinstance(image, str) and len(image) > 64 and _BASE64.fullmatch(image):
        try:
            return base64.b64decode(image)
        except ValueError:
            raise DataError("the image is no path, and its base64 is cut off", code="image-invalid") from None
    if isinstance(image, str):
        image = image.strip().removeprefix("file://")
    place = located(image, folder)
    if isinstance(place, bytes):
        return place
    return _inside(str(image if isinstance(image, str) else image["path"]), place, folder, root, images)


def _inside(text: str, place: Path, folder: Path, root: Path, images: Path | None) -> Path:
    """The file meant by a path, below `images` or beside the rows. Raises DataError for one that climbs out."""
    places = [place] if images is None else [images / text, place]
    if "\\" in text:  # written on Windows
        places += [base / text.replace("\\", "/") for base in ((folder,) if images is None else (images, folder))]
    allowed = [Path(os.path.normpath(base.absolute())) for base in (root, images) if base is not None]
    plain = [Path(os.path.normpath(path.absolute())) for path in places]
    absolute = Path(text).is_absolute() and ".." not in Path(text).parts
    inside = [path for path in plain if absolute or any(path.is_relative_to(base) for base in allowed)]
    if not inside:
        raise DataError(
            f"the image's path {one_line(text, 120)!r} leads out of {allowed[-1]}: name its folder with --images DIR",
            code="path-outside",
        )
    try:
        return next((path for path in inside if path.exists()), inside[0])
    except (OSError, ValueError):
        return inside[0]
