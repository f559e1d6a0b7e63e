"""The one image of a user's row: a path, a `data:` URL or bytes; anything else is refused with what to do."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.errors import LabError
from vlmconsole.system.typed_paths import named
from vlmconsole.text.plain import one_line
from vlmconsole.vision.images import PictureError, open_picture

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_FORMS = "key image: a path, a data: URL, or bytes"


def image_of(image: Any, row: Mapping[str, Any], folder: Path, where: str) -> bytes:
    """Return the bytes that will be sent: the file's own where they are plain, else a lossless RGB PNG.

    `row` is the whole row, `folder` what paths are relative to. Raises DataError.
    """
    if isinstance(image, list):
        if len(image) > 1:
            raise DataError(
                f"{where} has {len(image)} images: a row is one question about one image", code="image-twice"
            )
        image = image[0] if image else None
    if not held_image(image):
        raise DataError(f"{where} has no image ({_FORMS}){_hint(row)}", code="image-missing")
    try:
        source = located(image, folder)
        return open_picture(source, name=None if isinstance(source, Path) else "the image").data
    except (DataError, PictureError) as error:
        raise DataError(f"{where}: {error}", error.hint, code=error.code) from None


def held_image(image: Any) -> bool:
    """Return whether a cell holds something that may be an image: a text, bytes, or a table of bytes and path."""
    return isinstance(image, Mapping) or (isinstance(image, (str, bytes)) and bool(image))


def located(image: Any, folder: Path) -> Path | bytes:
    """Return where an image's bytes are, or the bytes: of a path, a `data:` URL, bytes, or a table {bytes, path}.

    Raises DataError with the reason, for an address too: nothing is fetched.
    """
    if isinstance(image, Mapping):
        return _embedded(image, folder)
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str):
        raise DataError(f"the image is {type(image).__name__}, no path and no bytes", code="image-invalid")
    if not image.startswith("data:"):
        return _path(image, folder)
    head, _, body = image.partition(",")
    try:
        if not head.endswith(";base64"):
            raise binascii.Error
        return base64.b64decode(body, validate=True)
    except ValueError:
        raise DataError("the image's data URL is no base64", code="image-invalid") from None


def image_paths(image: Any, folder: Path) -> list[Path]:
    """Return the files that a row's image names by path, as far as it can be told; nothing is raised."""
    paths = []
    for entry in image if isinstance(image, list) else [image]:
        if isinstance(entry, Mapping):
            entry = None if entry.get("bytes") else entry.get("path")
        if isinstance(entry, str) and entry and not entry.startswith("data:") and not _ADDRESS.match(entry):
            try:
                paths.append(folder / named(entry))
            except LabError:
                continue
    return paths


def _embedded(image: Mapping[str, Any], folder: Path) -> Path | bytes:
    data, path = image.get("bytes"), image.get("path")
    if isinstance(data, bytes) and data:
        return data
    if isinstance(data, str) and data:
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            pass
    elif isinstance(path, str) and path:
        return _path(path, folder)
    raise DataError("the image has neither bytes (base64) nor a path", code="image-missing")


def _path(text: str, folder: Path) -> Path:
    if _ADDRESS.match(text):
        raise DataError(
            f"the image is an address ({one_line(text, 80)}); nothing is fetched from the net for a dataset",
            "Download it, and give the path of the file.",
            code="image-remote",
        )
    try:
        return folder / named(text)
    except LabError as error:
        raise DataError(str(error), code=error.code) from None


def _hint(row: Mapping[str, Any]) -> str:
    """A key that looks like the image's, under another name."""
    words = ("image", "img", "picture", "photo", "file")
    held = [key for key, value in row.items() if isinstance(key, str) and value is not None]
    near = [key for key in held if key.lower().startswith(words) and key not in ("image", "images")]
    return f"; {one_line(near[0], 40)} is not read, call it image" if near else ""
