"""Against the real packages of verl (opt-in: they are fetched): settings, dead keys, advantages, its dataset class."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl_run import settings

from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.recipe import load_recipe
from vlmconsole.data.rows import read_rows
from vlmconsole.training.verl import settings as verl


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verl 0.6.1 and 0.9.x beside Hydra, without anything else that they want; fetched once."""
    kept = os.environ.get("VLMCONSOLE_VERL_WHEELS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("verl")
    for name, wanted in (
        ("hydra", ["hydra-core"]),
        ("0.6", ["--no-deps", "verl==0.6.1"]),
        ("0.9", ["--no-deps", "verl>=0.9,<0.10"]),
    ):
        if not (folder / name).exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / name), *wanted]
            subprocess.run(command, check=True, timeout=600)
    return folder


def asked(wheels: Path, version: str, given: list[str]) -> str:
    """What the check says inside an interpreter that has this verl: "fine", or the refusal."""
    code = (
        "import json, sys\nfrom vlmconsole.training.verl.config import VerlError, check, installed\n"
        "try:\n    made = check(json.loads(sys.stdin.read()), installed())\n"
        "    print('fine', made['data']['train_files'], made['actor_rollout_ref']['actor']['optim']['lr'])\n"
        "except VerlError as error:\n    print(error.message)\n"
    )
    path = os.pathsep.join([str(wheels / version), str(wheels / "hydra")])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.stdout.strip()


@pytest.mark.optin
@pytest.mark.timeout(1200)
def test_the_overrides_compose_on_real_verl(wheels: Path) -> None:
    given = verl.overrides(settings())
    assert asked(wheels, "0.6", given) == "fine /data/a, b=c/it's/train.parquet 1e-06"
    assert "actor_rollout_ref.actor.freeze_vision_tower" in asked(wheels, "0.9", given)
    assert "Could not override" in asked(wheels, "0.6", [*given, "actor_rollout_ref.actor.optm.lr=1"])
    assert "another type" in asked(wheels, "0.6", [*given, "data.shuffle=3"])


@pytest.mark.optin
@pytest.mark.timeout(1200)
def test_advantages_equal_verls_own_function(wheels: Path) -> None:
    """verl's function is taken out of its file, as importing it would ask for Ray and more."""
    import ast
    from collections import defaultdict
    from typing import Optional

    import numpy as np
    import torch

    from vlmconsole.training.grpo import advantages

    tree = ast.parse((wheels / "0.6" / "verl" / "trainer" / "ppo" / "core_algos.py").read_text())
    (body,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "compute_grpo_outcome_advantage"]
    body.decorator_list = []
    names: dict[str, Any] = {
        "torch": torch,
        "np": np,
        "defaultdict": defaultdict,
        "Optional": Optional,
        "AlgoConfig": Any,
    }
    exec(compile(ast.Module([body], []), "verl", "exec"), names)
    draw = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 3, (1000, 4), generator=draw) / 2
    rewards[500:] = torch.rand(500, 4, generator=draw)
    mask = torch.ones(4000, 1)
    index = np.repeat(np.arange(1000), 4)
    theirs, _ = names["compute_grpo_outcome_advantage"](rewards.reshape(-1, 1).clone(), mask, index)
    assert torch.equal(theirs[:, 0], advantages(rewards).flatten())


# Runs where verl 0.6.1 can be imported. torchvision is asked for by a package that verl reads pictures with, and used
# for videos only: where it is missing an empty one stands in.
DATASET = r"""
import importlib.machinery, importlib.util, json, sys, types
from transformers import AutoTokenizer, ProcessorMixin
if importlib.util.find_spec("torchvision") is None:
    for name in ("torchvision", "torchvision.io", "torchvision.transforms"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules["torchvision"].__version__ = "0.0"
    sys.modules["torchvision"].io = sys.modules["torchvision.io"]
    transforms = sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    transforms.InterpolationMode, transforms.functional = types.SimpleNamespace(BICUBIC=3), None
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from vlmconsole.training.bases import base_folder
from vlmconsole.training.model import image_processor
from vlmconsole.models.qwen2_5_vl import IMAGE

tokenizer, images = AutoTokenizer.from_pretrained(base_folder("")), image_processor(base_folder(""))

class Processor:
    image_processor, image_token, tokenizer = images, IMAGE, tokenizer
    apply_chat_template = staticmethod(tokenizer.apply_chat_template)
    def __call__(self, text, images=None, videos=None, videos_kwargs=None, return_tensors=None):
        seen = self.image_processor(images=images, return_tensors="pt")
        (grid,), (said,) = seen["image_grid_thw"], text
        assert said.count(IMAGE) == 1 and videos is None
        given = tokenizer([said.replace(IMAGE, IMAGE * (int(grid.prod()) // 4))], return_tensors=return_tensors)
        return {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"], **seen}

config = {"prompt_key": "prompt", "image_key": "images", "max_prompt_length": 512, "truncation": "error"}
config |= {"filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1, "cache_dir": sys.argv[2]}
data = RLHFDataset(data_files=sys.argv[1], tokenizer=tokenizer, config=OmegaConf.create(config), processor=Processor())
batch = collate_fn([data[i] for i in range(len(data))])
print(json.dumps({
    "rows": len(data),
    "ids": list(batch["input_ids"].shape),
    "sizes": [one["image"][0].size for one in batch["multi_modal_data"]],
    "truths": [one["ground_truth"] for one in batch["reward_model"]],
    "sources": list(batch["data_source"]),
    "visual": int((batch["input_ids"][0] == tokenizer.convert_tokens_to_ids(IMAGE)).sum()),
}))
"""


@pytest.mark.optin
@pytest.mark.timeout(900)
def test_the_parquet_loads_in_verls_own_dataset_class(tmp_path: Path) -> None:
    """In the interpreter VLMCONSOLE_VERL_PYTHON (`vlmconsole env make verl-0.6.1`), or with VLMCONSOLE_VERL_SITE, a
    `pip install --target` folder of verl 0.6.1, its dependencies and transformers 4.57.1, on this one's path."""
    python, site = os.environ.get("VLMCONSOLE_VERL_PYTHON"), os.environ.get("VLMCONSOLE_VERL_SITE")
    if not (python or site):
        pytest.skip("neither VLMCONSOLE_VERL_PYTHON nor VLMCONSOLE_VERL_SITE is set")
    recipe = tmp_path / "few.toml"
    split = '[[splits]]\nname = "train"\nrole = "train"\nparts = [{ group = "regular", count = 3 }]\n'
    recipe.write_text(f'title = "few"\nseed = 5\n{split}')
    file = make_dataset(load_recipe(str(recipe)), tmp_path / "datasets") / "train.parquet"
    done = subprocess.run(
        [python or sys.executable, "-P", "-c", DATASET, str(file), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": site or ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert (said["rows"], said["ids"], said["visual"]) == (3, [3, 512], 64)
    assert said["sizes"] == [[448, 448]] * 3 and said["sources"] == ["vlmconsole/counting"] * 3
    assert said["truths"] == [row.truth for row in read_rows(file)]
