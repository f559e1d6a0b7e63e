"""Every field of the installed PEFT's LoraConfig: computed as PEFT's own merge computes it, or refused by its name.

A field that nobody has classified here fails the first test; the code refuses it anyway.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lora import BASE

from vlmconsole.training.adapters.config import KEYS, lora_settings
from vlmconsole.training.adapters.convert import merge
from vlmconsole.training.adapters.store import AdapterError, check_fits, load_peft, open_adapter
from vlmconsole.training.lora import LANGUAGE_ONLY

peft = pytest.importorskip("peft")
lora = peft.tuners.lora.config


@dataclasses.dataclass(frozen=True)
class Case:
    """A value of a field: `options` build the adapter by real PEFT, `edit` changes the saved configuration after.

    `prepare` is what PEFT wants done to the model first. `names`: the key that a refusal must name.
    """

    field: str
    options: dict[str, Any]
    honoured: bool
    edit: dict[str, Any] = dataclasses.field(default_factory=dict)
    prepare: Callable[[Any, Any], None] | None = None
    names: str = ""

    def __str__(self) -> str:
        return f"{self.field}-{'honoured' if self.honoured else 'refused'}"


def _corda(model: Any, config: Any) -> None:
    import torch
    from peft.tuners.lora.corda import preprocess_corda

    preprocess_corda(model, config, run_model=lambda: model(input_ids=torch.arange(160)[None]))


def honoured(field: str, edit: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(field, options, True, edit or {})


def refused(field: str, edit: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(field, options, False, edit or {})


LISTED = ["q_proj", "k_proj", "o_proj"]
CASES = [
    honoured("task_type", task_type="CAUSAL_LM"),
    refused("task_type", task_type="FEATURE_EXTRACTION"),
    refused("peft_type", edit={"peft_type": "ADALORA"}),
    honoured("auto_mapping", auto_mapping={"base_model_class": "X", "parent_library": "y"}),
    honoured("peft_version", peft_version="0.9"),
    honoured("base_model_name_or_path", base_model_name_or_path="elsewhere/other"),
    honoured("revision", revision="main"),
    honoured("inference_mode", edit={"inference_mode": False}),
    honoured("r", r=6),
    honoured("target_modules", target_modules=["q_proj", "v_proj"]),
    Case("target_modules", {"target_modules": "all-linear"}, False, names="visual"),
    Case("target_modules", {"target_modules": ["gate_proj"]}, False, names="visual"),
    honoured("exclude_modules", exclude_modules=["o_proj"]),
    honoured("exclude_modules", target_modules=["gate_proj", "up_proj"], exclude_modules=r".*visual.*"),
    honoured("lora_alpha", lora_alpha=3),
    honoured("lora_dropout", lora_dropout=0.1),
    honoured("fan_in_fan_out", fan_in_fan_out=True),
    refused("bias", bias="all"),
    refused("bias", bias="lora_only"),
    honoured("use_rslora", use_rslora=True),
    refused("modules_to_save", modules_to_save=["lm_head"]),
    honoured("init_lora_weights", init_lora_weights=False),
    honoured("init_lora_weights", init_lora_weights="gaussian"),
    honoured("init_lora_weights", init_lora_weights="orthogonal"),
    honoured("init_lora_weights", init_lora_weights="mica"),
    honoured("init_lora_weights", init_lora_weights="eva"),
    refused("init_lora_weights", init_lora_weights="pissa"),
    refused("init_lora_weights", init_lora_weights="pissa_niter_4"),
    refused("init_lora_weights", init_lora_weights="olora"),
    refused("init_lora_weights", edit={"init_lora_weights": "loftq"}),  # PEFT makes one only with bitsandbytes
    refused("init_lora_weights", edit={"init_lora_weights": "PiSSA"}),
    refused("init_lora_weights", edit={"init_lora_weights": 1}),
    refused("init_lora_weights", init_lora_weights="lora_ga", lora_ga_config=lora.LoraGAConfig()),
    Case("init_lora_weights", {"init_lora_weights": "corda"}, False, prepare=_corda),
    honoured("layers_to_transform", target_modules=LISTED, layers_to_transform=[0, 2]),
    honoured("layers_to_transform", target_modules=LISTED, layers_to_transform=0),
    honoured("layers_pattern", target_modules=LISTED, layers_to_transform=1, layers_pattern="layers"),
    honoured("rank_pattern", rank_pattern={"q_proj": 2, r"layers\.1\.mlp\.up_proj": 7, "layers.2.mlp.up_proj": 1}),
    honoured("alpha_pattern", alpha_pattern={"k_proj": 5, r"model.language_model.layers.\d.mlp.down_proj": 1.5}),
    honoured("alpha_pattern", use_rslora=True, rank_pattern={"v_proj": 3}, alpha_pattern={"v_proj": 7}),
    refused("megatron_config", edit={"megatron_config": {"num_layers": 4}}),
    honoured("megatron_core", megatron_core="megatron.other"),
    refused("trainable_token_indices", trainable_token_indices=[3, 4]),
    refused("loftq_config", edit={"loftq_config": {"loftq_bits": 4}}),
    honoured("eva_config", eva_config=lora.EvaConfig(rho=1.5)),
    refused("corda_config", corda_config=lora.CordaConfig()),
    refused("lora_ga_config", lora_ga_config=lora.LoraGAConfig()),
    refused("use_dora", use_dora=True),
    refused("velora_config", velora_config=lora.VeloraConfig()),
    refused("alora_invocation_tokens", alora_invocation_tokens=[5, 6], task_type="CAUSAL_LM"),
    refused("use_qalora", use_qalora=True),
    honoured("qalora_group_size", qalora_group_size=32),
    refused("monteclora_config", monteclora_config=lora.MontecloraConfig()),
    refused("layer_replication", edit={"layer_replication": [[0, 2], [1, 4]]}),
    honoured("runtime_config", runtime_config=lora.LoraRuntimeConfig(ephemeral_gpu_offload=True)),
    refused("lora_bias", lora_bias=True, target_modules=["q_proj", "v_proj"]),
    refused("target_parameters", target_parameters=["self_attn.q_proj.weight"], target_modules=["v_proj"]),
    refused("use_bdlora", edit={"use_bdlora": {"nblocks": 2}}),
    refused("arrow_config", edit={"arrow_config": {}}),
    refused("kasa_config", kasa_config=lora.KasaConfig()),
    refused("kasa_config", edit={"kasa_config": {}}),  # all defaults, and in use
    refused("ensure_weight_tying", ensure_weight_tying=True),
]


QUICK = ("use_rslora", "rank_pattern", "layers_pattern", "use_dora", "lora_bias", "target_parameters", "bias")
"""Fields of the default run; the whole walk takes half a minute and is a slow test."""


def _quick(case: Case) -> bool:
    return case.field in QUICK or case.options.get("init_lora_weights") in ("pissa", "orthogonal")


def built(case: Case, folder: Path) -> Any:
    """An adapter as PEFT makes and saves it, with random matrices for trained ones; returns PEFT's model."""
    import torch

    from vlmconsole.training.model import load

    options = {"r": 4, "lora_alpha": 8, "target_modules": LANGUAGE_ONLY, **case.options}
    model = load(BASE).model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(**options)
        if case.prepare is not None:
            case.prepare(model, config)
        adapted = peft.get_peft_model(model, config)
        torch.manual_seed(7)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_A" in name or "lora_B" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        adapted.save_pretrained(str(folder))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **case.edit}))
    return adapted


