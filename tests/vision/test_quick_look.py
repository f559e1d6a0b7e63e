"""The quick look at a JPEG: only what `open_picture` sends as it is passes, and its greys are the pixels'."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from vlmconsole.data.importing.alike import ROUNDING
from vlmconsole.vision.images import open_picture
from vlmconsole.vision.quick_look import quick_look, small_grey


def jpeg(seed: int, width: int, height: int, contrast: float = 60, **options: Any) -> bytes:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.NEAREST
    )
    pixels = np.clip(np.asarray(small) + rng.normal(0, contrast, (height, width, 3)), 0, 255).astype("u1")
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", **options)
    return out.getvalue()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(130, 700),
    st.integers(130, 500),
    st.sampled_from((0.0, 20.0, 120.0)),
    st.integers(20, 98),
    st.sampled_from((0, 1, 2)),
)
def test_its_grey_is_that_of_the_pixels(seed: int, width: int, height: int, contrast: float, quality: int, sub: int):
    data = jpeg(seed, width, height, contrast, quality=quality, subsampling=sub)
    look = quick_look(data)
    assert look is not None and (look.width, look.height) == (width, height)
    exact = small_grey(Image.open(io.BytesIO(data)).convert("RGB"))
    parts = [np.frombuffer(grey, "u1").reshape(4, 2, 3, 3).mean(axis=(1, 3)) for grey in (look.grey, exact)]
    assert np.abs(parts[0] - parts[1]).max() < ROUNDING / 2
    assert open_picture(data).data == data


@pytest.mark.parametrize("lost", [40, 100, 1000, 20_000])
def test_data_that_end_early_do_not_pass(lost: int):
    data = jpeg(1, 640, 480)
    assert quick_look(data) is not None
    assert quick_look(data[: -2 - lost] + b"\xff\xd9") is None
    assert quick_look(data[:-lost]) is None


def test_what_would_be_changed_before_sending_does_not_pass():
    image = Image.effect_noise((600, 400), 40).convert("RGB")

    def saved(picture: Image.Image, **options: Any) -> bytes:
        out = io.BytesIO()
        picture.save(out, "JPEG", **options)
        return out.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert quick_look(saved(image, icc_profile=lab)) is not None
    assert quick_look(saved(image, exif=exif.tobytes())) is None
    assert quick_look(saved(image.convert("CMYK"))) is None
    assert quick_look(saved(image, progressive=True)) is None
    assert quick_look(b"\x89PNG") is None
