"""One measurement of a server, from its settings to a run folder: what `vlmconsole bench` and its job do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole import __version__
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ServerProfile, given_profile, profiles_for
from vlmconsole.engines.readback import adapter_label, readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.engines.served_model import prompt_facts
from vlmconsole.errors import LabError
from vlmconsole.gauges.figures import SourceError
from vlmconsole.gauges.scrape import ServerMetrics
from vlmconsole.measure.calibration.calibrate import read_calibration
from vlmconsole.measure.client.process import Progress, Watch
from vlmconsole.measure.client.replay import Measured
from vlmconsole.measure.inputs import Fitted, InputRecipe
from vlmconsole.measure.least_time import beside
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.measure.machine import hardware
from vlmconsole.measure.probes import fit_to
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.summary import CellSummary
from vlmconsole.measure.workload import used_up, workload_of
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers.where import server_of
from vlmconsole.streams.ending import answered_by, by_name
from vlmconsole.text.counts import many

CLOCK = "request sent → first non-empty text piece / [DONE]; connections open and picture bytes ready before"
CLIENT = f"vlmconsole {__version__} load client"


@dataclass(frozen=True)
class MeasuredServer:
    """The server that is measured: its profile with the address in force, and what it says of itself."""

    profile: ServerProfile
    settings: EffectiveSettings
    model: str


def find_server(
    settings: BenchSettings, places: Places, default: str = "", say: Callable[[str], None] = lambda _: None
) -> MeasuredServer:
    """Return the server that `settings` name, started when it is one of ours that is not running. Raises LabError."""
    if settings.base_url:
        key = settings.api_key_env
        profile = given_profile(settings.base_url, settings.model, name="bench", api_key_env=key, where="bench")
        return asyncio.run(_ask(server_of(profile, places).located()))
    name = settings.server or default
    profiles = profiles_for(name, places.servers)
    if name not in profiles:
        raise LabError(
            f"No server is called “{name}”." if name else "No server is named.",
            f"Known: {', '.join(profiles)}. Or give base_url and model of any OpenAI-compatible server.",
        )

    def progress(phase: str, seconds: float) -> None:
        say(f"{name}: {phase} ({seconds:.0f} s)")

    ready = asyncio.run(server_of(profiles[name], places).ensure(progress))
    return asyncio.run(_ask(ready.profile))


async def _ask(profile: ServerProfile) -> MeasuredServer:
    try:
        settings = await readback(profile)
    except EngineError:
        if not profile.served_model:
            raise
        # Some servers answer chat and nothing else; when the model is named, that is enough to measure them.
        settings = EffectiveSettings(engine=profile.engine, notes=["the server tells nothing about its settings"])
    model = profile.served_model or settings.model
    if not model:
        raise EngineError(f"the server at {profile.base_url} names no model: give it with --model")
    return MeasuredServer(profile, settings, model)


def request_fields(settings: BenchSettings, server: MeasuredServer) -> dict[str, Any]:
    """Return every field of a request but its messages. Where the engine can, the output is held to exactly its
    ceiling.
    """
    engine = find_engine(server.profile.engine)
    body: dict[str, Any] = {
        "model": server.model,
        "max_tokens": settings.output_tokens,
        "temperature": settings.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if {"min_tokens", "ignore_eos"} <= engine.request_fields:
        body |= {"min_tokens": settings.output_tokens, "ignore_eos": True}
    elif settings.equal_work:
        body |= engine.held_output(server.profile)
    engine.rules_for(server.settings).select_adapter(body, server.model, None)
    return body


def fit_input(settings: BenchSettings, server: MeasuredServer, recipe: InputRecipe) -> Fitted | None:
    """Return the filler that makes the wanted input length, found by asking the server; None when none is wanted."""
    if settings.input_tokens is None:
        return None
    return asyncio.run(fit_to(server.profile, recipe, settings.input_tokens))


def measure(
    settings: BenchSettings,
    server: MeasuredServer,
    run: RunFolder,
    *,
    name: str = "",
    calibration: Path | None = None,
    on_progress: Progress | None = None,
    stopping: Callable[[], bool] = lambda: False,
    extra: dict[str, Any] | None = None,
    datasets: Path | None = None,
) -> tuple[CellSummary, Conditions]:
    """Measure once; requests.jsonl grows in `run`. `extra` is kept with each line. Raises LabError.

    `name` is the cell's: it salts the inputs, so two cells never share a prompt. It also gets the run's own name,
    so that a second run does not meet the first one's prompts in the server's cache.
    """
    cell_name = f"{run.name}{f'-{name}' if name else ''}"
    request = request_fields(settings, server)
    load = workload_of(settings, server.profile, request, cell_name, run.path, datasets)
    cell = LoadCell(
        name=cell_name,
        target=Target.to(server.profile),
        measured=load.measured,
        warm_up=load.warm_up,
        concurrency=settings.concurrency,
        due_s=load.due_s,
        until_s=load.until_s,
        wanted_output=load.output,
        equal_work=settings.equal_work,
        lag_limit_s=settings.lag_limit_ms / 1000,
        failure_limit=settings.failure_limit,
        slo=settings.objective,
        stall_timeout_s=settings.stall_timeout_s,
        total_timeout_s=settings.total_timeout_s,
        extra=extra or {},
    )
    run.write_json(f"request{f'-{name}' if name else ''}.json", load.record)

    def on_request(request: Measured) -> None:
        run.events.emit(
            "request",
            ttft_s=request.timing.ttft_s,
            tpot_s=request.timing.tpot_s,
            output_tokens=request.result.usage.completion_tokens,
        )

    try:
        with _watching(server) as watch:
            summary = run_cell(
                cell, run, on_progress=on_progress, on_request=on_request, stopping=stopping, watch=watch
            )
    finally:
        load.close()
    remarks = (*load.notes, *filter(None, [used_up(load, summary.planned, summary.duration_s)]))
    return summary, conditions_of(settings, server, summary, None, calibration, load.facts, remarks)


@contextlib.contextmanager
def _watching(server: MeasuredServer) -> Iterator[Watch | None]:
    """What the server itself says is running and waiting, once a second; None where it has no such figures."""
    source = ServerMetrics.of(server.profile)

    def read() -> dict[str, float]:
        try:
            batch = source.read()
        except SourceError:
            return {}  # a scrape that was missed; the next one counts
        wanted = {"running": "server.running", "waiting": "server.queued", "kv": "server.kv"}
        figures = {short: batch.figures.get(long) for short, long in wanted.items()}
        return {
            short: figure.value
            for short, figure in figures.items()
            if figure and not figure.stale and figure.value is not None
        }

    try:
        try:
            source.read()
        except SourceError:
            yield None
        else:
            yield read
    finally:
        source.close()


def conditions_of(
    settings: BenchSettings,
    server: MeasuredServer,
    summary: CellSummary,
    fitted: Fitted | None,
    calibration: Path | None,
    load: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
) -> Conditions:
    """Return what the figures were made under, as read back and as counted, not as asked for.

    load: further conditions of what was sent, by their names; remarks: notes on it.
    """
    profile, in_force = server.profile, server.settings
    notes = [*in_force.notes, *(fitted.remarks if fitted is not None else ()), *remarks]
    if "logit_bias" in request_fields(settings, server):
        notes.append("answers were kept from ending by a bias of −100 on the model's end tokens")
    if summary.finish_reasons.keys() - {"length"} and not settings.equal_work:
        counts = ", ".join(f"{reason} {count}" for reason, count in summary.finish_reasons.items())
        notes.append(f"answers ended by themselves ({counts}): output work is not equal")
    notes += [remark.text for remark in by_name(list(summary.models), server.model, in_force.listed)]
    model, asked_model = answered_by(list(summary.models), server.model)
    facts = {
        "image": settings.image or None,
        "client_concurrency": None if settings.open_loop else settings.concurrency,
        "rate": settings.rate,
        "max_tokens": settings.output_tokens,
        **(load or {}),
    }
    return Conditions(
        hardware=profile.hardware or ((in_force.this_machine or hardware()) if profile.route == "loopback" else None),
        engine=find_engine(profile.engine).label,
        engine_version=in_force.version,
        model=model,
        asked_model=asked_model,
        precision=in_force.precision or profile.precision or None,
        quantization=in_force.quantization,
        **({} if asked_model else prompt_facts(profile, in_force)),
        adapter=adapter_label(profile, in_force, None),
        input_tokens=summary.input_tokens,
        output_tokens=summary.output_tokens,
        running_limit=in_force.running_limit,
        cache=None if in_force.prefix_cache is None else "on" if in_force.prefix_cache else "off",
        warm_up=f"{_warm_up(settings.warm_ups)}, not counted",
        clock=CLOCK,
        n=summary.n,
        temperature=settings.temperature,
        seed=settings.seed,
        route=profile.route,
        client=CLIENT,
        client_error=read_calibration(calibration, settings.concurrency),
        settings=in_force.values or None,
        notes=tuple(notes),
        **facts,
    )


def _warm_up(count: int) -> str:
    return many(count, "request with a prompt of its own", "requests with prompts of their own")


def run_bench(
    settings: BenchSettings,
    run: RunFolder,
    places: Places,
    *,
    default: str = "",
    on_progress: Progress | None = None,
    stopping: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the whole of one measurement: find the server, measure, write conditions.json, return the summary."""
    server = find_server(settings, places, default, say)
    say(f"measuring {server.model} at {server.profile.base_url}")
    summary, conditions = measure(
        settings,
        server,
        run,
        calibration=places.home / "calibration.json",
        on_progress=on_progress,
        stopping=stopping,
        datasets=places.datasets,
    )
    run.write_json("conditions.json", conditions.model_dump(mode="json"))
    least = beside(settings, server.profile, server.settings, summary, conditions, places.home)
    return summary.to_json() | {"limit": least}