def test_every_field_is_classified() -> None:
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert fields == {case.field for case in CASES}, "classify it here, and in KEYS if it is computed as PEFT does"
    assert fields - {"runtime_config"} == set(KEYS)  # PEFT never writes its runtime settings down
    kinds = {field: {case.honoured for case in CASES if case.field == field} for field in fields}
    computed, never = (sum(value in kinds[field] for field in fields) for value in (True, False))
    both = sum(len(found) == 2 for found in kinds.values())
    print(
        f"PEFT {peft.__version__}: {len(fields)} fields, {computed} honoured ({both} of them for some values only), "
        f"{never - both} refused whenever they are used, none silent"
    )
    assert computed + never - both == len(fields)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=() if _quick(case) else pytest.mark.slow) for case in CASES]
)
def test_it_equals_pefts_merge_or_is_refused(case: Case, tmp_path: Path) -> None:
    import torch

    from vlmconsole.training.model import load

    adapted = built(case, tmp_path / "adapter")
    adapter = open_adapter(tmp_path / "adapter")
    if not case.honoured:
        with pytest.raises(AdapterError, match=case.names or case.field):
            check_fits(adapter, BASE, None, override=True)
        with pytest.raises(AdapterError):
            merge(BASE, adapter, tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
        return
    ours = load(merge(BASE, adapter, tmp_path / "merged")).model.state_dict()
    theirs, base = adapted.merge_and_unload().state_dict(), load(BASE).model.state_dict()
    load_peft(load(BASE), adapter.path)  # every number and scale is what PEFT reads, too
    assert ours.keys() == theirs.keys()
    changed = 0
    for name, value in theirs.items():
        moved = float((value - base[name]).abs().max())
        changed += moved > 0
        # Twice the unit in the last place of the largest number, for a sum of a few products in another order.
        assert float((ours[name] - value).abs().max()) <= 2**-22 * float(value.abs().max()), name
        assert moved == 0 or moved > 0.01
    assert changed == len(torch.unique(torch.tensor([hash(key) for key in lora_modules(adapter)])))


def lora_modules(adapter: Any) -> list[str]:
    return [layer.module for layer in adapter.layers]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_what_pefts_own_conversion_makes_of_them_is_the_trained_model(start: str, tmp_path: Path) -> None:
    """The way out that the refusal names: saved against the untouched start, it is a plain LoRA of twice the rank."""
    import torch

    from vlmconsole.training.model import load

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=LANGUAGE_ONLY, init_lora_weights=start)
    adapted = peft.get_peft_model(load(BASE).model, config)
    config.init_lora_weights = True
    adapted.save_pretrained(str(tmp_path / "start"))
    config.init_lora_weights = start
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    adapted.save_pretrained(str(tmp_path / "whole"), path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    ours = load(merge(BASE, open_adapter(tmp_path / "whole"), tmp_path / "merged")).model.state_dict()
    theirs, base = adapted.merge_and_unload().state_dict(), load(BASE).model.state_dict()
    assert max(float((ours[name] - value).abs().max()) for name, value in theirs.items()) < 1e-5
    assert max(float((base[name] - value).abs().max()) for name, value in theirs.items()) > 0.1


def test_a_field_of_a_later_peft_is_refused() -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    assert lora_settings(config, Path("x")).plain
    for later in ({"use_brand_new": True}, {"use_brand_new": None}, {"unsloth_fixed": True}):
        with pytest.raises(AdapterError, match=next(iter(later))):
            lora_settings({**config, **later}, Path("x"))
