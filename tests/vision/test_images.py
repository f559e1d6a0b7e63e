"""Pictures on their way in: upright, as chosen, within limits, and their hashes."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from odd_pictures import (
    BLUE,
    LOWER_RIGHT,
    PLAIN,
    animated,
    flag,
    half_clear,
    oriented,
    saved,
)
from PIL import Image
from refusals import refused

from vlmconsole.vision.images import PictureError, open_picture, pixel_sha256, thumbnail

# pytest puts aside the filter by which the package keeps Pillow's own warnings off the screen.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")


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
    assert "frame 3 of 3 only" in open_picture(animated("GIF"), frame=2).description
    with refused("frame-missing", "3 frames", "4", error=PictureError):
        open_picture(animated("GIF"), frame=3)
    dark = open_picture(saved(half_clear(), "PNG"), background="#202020")
    assert dark.image().getpixel(LOWER_RIGHT) == (32, 32, 32) and "over #202020" in dark.description
    with refused("colour-unknown", "blurple", error=PictureError):
        open_picture(saved(half_clear(), "PNG"), background="blurple")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    locked = tmp_path / "locked.png"
    locked.write_bytes(PLAIN)
    (tmp_path / "loop.png").symlink_to("loop.png")
    cases: dict[str | Path, tuple[str, str]] = {
        tmp_path: ("file-irregular", "folder"),
        tmp_path / "none.png": ("file-missing", "none.png"),
        tmp_path / "pipe.png": ("file-irregular", "pipe"),
        "/dev/zero": ("file-irregular", "device"),
        locked / "x.png": ("file-missing", "folder"),
        tmp_path / "loop.png": ("file-unreadable", "loop.png"),
        tmp_path / ("x" * 300): ("file-unreadable", "x" * 100),
        "a\0b.png": ("file-unreadable", "b.png"),
        tmp_path / "new\nline\x1b[31m.png": ("file-missing", "new\\nline\\x1b[31m.png"),
    }
    for path, (code, noun) in cases.items():
        with pytest.raises(PictureError) as caught:
            open_picture(path)
        assert caught.value.code == code and noun in str(caught.value) and str(caught.value).isprintable()
    locked.chmod(0)
    if os.geteuid() != 0:  # root may read everything
        with refused("file-forbidden", "locked.png", error=PictureError):
            open_picture(locked)


def test_permission_denied_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.png"
    path.write_bytes(PLAIN)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with refused("file-forbidden", "locked.png", "permissions", error=PictureError):
        open_picture(path)


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import vlmconsole.vision.convert as convert

    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(convert, "to_rgb", exhausted)
    with refused("memory-short", "big.png", "memory", error=PictureError):
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
    assert picture.mime == "image/jpeg" and picture.description == "sent as is"
    assert "JPEG" in picture.note and ".png" in picture.note
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
    assert f"shrunk from 400×300 to {small.size[0]}×{small.size[1]}" in small.description
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
    assert picture.size == (3000, 4000) and "EXIF orientation 6" in picture.description
    assert time.process_time() - started < 6, "12 million pixels; about half a second of one quiet core"
