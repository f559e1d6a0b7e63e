"""What is let in: a file's bytes within limits, and what kind of file they really are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.text.plain import one_line
from vlmconsole.text.sizes import size

MAX_BYTES = 256 * 1024 * 1024
MAX_PIXELS = 128_000_000  # 384 MB once decoded; every phone camera's ordinary mode fits
MAX_ASPECT_RATIO = 200  # Qwen's image processors refuse longer pictures

SHRINK_HINT = "shrink it first, for example: magick IN -resize 4000x4000 OUT.png"


class PictureError(LabError):
    """A picture that cannot be sent; the message is one printable line: what happened and what to do."""


def read_picture_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of the regular file at `path`; never blocks on a pipe or device, never reads past `max_bytes`.

    Raises PictureError for anything that is not a readable, non-empty regular file.
    """
    name = one_line(path)
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise PictureError(f"{name} is a folder: name an image in it", code="file-irregular")
        if not stat.S_ISREG(kind):
            raise PictureError(
                f"{name} is a pipe, socket or device, not a file: save the image to a file first",
                code="file-irregular",
            )
        # Still non-blocking, in case the file was swapped for a pipe since the look above.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PictureError(f"{name} is no longer a regular file", code="file-irregular")
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise PictureError(f"{name} does not exist on this machine", code="file-missing") from None
    except PermissionError:
        raise PictureError(
            f"{name} may not be read: check its permissions (chmod u+r)", code="file-forbidden"
        ) from None
    except NotADirectoryError:
        raise PictureError(f"{name}: a part of the path is a file, not a folder", code="file-missing") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PictureError(f"{name} cannot be read: {one_line(reason)}", code="file-unreadable") from error
    if len(data) > max_bytes:
        raise PictureError(f"{name} is larger than {size(max_bytes)}: {SHRINK_HINT}", code="file-too-large")
    return data


# First bytes → what a person calls the file. Order matters only for prefixes of one another.
_PICTURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    *((b"P" + digit, "PPM") for digit in (b"1", b"2", b"3", b"4", b"5", b"6")),
)
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document: export the page as PNG"),
    (b"PK\x03\x04", "a zip archive or an office document: take the image out of it"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"7z\xbc\xaf'\x1c", "a 7z archive: unpack it first"),
    (b"8BPS", "a Photoshop file: export it as PNG"),
    (b"\xff\x0a", "a JPEG XL image, which is not supported: export it as PNG"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL image, which is not supported: export it as PNG"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"\x1aE\xdf\xa3", "a video (Matroska or WebM): save one frame as an image"),
    (b"%!PS", "a PostScript file: export it as PNG"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with git lfs pull"),
)
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_SUFFIXES = {
    "PNG": {".png", ".apng"},
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"},
    "GIF": {".gif"},
    "WebP": {".webp"},
    "BMP": {".bmp", ".dib"},
    "TIFF": {".tif", ".tiff", ".dng"},
    "ICO": {".ico"},
    "HEIC": {".heic", ".heif", ".hif"},
    "AVIF": {".avif", ".avifs"},
    "JPEG 2000": {".jp2", ".j2k", ".jpx", ".jpf", ".j2c"},
    "PPM": {".ppm", ".pgm", ".pbm", ".pnm"},
}


def true_kind(data: bytes, name: str) -> str:
    """Return the picture format the bytes themselves show ("PNG", "JPEG", "HEIC", …), whatever the name says.

    Raises PictureError saying what the file is instead, as far as its first bytes tell.
    """
    if not data:
        raise PictureError(f"{name} is empty (0 bytes): copy or save it again", code="file-empty")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        brands = {data[at : at + 4] for at in range(8, min(len(data), 64), 4) if at != 12}
        if brands & {b"avif", b"avis"}:
            return "AVIF"
        if brands & _HEIF_BRANDS:
            return "HEIC"
        raise PictureError(
            f"{name} is not an image but a video (MP4 or QuickTime): save one frame as an image",
            code="picture-missing",
        )
    for magic, kind in _PICTURES:
        if data.startswith(magic):
            return kind
    for magic, what in _OTHERS:
        if data.startswith(magic):
            raise PictureError(f"{name} is not an image but {what}", code="picture-missing")
    raise PictureError(f"{name} is not an image{_text_kind(data)}", code="picture-missing")


def _text_kind(data: bytes) -> str:
    head = data[:2048].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in head:
        return ": SVG drawings are not supported, export it as PNG"
    if head.startswith((b"<!doctype html", b"<html")) or b"<body" in head:
        return " but a web page, perhaps an error page of a failed download: download it again"
    if head.startswith((b"{", b"[")):
        return " but JSON text, perhaps the error of a failed download: download it again"
    if not any(data[:2048]):
        return ": it holds only zeros, a copy that failed: copy it again"
    try:
        data[:2048].decode("utf-8", errors="strict" if len(data) <= 2048 else "ignore")
    except UnicodeDecodeError:
        return " of a kind known here: PNG, JPEG, WebP, GIF, HEIC, AVIF, TIFF and BMP are"
    if all(byte >= 32 or byte in b"\t\r\n\x1b" for byte in data[:2048]):
        return " but text"
    return " of a kind known here: PNG, JPEG, WebP, GIF, HEIC, AVIF, TIFF and BMP are"


def misnamed(kind: str, name: str) -> bool:
    """True when `name` ends in the suffix of another picture format than `kind`."""
    suffix = Path(name).suffix.lower()
    return suffix not in _SUFFIXES[kind] and any(suffix in known for known in _SUFFIXES.values())


def looks_cut_off(data: bytes, kind: str) -> bool:
    """True when the file visibly ends too early for its format: the likely cause of a failed decode."""
    if kind == "JPEG":
        return b"\xff\xd9" not in data[-4096:]
    if kind == "PNG":
        return b"IEND" not in data[-4096:]
    if kind == "GIF":
        return not data.rstrip(b"\x00").endswith(b";")
    if kind == "WebP":
        return int.from_bytes(data[4:8], "little") + 8 > len(data)
    if kind == "BMP":
        return int.from_bytes(data[2:6], "little") > len(data)
    if kind in ("HEIC", "AVIF"):
        return _boxes_run_past(data)
    return False


def _boxes_run_past(data: bytes) -> bool:
    """True when a top-level ISO media box claims to reach beyond the file's end."""
    at = 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if length == 0:  # "to the end of the file"
            return False
        if length == 1:
            length = int.from_bytes(data[at + 8 : at + 16], "big")
        if length < 8:
            return False
        at += length
    return at > len(data)
