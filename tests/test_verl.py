"""GRPO through verl, as far as a machine without a GPU goes: settings, dead keys, logs, and the process around it."""

import json
import math
import os
import string
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.grpo import GrpoSpec
from vlmconsole.jobs.grpo_verl import _Follower
from vlmconsole.jobs.presets import load_preset, overlay

from vlmconsole.counting.dataset import make_dataset
from vlmconsole.counting.recipe import load_recipe
from vlmconsole.counting.rows import Row, read_rows
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training import verl
from vlmconsole.training.verl_config import Verl, VerlError, check, dead_keys
from vlmconsole.training.verl_logs import Printed, out_of_memory, read_line, read_rollouts

TRUTH = '{"red_circles": 1, "blue_squares": 2}'


def settings(**more: Any) -> verl.VerlRun:
    given: dict[str, Any] = {
        "model": "/models/qwen",
        "train_file": Path("/data/a, b=c/it's/train.parquet"),
        "validation_file": Path("/data/heldout.parquet"),
        "reward_file": Path("/code/verl_reward.py"),
        "checkpoints": Path("/run/verl-checkpoints"),
        "rollouts": Path("/run/verl-rollouts"),
        "steps": 30,
        "questions": 4,
        "answers": 4,
        "temperature": 1.0,
        "max_prompt_length": 2048,
        "max_new_tokens": 256,
        "lr": 1e-6,
        "weight_decay": 0.01,
        "clip": 0.2,
        "max_norm": 1.0,
        "passes": 1,
        "gpu_memory_utilization": 0.4,
        "offload": True,
        "gpus": 1,
        "steps_per_epoch": 32,
    }
    return verl.VerlRun(**{**given, **more})


# --- settings -------------------------------------------------------------------------------------------------------


def test_the_overrides_say_what_the_lab_did() -> None:
    found = dict(item.split("=", 1) for item in verl.overrides(settings()))
    assert found["algorithm.adv_estimator"] == "grpo" and found["critic.enable"] == "False"
    assert found["actor_rollout_ref.actor.freeze_vision_tower"] == "True"
    assert found["actor_rollout_ref.actor.optim.override_optimizer_config"] == "{foreach:False}"
    assert found["actor_rollout_ref.actor.use_kl_loss"] == found["algorithm.use_kl_in_reward"] == "False"
    assert found["data.shuffle"] == found["trainer.balance_batch"] == "False"  # else the answers cannot be told apart
    assert found["data.train_files"] == r"'/data/a, b=c/it\'s/train.parquet'"
    assert found["trainer.total_epochs"] == "1"
    assert dict(i.split("=", 1) for i in verl.overrides(settings(steps=33)))["trainer.total_epochs"] == "2"
    assert verl.overrides(settings(extra=("trainer.nnodes=2",)))[-1] == "trainer.nnodes=2"
    command = verl.train_command("/env/bin/python", ["a=1; rm -rf ~"])
    assert command == ["/env/bin/python", "-P", "-m", "verl.trainer.main_ppo", "a=1; rm -rf ~"]


def test_a_key_that_is_only_declared_is_dead(tmp_path: Path) -> None:
    declaring, using = tmp_path / "workers" / "config" / "actor.py", tmp_path / "workers" / "worker.py"
    declaring.parent.mkdir(parents=True)
    declaring.write_text(
        "class A:\n    gone: bool = False\n    kept: int = 1\n    built: str = ''\n"
        "    def check(self):\n        assert self.gone is not None\n"
        "def build(config):\n    return config.built\n"
    )
    using.write_text("def run(config):\n    return config.get('kept')\n")
    assert dead_keys(["a.b.gone", "a.b.kept", "a.b.built"], tmp_path) == ["a.b.gone"]
    with pytest.raises(VerlError, match=r"1\.0 accepts a\.b\.gone and does nothing with it"):
        check(["a.b.gone=True"], Verl(tmp_path, "1.0"))
    for odd in ("+a=1", "~a", "++a.b=1", "a b=1", "a"):
        with pytest.raises(VerlError, match="no plain key=value"):
            check([odd], Verl(tmp_path, "1.0"))


# --- logs -----------------------------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**9), 10**9)
NAMES = st.from_regex(r"[a-z_]{1,8}/[a-z_@0-9]{1,10}", fullmatch=True)
PREFIX = st.sampled_from(["", "(TaskRunner pid=4242) ", "\x1b[36m(TaskRunner pid=7)\x1b[0m "])


