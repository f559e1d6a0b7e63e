"""From a preset to queued jobs: settings checked, devices and server worked out, an estimate given first."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vlmconsole.jobs.contract import Estimate, JobKind
from vlmconsole.jobs.kinds import IMPORT_FROM, TRUSTED_VARIABLE, load_kind, place_of, trusted
from vlmconsole.jobs.presets import Preset, PresetError, lay_over, load_preset, no_number, odd_number
from vlmconsole.queue.environments import is_name
from vlmconsole.queue.flows import FlowStep, read_flow, sources
from vlmconsole.queue.model import Mode, NewJob
from vlmconsole.queue.schedule import odd
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.queue.submitted_paths import located, stated_functions
from vlmconsole.runs.places import Places
from vlmconsole.scoring.python_scorer import split_name
from vlmconsole.system.typed_paths import named
from vlmconsole.text.settings_errors import explain_all
from vlmconsole.text.toml import toml_value

PRIORITY = 1_000_000  # largest
SHOWN, LONGEST = 3, 40  # changed settings in a title, and characters of the value of each
PYTHON = "python"  # on a Ray cluster: the one of its own environment


class RayOptions(BaseModel):
    """The [queue.ray] table of a preset: do the work on a Ray cluster, which gives out its own devices."""

    model_config = ConfigDict(extra="forbid")

    address: str = Field("http://127.0.0.1:8265", description="The cluster's dashboard")
    cpus: float = Field(1.0, ge=0, description="CPUs asked of Ray")
    gpus: float = Field(0.0, ge=0, description="GPUs asked of Ray")
    auth: Literal["", "token", "disabled"] = Field("", description="Token where the cluster wants one; RAY_AUTH_MODE")
    token_file: str = Field("", description="The token's file, never the token itself; RAY_AUTH_TOKEN_PATH")
    python: str = Field(PYTHON, description="The Python there that has vlmconsole installed")

    @field_validator("token_file")
    @classmethod
    def _whole(cls, value: str) -> str:
        return str(named(value).absolute()) if value else value


class QueueOptions(BaseModel):
    """The [queue] table of a preset."""

    model_config = ConfigDict(extra="forbid")

    devices: list[str] | None = Field(
        None, description="Devices of the job: cpu, cpu:2, cpu:all, gpu, gpu1, port:30000"
    )

    @field_validator("devices")
    @classmethod
    def _devices(cls, value: list[str] | None) -> list[str] | None:
        for request in value or ():
            if odd(request):
                raise ValueError(odd(request))
        return value

    environment: str | None = Field(None, description="The Python environment it runs in (vlmconsole env list)")

    @field_validator("environment")
    @classmethod
    def _environment(cls, value: str | None) -> str | None:
        if value is not None and not is_name(value):
            raise ValueError("must be the name of an environment of this lab (vlmconsole env list), never a path")
        return value

    needs_server: str | None = Field(None, description="Server profile that the job uses")
    ray: RayOptions | None = Field(None, description="Do the work on a Ray cluster")
    keep: bool = Field(True, description="For a server: keep it until it is stopped")
    priority: int = Field(0, ge=-PRIORITY, le=PRIORITY, description="Higher goes first")
    retries: int = Field(0, ge=0, description="Retries after a failure")
    backoff_s: float = Field(30.0, ge=0, description="Seconds before the first retry, doubled each time")
    wall_clock_s: float | None = Field(None, gt=0, description="Seconds after which it is stopped")
    no_progress_s: float | None = Field(None, gt=0, description="Seconds without progress after which it is stopped")
    grace_s: float = Field(30.0, gt=0, description="Seconds between asking it to stop and killing it")


@dataclass(frozen=True)
class Planned:
    """A job ready to be queued, with what it is expected to take. `after_steps` are names within its flow."""

    job: NewJob
    estimate: Estimate | None = None
    after_steps: tuple[tuple[str, Mode], ...] = ()
    partial: bool = False  # the estimate's time does not cover all of it
    missing: tuple[str, ...] = ()  # modules that it needs and the console's own Python has not
    problems: tuple[str, ...] = ()  # why it could not do what it is for: never queued like that
    unused: tuple[str, ...] = ()  # settings that are set and that its engine does not use
    proposed: tuple[str, ...] = ()  # settings that follow from the data, each with its reason

    @property
    def warning(self) -> str:
        """What would make it fail at its start, and the remedy; and what is set in vain. "" for nothing."""
        missing = f"not installed here: {', '.join(self.missing)} (pip install 'vlmconsole[train]')"
        return "; ".join([missing] * bool(self.missing) + list(self.unused))

    def to_json(self) -> dict[str, Any]:
        guess = self.estimate
        return {
            "preset": self.job.preset,
            "kind": self.job.kind,
            "title": self.job.title,
            "step": self.job.step,
            "after_steps": [f"{name}:{mode}" for name, mode in self.after_steps],
            "spec": self.job.spec,
            "devices": list(self.job.devices),
            "environment": self.job.options.get("environment"),
            "server": self.job.server,
            "warning": self.warning or None,
            "problems": list(self.problems),
            "unused": list(self.unused),
            "proposed": list(self.proposed),
            "estimate": {
                "seconds": guess.seconds,
                "memory_bytes": guess.memory_bytes,
                "disk_bytes": guess.disk_bytes,
                "note": guess.note,
            }
            if guess
            else None,
        }


def plan(
    preset: Preset, sets: Sequence[str], places: Places, *, alone: bool = True, refuse: bool = True
) -> list[Planned]:
    """Return what adding `preset` would queue: one job, or the flow's own line and its steps. Raises LabError.

    `alone`: it follows on no job that may still make what it needs. What is certain to fail is an error too, or with
    `refuse=False` only said in `problems`: to be shown, not to be queued.
    """
    planned = _plan(preset, sets, places, alone)
    for step in planned if refuse else ():
        if step.problems:  # better now than after an hour
            raise PresetError(f"{step.job.preset}: {'; '.join(step.problems)}", code="preflight-failed")
    return planned


def _plan(preset: Preset, sets: Sequence[str], places: Places, alone: bool) -> list[Planned]:
    if preset.kind != "flow":
        return [_plan_one(preset, sets, places, alone)]
    flow = read_flow(preset.name, preset.spec)
    own: dict[str, list[str]] = {step.name: [] for step in flow.steps}
    rest: list[str] = []
    for item in sets:
        name, dot, setting = item.partition(".")
        (own[name] if dot and name in own else rest).append(setting)
    if rest:
        raise PresetError(f"in a flow, write --set STEP.key=value (steps: {', '.join(own)})")
    steps = [_plan_step(step, own[step.name], places, preset.queue) for step in flow.steps]
    head = NewJob(preset.name, "flow", preset.title, {"steps": list(own)}, devices=())
    unknown = [step for step in steps if step.estimate is None or step.estimate.seconds is None]
    return [Planned(head, together(steps), partial=bool(unknown)), *steps]


def together(steps: Sequence[Planned]) -> Estimate:
    """Return what the steps of a flow take: times and disk added up, the largest memory; the note names what is not in
    it.
    """
    guesses = [step.estimate or Estimate() for step in steps]
    seconds = [guess.seconds for guess in guesses if guess.seconds is not None]
    memory = [guess.memory_bytes for guess in guesses if guess.memory_bytes is not None]
    disk = [guess.disk_bytes for guess in guesses if guess.disk_bytes is not None]
    unknown = [step.job.step or "" for step, guess in zip(steps, guesses, strict=True) if guess.seconds is None]
    note = f"the sum of {len(seconds)} of {len(steps)} steps, one after the other"
    if unknown:
        note += f"; no estimate for: {', '.join(unknown)}"
    return Estimate(sum(seconds) if seconds else None, max(memory, default=None), sum(disk) if disk else None, note)


def _plan_step(step: FlowStep, sets: Sequence[str], places: Places, queue: dict[str, Any]) -> Planned:
    """One step; `queue` is the flow's own [queue] table, which each step's preset may overrule."""
    own = load_preset(step.preset, places)
    preset = replace(own, spec=merge(own.spec, step.set), queue={**queue, **own.queue})
    planned = _plan_one(preset, sets, places, alone=False, stated=own)
    after = sources(step.set)
    for text in step.after:
        name, _, mode = text.partition(":")
        if mode not in ("", "ok", "any"):
            raise PresetError(f"step {step.name}: after = “{text}”: write {name} or {name}:any")
        after[name] = "any" if mode == "any" else "ok"
    return replace(planned, job=replace(planned.job, step=step.name), after_steps=tuple(after.items()))


def _plan_one(
    preset: Preset, sets: Sequence[str], places: Places, alone: bool, stated: Preset | None = None
) -> Planned:
    kind = load_kind(preset.kind, places)
    options = _options(preset)
    _check_python(options, places)
    laid = lay_over(preset, sets)
    _check_functions(kind, preset, laid, places)
    given, proposed = with_proposals(kind, preset, laid, places)
    spec = located(kind.spec, given, _bases(preset), places, later=not alone)
    model = _check(kind, spec, preset.name)
    # What work on a cluster needs is there and not here.
    problems = kind.problems(model, places, alone) if kind.problems and model and options.ray is None else []
    settings = model.model_dump(mode="json") if model else spec
    devices = options.devices
    if devices is None:
        devices = list(kind.devices(model, places)) if kind.devices and model else ["cpu"]
    if kind.timing_sensitive:
        devices = [*(device for device in devices if not device.startswith("cpu")), "cpu:all"]
    if options.ray is not None:
        devices = []  # Ray gives out its own
    server = options.needs_server
    if server is None and options.ray is None and kind.needs_server and model:
        server = kind.needs_server(model, places)
    serves = kind.serves(model) if kind.serves and model else None
    job = NewJob(
        preset.name,
        preset.kind,
        titled(stated or preset, kind.title, lay_over(preset, sets)),
        settings,
        options.model_dump(exclude_none=True, exclude={"devices", "needs_server", "priority", "keep"})
        | _module(preset),
        tuple(devices),
        server,
        serves,
        bool(serves) and options.keep,
        priority=options.priority,
    )
    # A job with an environment of its own runs in another Python, which is not looked into.
    missing = () if options.environment else tuple(name for name in kind.needed(model) if find_spec(name) is None)
    guess = kind.estimate(model) if kind.estimate and model else None
    if kind.estimate_here and model:
        guess = kind.estimate_here(model, places)
    unused = [*(kind.unused(model) if kind.unused and model else ()), *_idle_options(options, serves)]
    return Planned(
        job, guess, missing=missing, problems=tuple(dict.fromkeys(problems)), unused=tuple(unused), proposed=proposed
    )


def with_proposals(
    kind: JobKind, preset: Preset, given: dict[str, Any], places: Places
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(settings with what the preset leaves to the data, a line of each that was proposed with its reason)."""
    if not preset.proposed or kind.propose is None:
        return given, ()
    proposals = kind.propose(given, places)
    used = {key: proposals[key] for key in preset.proposed if key in proposals and key not in given}
    lines = tuple(f"{key} = {toml_value(proposal.value)}: {proposal.reason}" for key, proposal in used.items())
    return {**given, **{key: proposal.value for key, proposal in used.items()}}, lines


