"""Every field of every settings model, for every engine: used, refused by name, or said to be unused."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import vlmconsole
from vlmconsole.engines.profile import Launch, ServerProfile
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.jobs import evaluate, grpo
from vlmconsole.jobs.contract import JobKind
from vlmconsole.jobs.kinds import kind_names, load_kind
from vlmconsole.queue.adding import _plan_one
from vlmconsole.runs.places import Places

ROOT = Path(vlmconsole.__file__).parent.parent


@cache
def attributes(*places: str) -> frozenset[str]:
    """Names that are read off an object anywhere in these files or folders."""
    files = [path for place in places for path in (sorted((ROOT / place).rglob("*.py")) or [ROOT / place])]
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return frozenset(found)


def another(model: type[BaseModel], name: str) -> Any:
    """A value of the field that is not its default."""
    field = model.model_fields[name]
    default = field.get_default(call_default_factory=True)
    choices = get_args(field.annotation)
    if isinstance(default, bool):
        return not default
    if choices and all(isinstance(choice, str) for choice in choices):
        return next(choice for choice in choices if choice != default)
    if isinstance(default, (int, float)):
        return default / 2 if 0 < default < 1 else default + 1
    if isinstance(default, BaseModel):
        return {"gpus": 2}
    named = {"groups": ["x"], "scorer": "naming", "reward": "exact", "limit": 3, "diagnostic": "a:b", "sample": 3}
    return {**named, "blind": "grey"}.get(name, "other")


GRPO_FILES = {
    "verl": ("jobs/grpo_verl.py",),
    "in-process": ("jobs/grpo_local.py", "jobs/grpo_evidence.py"),
}
SHARED = {"engine", "backend"}  # what chooses
THROUGH = {"float32_masters": "has_masters(", "reward": "reward_parts("}  # fields that an engine asks a function about


@pytest.mark.parametrize("engine", GRPO_FILES)
@pytest.mark.parametrize("name", grpo.GrpoSpec.model_fields)
def test_grpo_by_either_engine(name: str, engine: str) -> None:
    spec = grpo.GrpoSpec.model_validate({"engine": engine, name: another(grpo.GrpoSpec, name)} | {"engine": engine})
    unused = [text for text in grpo.unused_settings(spec) if text.startswith(f"{name} ")]
    asked = name in THROUGH and any(THROUGH[name] in (ROOT / place).read_text() for place in GRPO_FILES[engine])
    used = name in attributes(*GRPO_FILES[engine]) or name in SHARED or asked
    refused = [text for text in grpo._impossible(spec) if text.startswith(f"{name} ")]
    # precision and device are checked against what verl does, so they are used in that they are refused or true.
    assert len(unused) == (not used and name not in ("precision", "device")), (unused, used)
    if engine == "verl" and name in ("precision", "device"):
        wrong = grpo.GrpoSpec.model_validate({"engine": "verl", name: {"precision": "float32", "device": "cpu"}[name]})
        assert grpo._impossible(wrong) and not grpo._impossible(grpo.GrpoSpec(engine="verl"))
    elif not unused:
        assert used and not refused


FACTS = ("vlmconsole/evaluation/resolve.py", "vlmconsole/evaluation/settings.py")
BACKEND_FILES = {
    "in-process": ("vlmconsole/evaluation/local.py",),
    "server": ("vlmconsole/evaluation/served.py",),
}


@pytest.mark.parametrize("backend", BACKEND_FILES)
@pytest.mark.parametrize("name", EvaluateSettings.model_fields)
def test_an_evaluation_by_either_backend(name: str, backend: str) -> None:
    given: dict[str, Any] = {"backend": backend, "data": ["small"]} | (
        {"server": "demo"} if backend == "server" else {}
    )
    changed = EvaluateSettings.model_validate(
        given | ({name: another(EvaluateSettings, name)} if name not in given else {})
    )
    if name == "server" and backend == "in-process":
        changed = EvaluateSettings.model_validate(given | {"server": "demo"})
    told = [text for text in evaluate.unused_settings(changed) if text.startswith(f"{name} ")]
    other = "server" if backend == "in-process" else "in-process"
    only_there = name in evaluate.OF_BACKEND[other]
    assert len(told) == only_there, told
    if not told and name not in SHARED:
        everywhere = attributes("vlmconsole/evaluation", "jobs/evaluate.py")
        assert name in everywhere or name in ("before_adapter", "after_adapter", "before_model", "after_model")
    for key in evaluate.OF_BACKEND[backend]:
        # `server` and `base` choose what is opened, which the job itself does.
        assert key in attributes(*BACKEND_FILES[backend], *FACTS), key


def _kinds() -> list[JobKind]:
    return [load_kind(name) for name in kind_names()]


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.name)
def test_every_setting_of_every_kind_is_read_by_something(kind: JobKind) -> None:
    read = attributes("vlmconsole", "jobs")
    unread = [name for name in kind.spec.model_fields if name not in read]
    assert unread == []


@pytest.mark.parametrize("model", [ServerProfile, Launch])
def test_every_key_of_a_server_profile_is_read_by_something(model: type[BaseModel]) -> None:
    assert [name for name in model.model_fields if name not in attributes("vlmconsole", "jobs", "screens")] == []


def test_what_is_not_used_stands_in_the_plan(tmp_path: Path) -> None:
    from vlmconsole.jobs.presets import load_preset

    places = Places(tmp_path)
    planned = _plan_one(load_preset("grpo-3", places), ["seed=7", "scorer=naming"], places, alone=False)
    assert any(text.startswith("seed (7)") for text in planned.unused) and "seed (7)" in planned.warning
    assert not any("scorer" in text for text in planned.unused)
    assert planned.to_json()["unused"] == list(planned.unused)
    quiet = _plan_one(load_preset("grpo-30-tiny", places), [], places, alone=False)
    assert quiet.unused == ()
    loud = _plan_one(load_preset("grpo-30-tiny", places), ["verl.gpus=2"], places, alone=False)
    assert [text.split(" is ")[0] for text in loud.unused] == ["verl (gpus)"]


def test_an_interpreter_that_no_launch_line_takes_is_said() -> None:
    from vlmconsole.engines.profile import make_profile

    def told(first: str) -> list[str]:
        launch = {"argv": [first, "serve"], "interpreter": "env:sglang"}
        return make_profile({"name": "x", "engine": "sglang", "launch": launch}).warnings()

    assert told("python") == [] and "launch.interpreter" in told("/opt/bin/vllm")[0]


@pytest.mark.parametrize("kind", ["bench", "sweep", "smoke"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"server": "mine"}, []),
        ({"server": "mine", "model": "m"}, ["model"]),
        ({"server": "mine", "model": "m", "api_key_env": "KEY"}, ["model", "api_key_env"]),
        ({"base_url": "http://127.0.0.1:1", "model": "m", "api_key_env": "KEY"}, []),
        ({"base_url": "http://127.0.0.1:1", "server": "mine"}, ["server"]),
        ({"server": "mine", "arrivals": "poisson"}, ["arrivals"]),
        ({"server": "mine", "arrivals": "poisson", "rate": 2.0}, []),
    ],
)
def test_a_server_by_its_profile_or_by_its_address(kind: str, given: dict[str, Any], told: list[str]) -> None:
    found = load_kind(kind)
    if not given.keys() <= found.spec.model_fields.keys():
        return  # a first look has no loop
    assert found.unused is not None
    try:
        spec = found.spec.model_validate(given | ({"grid": {"concurrency": [1]}} if kind == "sweep" else {}))
    except ValueError as refused:
        assert told and all(name in str(refused) for name in told)
        return
    assert [text.split(" (")[0] for text in found.unused(spec)] == told


def test_keys_of_the_queue_table_that_have_nothing_to_work_on(tmp_path: Path) -> None:
    from vlmconsole.jobs.presets import Preset

    places = Places(tmp_path)

    def told(queue: dict[str, Any], kind: str = "smoke", spec: dict[str, Any] | None = None) -> list[str]:
        planned = _plan_one(Preset("p", kind, "t", spec or {}, queue=queue), [], places, alone=True)
        return [text.split(" is ")[0] for text in planned.unused]

    assert told({}) == told({"devices": ["cpu"]}) == told({"ray": {}}) == []
    assert told({"devices": ["cpu"], "ray": {}}) == ["[queue] devices"]
    assert told({"keep": False}) == ["[queue] keep"]
    assert told({"keep": False}, "serve", {"profile": "demo"}) == []
