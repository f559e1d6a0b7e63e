"""Adapters that would be other weights than they were trained to be: refused by name at every door, or computed."""

from __future__ import annotations

import json
import pickle
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora import BASE, bundled, make_adapter, origin
from refusals import refused as refusal

from vlmconsole.cli import main
from vlmconsole.engines.profile import make_profile
from vlmconsole.jobs import preflight
from vlmconsole.models.weights import as_float, read_arrays, read_header, to_bytes
from vlmconsole.runs.places import Places
from vlmconsole.training import sft
from vlmconsole.training.adapters.convert import convert_to_mlx, merge, served_by_mlx, served_by_sglang
from vlmconsole.training.adapters.provenance import write_provenance
from vlmconsole.training.adapters.serving import select
from vlmconsole.training.adapters.store import AdapterError, check_fits, load_peft, open_adapter, products, refused
from vlmconsole.training.lora import LANGUAGE_ONLY

Tensors = dict[str, tuple[str, np.ndarray[Any, Any]]]
NAME = "base_model.model.model.language_model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapters") / "taught", mark=False)


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(made, tmp_path / "taught"))


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def set_tensors(folder: Path, change: Callable[[Tensors], Tensors], file: str = "adapter_model.safetensors") -> None:
    path = folder / file
    path.write_bytes(to_bytes(change(read_arrays(path))))


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): value for name, value in tensors.items()}


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: v for name, v in tensors.items() if not all(part in name for part in parts)}


def with_one(name: str, kind: str, values: np.ndarray[Any, Any]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: (kind, values)}


def changed(name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: (tensors[name][0], change(tensors[name][1].copy()))}


def each(change: Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: (kind, change(name, values).copy()) for name, (kind, values) in tensors.items()}


