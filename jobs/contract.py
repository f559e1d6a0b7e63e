"""What a kind of job is: a validated spec and a function that runs inside a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from vlmconsole.errors import LabError
from vlmconsole.runs.events import EventWriter
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

if TYPE_CHECKING:
    from vlmconsole.jobs.proposals import Proposal


class Spec(BaseModel):
    """Base of every job's settings: unknown keys are refused, so a typing slip never runs for an hour.

    Give each field a `Field(description=…)` with its unit: forms, `--plan` and errors show it.
    """

    model_config = ConfigDict(extra="forbid")


class Stopped(Exception):
    """The job stopped cleanly because it was asked to. `summary` is what it can already say."""

    def __init__(self, summary: dict[str, Any] | None = None) -> None:
        super().__init__("stopped on request")
        self.summary = summary


class JobError(LabError):
    """A job's failure told to people: what happened and what to do. The worker adds where the log is."""


class IncompleteError(JobError):
    """Part of the work could not be done: the job failed, and `summary` is what it has all the same."""

    code = "work-incomplete"

    def __init__(self, message: str, hint: str = "", summary: dict[str, Any] | None = None, *, code: str = "") -> None:
        super().__init__(message, hint, code=code)
        self.summary = summary


def not_installed(error: ImportError, doing: str, extra: str) -> JobError:
    """Return what to tell when a library is not there, and which extra of ours brings it. A module of our own that
    cannot be imported is a fault of this program, which no installing mends: then the error itself is raised again."""
    if (error.name or "").partition(".")[0] in ("", "vlmconsole"):
        raise error
    return JobError(
        f"{doing} needs {error.name}: install it with `pip install 'vlmconsole[{extra}]'`", code="library-missing"
    )


@dataclass(frozen=True)
class Estimate:
    """What a job is expected to take; None where nothing honest can be said. `note` says from what."""

    seconds: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    note: str = ""


@dataclass
class Context:
    """What a job gets to work with. It writes into `run` only, and polls `stopping`."""

    run: RunFolder
    places: Places
    earlier: RunFolder | None = None  # the attempt this one continues: read its checkpoint, never write there
    server: dict[str, Any] | None = None  # of a guest: its server's ready.json (base_url, model, …)
    _stop: Event = field(default_factory=Event)

    @property
    def events(self) -> EventWriter:
        return self.run.events

    def stopping(self) -> bool:
        """True once the job was asked to stop: save what there is, then raise Stopped."""
        return self._stop.is_set()

    def check_stop(self) -> None:
        """Raise Stopped when the job was asked to stop. For places where nothing needs saving."""
        if self.stopping():
            raise Stopped

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`, waking at once when asked to stop; returns `stopping()`."""
        return self._stop.wait(seconds)

    def log(self, text: str) -> None:
        """A line in the run's log.txt (the worker's stdout)."""
        print(text, flush=True)


@dataclass(frozen=True)
class JobKind:
    """One kind of job, found through the entry-point group `vlmconsole.jobs`.

    `run(context, spec)` returns the summary (→ summary.json). Heavy imports belong inside it: the
    module itself is imported by the console. `timing_sensitive` jobs take every CPU slot.
    `devices(spec, places)` names what the job must hold, e.g. `["cpu"]`, `["gpu"]`, `["gpu1", "port:30000"]`.
    `needs_server(spec, places)` is the profile that must serve before it starts (None: it needs none that this lab
    starts), `serves(spec)` the profile that the job itself serves. `needs` are
    the importable modules of the extra `train` that it cannot do without (or a function of the spec that names them),
    so that the plan can say which are missing. `problems(spec, places, alone)` are sentences on why the job could not
    do what it is for, as far as that is known before it is queued; in a flow (not `alone`) an earlier step may still
    make what is missing.
    """

    name: str
    title: str
    spec: type[BaseModel]
    run: Callable[[Context, Any], dict[str, Any]]
    estimate: Callable[[Any], Estimate] | None = None
    estimate_here: Callable[[Any, Places], Estimate] | None = None  # the same, where the lab's profiles decide too
    timing_sensitive: bool = False
    devices: Callable[[Any, Places], list[str]] | None = None
    needs_server: Callable[[Any, Places], str | None] | None = None
    serves: Callable[[Any], str | None] | None = None
    needs: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    problems: Callable[[Any, Places, bool], list[str]] | None = None
    unused: Callable[[Any], list[str]] | None = None
    #: (settings that are given, places) → settings that follow from the data, for presets that leave them to it
    propose: Callable[[Mapping[str, Any], Places], Mapping[str, Proposal]] | None = None

    def needed(self, spec: BaseModel | None) -> tuple[str, ...]:
        """Return the modules that a job with these settings cannot do without; none while the settings are not
        known.
        """
        if callable(self.needs):
            return self.needs(spec) if spec is not None else ()
        return self.needs
