"""What a measurement sends: its bodies, when they are due, and what conditions say of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.measure.arrivals import MOST_REQUESTS
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import Body
from vlmconsole.measure.probes import ALONE, fit_to, seconds_alone
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.trace import read_trace
from vlmconsole.measure.trace_inputs import TraceInputs, token_rate
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import decimal

#: a closed loop of a given duration has so many times the requests that it could send if each took as long as one alone
SPARE = 1.5
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


def workload_of(settings: BenchSettings, profile: ServerProfile, request: dict[str, Any], cell: str) -> Workload:
    """The load that `settings` want. `request` is every field of a request but its messages; `cell` salts the inputs.

    Raises LabError, and asks the server where lengths or a duration must be known beforehand.
    """
    import asyncio

    shape = settings.shape
    due = shape.due(settings.wanted_requests, settings.duration)
    facts: dict[str, Any] = {"arrivals": shape.label() or None, "rate": settings.rate}
    recipe = InputRecipe(f"{cell}/{settings.seed}", request, settings.image_size)
    if settings.arrivals == "trace":
        return _traced(settings, profile, recipe, due or [], facts)
    notes: list[str] = []
    if settings.input_tokens is not None:
        fitted = asyncio.run(fit_to(profile, recipe, settings.input_tokens))
        recipe = InputRecipe(recipe.cell, request, recipe.image, fitted.filler_words)
        notes += fitted.remarks
    count = settings.requests if due is None else len(due)
    until = None
    if due is None and settings.duration is not None:
        until = settings.duration
        count = _enough(settings, profile, recipe)
        notes.append(f"{ALONE} requests were asked alone before, to know how many to prepare")
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


def _enough(settings: BenchSettings, profile: ServerProfile, recipe: InputRecipe) -> int:
    """How many requests a closed loop of `duration` can send at most, by what one takes that has the server alone."""
    alone = InputRecipe(f"{recipe.cell}/alone", recipe.request, recipe.image, recipe.filler_words)
    seconds = seconds_alone(profile, [{**alone.request, "messages": alone.messages(n)} for n in range(ALONE)])
    wanted = SPARE * settings.concurrency * (settings.duration or 0.0) / max(seconds, 1e-3) + settings.concurrency
    return min(MOST_PREPARED, MOST_REQUESTS, math.ceil(wanted))


def used_up(workload: Workload, sent: int, seconds: float | None) -> str:
    """What is to be said of a closed loop whose prepared requests did not last for its duration; else ""."""
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
