"""Flows: a preset of kind `flow` names steps that follow on each other and pass results on.

A step's settings may hold `${train.adapter}`: the value `adapter` in the summary of step *train*, or
`${train.run}`, the folder of its run. They are filled in when the step starts; everything else is checked when the
flow is queued. `${train.run?}` asks for it only if it is there: the step then follows on *train* however that ended,
and what is missing is null in a table, nothing in a list or a text.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vlmconsole.errors import LabError
from vlmconsole.queue.model import Job, Mode
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.settings_errors import explain_all

PLACE = re.compile(r"\$\{([A-Za-z0-9_-]+)\.([A-Za-z0-9_.-]+)(\??)\}")


class FlowError(LabError):
    """A flow is not well formed, or a result that a step needs is not there."""

    code = "flow-invalid"


class FlowStep(BaseModel):
    """One step: a preset with changed settings. `after` names steps: `train`, or `train:any` whatever its end."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    preset: str
    after: list[str] = []
    set: dict[str, Any] = {}


class Flow(BaseModel):
    """The [spec] of a flow preset. Steps may only follow on steps before them, so there are no circles."""

    model_config = ConfigDict(extra="forbid")

    steps: list[FlowStep] = Field(min_length=1)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: list[FlowStep]) -> list[FlowStep]:
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
    """Return the flow of a preset's spec. Raises FlowError naming the place."""
    try:
        return Flow.model_validate(spec)
    except ValidationError as error:
        raise FlowError(f"flow {name}: {explain_all(error.errors(), Flow)}") from None


def sources(value: Any) -> dict[str, Mode]:
    """Return the steps whose results `value` asks for: "ok" where it needs one, "any" where it would only have it."""
    if isinstance(value, str):
        modes: dict[str, Mode] = {}
        for place in PLACE.finditer(value):
            if not place.group(3) or place.group(1) not in modes:
                modes[place.group(1)] = "any" if place.group(3) else "ok"
        return modes
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    together: dict[str, Mode] = {}
    for item in inner:
        for name, mode in sources(item).items():
            together[name] = mode if together.get(name, mode) == mode else "ok"
    return together


def resolve(store: Store, job: Job) -> dict[str, Any]:
    """Return the settings of a job with the results of earlier steps filled in. Raises FlowError."""
    if job.flow is None:
        return job.spec
    runs = {step.step or "": step.run for step in store.steps(job.flow)}
    filled = fill(job.spec, runs)
    assert isinstance(filled, dict)
    return filled


def fill(value: Any, runs: dict[str, str | None]) -> Any:
    """`value` with every `${step.key}` replaced; a text that is nothing else keeps the result's own type.

    Raises FlowError for a result that is not there, unless it is asked for as `${step.key?}`.
    """
    if isinstance(value, dict):
        return {key: fill(item, runs) for key, item in value.items()}
    if isinstance(value, list):
        pairs = [(item, fill(item, runs)) for item in value]
        return [filled for item, filled in pairs if filled is not None or item is None]
    if not isinstance(value, str):
        return value
    whole = PLACE.fullmatch(value)
    if whole:
        return _result(whole, runs)
    return PLACE.sub(lambda place: str(_result(place, runs) or ""), value)


def _result(place: re.Match[str], runs: dict[str, str | None]) -> Any:
    """The value that one place asks for; None when it may be missing and is."""
    step, key, optional = place.groups()
    try:
        return _known(step, key, runs)
    except FlowError:
        if optional:
            return None
        raise


def _known(step: str, key: str, runs: dict[str, str | None]) -> Any:
    run = runs.get(step)
    if run is None:
        raise FlowError(f"step {step} has no run, so its {key} is not known", code="run-missing")
    if key == "run":
        return run
    value: Any = RunFolder(Path(run)).read_json("summary.json", {})
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise FlowError(f"the summary of step {step} ({run}) has no “{key}”")
        value = value[part]
    return value