def _idle_options(options: QueueOptions, serves: str | None) -> list[str]:
    """Keys of the [queue] table that are set and have nothing to work on."""
    idle = []
    if options.ray is not None and options.devices:
        idle.append("[queue] devices is not used with [queue.ray]: Ray gives out its own")
    if not options.keep and serves is None:
        idle.append("[queue] keep is not used: this job is no server")
    return idle


def _bases(preset: Preset) -> tuple[Path, ...]:
    """Where relative paths begin: in the working directory, or beside the preset's own file."""
    own = Path(preset.source).absolute().parent if preset.source.endswith(".toml") else None
    return (Path.cwd(), own) if own is not None and own.is_dir() else (Path.cwd(),)


def _module(preset: Preset) -> dict[str, str]:
    """Where the module of a kind of the user's own was found, for processes that another environment began."""
    place = place_of(preset.kind)
    return {IMPORT_FROM: place} if place else {}


def titled(preset: Preset, kind: str, spec: Mapping[str, Any]) -> str:
    """Return what a job is called: as its preset, whose title may tell figures of its settings; where `spec` has
    others than the preset states, by its kind and what is different.
    """
    changed = list(_changes(preset.spec, spec))
    if not changed:
        return preset.title
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"{kind}: {preset.name} with {', '.join(changed[:SHOWN])}{more}"