def shorter(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values[:3] if "lora_A" in name else values[:, :3]


def doubled(tensors: Tensors) -> Tensors:
    return {**tensors, **renamed("language_model.", "")({n: v for n, v in tensors.items() if NAME in n})}


F32 = np.dtype("<f4")


def of_ones(ending: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return with_one(f"{NAME}.{ending}", "F32", np.ones(shape, F32))


EMBEDDING = "base_model.model.model.language_model.embed_tokens.lora_embedding_A"
FAULTS: list[tuple[str, Callable[[Tensors], Tensors], str, str]] = [
    ("A without B", without(f"{NAME}.lora_B"), "tensor-missing", "q_proj"),
    ("a layer cut out", without(NAME), "module-missing", "layers.1.self_attn.q_proj"),
    ("all of k_proj cut out", without("k_proj"), "module-missing", "k_proj"),
    ("rank 3 of 4", changed(f"{NAME}.lora_A.weight", lambda v: v[:3].copy()), "rank-differs", "4"),
    ("both halves of rank 3", each(shorter), "rank-differs", "4"),
    ("transposed", each(lambda _, v: v.T), "rank-differs", "transposed"),
    ("a layer that is not there", renamed("layers.3.", "layers.9."), "module-unknown", "layers.9"),
    ("another's sizes", changed(f"{NAME}.lora_B.weight", lambda v: v[:-8].copy()), "size-differs", "q_proj"),
    ("double precision", lambda t: {n: ("F64", v.astype("<f8")) for n, (_, v) in t.items()}, "tensor-type", "F64"),
    ("whole numbers", with_one(f"{NAME}.lora_A.weight", "I64", np.ones((4, 128), "<i8")), "tensor-type", "I64"),
    ("infinity", changed(f"{NAME}.lora_B.weight", lambda v: v * np.inf), "number-infinite", "q_proj"),
    ("an embedding", with_one(EMBEDDING, "F32", np.ones((4, 576), F32)), "tensor-foreign", "lora_embedding_A"),
    ("a magnitude", of_ones("lora_magnitude_vector", 128), "tensor-foreign", "lora_magnitude_vector"),
    ("a bias of B", of_ones("lora_B.bias", 128), "tensor-foreign", "lora_B.bias"),
    ("a base weight", of_ones("base_layer.weight", 128, 128), "tensor-foreign", "base_layer.weight"),
    ("no prefix", renamed("base_model.model.", ""), "tensor-foreign", "layers"),
    ("one prefix more", renamed("base_model.model.", "base_model.model.base_model.model."), "tensor-foreign", "layers"),
    ("another adapter's name", renamed(".weight", ".second.weight"), "tensor-foreign", "“second”"),
    ("one layer under two names", doubled, "tensor-twice", "q_proj"),
    ("a layer that is not chosen", renamed("mlp.up_proj", "mlp.out_proj"), "module-unchosen", "out_proj"),
]


@pytest.mark.parametrize(("change", "code", "noun"), [fault[1:] for fault in FAULTS], ids=[name for name, *_ in FAULTS])
def test_tensors_that_do_not_fit_the_configuration(
    change: Callable[[Tensors], Tensors], code: str, noun: str, adapter: Path, tmp_path: Path
) -> None:
    set_tensors(adapter, change)
    for door in (
        lambda one: check_fits(one, BASE, None, override=True),
        lambda one: merge(BASE, one, tmp_path / "merged"),
        lambda one: convert_to_mlx(one, tmp_path / "mlx", BASE),
        lambda one: served_by_sglang(one, tmp_path, BASE),
    ):
        with refusal(code, noun):
            door(open_adapter(adapter))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taught"]


@pytest.mark.parametrize("change", [renamed("language_model.", ""), renamed(".weight", ".default.weight")])
def test_other_spellings_of_the_same_tensors_are_the_same_weights(
    change: Callable[[Tensors], Tensors], adapter: Path, tmp_path: Path
) -> None:
    """As transformers before 4.52 named them, and with PEFT's own name for the only adapter."""
    plain = merge(BASE, open_adapter(adapter), tmp_path / "plain")
    set_tensors(adapter, change)
    other = merge(BASE, open_adapter(adapter), tmp_path / "other")
    assert (plain / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    load_peft(bundled(), adapter).unload()  # which compares every number with the file's
    served = served_by_sglang(open_adapter(adapter), tmp_path, BASE)
    assert f"{NAME}.lora_A.weight" in read_header(served / "adapter_model.safetensors")


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_half_precision_matrices_are_widened_as_peft_does(kind: str, adapter: Path, tmp_path: Path) -> None:
    """On a float32 base: nothing is rounded but the file's own numbers, so PEFT's merge is met within float32."""
    import torch
    from peft import PeftModel

    from vlmconsole.training.model import load

    dtype = torch.bfloat16 if kind == "BF16" else torch.float16

    def half(tensors: Tensors) -> Tensors:
        rows = {name: torch.from_numpy(as_float(*value).copy()).to(dtype) for name, value in tensors.items()}
        view = {n: t.view(torch.uint16).numpy() for n, t in rows.items()}
        return {n: (kind, bits if kind == "BF16" else bits.view("<f2")) for n, bits in view.items()}

    set_tensors(adapter, half)
    ours = load(merge(BASE, open_adapter(adapter), tmp_path / "merged")).model.state_dict()
    theirs = PeftModel.from_pretrained(load(BASE).model, str(adapter)).merge_and_unload().state_dict()
    assert max(float((ours[n] - v).abs().max() / v.abs().max()) for n, v in theirs.items() if v.any()) <= 2**-22


def kinds_of_peft() -> dict[str, Any]:
    import peft

    on = {"target_modules": ["q_proj", "v_proj"]}
    return {
        "IA3": peft.IA3Config(**on, feedforward_modules=[]),
        "LOHA": peft.LoHaConfig(**on),
        "LOKR": peft.LoKrConfig(**on),
        "ADALORA": peft.AdaLoraConfig(**on, total_step=10),
        "VERA": peft.VeraConfig(target_modules=["q_proj", "o_proj"]),
        "BOFT": peft.BOFTConfig(**on, boft_block_size=4),
        "OFT": peft.OFTConfig(**on, oft_block_size=4),
        "LN_TUNING": peft.LNTuningConfig(target_modules=["input_layernorm"]),
        "PROMPT_TUNING": peft.PromptTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=2, token_dim=128, num_layers=4, num_attention_heads=4
        ),
    }


@pytest.mark.parametrize(
    "kind", ["IA3", "LOHA", "LOKR", "ADALORA", "VERA", "BOFT", "OFT", "LN_TUNING", "PROMPT_TUNING"]
)
def test_other_kinds_of_adapter_are_refused_by_their_type(kind: str, tmp_path: Path) -> None:
    import peft

    from vlmconsole.training.model import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft.get_peft_model(load(BASE).model, kinds_of_peft()[kind]).save_pretrained(str(tmp_path / "other"))
    for use in (lambda one: check_fits(one, BASE, None, override=True), lambda one: load_peft(bundled(), one.path)):
        with refusal("lora-unsupported", "peft_type", kind):
            use(open_adapter(tmp_path / "other"))


def test_a_pissa_adapter_is_refused_at_every_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import peft

    from vlmconsole.training.model import load

    places = Places(tmp_path / "home").ensure()
    folder = places.adapters / "turned"
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=LANGUAGE_ONLY, init_lora_weights="pissa")
    peft.get_peft_model(load(BASE).model, config).save_pretrained(str(folder))
    monkeypatch.setenv("VLMCONSOLE_HOME", str(places.home))
    out = str(tmp_path / "out")
    for words in (
        ["adapters", "show", "turned"],
        ["adapters", "merge", "turned", "--out", out, "--other-base"],
        ["adapters", "convert", "turned", "--out", out, "--other-base"],
        ["adapters", "convert", "turned", "--out", out, "--other-base", "--no-verify"],
    ):
        with pytest.raises(SystemExit) as left:
            main(["--home", str(places.home), *words])
        assert left.value.code == 1 and "init_lora_weights" in capsys.readouterr().err
        assert not Path(out).exists()
    with pytest.raises(SystemExit):
        main(["--home", str(places.home), "adapters", "list", "--json"])
    listed = json.loads(capsys.readouterr().out)["adapters"]
    assert [row["name"] for row in listed] == ["turned"] and "init_lora_weights" in listed[0]["refused"]
    for engine, model in (("mlx", str(BASE)), ("sglang", str(BASE)), ("sglang", None), ("mlx", None)):
        facts = {"name": "p", "engine": engine, "base_url": "http://127.0.0.1:9"} | ({"model": model} if model else {})
        with pytest.raises(AdapterError, match="init_lora_weights"):
            select("turned", make_profile(facts, "p"), None, places, other_base=True)
    for alone in (True, False):  # what a job's plan says of `adapter=…`, before anything runs
        assert "init_lora_weights" in preflight.adapter("turned", places, alone)[0]
    with pytest.raises(AdapterError, match="init_lora_weights"):
        load_peft(bundled(), folder)
    with pytest.raises(AdapterError, match="init_lora_weights"):
        sft.adapted(bundled(), sft.SftTraining(rank=4, alpha=8), folder)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"use_rslora": True, "lora_alpha": 16}, "use_rslora"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"lora_dropout": 0.05}, "lora_dropout"),
        ({"init_lora_weights": "mica"}, "init_lora_weights"),
    ],
)
def test_what_a_training_here_does_not_have_is_no_start_for_one(
    values: dict[str, Any], named: str, adapter: Path
) -> None:
    set_config(adapter, **values)
    assert refused(open_adapter(adapter)) == ""
    with pytest.raises(AdapterError, match=named):
        sft.adapted(bundled(), sft.SftTraining(rank=4, alpha=8), adapter)


