"""Quantised weights are never recorded as the type of what is not quantised: the server, its folder, the conditions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_folders import bundled_copy
from replay import Reply, json_reply, replay, sse

from vlmconsole.client.chat import ChatClient
from vlmconsole.engines import mlx_server
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import make_profile
from vlmconsole.engines.readback import readback
from vlmconsole.engines.served_model import add_quantization, folder_of, prompt_facts
from vlmconsole.models.messages import Message
from vlmconsole.models.quantization import from_json
from vlmconsole.runs.conditions import BARE_PROMPT, Conditions
from vlmconsole.runs.places import Places

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}


def served(model: Any) -> dict[str, Any]:
    """What the lab's MLX server would tell of a loaded model."""
    return mlx_server.effective(SimpleNamespace(response_generator=SimpleNamespace(model=model)), 4)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"bits": 4, "group_size": 64}, "4-bit affine, group 64 (mlx)"),
        ({"bits": 8, "group_size": 32}, "8-bit affine, group 32 (mlx)"),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "4-bit mxfp4, group 32 (mlx)"),
    ],
)
def test_the_mlx_server_counts_weights_and_not_packed_words(settings: dict[str, Any], label: str) -> None:
    nn, mx = pytest.importorskip("mlx.nn"), pytest.importorskip("mlx.core")
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.LayerNorm(128), nn.Embedding(64, 128))
    assert (served(model)["precision"], served(model)["quantization"]) == ("float32", None)
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, **settings)
    told = served(model)
    assert told["precision"] == told["quantization"]["dtype"] == "bfloat16"
    stated = from_json(json.loads(json.dumps(told["quantization"])))
    assert stated is not None and stated.label == label


def test_mixed_bits_are_told_as_what_most_weights_have_and_the_rest_beside_it() -> None:
    nn = pytest.importorskip("mlx.nn")
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(128, 128), nn.Linear(128, 64), nn.Linear(64, 32))

    def bits(path: str, module: Any) -> Any:
        return (
            {"bits": 4, "group_size": 64}
            if path.endswith("0")
            else {"bits": 8, "group_size": 64}
            if "3" not in path
            else False
        )

    nn.quantize(model, class_predicate=bits)
    told = served(model)["quantization"]
    assert (told["bits"], told["mixed"], told["dtype"]) == (4, {"8": 2}, "float32")
    stated = from_json(told)
    assert stated is not None and "2 layers 8-bit" in stated.label


def test_without_a_model_nothing_is_told() -> None:
    pytest.importorskip("mlx.core")
    assert (served(None)["precision"], served(None)["quantization"]) == (None, None)


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({}, True),
        ({"base_url": "https://10.1.2.3:1"}, False),
        ({"ssh_host": "box"}, False),
    ],
)
def test_a_folder_counts_only_where_the_server_names_it_on_this_machine(
    tmp_path: Path, more: dict[str, Any], same: bool
) -> None:
    folder = bundled_copy(tmp_path / "base", **GPTQ)
    keys = {"name": "x", "engine": "openai", "base_url": "http://127.0.0.1:1", "model": str(folder)}
    profile = make_profile({**keys, **more})
    told = EffectiveSettings("sglang", model_path=str(folder), precision="bfloat16")
    assert (folder_of(profile, told) is not None) == same
    add_quantization(profile, told)
    assert told.precision == ("4-bit, group 128 (gptq)" if same else "bfloat16")
    assert prompt_facts(profile, told).get("prompt_sha256") == (BARE_PROMPT if same else None)
    for path in (None, str(tmp_path), "/nowhere"):
        other = EffectiveSettings("sglang", model_path=path, precision="bfloat16")
        add_quantization(profile, other)
        assert (other.precision, other.quantization, prompt_facts(profile, other)) == ("bfloat16", None, {})
    thinking = make_profile({**keys, "engine": "mlx", **more})
    assert prompt_facts(thinking, told) == prompt_facts(
        profile, told
    )  # this template asks for no variable of mlx-vlm's
    with_flag = EffectiveSettings("sglang", model_path=str(folder), values={"chat-template": "x"})
    assert prompt_facts(profile, with_flag) == {}


async def test_a_server_that_tells_only_its_computing_type_is_recorded_with_its_weights(tmp_path: Path) -> None:
    folder = bundled_copy(tmp_path / "base", **GPTQ)
    models = {"data": [{"id": "m", "root": str(folder), "max_model_len": 4096}]}
    stream = sse({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]})
    routes = {"GET /v1/models": json_reply(models), "POST /v1/chat/completions": Reply(stream)}
    async with replay(routes) as player:
        profile = make_profile({"name": "v", "engine": "vllm", "base_url": player.url, "model": str(folder)})
        async with ChatClient(profile) as client:
            answer = await client.ask([Message("user", "?")])
    known = answer.conditions
    assert known.precision == "4-bit, group 128 (gptq)"
    assert known.quantization == {"method": "gptq", "bits": 4, "group_size": 128, "mode": None}
    again = Conditions.model_validate(json.loads(json.dumps(known.model_dump(mode="json"))))
    assert again == known
    old = {
        key: value
        for key, value in known.model_dump(mode="json").items()
        if key not in ("quantization", "prompt_sha256")
    }
    assert Conditions.model_validate(old).quantization is None


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_a_real_quantised_model_behind_the_real_server(tmp_path: Path, bits: int) -> None:
    """Converted by mlx-vlm, served by the lab's server: settings, chat and bench say bits and group size."""
    pytest.importorskip("mlx_vlm")
    from vlmconsole.measure.bench import run_bench
    from vlmconsole.measure.settings import BenchSettings
    from vlmconsole.models.base import read_base
    from vlmconsole.runs.folder import RunFolder
    from vlmconsole.servers.where import server_of
    from vlmconsole.training.bases import base_folder

    folder = tmp_path / "quantised"
    words = ["--hf-path", str(base_folder("")), "--mlx-path", str(folder), "-q", "--q-bits", str(bits)]
    environment = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "MLX_DISABLE_COMPILE": "1"}
    done = subprocess.run([sys.executable, "-m", "mlx_vlm.convert", *words, "--q-group-size", "32"],
                          capture_output=True, text=True, timeout=300, check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    label = f"{bits}-bit affine, group 32 (mlx)"
    assert read_base(folder).precision == label
    places = Places(home=tmp_path / "lab").ensure()
    (places.home / "servers").mkdir(exist_ok=True)
    (places.home / "servers" / "small.toml").write_text(f'engine = "mlx"\nmodel = "{folder}"\n')
    profile = make_profile({"name": "small", "engine": "mlx", "model": str(folder)})

    async def run() -> None:
        ready = await server_of(profile, places).ensure()
        settings = await readback(ready.profile)
        assert settings.precision == label and settings.quantization is not None
        assert (settings.quantization["bits"], settings.quantization["group_size"]) == (bits, 32)
        async with ChatClient(ready.profile) as client:
            answer = await client.ask([Message("user", "Which shape is largest?")], max_tokens=2)
        assert answer.ok and (answer.conditions.precision, answer.conditions.quantization) == (
            label, settings.quantization
        )  # fmt: skip
        await asyncio.to_thread(measure)

    def measure() -> None:
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir()
        run_bench(BenchSettings(server="small", requests=1, output_tokens=2), folder, places)
        told = folder.read_json("conditions.json")
        assert told["precision"] == label and told["quantization"]["bits"] == bits and told["prompt_sha256"]

    try:
        asyncio.run(run())
    finally:
        asyncio.run(server_of(profile, places).stop())