def _changes(stated: Mapping[str, Any], spec: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, old in stated.items():
        new = spec.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(old, new, f"{before}{key}.")
        elif new != old and new not in (None, "", [], {}) and not sources(new):  # no result of an earlier step yet
            text = new if isinstance(new, str) else json.dumps(new, ensure_ascii=False, default=str)
            yield f"{before}{key} = {text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"


def _check_python(options: QueueOptions, places: Places) -> None:
    """Raise PresetError where the [queue] table names a program or a token's file that its user does not trust."""
    python = options.ray.python if options.ray is not None else PYTHON
    token = options.ray.token_file if options.ray is not None else ""
    # It is sent to the address that the preset names: nobody else's preset may choose what is sent.
    if token and Path(token).parent != Path.home() / ".ray" and token not in trusted(places):
        raise PresetError(
            f"[queue.ray] token_file = {token!r} is a file that a preset may not have sent",
            f"Export RAY_AUTH_TOKEN_PATH where you queue, or trust it: trusted_programs = {json.dumps(token)}.",
            code="file-untrusted",
        )
    if python != PYTHON and python not in trusted(places):
        raise PresetError(
            f"[queue.ray] python = {python!r} is a program that a preset may not name",
            f"If you trust it: trusted_programs = {toml_value(python)} in config.toml, or {TRUSTED_VARIABLE}.",
            code="program-untrusted",
        )


def _check_functions(kind: JobKind, preset: Preset, laid: Mapping[str, Any], places: Places) -> None:
    """Raise PresetError where the preset itself names a file to be run that its user does not trust; who names one
    with `--set` chose it."""
    for key, value in preset.spec.items():
        if laid.get(key) != value:
            continue
        for name in stated_functions(kind.spec, {key: value}):
            file = str(named(split_name(name)[0]).absolute())
            if file not in trusted(places):
                raise PresetError(
                    f"{preset.name}: {key} = {name!r} is a file that a preset may not have run",
                    f"Name it yourself: --set {key}={name}; or trust it: trusted_programs = {toml_value(file)}.",
                    code="program-untrusted",
                )


def _check(kind: JobKind, spec: dict[str, Any], name: str) -> BaseModel | None:
    """The validated spec; None when only results of earlier steps are still missing from it."""
    if wrong := odd_number(spec) or no_number(kind.spec, spec):
        raise PresetError(f"{name}: {wrong}", code="setting-invalid")
    try:
        return kind.spec.model_validate(spec)
    except ValidationError as error:
        real = [problem for problem in error.errors() if not sources(problem.get("input"))]
        if real:
            raise PresetError(f"{name}: {explain_all(real, kind.spec, None)}", code="setting-invalid") from None
        return None


def _options(preset: Preset) -> QueueOptions:
    if wrong := odd_number(preset.queue):
        raise PresetError(f"{preset.name}, [queue]: {wrong}", code="setting-invalid")
    try:
        return QueueOptions.model_validate(preset.queue)
    except ValidationError as error:
        wrong = explain_all(error.errors(), QueueOptions, None)
        raise PresetError(f"{preset.name}, [queue]: {wrong}", code="setting-invalid") from None


def merge(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`spec` with `changes` laid over it, table by table."""
    merged = dict(spec)
    for key, value in changes.items():
        inner = merged.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        merged[key] = merge(inner, value) if both else value  # type: ignore[arg-type]
    return merged


def add(
    store: Store,
    planned: Sequence[Planned],
    *,
    after: Sequence[tuple[int, Mode]] = (),
    priority: int | None = None,
    hand_over: bool = False,
) -> int:
    """Queue what was planned, all or nothing; returns the number of the job, or of the flow. Raises QueueError."""
    if priority is not None and abs(priority) > PRIORITY:
        raise QueueError(
            f"the priority {priority} is too large",
            f"write one from {-PRIORITY} to {PRIORITY}",
            code="number-too-large",
        )
    with store.change():
        numbers: dict[str, int] = {}
        flow: int | None = None
        for step in planned:
            inner: list[tuple[int, Mode]] = [(numbers[name], mode) for name, mode in step.after_steps]
            job = replace(
                step.job,
                flow=flow,
                after=(*after, *inner) if step.job.kind != "flow" else (),
                priority=step.job.priority if priority is None else priority,
                hand_over=hand_over,
            )
            number = store.add(job)
            if step.job.kind == "flow":
                flow = number
            if step.job.step:
                numbers[step.job.step] = number
        return flow if flow is not None else number
