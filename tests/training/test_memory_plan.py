"""The memory plan against what autograd really keeps, known models' sizes, and the lab's own facts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import imported, several
from lora import BASE

from vlmconsole.jobs.sft_settings import SftSpec, planned_work
from vlmconsole.models.weights import read_header
from vlmconsole.runs.places import Places
from vlmconsole.training.bases import BaseError
from vlmconsole.training.memory import GIB, KEPT, Work, per_token, plan
from vlmconsole.training.shape import QWEN2_5_VL_3B, ShapeError, shape_of

THREE = "Qwen/Qwen2.5-VL-3B-Instruct"
LAB_CARD = 32760 << 20


def test_sizes_from_a_configuration_are_those_of_the_weights() -> None:
    shape = shape_of(BASE)
    stored = read_header(BASE / "model.safetensors")
    assert shape.parameters == sum(math.prod(tensor.shape) for tensor in stored.values())
    eyes = sum(math.prod(tensor.shape) for name, tensor in stored.items() if "visual" in name)
    assert shape.vision == eyes
    # 7,509,245,952 bytes of bfloat16 in the published checkpoint's index; an adapter of about 57 MiB in the lab.
    assert QWEN2_5_VL_3B.parameters * 2 == 7_509_245_952
    assert QWEN2_5_VL_3B.adapter(8) * 4 / (1 << 20) == pytest.approx(57.1, abs=0.1)
    assert QWEN2_5_VL_3B.kv(4096, 1, 2) == 144 << 20


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("trained", ["adapter", "language"])
def test_activations_are_what_autograd_keeps(precision: str, trained: str) -> None:
    import torch

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.counting.scene import make_scene
    from vlmconsole.training.lora import inject
    from vlmconsole.training.model import encode, load
    from vlmconsole.training.prompts import Turn

    loaded = load(BASE, dtype=precision)
    model = loaded.model
    if trained == "adapter":
        model = inject(model, rank=8)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "visual" not in name
    inputs = encode(loaded, [[Turn(COUNT_PROMPT, "{}", (make_scene(f"m{i}").draw(),))] for i in range(2)])
    kept: dict[int, tuple[int, Any]] = {}
    weights = {parameter.data_ptr() for parameter in model.parameters()}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**inputs, use_cache=False)
    tokens, shape = inputs["input_ids"].numel(), shape_of(BASE)
    measured = sum(size for size, _ in kept.values()) / tokens
    width = 4 if precision == "float32" else 2
    planned = per_token(shape, width, 8 if trained == "adapter" else None) + 4 * shape.vocabulary
    assert planned == pytest.approx(measured, rel=0.005)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("questions", "n", "length"), [(1, 4, 10), (2, 8, 30)])
def test_answers_to_one_question_share_its_prompt(precision: str, questions: int, n: int, length: int) -> None:
    import torch
    from test_grpo import rows

    from vlmconsole.training import grpo, rollout
    from vlmconsole.training.generation import prompt_of
    from vlmconsole.training.model import load

    loaded, shape = load(BASE, dtype=precision), shape_of(BASE)
    grpo.freeze_eyes(loaded.model)
    prompts = rollout.look(loaded, [prompt_of(row) for row in rows(questions)])
    ids = torch.randint(5, 400, (questions * n, length))
    kept: dict[int, tuple[int, Any]] = {}
    weights = {parameter.data_ptr() for parameter in loaded.model.parameters()}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        rollout.log_probabilities(loaded, prompts, rollout.SampledAnswers(ids, torch.ones_like(ids), n))
    work = Work(
        precision=precision,
        trained="language",
        rows=questions * n,
        group=n,
        text_tokens=prompts.ids.shape[1] - 64,
        answer_tokens=length,
        scored=length,
    )
    parts = {part.name: part.bytes for part in plan(work).parts if part.phase == "forward and backward"}
    # Of the logits' line autograd keeps the log-probabilities; the rest is there while they are made.
    planned = parts["activations"] + parts["shared prompts"] + 4 * questions * n * length * shape.vocabulary
    assert planned == pytest.approx(sum(size for size, _ in kept.values()), rel=0.03)


def test_a_process_does_not_inherit_the_peak_of_the_one_that_started_it() -> None:
    import subprocess
    import sys

    inner = "from vlmconsole.training.memory import measured_peak; print(measured_peak())"
    outer = (
        "import subprocess, sys\nballast = bytearray(b'x') * 600_000_000\n"
        f"print(subprocess.run([sys.executable, '-c', {inner!r}], capture_output=True, text=True).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, timeout=60, check=True)
    assert 5_000_000 < int(done.stdout) < 300_000_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("preset", "sets"),
    [
        ("grpo-3-tiny", ["steps=2"]),
        ("grpo-3-tiny", ["steps=2", "answers=16"]),
        ("grpo-3-tiny", ["steps=2", "precision=bfloat16"]),
        ("sft-expand-tiny", ["epochs=1", "dev_epochs=[1]"]),
    ],
)
def test_the_bundled_models_plan_is_what_a_worker_takes(preset: str, sets: list[str], tmp_path: Path) -> None:
    import subprocess
    import sys

    from vlmconsole.jobs.launch import create_run
    from vlmconsole.jobs.presets import load_preset, overlay
    from vlmconsole.runs.places import Places

    places = Places(tmp_path / "home").ensure()
    chosen = load_preset(preset, places)
    run = create_run(places, chosen, overlay(chosen, sets), None)
    subprocess.run([sys.executable, "-m", "vlmconsole.jobs.worker", str(run.path)], timeout=1500, check=True)
    memory = run.read_json("summary.json")["memory"]
    assert memory["planned_bytes"] == pytest.approx(memory["peak_bytes"], rel=0.2)  # 15 % beside other work, and noise


def test_the_labs_own_training_fits_its_card() -> None:
    found = plan(Work(base=THREE, precision="bfloat16", text_tokens=75), "the lab's card", LAB_CARD)
    assert found.verdict == "fits" and found.peak_phase == "forward and backward"
    parts = {part.name: part.bytes for part in found.parts}
    assert parts["weights"] == 7_509_245_952 and parts["optimizer"] == 2 * parts["adapter"]
    assert str(found).startswith("fits: about 19.") and "has 32 GiB" in str(found)
    small = plan(Work(base=THREE, precision="bfloat16", text_tokens=75), "a 16 GiB card", 16 * GIB)
    assert small.verdict == "does not fit"
    saved = plan(Work(base=THREE, precision="bfloat16", text_tokens=75, checkpointing=True), "a 16 GiB card", 16 * GIB)
    assert saved.verdict == "fits"


def test_the_labs_grpo_is_tight_until_adamw_goes_one_by_one() -> None:
    """Its first optimizer step ran out of memory until AdamW used foreach=False."""
    work = {"base": THREE, "precision": "bfloat16", "trained": "language", "rows": 1, "checkpointing": True}
    together = plan(Work(**work, offload=True, foreach=True), "the lab's card", LAB_CARD)
    single = plan(Work(**work, offload=True), "the lab's card", LAB_CARD)
    assert (together.verdict, single.verdict) == ("tight", "fits")
    assert together.peak_phase == single.peak_phase == "optimizer step"
    assert together.peak - single.peak > 5 * GIB
    in_full = plan(Work(**{**work, "precision": "float32"}), "the lab's card", LAB_CARD)
    assert in_full.verdict == "does not fit"


def test_a_dataset_made_in_the_same_process_counts_where_its_memory_is() -> None:
    few, many = plan(Work(), "cpu", 8 * GIB), plan(Work(pictures=1000), "cpu", 8 * GIB)
    assert many.peak - few.peak == 1000 * KEPT
    assert plan(Work(pictures=1000), "gpu0", 8 * GIB).peak == plan(Work(), "gpu0", 8 * GIB).peak
    assert planned_work(SftSpec(data="sft-expand-tiny"), gpu=False).pictures == 1184


def test_a_plan_says_what_it_does_not_know() -> None:
    found = plan(Work(), "gpu0")
    assert found.verdict == "not known" and "not known" in str(found) and found.to_json()["available"] is None
    assert plan(Work()).verdict == "fits"  # the bundled model, on this machine
    assert "+50 %" in found.against(int(found.peak * 1.5))
    with pytest.raises(BaseError):
        plan(Work(base="Some/Other-7B"))


def test_a_configuration_without_its_figures_is_an_error_for_people(tmp_path: Path) -> None:
    for text in ("{", "{}", '{"vision_config": {}, "num_attention_heads": "many"}', '{"vision_config": 3}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ShapeError, match="sizes"):
            shape_of(tmp_path)


def test_own_data_are_planned_by_their_largest_example(tmp_path: Path) -> None:
    """What one more image and a longer text take is in the plan; what is held in memory too."""
    places = Places(tmp_path).ensure()
    short, two, text, *_ = several("train", 5)
    wide = replace(two, id="long", turns=(replace(two.turns[0], text=two.turns[0].text + " word" * 900), two.turns[1]))
    spec = SftSpec(data="own", base="")
    plans, works = [], []
    for name, examples in (("text", [text]), ("short", [short]), ("wide", [short, wide])):
        imported(places.datasets, name, {"train": ("train", examples), "dev": ("dev", [text])})
        works.append(planned_work(spec.model_copy(update={"data": name}), False, places))
        plans.append({part.name + part.phase: part.bytes for part in plan(works[-1]).parts})
    assert [len(work.images or ()) for work in works] == [0, 1, 2]
    assert works[0].text_tokens < works[1].text_tokens + 32 and works[2].text_tokens > 1500
    assert plans[2]["activationsforward and backward"] > 3 * plans[1]["activationsforward and backward"]
    assert plans[2]["visionforward and backward"] == 2 * plans[1]["visionforward and backward"]
    assert "visionforward and backward" not in plans[0] and plans[2]["data"] > plans[1]["data"] > 0
    assert planned_work(SftSpec(data="sft-expand-tiny"), False, places).images is None
