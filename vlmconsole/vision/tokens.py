"""How a Qwen2-VL / Qwen2.5-VL image processor resizes a picture, and how many visual tokens come out.

The arithmetic only, without torch; `tests/vision/test_tokens.py` holds it against the real image processor.
Sizes are (width, height) in pixels everywhere; `image_grid_thw` is (time, rows, columns) in patches.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vlmconsole.errors import LabError
from vlmconsole.system.reading import UnreadableError, read_json
from vlmconsole.text.settings_errors import explain_all

MAX_ASPECT_RATIO = 200  # the processor refuses anything longer
# What the image processor's class falls back on where a model's file names no limits; Qwen2.5-VL's file does.
CLASS_MIN_PIXELS, CLASS_MAX_PIXELS = 56 * 56, 28 * 28 * 1280
FLAT, NESTED = "preprocessor_config.json", "processor_config.json"
Reader = Literal["transformers", "mlx"]
_KINDS = re.compile(r"Qwen(2|2_5_|2_5|3)VLImageProcessor(Fast|Pil)?")
"""Image processors that resize as it stands here; another family's numbers would be wrong without a word."""


class ProcessorError(LabError):
    """A picture size or a processor file that cannot be used; the message is one line for people."""


class ProcessorSettings(BaseModel):
    """What decides the number of visual tokens; the defaults are Qwen2.5-VL's own.

    `patch_size` in pixels, `merge_size` patches to a side of one token, `min_pixels`/`max_pixels` of the
    resized picture.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    patch_size: int = Field(14, gt=0)
    merge_size: int = Field(2, gt=0)
    temporal_patch_size: int = Field(2, gt=0)
    min_pixels: int = Field(56 * 56, gt=0)
    max_pixels: int = Field(28 * 28 * 16384, gt=0)

    @property
    def factor(self) -> int:
        """Pixels to a side of one visual token: both resized sides are multiples of it."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_model_dir(cls, folder: str | Path, reader: Reader = "transformers") -> ProcessorSettings:
        """Return the settings of a model folder, as `reader` reads its `processor_config.json` and
        `preprocessor_config.json`.

        transformers (from 5 on) takes the part `image_processor` of the first where there is one, else the second;
        mlx-vlm lays that part over the second, key by key, and resizes whatever they say. Raises ProcessorError when
        the folder has neither, or something that the reader or this arithmetic cannot use.
        """
        folder = Path(folder)
        nested, flat = _read_object(folder / NESTED), _read_object(folder / FLAT)
        part = nested.get("image_processor") if nested is not None else None
        if part is None and flat is None:
            raise ProcessorError(
                f"{folder} has no {FLAT}: point at the model's own folder (the one with config.json)",
                code="processor-missing",
            )
        source = folder / (FLAT if part is None else NESTED)
        if part is not None and not isinstance(part, dict):
            raise ProcessorError(f"{source}: image_processor is not a JSON object", code="json-invalid")
        if reader == "mlx":
            return cls.from_mlx_config({**(flat or {}), **(part or {})}, source=str(source))
        return cls.from_config((flat or {}) if part is None else part, source=str(source))

    @classmethod
    def from_config(cls, values: dict[str, Any], *, source: str = "the processor settings") -> ProcessorSettings:
        """Return the settings in an image processor's configuration; `source` names it in errors.

        The limits are `size: {shortest_edge, longest_edge}`, which despite its names means pixels *of area*;
        `min_pixels` and `max_pixels` beside it win, each over its own. Raises ProcessorError, also where transformers
        would load it and then fail.
        """
        _known(values, source)
        if values.get("do_resize") is False:
            raise ProcessorError(
                f"{source}: do_resize is false: images that were resized elsewhere are not foreseen",
                code="processor-unknown",
            )
        stated = values.get("size")
        size = {"shortest_edge": CLASS_MIN_PIXELS, "longest_edge": CLASS_MAX_PIXELS} if stated is None else stated
        if not isinstance(size, dict):
            raise ProcessorError(
                f"{source}: size is {size!r}, not shortest_edge and longest_edge", code="setting-invalid"
            )
        limits = {
            "min_pixels": _first(values.get("min_pixels"), size.get("shortest_edge")),
            "max_pixels": _first(values.get("max_pixels"), size.get("longest_edge")),
        }
        if None in limits.values():
            raise ProcessorError(f"{source}: size lacks shortest_edge or longest_edge", code="setting-invalid")
        return cls._checked({**_patches(values), **limits}, source)

    @classmethod
    def from_mlx_config(cls, values: dict[str, Any], *, source: str = "the processor settings") -> ProcessorSettings:
        """`from_config` as mlx-vlm reads it: a missing limit is its class's, and there is no resizing elsewhere."""
        _known(values, source)
        stated = values.get("size")
        size: dict[str, Any] = stated if isinstance(stated, dict) else {}
        limits = {
            "min_pixels": _first(values.get("min_pixels"), size.get("shortest_edge"), CLASS_MIN_PIXELS),
            "max_pixels": _first(values.get("max_pixels"), size.get("longest_edge"), CLASS_MAX_PIXELS),
        }
        return cls._checked({**_patches(values), **limits}, source)

    @classmethod
    def _checked(cls, values: dict[str, Any], source: str) -> ProcessorSettings:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ProcessorError(f"{source}: {explain_all(error.errors(), cls)}", code="setting-invalid") from error