def test_layers_with_their_own_rank_and_scale_are_served_as_one_plain_lora(adapter: Path, tmp_path: Path) -> None:
    def own(tensors: Tensors) -> Tensors:
        short = {n: (k, v[:2] if "_A" in n else v[:, :2]) for n, (k, v) in tensors.items() if ".v_proj." in n}
        return {**tensors, **short}

    set_tensors(adapter, own)
    set_config(adapter, rank_pattern={"v_proj": 2}, alpha_pattern={"up_proj": 3}, use_rslora=True)
    one = open_adapter(adapter)
    wanted = {module: product.change() for module, product in products(one).items()}
    served = open_adapter(served_by_sglang(one, tmp_path, BASE))
    config = json.loads((served.path / "adapter_config.json").read_text())
    assert (config["use_rslora"], config["rank_pattern"], config["alpha_pattern"]) == (False, {}, {})
    shapes = {tensor.shape[0] for name, tensor in read_header(served.weights).items() if "lora_A" in name}
    assert shapes == {config["r"]} == {4}
    for module, product in products(served).items():
        assert np.allclose(product.change(), wanted[module], rtol=0, atol=2**-22 * np.abs(wanted[module]).max())
    mlx = served_by_mlx(one, tmp_path, BASE)
    scale = json.loads((mlx / "adapter_config.json").read_text())["lora_parameters"]["scale"]
    arrays = read_arrays(mlx / "adapters.safetensors")
    for module, change in wanted.items():
        a, b = (arrays[f"language_model.model.{module}.lora_{half}"][1] for half in "ab")
        assert np.allclose(scale * (a @ b).T, change, rtol=0, atol=2**-21 * np.abs(change).max())