@given(st.integers(0, 10**6), st.dictionaries(NAMES, NUMBERS, max_size=8), PREFIX, st.booleans(), st.integers(0, 10**6))
def test_step_lines_are_read_back(step: int, values: dict[str, float], prefix: str, scalars: bool, at: int) -> None:
    def show(value: float) -> str:
        return f"np.float64({value!r})" if scalars else repr(value)

    line = prefix + " - ".join([f"step:{step}", *(f"{name}:{show(value)}" for name, value in values.items())])
    found = read_line(line)
    assert found is not None and found.step == step and set(found.values) == set(values)
    for name, value in values.items():
        assert found.values[name] == value or (math.isnan(found.values[name]) and math.isnan(value))
    part = read_line(line[: at % len(line)])  # cut anywhere, it gives nothing wrong but its last value
    if part is not None and part.step == step:
        assert set(list(part.values)[:-1]) <= set(values)


@given(st.text(max_size=200))
def test_any_other_text_is_survived(text: str) -> None:
    found = read_line(text)
    assert found is None or "step:" in text
    assert read_rollouts(text.encode("utf-8", "surrogatepass"))[0] == [] or "score" in text
    out_of_memory(text)


def test_what_is_no_step_line() -> None:
    for line in ("", "Training Progress: step:3", "substep:3 - a/b:1", "step: 3 - a/b:1", "epoch 1, step:x - a/b:1"):
        found = read_line(line)
        assert found is None or found.values == {}
    found = read_line("step:3 - actor/pg_loss:nan - actor/grad_norm:inf - note:text - actor/lr:1e-06")
    assert found is not None and found.not_numbers() == ["actor/pg_loss", "actor/grad_norm"]
    assert found.line()["lr"] == 1e-6 and found.line()["step"] == 3
    assert Printed(1, {"actor/pg_loss": 0.1}).not_numbers() == []


ROLLOUTS = st.lists(
    st.fixed_dictionaries(
        {
            "input": st.text(string.printable),
            "output": st.text(),
            "gts": st.just(TRUTH) | st.none(),
            "score": st.sampled_from([0.0, 0.5, 1.0, 1, float("nan")]),
            "step": st.integers(1, 99),
        },
        optional={"valid": st.sampled_from([0.0, 1.0, True])},
    ),
    max_size=5,
)


