"""Visual tokens, held against the real image processor of transformers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vlmconsole.vision.tokens import (
    QWEN2_5_VL,
    ProcessorError,
    ProcessorSettings,
    fit_tokens,
    resized,
    visual_tokens,
)

TOY = ProcessorSettings(max_pixels=50_176)


def test_the_labs_figure() -> None:
    tokens = visual_tokens(448, 336)
    assert (tokens.resized, tokens.image_grid_thw, tokens.visual_tokens) == ((448, 336), (1, 24, 32), 192)
    assert visual_tokens(224, 168).visual_tokens == 48
    assert visual_tokens(896, 672).visual_tokens == 768
    assert visual_tokens(448, 448, TOY).visual_tokens == 64


def real_module() -> Any:
    """transformers' own image processor that needs no torchvision: in a module of its own from version 5 on."""
    names = ("image_processing_pil_qwen2_vl", "image_processing_qwen2_vl")
    found = next(name for name in names if importlib.util.find_spec(f"transformers.models.qwen2_vl.{name}"))
    return importlib.import_module(f"transformers.models.qwen2_vl.{found}")


def sizes(count: int) -> list[tuple[int, int]]:
    """Random (width, height), a third of them as long as the processor allows, and the corners."""
    rng = random.Random(7)
    made = [
        (1, 1),
        (31, 639),
        (1, 200),
        (200, 1),
        (28, 28),
        (14, 14),
        (42, 42),
        (27, 5400),
        (30_000, 150),
        (4284, 5712),
    ]
    while len(made) < count:
        wide = round(10 ** rng.uniform(0, 4.4))
        ratio = rng.choice([10 ** rng.uniform(-0.5, 0.5), 200, 1 / 200, 10 ** rng.uniform(-2.3, 2.3)])
        made.append((wide, max(1, round(wide * ratio))))
    return made


def test_equal_to_the_real_resize_on_many_sizes() -> None:
    real = real_module().smart_resize
    settings = [
        QWEN2_5_VL,
        TOY,
        ProcessorSettings(min_pixels=200_000),
        ProcessorSettings(patch_size=16, max_pixels=10**6),
    ]
    refused = 0
    for width, height in sizes(1500):
        for setting in settings:
            try:
                high, wide = real(height, width, setting.factor, setting.min_pixels, setting.max_pixels)
            except ValueError:
                refused += 1
                with pytest.raises(ProcessorError, match="200:1"):
                    resized(width, height, setting)
            else:
                assert resized(width, height, setting) == (wide, high), (width, height, setting)
    assert refused > 20, "the sizes must reach past the ratio that is allowed"


def test_equal_to_the_whole_real_processor(tmp_path: Path) -> None:
    from PIL import Image

    module = real_module()
    kind = getattr(module, "Qwen2VLImageProcessorPil", None) or module.Qwen2VLImageProcessor
    processor = kind(min_pixels=3136, max_pixels=200_000)
    processor.save_pretrained(tmp_path)
    settings = ProcessorSettings.from_model_dir(tmp_path)
    assert (settings.min_pixels, settings.max_pixels) == (3136, 200_000)
    for size in [(448, 336), (1, 1), (31, 639), (1000, 700), (20, 3000), (3000, 20), (57, 57)]:
        grid = processor(images=Image.new("RGB", size), return_tensors="np")["image_grid_thw"][0]
        assert visual_tokens(*size, settings).image_grid_thw == tuple(int(side) for side in grid), size


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"min_pixels": 3136, "max_pixels": 12845056}, (3136, 12845056)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 50176}}, (3136, 50176)),
        ({"min_pixels": 5000, "size": {"shortest_edge": 3136, "longest_edge": 50176}}, (5000, 50176)),
        ({"max_pixels": 70000}, (3136, 70000)),
        ({"size": {"shortest_edge": 4000}, "max_pixels": 70000}, (4000, 70000)),
        ({}, (3136, 28 * 28 * 1280)),
    ],
)
def test_every_spelling_of_a_models_settings(
    tmp_path: Path, config: dict[str, object], limits: tuple[int, int]
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 14, "merge_size": 2, **config}))
    settings = ProcessorSettings.from_model_dir(tmp_path)
    assert (settings.min_pixels, settings.max_pixels) == limits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no valid JSON"),
        ("[]", "JSON object"),
        ('{"patch_size": 0}', "patch_size"),
        ('{"max_pixels": "x"}', "max_pixels"),
        ('{"size": 224}', "size is 224"),
        ('{"size": {"shortest_edge": 3136}}', "longest_edge"),
        ('{"size": {"height": 336, "width": 336}}', "longest_edge"),
        ('{"do_resize": false}', "do_resize"),
        ('{"image_processor_type": "CLIPImageProcessor"}', "CLIPImageProcessor"),
        ('{"feature_extractor_type": "CLIPFeatureExtractor"}', "CLIPFeatureExtractor"),
        ('{"image_processor_type": "Glm4vImageProcessor"}', "Glm4vImageProcessor"),
    ],
)
def test_a_broken_settings_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ProcessorError, match=said) as caught:
        ProcessorSettings.from_model_dir(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    with refused("processor-missing", "preprocessor_config.json", error=ProcessorError):
        ProcessorSettings.from_model_dir(tmp_path / "none")


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 2000), st.sampled_from([QWEN2_5_VL, TOY]))
def test_fitting_into_a_budget(width: int, height: int, most: int, settings: ProcessorSettings) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    size = fit_tokens(width, height, most, settings)
    if size is None:
        assert visual_tokens(width, height, settings).visual_tokens > most
    else:
        assert visual_tokens(*size, settings).visual_tokens <= most
        assert size[0] <= width and size[1] <= height