def test_another_alpha_beside_the_same_weights_is_another_adapter(adapter: Path, tmp_path: Path) -> None:
    before = served_by_mlx(open_adapter(adapter), tmp_path, BASE), served_by_sglang(open_adapter(adapter), tmp_path)
    set_config(adapter, lora_alpha=32)
    after = served_by_mlx(open_adapter(adapter), tmp_path, BASE), served_by_sglang(open_adapter(adapter), tmp_path)
    assert not set(before) & set(after)
    assert json.loads((after[0] / "adapter_config.json").read_text())["lora_parameters"]["scale"] == 8.0
    assert json.loads((after[1] / "adapter_config.json").read_text())["lora_alpha"] == 32
    write_provenance(adapter, origin())  # which says that it was trained with alpha 8
    with refusal("provenance-differs", "alpha 32", "provenance.json"):
        check_fits(open_adapter(adapter), BASE, None, override=True)
    for values, named in (({"r": 2}, "rank 2"), ({"r": 4, "use_rslora": True}, "scale")):
        set_config(adapter, lora_alpha=8, **values)
        with refusal("provenance-differs", named):
            check_fits(open_adapter(adapter), BASE, None, override=True)
    set_config(adapter, use_rslora=False)
    mlx = convert_to_mlx(open_adapter(adapter), tmp_path / "mlx", BASE)
    first = served_by_mlx(open_adapter(mlx), tmp_path, BASE)
    parameters(mlx, scale=2.5)
    with refusal("provenance-differs", "alpha 10", "provenance.json"):
        served_by_mlx(open_adapter(mlx), tmp_path, BASE)
    (mlx / "provenance.json").unlink()
    assert served_by_mlx(open_adapter(mlx), tmp_path, BASE) != first


