"""Flows: a preset of kind ``flow`` names steps that follow on each other and pass results on.

A step's settings may hold ``${train.adapter}``: the value ``adapter`` in the summary of step *train*, or
``${train.run}``, the folder of its run. They are filled in when the step starts; everything else is checked when the
flow is queued.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vlmconsole.errors import LabError
from vlmconsole.queue.model import Job
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder

PLACE = re.compile(r"\$\{([A-Za-z0-9_-]+)\.([A-Za-z0-9_.-]+)\}")


class FlowError(LabError):
    """A flow is not well formed, or a result that a step needs is not there."""


class Step(BaseModel):
    """One step: a preset with changed settings. ``after`` names steps: ``train``, or ``train:any`` whatever its end."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    preset: str
    after: list[str] = []
    set: dict[str, Any] = {}


class Flow(BaseModel):
    """The [spec] of a flow preset. Steps may only follow on steps before them, so there are no circles."""

    model_config = ConfigDict(extra="forbid")

    steps: list[Step] = Field(min_length=1)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: list[Step]) -> list[Step]:
        seen: set[str] = set()
        for step in steps:
            needed = {name.partition(":")[0] for name in step.after} | set(sources(step.set))
            if needed - seen:
                missing = sorted(needed - seen)[0]
                raise ValueError(f"step {step.name} needs the step {missing}, which does not stand before it")
            if step.name in seen:
                raise ValueError(f"two steps are called {step.name}")
            seen.add(step.name)
        return steps


def read_flow(name: str, spec: dict[str, Any]) -> Flow:
    """The flow of a preset's spec. Raises FlowError naming the place."""
    try:
        return Flow.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise FlowError(f"flow {name}: {place}: {first['msg'].removeprefix('Value error, ')}") from None


def sources(value: Any) -> list[str]:
    """The names of the steps whose results ``value`` asks for."""
    if isinstance(value, str):
        return [found.group(1) for found in PLACE.finditer(value)]
    if isinstance(value, dict):
        return [name for item in value.values() for name in sources(item)]
    if isinstance(value, list):
        return [name for item in value for name in sources(item)]
    return []


def resolve(store: Store, job: Job) -> dict[str, Any]:
    """The settings of a job with the results of earlier steps filled in. Raises FlowError."""
    if job.flow is None:
        return job.spec
    runs = {step.step or "": step.run for step in store.steps(job.flow)}
    filled = fill(job.spec, runs)
    assert isinstance(filled, dict)
    return filled


def fill(value: Any, runs: dict[str, str | None]) -> Any:
    """``value`` with every ``${step.key}`` replaced; a text that is nothing else keeps the result's own type."""
    if isinstance(value, dict):
        return {key: fill(item, runs) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, runs) for item in value]
    if not isinstance(value, str):
        return value
    whole = PLACE.fullmatch(value)
    if whole:
        return _result(whole.group(1), whole.group(2), runs)
    return PLACE.sub(lambda found: str(_result(found.group(1), found.group(2), runs)), value)


def _result(step: str, key: str, runs: dict[str, str | None]) -> Any:
    run = runs.get(step)
    if run is None:
        raise FlowError(f"step {step} has no run, so its {key} is not known")
    if key == "run":
        return run
    value: Any = RunFolder(Path(run)).read_json("summary.json", {})
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise FlowError(f"the summary of step {step} ({run}) has no “{key}”")
        value = value[part]
    return value