class VisualTokens(BaseModel):
    """What the vision encoder gets: resized (width, height), the patch grid (t, rows, columns), tokens."""

    model_config = ConfigDict(frozen=True)

    resized: tuple[int, int]
    image_grid_thw: tuple[int, int, int]
    visual_tokens: int


QWEN2_5_VL = ProcessorSettings()


def resized(width: int, height: int, settings: ProcessorSettings = QWEN2_5_VL) -> tuple[int, int]:
    """(width, height) after the processor's resize: both multiples of `settings.factor`, area within limits.

    Raises ProcessorError for an empty picture and for sides more than 200:1 apart, as the processor does.
    """
    if width < 1 or height < 1:
        raise ProcessorError(f"an image of {width}×{height} has no pixels")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise ProcessorError(
            f"{width}×{height} is longer than {MAX_ASPECT_RATIO}:1, which the model's image processor refuses:"
            " crop it or cut it into pieces"
        )
    factor = settings.factor
    # Python's round() goes to the even multiple at a half, and a thin side may round to nothing here: so it does
    # in the processor, which then takes the `min_pixels` branch.
    wide, high = (round(side / factor) * factor for side in (width, height))
    if wide * high > settings.max_pixels:
        shrink = math.sqrt(width * height / settings.max_pixels)
        wide, high = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif wide * high < settings.min_pixels:
        grow = math.sqrt(settings.min_pixels / (width * height))
        wide, high = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return wide, high


def visual_tokens(width: int, height: int, settings: ProcessorSettings = QWEN2_5_VL) -> VisualTokens:
    """Resized size, patch grid and visual tokens of one still picture of width × height pixels."""
    size = resized(width, height, settings)
    columns, rows = (side // settings.patch_size for side in size)
    return VisualTokens(
        resized=size,
        image_grid_thw=(1, rows, columns),
        visual_tokens=rows * columns // settings.merge_size**2,
    )


def fit_tokens(width: int, height: int, most: int, settings: ProcessorSettings = QWEN2_5_VL) -> tuple[int, int] | None:
    """Return the largest (width, height) of the same shape, never enlarged, that costs at most `most` visual tokens.

    None when even the smallest picture of that shape costs more. For the offer to shrink before sending.
    """
    if visual_tokens(width, height, settings).visual_tokens <= most:
        return width, height
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if visual_tokens(*_scaled(width, height, middle), settings).visual_tokens <= most:
            low = middle
        else:
            high = middle
    size = _scaled(width, height, low)
    return size if visual_tokens(*size, settings).visual_tokens <= most else None


def _scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    """Both sides times `scale`, at least one pixel and within the processor's ratio."""
    wide, high = max(1, int(width * scale)), max(1, int(height * scale))
    return min(wide, MAX_ASPECT_RATIO * high), min(high, MAX_ASPECT_RATIO * wide)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _known(values: dict[str, Any], source: str) -> None:
    """Raise ProcessorError for another family's image processor."""
    kind = _first(values.get("image_processor_type"), values.get("feature_extractor_type"))
    if kind is not None and not (isinstance(kind, str) and _KINDS.fullmatch(kind)):
        raise ProcessorError(
            f"{source}: {kind} is not Qwen's image processor, whose arithmetic is the one known here",
            code="processor-unknown",
        )


def _patches(values: dict[str, Any]) -> dict[str, Any]:
    keys = ("patch_size", "merge_size", "temporal_patch_size")
    return {key: values[key] for key in keys if values.get(key) is not None}


def _read_object(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no such file."""
    try:
        value = read_json(path)
    except UnreadableError as error:
        if error.missing:
            return None
        raise ProcessorError(error.message, code=error.code) from None
    if not isinstance(value, dict):
        raise ProcessorError(f"{path} is not a JSON object", code="json-invalid")
    return value