def test_a_pattern_that_would_take_for_ever_is_refused_at_once(adapter: Path) -> None:
    began = time.monotonic()
    for key, value in (
        ("target_modules", r"(\w+\.?)*x"),
        ("exclude_modules", r"((a|aa)+)+$"),
        ("rank_pattern", {r"(.*a){20}": 4}),
        ("alpha_pattern", {r".*.*.*.*.*.*.*x": 4}),
        ("target_modules", "("),
    ):
        kept = (adapter / "adapter_config.json").read_text()
        set_config(adapter, **{key: value})
        assert key in refused(open_adapter(adapter))
        (adapter / "adapter_config.json").write_text(kept)
    assert time.monotonic() - began < 20


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_pickles_are_never_opened(adapter: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("adapter_model.bin", "adapter_model.pt"):
        (adapter / name).write_bytes(pickle.dumps(Bomb()))
    load_peft(bundled(), adapter).unload()  # beside safetensors they are not looked at
    (adapter / "adapter_model.safetensors").unlink()
    for use in (lambda: open_adapter(adapter), lambda: load_peft(bundled(), adapter)):
        with pytest.raises(AdapterError) as error:
            use()
        assert "pickle" in error.value.hint
    assert not (tmp_path / "exploded").exists()


def test_several_files_or_adapters_in_a_folder_are_named(adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "several" / "first")
    shutil.copytree(adapter, tmp_path / "several" / "second")
    with pytest.raises(AdapterError) as error:
        open_adapter(tmp_path / "several")
    assert "first, second" in error.value.hint
    shutil.copyfile(adapter / "adapter_model.safetensors", adapter / "new_embeddings.safetensors")
    assert "new_embeddings.safetensors" in refused(open_adapter(adapter))
    (adapter / "new_embeddings.safetensors").unlink()
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model-00001-of-00002.safetensors")
    with pytest.raises(AdapterError) as error:
        open_adapter(adapter)
    assert "several files" in error.value.hint


def in_mlx(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    return lambda folder: set_tensors(folder, change, "adapters.safetensors")


MLX: list[tuple[str, Callable[[Path], None], str]] = [
    ("dora", lambda f: set_config(f, fine_tune_type="dora"), "fine_tune_type"),
    ("full", lambda f: set_config(f, fine_tune_type="full"), "fine_tune_type"),
    ("an unknown key", lambda f: set_config(f, base_quantization={"x": {}}), "base_quantization"),
    ("no scale", lambda f: set_config(f, lora_parameters={"rank": 4, "dropout": 0.0, "keys": ["x"]}), "scale"),
    ("a rank that is not there", lambda f: parameters(f, rank=8), "rank 8"),
    ("scale NaN", lambda f: parameters(f, scale=float("nan")), r"lora_parameters\.scale"),
    ("a key without tensors", lambda f: parameters(f, more=["language_model.model.layers.0.mlp.x_proj"]), "x_proj"),
    ("a tensor without key", in_mlx(renamed("layers.0.", "layers.7.")), r"layers\.0"),
    ("other names", in_mlx(renamed("language_model.model.", "model.")), "language-side"),
    ("half of a pair", in_mlx(without("lora_b", "layers.0.mlp.up")), "only one"),
    ("not a number", in_mlx(each(lambda _, v: v * np.nan)), "NaN"),
    ("another model's", in_mlx(each(lambda name, v: v[:-4] if "lora_a" in name else v)), "does not fit"),
]


def parameters(folder: Path, more: list[str] | None = None, **values: Any) -> None:
    inner = json.loads((folder / "adapter_config.json").read_text())["lora_parameters"]
    set_config(folder, lora_parameters={**inner, **values, "keys": [*inner["keys"], *(more or [])]})


@pytest.mark.parametrize(("change", "reason"), [(c, r) for _, c, r in MLX], ids=[name for name, _, _ in MLX])
def test_an_adapter_in_mlx_form_is_checked_before_it_is_served(
    change: Callable[[Path], None], reason: str, made: Path, tmp_path: Path
) -> None:
    folder = convert_to_mlx(open_adapter(made), tmp_path / "mlx", BASE)
    assert open_adapter(served_by_mlx(open_adapter(folder), tmp_path, BASE)).sha256 == open_adapter(folder).sha256
    change(folder)
    with pytest.raises(AdapterError, match=reason):
        served_by_mlx(open_adapter(folder), tmp_path, BASE)
    with pytest.raises(AdapterError, match=reason):
        check_fits(open_adapter(folder), BASE, None, override=True)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_have_the_sizes_that_they_stand_for(bits: int, adapter: Path, tmp_path: Path) -> None:
    """As MLX quantises: words of 32 bits, with scales and biases beside them, under mlx-vlm's own names."""
    base = Path(shutil.copytree(BASE, tmp_path / "packed"))
    tensors: Tensors = {}
    for name, (kind, values) in read_arrays(base / "model.safetensors").items():
        short = name.replace("model.layers", "language_model.model.layers").replace("visual.", "vision_tower.")
        tensors[short] = (kind, values)
        if ".layers." in short and short.endswith("proj.weight"):
            out, into = values.shape
            tensors[short] = ("I32", np.zeros((out, into * bits // 32), "<i4"))
            for more in ("scales", "biases"):
                tensors[short.replace("weight", more)] = ("F32", np.ones((out, into // 64), F32))
    (base / "model.safetensors").write_bytes(to_bytes(tensors))
    with refusal("bits-unknown"):
        check_fits(open_adapter(adapter), base, None, override=True)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization": {"bits": bits, "group_size": 64}}))
    assert check_fits(open_adapter(adapter), base, None, override=True)
    with pytest.raises(AdapterError, match="as I32"):
        merge(base, open_adapter(adapter), tmp_path / "merged")
    (base / "config.json").write_text(json.dumps({**config, "quantization": {"bits": 12 - bits, "group_size": 64}}))
    with refusal("size-differs"):
        check_fits(open_adapter(adapter), base, None, override=True)
