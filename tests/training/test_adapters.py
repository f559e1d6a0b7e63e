"""Adapters: found, checked against their base, refused with reasons, converted, merged, and loaded for real."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from lora import BASE, bundled, make_adapter, origin
from refusals import refused

from vlmconsole.models.weights import as_float, read_arrays, read_header, to_bytes
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters import store
from vlmconsole.training.adapters.convert import convert_to_mlx, merge, served_by_mlx
from vlmconsole.training.adapters.provenance import ProvenanceError, read_provenance, weights_sha256, write_provenance
from vlmconsole.training.adapters.store import (
    OTHER_MODEL,
    AdapterError,
    check_fits,
    check_whole,
    find_adapter,
    list_adapters,
    open_adapter,
)
from vlmconsole.training.generation import Prompt, answers


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapters") / "taught")


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(made, tmp_path / "taught"))


def change_tensor(folder: Path, ending: str, change: object) -> None:
    path = folder / "adapter_model.safetensors"
    arrays = read_arrays(path)
    name = next(n for n in sorted(arrays) if n.endswith(ending))
    kind, values = arrays[name]
    arrays[name] = (kind, change(values.copy()))  # type: ignore[operator]
    path.write_bytes(to_bytes(arrays))


def test_provenance_is_read_as_it_was_written(adapter: Path) -> None:
    told = origin(parent_sha256="f" * 64, epoch=4, seed=3, resumable=True)
    write_provenance(adapter, told)
    assert read_provenance(adapter) == told
    assert read_provenance(adapter.parent) is None
    (adapter / "provenance.json").write_text('{"kind": "sft", "rank": true}')
    with refused("provenance-damaged", "base", error=ProvenanceError):
        read_provenance(adapter)
    with pytest.raises(ValueError, match="kind"):
        write_provenance(adapter, dataclasses.replace(told, kind="magic"))


def test_weights_have_one_identity(adapter: Path, tmp_path: Path) -> None:
    before = weights_sha256(adapter)
    (adapter / "notes.txt").write_text("not a weight")
    assert weights_sha256(adapter) == before
    change_tensor(adapter, "lora_B.weight", lambda v: v + 1)
    assert weights_sha256(adapter) != before
    with pytest.raises(ProvenanceError, match=r"no \*\.safetensors"):
        weights_sha256(tmp_path)


def test_found_by_name_part_run_and_path(made: Path, tmp_path: Path) -> None:
    places = Places(tmp_path / "home").ensure()
    shutil.copytree(made, places.adapters / "mine")
    run = RunFolder.create(places.runs, kind="sft", preset="sft-tiny", spec={}, title="t", home=places.home)
    for inner in ("epoch-2", "epoch-4", "adapter"):
        shutil.copytree(made, run.file(inner))
    (places.adapters / "broken").mkdir()
    (places.adapters / "broken" / "adapter_config.json").write_text("{")
    problems: list[str] = []
    found = [a.name for a in list_adapters(places, problems)]
    assert found == ["mine", f"{run.name}/adapter", f"{run.name}/epoch-2", f"{run.name}/epoch-4"]
    assert len(problems) == 1 and "broken" in problems[0]
    assert find_adapter(places, "mine").path == places.adapters / "mine"
    assert find_adapter(places, "sft-tiny").path == run.file("adapter")
    assert find_adapter(places, run.name).path == run.file("adapter")
    assert find_adapter(places, run.path).path == run.file("adapter")
    assert find_adapter(places, "epoch-2").path == run.file("epoch-2")
    with refused("adapter-ambiguous", "2", run.name):
        find_adapter(places, "epoch")
    with refused("adapter-missing", "yours", "mine", run.name):
        find_adapter(places, "yours")
    with refused("adapter-missing", places.runs.name):
        find_adapter(places, str(places.runs))
    with refused("adapter-missing", "yours", "sft-expand-tiny"):
        find_adapter(Places(tmp_path / "new").ensure(), "yours")


def test_its_own_base_is_accepted_and_others_are_refused(adapter: Path) -> None:
    one = open_adapter(adapter)
    assert check_fits(one, BASE, "float32") == ""
    with refused("precision-differs", "float32", "bfloat16"):
        check_fits(one, BASE, "bfloat16")
    assert check_fits(one, BASE, "bfloat16", override=True) == OTHER_MODEL
    write_provenance(adapter, origin(base="another", base_sha256="1" * 64))
    with refused("base-differs", "another", "--other-base"):
        check_fits(open_adapter(adapter), BASE, "float32")
    (adapter / "provenance.json").unlink()
    with refused("base-unknown"):
        check_fits(open_adapter(adapter), BASE, None)


@pytest.mark.parametrize(
    ("ending", "change", "code", "noun"),
    [
        ("q_proj.lora_A.weight", lambda v: v[:, :-1].copy(), "size-differs", "q_proj"),
        ("lora_B.weight", lambda v: v[:, :-1].copy(), "rank-differs", "4"),
        ("lora_B.weight", lambda v: np.full_like(v, np.nan), "number-infinite", "lora_B"),
    ],
)
def test_a_misfit_is_refused_with_its_reason(adapter: Path, ending: str, change: object, code: str, noun: str) -> None:
    change_tensor(adapter, ending, change)
    with refused(code, noun):
        check_fits(open_adapter(adapter), BASE, "float32", override=True)


def test_damage_is_refused_with_its_reason(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    whole = path.read_bytes()
    for data, said in (
        (whole[:-100], "cut off"),
        (whole[:50], "cut off or missing"),
        (b"", "cut off or missing"),
        (whole[:8] + b"\xff" + whole[9:], "not JSON"),
    ):
        path.write_bytes(data)
        with pytest.raises(AdapterError, match=said):
            check_whole(open_adapter(adapter))
    path.write_bytes(whole)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(AdapterError, match="use_dora"):
        check_whole(open_adapter(adapter))


def test_a_visual_tensor_is_refused(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    arrays = read_arrays(path)
    name = next(iter(arrays))
    arrays[name.replace("language_model", "visual")] = arrays.pop(name)
    path.write_bytes(to_bytes(arrays))
    with pytest.raises(AdapterError, match="language-side"):
        check_whole(open_adapter(adapter))


def test_mlx_form_holds_the_same_numbers(made: Path, tmp_path: Path) -> None:
    one = open_adapter(made)
    out = convert_to_mlx(one, tmp_path / "mlx", BASE)
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["lora_parameters"]["scale"] == 2.0 and config["lora_parameters"]["rank"] == 4
    assert len(config["lora_parameters"]["keys"]) == 28
    ours, theirs = read_arrays(one.weights), read_arrays(out / "adapters.safetensors")
    assert len(ours) == len(theirs) == 56
    key = "layers.2.self_attn.k_proj"
    a, b = (ours[f"base_model.model.model.language_model.{key}.lora_{half}.weight"][1] for half in "AB")
    assert np.array_equal(theirs[f"language_model.model.{key}.lora_a"][1], a.T)
    assert np.array_equal(theirs[f"language_model.model.{key}.lora_b"][1], b.T)
    assert read_provenance(out) == one.provenance
    with refused("folder-exists"):
        convert_to_mlx(one, out, BASE)
    again = open_adapter(out)
    served = served_by_mlx(again, tmp_path)  # a copy: a server that has the folder's name loaded goes on with it
    assert again.format == "mlx" and open_adapter(served).sha256 == again.sha256


def test_the_served_form_is_made_once_and_again_when_the_adapter_changes(adapter: Path, tmp_path: Path) -> None:
    first = served_by_mlx(open_adapter(adapter), tmp_path, BASE)
    stamp = first.stat().st_mtime_ns
    assert served_by_mlx(open_adapter(adapter), tmp_path, BASE) == first and first.stat().st_mtime_ns == stamp
    change_tensor(adapter, "lora_B.weight", lambda v: v + 1)
    assert served_by_mlx(open_adapter(adapter), tmp_path, BASE) != first
    (first / "adapters.safetensors").unlink()  # half a cache entry is none
    change_tensor(adapter, "lora_B.weight", lambda v: v - 1)
    assert (served_by_mlx(open_adapter(adapter), tmp_path, BASE) / "adapters.safetensors").is_file()


def test_loaded_merged_and_unloaded_answer_as_they_must(made: Path, tmp_path: Path) -> None:
    """PEFT in the model and merged weights answer alike; without the adapter the base is what it was."""
    from vlmconsole.training.model import load

    asks = [Prompt(str(i), text) for i, text in enumerate(("Hello", "How many?", "What colour is it?"))]
    loaded = bundled()
    base = [one.token_ids for one in answers(loaded, asks, max_new_tokens=12)]
    wrapped = store.load_peft(loaded, made)
    try:
        taught = [one.token_ids for one in answers(loaded, asks, max_new_tokens=12)]
        with pytest.raises(AdapterError, match="already"):
            store.load_peft(loaded, made)
    finally:
        wrapped.unload()
    assert taught != base
    assert [one.token_ids for one in answers(loaded, asks, max_new_tokens=12)] == base
    out = merge(BASE, open_adapter(made), tmp_path / "merged")
    assert [one.token_ids for one in answers(load(out), asks, max_new_tokens=12)] == taught
    told = json.loads((out / "merged.json").read_text())
    assert told["base_sha256"] == weights_sha256(BASE) and told["adapter_sha256"] == weights_sha256(made)


def test_merging_rounds_bfloat16_as_torch_does(made: Path, tmp_path: Path) -> None:
    import torch

    half = tmp_path / "half"
    shutil.copytree(BASE, half)
    arrays = read_arrays(BASE / "model.safetensors")
    tensors = {}
    for name, (_, values) in arrays.items():
        bits = torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
        tensors[name] = ("BF16", bits)
    (half / "model.safetensors").write_bytes(to_bytes(tensors))
    out = merge(half, open_adapter(made), tmp_path / "merged")
    name = "model.layers.1.mlp.up_proj.weight"
    assert read_header(out / "model.safetensors")[name].kind == "BF16"
    ours = read_arrays(out / "model.safetensors", [name])[name][1]
    lora = {
        n: torch.from_numpy(as_float(*v).copy()) for n, v in read_arrays(made / "adapter_model.safetensors").items()
    }
    a, b = (lora[f"base_model.model.model.language_model.layers.1.mlp.up_proj.lora_{half_}.weight"] for half_ in "AB")
    wanted = (torch.from_numpy(as_float(*tensors[name]).copy()) + 2.0 * (b @ a)).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("alpha", ["NaN", "Infinity", "-16", "0", "true", "1" + "0" * 400, '"16"', "null"])
def test_an_alpha_that_is_no_number_above_zero_is_refused(adapter: Path, alpha: str) -> None:
    config = adapter / "adapter_config.json"
    said = json.loads(config.read_text())
    said["lora_alpha"] = "HERE"
    config.write_text(json.dumps(said).replace('"HERE"', alpha))
    with refused("scale-invalid", "lora_alpha"):
        check_whole(open_adapter(adapter))
    with pytest.raises(AdapterError, match="lora_alpha"):
        merge(BASE, open_adapter(adapter), adapter.parent / "merged")
    assert not (adapter.parent / "merged").exists()


def test_a_merge_that_overflows_leaves_no_model(adapter: Path) -> None:
    for ending in ("lora_A.weight", "lora_B.weight"):
        change_tensor(adapter, ending, lambda values: np.full_like(values, 1e30))
    with refused("number-infinite"):
        merge(BASE, open_adapter(adapter), adapter.parent / "merged")
    assert [path.name for path in adapter.parent.iterdir()] == [adapter.name]