def test_fitting_uses_the_budget() -> None:
    size = fit_tokens(4000, 3000, 1000)
    assert size is not None and 900 <= visual_tokens(*size).visual_tokens <= 1000
    assert fit_tokens(448, 336, 192) == (448, 336)
    assert fit_tokens(448, 336, 1) is None


def test_no_pixels() -> None:
    with pytest.raises(ProcessorError, match="no pixels"):
        resized(0, 5)


# --- a nested processor_config.json beside an older preprocessor_config.json ---
OLD = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
FLAT = [
    None,
    {**OLD, "min_pixels": 3136, "max_pixels": 12_845_056},
    {**OLD, "min_pixels": 4000, "max_pixels": 60_000, "size": {"shortest_edge": 5000, "longest_edge": 70_000}},
    {**OLD, "size": {"shortest_edge": 5000, "longest_edge": 70_000}},
    {**OLD, "min_pixels": None, "max_pixels": None},
]
NESTED: list[dict[str, Any] | None] = [
    None,
    {"processor_class": "Qwen2_5_VLProcessor"},
    {"image_processor": None},
    {"image_processor": {}},
    {"image_processor": {**OLD, "size": {"shortest_edge": 6000, "longest_edge": 200_704}}},
    {"image_processor": {**OLD, "min_pixels": 7000, "size": {"shortest_edge": 6000, "longest_edge": 200_704}}},
    {"image_processor": {"patch_size": 16, "max_pixels": 90_000}},
    {"image_processor": {"merge_size": 1, "size": None}},
    {"image_processor": {**OLD, "size": {"shortest_edge": 6000}}},
]
PICTURES = [(448, 336), (40, 40), (1200, 900)]


def processor_files(folder: Path, flat: dict[str, Any] | None, nested: dict[str, Any] | None) -> Path:
    for name, values in (("preprocessor_config.json", flat), ("processor_config.json", nested)):
        if values is not None:
            (folder / name).write_text(json.dumps(values))
    return folder


def grids(processor: Any) -> list[tuple[int, ...]] | None:
    """The patch grids of some pictures; None where the processor cannot be used."""
    from PIL import Image

    try:
        made = [processor(images=Image.new("RGB", size), return_tensors="np") for size in PICTURES]
    except (ValueError, TypeError):
        return None
    return [tuple(int(side) for side in one["image_grid_thw"][0]) for one in made]


def ours(folder: Path, reader: Any) -> list[tuple[int, ...]] | None:
    try:
        settings = ProcessorSettings.from_model_dir(folder, reader)
    except ProcessorError:
        return None
    return [visual_tokens(*size, settings).image_grid_thw for size in PICTURES]


@pytest.mark.parametrize("nested", range(len(NESTED)))
@pytest.mark.parametrize("flat", range(len(FLAT)))
def test_both_files_are_read_as_transformers_reads_them(tmp_path: Path, flat: int, nested: int) -> None:
    if int(importlib.metadata.version("transformers").partition(".")[0]) < 5:
        pytest.skip("before 5 it knows no nested part, and 4.57 passes over a size without min_pixels and max_pixels")
    folder = processor_files(tmp_path, FLAT[flat], NESTED[nested])
    module = real_module()
    kind = getattr(module, "Qwen2VLImageProcessorPil", None) or module.Qwen2VLImageProcessor
    try:
        processor = kind.from_pretrained(folder)
    except OSError:
        assert ours(folder, "transformers") is None
        return
    assert ours(folder, "transformers") == grids(processor)


@pytest.mark.slow
@pytest.mark.parametrize("nested", range(len(NESTED)))
@pytest.mark.parametrize("flat", range(1, len(FLAT)))
def test_a_server_of_mlx_vlm_lays_one_over_the_other(tmp_path: Path, flat: int, nested: int) -> None:
    module = pytest.importorskip("mlx_vlm.models.qwen3_vl.processing_qwen3_vl")
    folder = processor_files(tmp_path, FLAT[flat], NESTED[nested])
    processor = module.Qwen3VLImageProcessor(**module._qwen_vl_image_kwargs(str(folder), default_patch_size=14))
    from PIL import Image

    made = [processor(images=[Image.new("RGB", size)])["image_grid_thw"][0] for size in PICTURES]
    assert ours(folder, "mlx") == [tuple(int(side) for side in one) for one in made]


def test_a_profile_reads_as_its_engine_does(tmp_path: Path) -> None:
    from vlmconsole.engines.profile import make_profile

    processor_files(tmp_path, FLAT[1], NESTED[4])
    (tmp_path / "config.json").write_text("{}")
    keys = {"name": "x", "model": str(tmp_path), "base_url": "http://127.0.0.1:1"}
    limits = []
    for engine in ("sglang", "mlx"):
        settings = make_profile({**keys, "engine": engine}).processor_settings()
        assert settings is not None
        limits.append((settings.min_pixels, settings.max_pixels))
    assert limits == [(6000, 200_704), (3136, 12_845_056)]
