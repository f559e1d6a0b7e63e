"""What a measurement sends: its bodies, when they are due, and what conditions say of them."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmconsole.data.names import ready
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.measure.arrivals import MOST_REQUESTS
from vlmconsole.measure.example_inputs import (
    WARM_TURN,
    ExampleInputs,
    dataset_questions,
    folder_questions,
    salted_messages,
)
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import Body
from vlmconsole.measure.probes import ALONE, fit_to, seconds_alone
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.trace import read_trace
from vlmconsole.measure.trace_inputs import TraceInputs, token_rate
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import decimal

#: a closed loop of a given duration has so many times the requests that it could send if each took as long as one alone
SPARE = 1.5
ASKED_ALONE = f"{ALONE} requests were asked alone before, to know how many to prepare"
MOST_PREPARED = 200_000


@dataclass(frozen=True)
class Workload:
    """Prepared when asked for, one body after the other. `due_s` None: closed loop, which ends after `until_s`.

    `output`: tokens wanted of all answers, or of each. `record` is the first request as it is kept; `facts` are
    conditions, by their names.
    """

    measured: Iterable[Body]
    warm_up: Iterable[Body]
    due_s: list[float] | None
    output: int | Sequence[int]
    record: dict[str, Any]
    until_s: float | None = None
    prepared: int | None = None  # of a closed loop that ends after `until_s`
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None  # once the bodies are made


def workload_of(
    settings: BenchSettings,
    profile: ServerProfile,
    request: dict[str, Any],
    cell: str,
    room: Path,
    datasets: Path | None,
) -> Workload:
    """Return the load that `settings` want. `request` is every field of a request but its messages; `cell` salts the
    inputs.

    room: a folder for what does not fit into memory; datasets: where the lab has its own. Raises LabError, and
    asks the server where lengths or a duration must be known beforehand.
    """
    import asyncio

    shape = settings.shape
    due = shape.due(settings.wanted_requests, settings.duration)
    facts: dict[str, Any] = {"arrivals": shape.label() or None, "rate": settings.rate}
    recipe = InputRecipe(f"{cell}/{settings.seed}", request, settings.image_size)
    if settings.arrivals == "trace":
        return _traced(settings, profile, recipe, due or [], facts)
    if settings.data or settings.images:
        return _examples(settings, profile, recipe, due, facts, room, datasets)
    notes: list[str] = []
    if settings.input_tokens is not None:
        fitted = asyncio.run(fit_to(profile, recipe, settings.input_tokens))
        recipe = InputRecipe(recipe.cell, request, recipe.image, fitted.filler_words)
        notes += fitted.remarks
    count = settings.requests if due is None else len(due)
    until = None
    if due is None and settings.duration is not None:
        until = settings.duration
        alone = InputRecipe(f"{recipe.cell}/alone", recipe.request, recipe.image, recipe.filler_words)
        count = _enough(settings, profile, [{**alone.request, "messages": alone.messages(n)} for n in range(ALONE)])
        notes.append(ASKED_ALONE)
    return Workload(
        measured=recipe.bodies(range(count)),
        warm_up=recipe.bodies(range(-settings.warm_ups, 0)),
        due_s=due,
        output=settings.output_tokens,
        record=recipe.record(0),
        until_s=until,
        prepared=count if until is not None else None,
        facts=facts,
        notes=tuple(notes),
    )


def _enough(settings: BenchSettings, profile: ServerProfile, bodies: list[dict[str, Any]]) -> int:
    """How many requests a closed loop of `duration` can send at most, by what one takes that has the server alone."""
    seconds = seconds_alone(profile, bodies)
    wanted = SPARE * settings.concurrency * (settings.duration or 0.0) / max(seconds, 1e-3) + settings.concurrency
    return min(MOST_PREPARED, MOST_REQUESTS, math.ceil(wanted))


def _examples(
    settings: BenchSettings,
    profile: ServerProfile,
    recipe: InputRecipe,
    due: list[float] | None,
    facts: dict[str, Any],
    room: Path,
    datasets: Path | None,
) -> Workload:
    """Questions of a dataset, or one prompt over a folder's images."""
    if settings.data:
        assert datasets is not None
        questions = dataset_questions(ready(settings.data, datasets), settings.split)
    else:
        questions = folder_questions(named(settings.images), settings.prompt, settings.images_each or 1)
    spool = tempfile.TemporaryFile(dir=room)  # noqa: SIM115 - closed by the workload's `close`
    inputs = ExampleInputs(questions, recipe.request, recipe.cell, spool, settings.jpeg)
    notes: list[str] = []
    count = settings.requests if due is None else len(due)
    until = None
    if due is None and settings.duration is not None:
        until, first = settings.duration, range(ALONE)
        alone = [
            salted_messages(inputs.messages(n % len(inputs)), f"{recipe.cell}/alone", 2 * WARM_TURN) for n in first
        ]
        count = _enough(settings, profile, [{**recipe.request, "messages": messages} for messages in alone])
        notes.append(ASKED_ALONE)
    inputs.check_room(count, room, as_is=settings.repeat_as_is)
    order = inputs.order(count, settings.seed)
    return Workload(
        measured=inputs.bodies(order, as_is=settings.repeat_as_is),
        warm_up=inputs.warm_ups(order, settings.warm_ups),
        due_s=due,
        output=settings.output_tokens,
        record=inputs.record,
        until_s=until,
        prepared=count if until is not None else None,
        facts=facts | inputs.conditions(order, as_is=settings.repeat_as_is),
        notes=(*notes, inputs.note(order)),
        close=spool.close,
    )


def used_up(workload: Workload, sent: int, seconds: float | None) -> str:
    """Return what is to be said of a closed loop whose prepared requests did not last for its duration; else ""."""
    if workload.until_s is None or workload.prepared is None or sent < workload.prepared:
        return ""
    took = "" if seconds is None else f" after {seconds:.0f} s"
    return f"its {decimal(workload.prepared)} prepared requests were used up{took}, before {workload.until_s:g} s"


def _traced(
    settings: BenchSettings, profile: ServerProfile, recipe: InputRecipe, due: list[float], facts: dict[str, Any]
) -> Workload:
    """Requests as a trace has them: due times, lengths of prompts and answers, and prefixes that they share."""
    trace = read_trace(Path(settings.trace))
    requests = trace.requests[: len(due)]
    inputs = TraceInputs(recipe, token_rate(profile, recipe), settings.output_tokens)
    outputs = [inputs.output(request) for request in requests]
    notes = [f"the trace's {many(len(trace.unread), 'key')} {', '.join(trace.unread)} are not read"] * bool(
        trace.unread
    )
    unknown = sum(request.input_tokens is None for request in requests)
    if unknown:
        notes.append(f"{decimal(unknown)} requests of the trace have no input_length: a short prompt stands for each")
    return Workload(
        measured=itertools.starmap(inputs.body, enumerate(requests)),
        warm_up=recipe.bodies(range(-settings.warm_ups, 0)),
        due_s=due,
        output=outputs,
        record=inputs.record(0, requests[0]) if requests else {},
        facts=facts | {"max_tokens": None},
        notes=tuple(notes),
    )
