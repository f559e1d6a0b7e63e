"""What a model folder is, and that nothing but a whole model of the known family is ever loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import WEIGHTS, bundled_copy, change_json, change_weights, headers_only, sharded, tensor_names

from vlmconsole.errors import LabError
from vlmconsole.jobs import preflight
from vlmconsole.models import qwen2_5_vl
from vlmconsole.models.base import BaseReadError, check_loadable, read_base
from vlmconsole.models.quantization import Quantization, from_json, quantization_of
from vlmconsole.training.bases import answering_base, base_folder


def nested(folder: Path) -> None:
    """Rewrite a flat config as transformers 5 saves it: the language half under `text_config`."""

    def change(config: dict[str, Any]) -> None:
        text = {key: config.pop(key) for key in list(config) if key in TEXT_KEYS}
        config["text_config"] = {**text, "model_type": "qwen2_5_vl_text"}

    change_json(folder / "config.json", change)


TEXT_KEYS = (
    *qwen2_5_vl.TEXT,
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "hidden_act",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
)


def tied_twice(folder: Path) -> None:
    change_weights(folder, lambda all: all.update({"lm_head.weight": all["model.embed_tokens.weight"]}))


def newer_names(folder: Path) -> None:
    change_weights(folder, lambda all: [all.update({qwen2_5_vl.canonical(name): all.pop(name)}) for name in list(all)])


@pytest.mark.parametrize("change", [lambda _: None, nested, sharded, tied_twice, newer_names])
def test_a_whole_model_passes_in_every_form_that_it_is_written_in(
    tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    folder = bundled_copy(tmp_path / "base")
    change(folder)
    base = read_base(folder)
    check_loadable(base)
    assert (base.family, base.precision, base.quantization, base.adapter) == ("qwen2_5_vl", "float32", None, False)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: change_weights(folder, lambda all: all.pop(name))


def renamed(folder: Path) -> None:
    """Names as MLX writes them."""

    def change(all: dict[str, Any]) -> None:
        for name in list(all):
            head = "vision_tower." if name.startswith("visual.") else "language_model."
            all[head + name.removeprefix("visual.")] = all.pop(name)

    change_weights(folder, change)


def cut(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(data[:-1000])


def shard_gone(folder: Path) -> None:
    (folder / sorted(set(sharded(folder).values()))[1]).unlink()


def shard_lacks(folder: Path) -> None:
    where = sharded(folder)
    where["visual.nothing.weight"] = next(iter(where.values()))
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": where}))


def index_outside(folder: Path) -> None:
    sharded(folder)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")


def packed(folder: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(folder, lambda all: all.update({name: ("I32", np.zeros((256, 16), "<i4"))}))


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", lambda all: all.update(values))


def images(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "preprocessor_config.json", lambda all: all.update(values))


def text_type(folder: Path) -> None:
    nested(folder)
    change_json(folder / "config.json", lambda all: all["text_config"].update(model_type="qwen3_vl_text"))


ODD: list[tuple[str, Callable[[Path], Any], str]] = [
    ("qwen3-vl", config(model_type="qwen3_vl"), "qwen3_vl"),
    ("qwen2-vl", config(model_type="qwen2_vl"), "qwen2_vl"),
    ("omni", config(model_type="qwen2_5_omni"), "qwen2_5_omni"),
    ("no type", config(model_type=None), "no model_type"),
    ("a list", config(model_type=["qwen2_5_vl"]), "model_type"),
    ("nested text type", text_type, "text_config.model_type"),
    ("nested vision type", config(vision_config={"model_type": "qwen3_vl"}), "vision_config.model_type"),
    ("mlx 4-bit", config(quantization={"bits": 4, "group_size": 64}), "4-bit"),
    ("gptq", config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128}), "gptq"),
    ("awq", config(quantization_config={"quant_method": "awq", "w_bit": 4, "q_group_size": 128}), "awq"),
    ("bitsandbytes", config(quantization_config={"load_in_4bit": True}), "bitsandbytes"),
    ("unknown method", config(quantization_config={"quant_method": "hqq", "nbits": 3}), "3-bit"),
    ("packed unsaid", packed, "I32"),
    ("missing weight", without("model.layers.2.mlp.up_proj.weight"), "1 weights are missing"),
    ("missing bias", without("visual.blocks.0.attn.qkv.bias"), "attn.qkv.bias"),
    ("mlx names", renamed, "another model"),
    ("other width", config(intermediate_size=320), "another shape"),
    ("other depth", config(num_hidden_layers=5), "are missing"),
    ("fewer layers", config(num_hidden_layers=3), "another model"),
    ("untied head", config(tie_word_embeddings=False), "lm_head.weight"),
    ("no number", config(hidden_size="128"), "hidden_size"),
    ("cut off", cut, "cut off"),
    ("a shard gone", shard_gone, "is not there"),
    ("a shard lacks", shard_lacks, "visual.nothing.weight"),
    ("outside", index_outside, "outside the folder"),
    ("pickled", pickled, "pytorch_model.bin"),
    ("no weights", lambda folder: (folder / WEIGHTS).unlink(), "model.safetensors"),
    ("adapter inside", lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
    ("no image settings", lambda folder: (folder / "preprocessor_config.json").unlink(), "preprocessor_config.json"),
    ("other patches", images(patch_size=16), "patch_size 16"),
    ("another family's images", images(image_processor_type="CLIPImageProcessor"), "CLIPImageProcessor"),
    ("config no object", lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
    ("config broken", lambda folder: (folder / "config.json").write_text("{"), "config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "noun"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_what_is_not_understood_is_refused_before_anything_runs(
    tmp_path: Path, change: Callable[[Path], Any], noun: str
) -> None:
    folder = bundled_copy(tmp_path / "base")
    change(folder)
    (refusal,) = preflight.loadable(str(folder))
    assert noun in refusal and "base" in refusal and "\n" not in refusal
    with pytest.raises(LabError):
        answering_base(str(folder))


def test_training_evaluation_and_merging_ask_the_same_reader(tmp_path: Path) -> None:
    from vlmconsole.evaluation.settings import EvaluateSettings
    from vlmconsole.jobs.evaluate import problems as evaluating
    from vlmconsole.jobs.grpo import problems as reinforcing
    from vlmconsole.jobs.grpo_settings import GrpoSpec
    from vlmconsole.jobs.sft import KIND, SftSpec
    from vlmconsole.runs.places import Places
    from vlmconsole.training.model import load

    folder, places = bundled_copy(tmp_path / "base", model_type="qwen3_vl"), Places(home=tmp_path / "home").ensure()
    assert KIND.problems is not None
    each = [
        KIND.problems(SftSpec(base=str(folder)), places, True),
        reinforcing(GrpoSpec(base=str(folder)), places, True),
        reinforcing(GrpoSpec(base=str(folder), engine="verl"), places, True),
        evaluating(EvaluateSettings(base=str(folder), data=["naming"], paired=False), places, True),
    ]
    assert all(any("qwen3_vl" in text for text in found) for found in each), each
    with pytest.raises(BaseReadError, match="qwen3_vl"):
        load(folder)


@pytest.mark.parametrize(
    ("config", "wanted", "label"),
    [
        ({}, None, ""),
        ({"quantization": {"group_size": 64, "bits": 4}}, Quantization("mlx", 4, 64, "affine"), "4-bit affine"),
        (
            {"quantization": {"group_size": 64, "bits": 4, "skip_vision": False}},
            Quantization("mlx", 4, 64, "affine"),
            "group 64 (mlx)",
        ),
        (
            {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
            Quantization("mlx", 4, 32, "mxfp4"),
            "4-bit mxfp4, group 32",
        ),
        (
            {
                "quantization": {
                    "group_size": 64,
                    "bits": 4,
                    "model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 8},
                    "model.layers.1.mlp.up_proj": {"group_size": 64, "bits": 8},
                    "model.layers.2.mlp.up_proj": {"group_size": 64, "bits": 4},
                    "lm_head": False,
                }
            },
            Quantization("mlx", 4, 64, "affine", ((0, 1), (8, 2))),
            "2 layers 8-bit",
        ),
        (
            {"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}}},
            Quantization("gptq", 8, 128),
            "8-bit, group 128 (gptq)",
        ),
        (
            {"quantization_config": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}},
            Quantization("bitsandbytes", 4, None, "nf4"),
            "4-bit nf4",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}},
            Quantization("fp8", 8, None, "e4m3"),
            "8-bit",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
                }
            },
            Quantization("compressed-tensors", 4, 128, "int"),
            "4-bit int, group 128",
        ),
        ({"quantization_config": {"quant_method": "strange"}}, Quantization("strange"), "bits not known"),
    ],
)
def test_every_way_of_saying_a_quantisation(config: dict[str, Any], wanted: Quantization | None, label: str) -> None:
    stated = quantization_of(config)
    assert stated == wanted and (stated is None or label in stated.label)
    assert from_json(None if stated is None else json.loads(json.dumps(stated.to_json()))) == wanted


def test_the_published_3b_is_a_whole_one(tmp_path: Path) -> None:
    """Its names and shapes, as far as they were published: 824 tensors, head tied."""
    published = json.loads((base_folder("") / "config.json").read_text())
    published |= {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
            "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
    }  # fmt: skip
    shapes = qwen2_5_vl.weights(published)
    assert len(shapes) == 824 and sum(int(np.prod(shape)) for shape in shapes.values()) == 3_754_622_976
    folder = tmp_path / "3b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published))
    names = [name.replace("model.language_model.", "model.").replace("model.visual.", "visual.") for name in shapes]
    headers_only(folder / WEIGHTS, dict(zip(names, shapes.values(), strict=True)))
    check_loadable(read_base(folder))
    assert read_base(folder).precision == "bfloat16"


def test_the_bundled_models_tensors_are_the_ones_wanted() -> None:
    config = json.loads((base_folder("") / "config.json").read_text())
    assert {qwen2_5_vl.canonical(name) for name in tensor_names()} == set(qwen2_5_vl.weights(config))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["flat", "nested", "untied", "other sizes"])
def test_equal_to_the_model_that_transformers_builds(tmp_path: Path, variant: str) -> None:
    import torch
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    folder = bundled_copy(tmp_path / "base")
    if variant == "nested":
        nested(folder)
    if variant == "untied":
        config(tie_word_embeddings=False)(folder)
    if variant == "other sizes":
        config(num_key_value_heads=4, hidden_size=192, intermediate_size=100, vocab_size=600)(folder)
    with torch.device("meta"):
        model: Any = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
    built = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if variant != "untied":
        built.pop("lm_head.weight")
    assert qwen2_5_vl.weights(json.loads((folder / "config.json").read_text())) == built


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen3VL"])
def test_a_real_folder_of_a_neighbouring_family_is_refused(tmp_path: Path, kind: str) -> None:
    import transformers

    family = getattr(transformers, f"{kind}ForConditionalGeneration")
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 300}  # fmt: skip
    eyes = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 48, "num_heads": 2,
            "out_hidden_size": 64, "deepstack_visual_indexes": [0]}  # fmt: skip
    made = getattr(transformers, f"{kind}Config")(text_config=small, vision_config=eyes)
    family(made).save_pretrained(tmp_path / "other")
    (refusal,) = preflight.loadable(str(tmp_path / "other"))
    assert made.model_type in refusal
    # And where somebody only writes the known name into the config: the weights tell.
    change_json(
        tmp_path / "other" / "config.json",
        lambda all: (
            [all.update(model_type="qwen2_5_vl")]
            + [all[half].update(model_type=None) for half in ("text_config", "vision_config")]
        ),
    )
    assert "another model" in preflight.loadable(str(tmp_path / "other"))[0]
    shutil.rmtree(tmp_path / "other")