@given(ROLLOUTS, st.integers(0, 10**6))
def test_rollout_files_are_read_back_and_torn_lines_counted(lines: list[dict[str, Any]], at: int) -> None:
    encoded = [json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") for line in lines]
    found, bad = read_rollouts(b"\n".join(encoded) + b"\n")
    assert bad == 0 and [one.step for one in found] == [line["step"] for line in lines]
    for one, line in zip(found, lines, strict=True):
        assert one.score == line["score"] or math.isnan(one.score)
        assert one.truth == (line["gts"] or "") and one.valid == (bool(line["valid"]) if "valid" in line else None)
    if encoded:
        torn = encoded[-1][: at % len(encoded[-1])]
        rest, bad = read_rollouts(b"\n".join([*encoded[:-1], torn, b"[1, 2]", b'{"step": 1}']))
        assert len(rest) == len(lines) - 1 and bad == 2 + bool(torn.strip())


def test_memory_faults_are_told_from_others() -> None:
    assert out_of_memory("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total …")
    assert out_of_memory("(WorkerDict pid=1) torch.cuda.OutOfMemoryError: CUDA out of memory")
    assert not out_of_memory("RuntimeError: CUDA error: device-side assert triggered")


# --- the process around it ------------------------------------------------------------------------------------------

# A stand-in for verl's trainer that speaks as it does: rollout file first, then the step's line.
TRAINER = r"""
import json, os, sys, time
folder, mode = sys.argv[1], sys.argv[2]
truth = '{"red_circles": 1, "blue_squares": 2}'
os.makedirs(folder)
print("\x1b[36m(TaskRunner pid=9)\x1b[0m validation generation end", flush=True)
for step in range(1, 4):
    if mode == "memory" and step == 2:
        print("(WorkerDict pid=9) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", flush=True)
        sys.exit(1)
    if mode == "crash" and step == 2:
        print("ValueError: something else", flush=True); sys.exit(3)
    scores = [1.0, 0.0, 0.5, 0.5] + [0.0] * 4
    with open(f"{folder}/{step}.jsonl", "w") as file:
        for i, score in enumerate(scores):
            other = truth if i < 4 else "[]"
            line = {"input": "user\nHow many?", "output": f"answer {i}", "gts": other, "score": score, "step": step}
            file.write(json.dumps({**line, "valid": 1.0}) + "\n")
    loss = "nan" if mode == "nan" and step == 2 else "-0.01"
    for _ in range(2):  # Ray repeats lines
        print(f"(TaskRunner pid=9) step:{step} - actor/pg_loss:{loss} - actor/grad_norm:0.5 - "
              f"critic/rewards/mean:np.float64(0.25) - actor/lr:1e-06 - perf/time_per_step:3.5", flush=True)
    if mode == "slow":
        time.sleep(60)
"""


@pytest.fixture
def follower(tmp_path: Path) -> tuple[_Follower, Context, threading.Event]:
    places = Places(tmp_path / "home").ensure()
    sets = ["engine=verl", "questions=2", "answers=4", "steps=3"]
    spec = overlay(load_preset("grpo-3"), sets)
    assert isinstance(spec, GrpoSpec)
    run = RunFolder.create(places.runs, kind="grpo", preset="p", spec={}, title="t", home=places.home)
    stop = threading.Event()
    context = Context(run, places, None, None, stop)
    rows = [
        Row(f"u{i}", b"\x89PNG" + bytes([i]), "How many?", TRUTH, "vlmconsole/counting", "", "train", i)
        for i in range(4)
    ]
    return _Follower(context, spec, rows, run.file("verl-rollouts")), context, stop


def trainer(context: Context, mode: str) -> list[str]:
    script = context.run.file("trainer.py")
    script.write_text(TRAINER)
    return [sys.executable, "-P", str(script), str(context.run.file("verl-rollouts")), mode]


def test_its_steps_become_the_same_evidence(follower: tuple[_Follower, Context, threading.Event]) -> None:
    one, context, _ = follower
    one.follow(trainer(context, "fine"))
    steps, said = list(context.run.read_jsonl("training.jsonl")), list(context.run.read_jsonl("rollouts.jsonl"))
    assert [line["step"] for line in steps] == [1, 2, 3] and len(said) == 24
    assert steps[0]["reward_mean"] == 0.25 and steps[0]["zero_advantage"] == 0.5 and steps[0]["seconds"] == 3.5
    first = said[:4]
    assert [line["uid"] for line in first] == ["u0"] * 4 and first[0]["advantage"] == pytest.approx(
        0.5 / 0.4082, rel=1e-3
    )
    assert context.run.file(first[0]["picture"]).exists() and first[0]["valid"] is True
    # A truth that is not the expected picture's: the answer is kept, the picture is not claimed.
    assert [line["uid"] for line in said[4:8]] == [None] * 4 and said[4]["picture"] is None
    assert [line["uid"] for line in said[8:12]] == ["u2"] * 4


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("memory", r"after 1 of 3 steps\. .*GPU ran out of memory.*foreach=False.*offload=true"),
        ("crash", r"after 1 of 3 steps \(exit code 3\): ValueError: something else"),
        ("nan", r"pg_loss is no longer a number at step 2"),
    ],
)
def test_its_end_is_explained(follower: tuple[_Follower, Context, threading.Event], mode: str, told: str) -> None:
    one, context, _ = follower
    with pytest.raises(JobError) as ended:
        one.follow(trainer(context, mode))
    import re

    assert re.search(told, f"{ended.value.message} {ended.value.hint}")
    assert next(context.run.read_jsonl("training.jsonl"))["step"] == 1


def test_a_request_to_stop_ends_it(follower: tuple[_Follower, Context, threading.Event]) -> None:
    one, context, stop = follower
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped) as stopped:
        one.follow(trainer(context, "slow"))
    assert time.monotonic() - began < 20 and stopped.value.summary is not None


# --- against the real packages (opt-in: they are fetched) -----------------------------------------------------------


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
        "import json, sys\nfrom vlmconsole.training.verl_config import VerlError, check, installed\n"
        "try:\n    made = check(json.loads(sys.stdin.read()), installed())\n"
        "    print('fine', made['data']['train_files'], made['actor_rollout_ref']['actor']['optim']['lr'])\n"
        "except VerlError as error:\n    print(error.message)\n"
    )
    path = os.pathsep.join([str(wheels / version), str(wheels / "hydra")])
    done = subprocess.run(
        [sys.executable, "-c", code],
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
from vlmconsole.training.model import IMAGE, image_processor

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
        [python or sys.executable, "-c", DATASET, str(file), str(tmp_path / "cache")],
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
