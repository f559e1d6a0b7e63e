"""The kind `bench`: one measurement of a server, as `vlmconsole bench` does it, for the queue and for presets."""

from __future__ import annotations

from typing import Any

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
    """Only an open loop has a length that is known beforehand."""
    if spec.rate is None:
        return Estimate(note="as long as the server takes for its answers")
    return Estimate(seconds=spec.requests / spec.rate, note="requests / rate, and the last answers")


def devices(spec: BenchSettings, places: Places) -> list[str]:
    """The client itself needs the processor; the server holds its own device."""
    return ["cpu"]


def needs_server(spec: BenchSettings, places: Places) -> str | None:
    """The profile, when this lab starts its server: the measurement is its guest, not a rival for its device."""
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
    unused=unused_by_client,
)
