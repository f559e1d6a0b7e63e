"""GRPO through verl, as far as a machine without a GPU goes: settings, dead keys, logs, and the process around it."""

import json
import math
import runpy
import string
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from examples import drawn
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from verl_run import TRUTH, settings

from vlmconsole.data.rows import Row
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.grpo_settings import GrpoSpec
from vlmconsole.jobs.grpo_verl import _reward, _VerlFollower
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.scoring import verl_reward
from vlmconsole.scoring.scorers import score
from vlmconsole.training.verl import settings as verl
from vlmconsole.training.verl.config import Verl, VerlError, check, dead_keys
from vlmconsole.training.verl.logs import Printed, out_of_memory, read_line, read_rollouts


# --- settings ---
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
    with refused("setting-dead", "verl 1.0", "a.b.gone", error=VerlError):
        check(["a.b.gone=True"], Verl(tmp_path, "1.0"))
    for odd in ("+a=1", "~a", "++a.b=1", "a b=1", "a"):
        with refused("setting-invalid", "key=value", error=VerlError):
            check([odd], Verl(tmp_path, "1.0"))


# --- logs ---
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


# --- the process around it ---
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
def follower(tmp_path: Path) -> tuple[_VerlFollower, Context, threading.Event]:
    places = Places(tmp_path / "home").ensure()
    sets = ["engine=verl", "questions=2", "answers=4", "steps=3"]
    spec = overlay(load_preset("grpo-3"), sets)
    assert isinstance(spec, GrpoSpec)
    run = RunFolder.create(places.runs, kind="grpo", preset="p", spec={}, title="t", home=places.home)
    stop = threading.Event()
    context = Context(run, places, None, None, stop)
    rows = [
        drawn(Row(f"u{i}", b"\x89PNG" + bytes([i]), "How many?", TRUTH, "vlmconsole/counting", "", "train", i))
        for i in range(4)
    ]
    return _VerlFollower(context, spec, rows, run.file("verl-rollouts")), context, stop


def trainer(context: Context, mode: str) -> list[str]:
    script = context.run.file("trainer.py")
    script.write_text(TRAINER)
    return [sys.executable, "-P", str(script), str(context.run.file("verl-rollouts")), mode]


def test_its_steps_become_the_same_evidence(follower: tuple[_VerlFollower, Context, threading.Event]) -> None:
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
    ("mode", "code", "nouns"),
    [
        ("memory", "gpu-memory", ["1 of 3 steps", "foreach=False", "offload=true"]),
        ("crash", "verl-ended", ["1 of 3 steps", "exit code 3", "ValueError: something else"]),
        ("nan", "training-diverged", ["pg_loss", "step 2"]),
    ],
)
def test_its_end_is_explained(
    follower: tuple[_VerlFollower, Context, threading.Event], mode: str, code: str, nouns: list[str]
) -> None:
    one, context, _ = follower
    with refused(code, *nouns, error=JobError):
        one.follow(trainer(context, mode))
    assert next(context.run.read_jsonl("training.jsonl"))["step"] == 1


def test_a_request_to_stop_ends_it(follower: tuple[_VerlFollower, Context, threading.Event]) -> None:
    one, context, stop = follower
    threading.Timer(1.0, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped) as stopped:
        one.follow(trainer(context, "slow"))
    assert time.monotonic() - began < 20 and stopped.value.summary is not None


# --- rewards ---
@pytest.mark.parametrize("scorer", ["counting", "naming"])
@pytest.mark.parametrize(
    "answer", ["circle", "Circle.", TRUTH, '{"red_circles": 1, "blue_squares": 9}', "", "nonsense"]
)
def test_verls_reward_is_the_named_scorers(scorer: str, answer: str) -> None:
    """Found as verl finds it: the function of that name in the file of that path."""
    truth = {"counting": TRUTH, "naming": "circle"}[scorer]
    module = runpy.run_path(verl_reward.__file__)
    given = module[verl_reward.FUNCTIONS[scorer]](
        data_source="x", solution_str=answer, ground_truth=truth, extra_info={"uid": "u"}
    )
    expected = score(scorer, answer, truth)
    assert given == {
        "score": expected.reward,
        "all_correct": float(expected.all_correct),
        "partial": expected.partial,
        "valid": float(expected.valid),
    }


def test_every_reward_of_a_preset_is_one_for_verl_and_the_run_names_it(
    follower: tuple[_VerlFollower, Context, threading.Event], tmp_path: Path
) -> None:
    one, context, _ = follower
    ours = Path(verl_reward.__file__)
    (tmp_path / "mine.py").write_text("def score(prediction, truth):\n    return prediction == 'yes'\n")
    for sets, wanted in (
        ({"scorer": "naming"}, (ours, "naming_score")),
        ({}, (ours, "compute_score")),  # the examples' own scorer, counting
        ({"scorer": "anls"}, (context.run.file("verl_reward.py"), "compute_score")),
        ({"reward": ["", f"{tmp_path}/mine.py:score"]}, (context.run.file("verl_reward.py"), "compute_score")),
    ):
        spec = GrpoSpec.model_validate({**one.spec.model_dump(), "scorer": "", **sets})
        assert _reward(context, spec, one.examples, []) == wanted
    kept = context.run.read_json("reward.json")
    assert isinstance(kept, dict) and len(kept["sources"]) == 1
    given = runpy.run_path(str(context.run.file("verl_reward.py")))["compute_score"](
        data_source="x", solution_str=TRUTH, ground_truth=TRUTH, extra_info={"uid": "u1"}
    )
    assert (given["score"], given["part/own"], given["failed"]) == (0.5, 1.0, 0.0)
    item = "custom_reward_function.name="
    assert f"{item}compute_score" in verl.overrides(settings())
    assert f"{item}naming_score" in verl.overrides(settings(reward_name=verl_reward.FUNCTIONS["naming"]))


def test_a_broken_truth_is_never_a_silent_zero() -> None:
    for function, truth in ((verl_reward.compute_score, "circle"), (verl_reward.naming_score, "")):
        with pytest.raises(Exception, match="truth"):
            function(data_source="x", solution_str="circle", ground_truth=truth)
