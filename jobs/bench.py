"""The kind `bench`: one measurement of a server, as `vlmconsole bench` does it, for the queue and for presets."""

from __future__ import annotations

from typing import Any

from vlmconsole.data.names import look_up
from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, Estimate, JobKind, Stopped
from vlmconsole.jobs.serve import started_by_the_lab
from vlmconsole.jobs.unused_settings import unused_by_client
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.places import Places


def run(context: Context, spec: BenchSettings) -> dict[str, Any]:
    """Measure, tell the gauges meanwhile, and return the cell's summary; a stopped run keeps what it has."""
    from vlmconsole.measure.bench import run_bench

    def on_progress(now: dict[str, Any]) -> None:
        if now["phase"] != "measured":
            return
        if spec.wanted_requests is None and spec.duration is not None:
            context.events.progress(min(now["elapsed_s"], spec.duration), spec.duration, "s")
        else:
            context.events.progress(now["done"], now["total"], "requests")
        context.events.metric("in_flight", now["in_flight"])
        context.events.metric("client_lag_s", now["lag_p99_ms"] / 1000, unit="s")

    summary = run_bench(
        spec, context.run, context.places, on_progress=on_progress, stopping=context.stopping, say=context.events.note
    )
    if context.stopping():
        raise Stopped(summary)
    return summary


def estimate(spec: BenchSettings) -> Estimate:
    """Return a duration and an open loop's length are known beforehand; how fast the server is shows only while it
    runs.
    """
    if spec.duration is not None:
        return Estimate(seconds=spec.duration, note="duration, and the last answers")
    if spec.arrivals == "trace":
        return Estimate(note="as long as its trace")
    if spec.rate is None:
        return Estimate(note="as long as the server takes for its answers")
    begin = spec.ramp_from if spec.ramp_from is not None else spec.rate
    return Estimate(seconds=2 * spec.requests / (begin + spec.rate), note="requests / rate, and the last answers")


def problems(spec: BenchSettings, places: Places, alone: bool) -> list[str]:
    """Return a trace that cannot be read, a dataset that is not there."""
    try:
        if spec.arrivals == "trace" and "${" not in spec.trace:
            spec.shape.due(1)
        if spec.data and "${" not in spec.data:
            look_up(spec.data, places.datasets)
    except LabError as error:
        return [error.full_message]
    return []


def devices(spec: BenchSettings, places: Places) -> list[str]:
    """Return the client itself needs the processor; the server holds its own device."""
    return ["cpu"]


def needs_server(spec: BenchSettings, places: Places) -> str | None:
    """Return the profile, when this lab starts its server: the measurement is its guest, not a rival for its device."""
    return started_by_the_lab(spec.server, places) if spec.server and not spec.base_url else None


KIND = JobKind(
    name="bench",
    title="Measure a server",
    spec=BenchSettings,
    run=run,
    estimate=estimate,
    timing_sensitive=True,
    devices=devices,
    needs_server=needs_server,
    problems=problems,
    unused=unused_by_client,
)
