"""Keep a model server running as a job: it holds its device, has a log, and outlives the console."""

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from vlmconsole.engines.profile import ServerProfile, find_profile
from vlmconsole.engines.registry import find_engine
from vlmconsole.gauges import nvidia
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped
from vlmconsole.runs.places import Places
from vlmconsole.system import processes

CHECK = 1.0  # seconds between two looks whether the server still lives


class ServeSpec(Spec):
    """Which server, and what it holds."""

    profile: str = Field(description="The server profile (vlmconsole servers list)")
    devices: list[str] = Field(
        [], description="Devices it holds; empty: one GPU; cpu for mlx-vlm on Linux and where there is no card"
    )


def profile_of(name: str, places: Places) -> ServerProfile:
    """Return the profile called `name`. Raises ProfileError with the names that there are."""
    return find_profile(name, places.servers)


def started_by_the_lab(name: str, places: Places) -> str | None:
    """For `JobKind.needs_server`: the profile's name when this lab starts its server, None when it just is there."""
    from vlmconsole.servers.where import server_of

    return name if server_of(profile_of(name, places), places).starts_here else None


def on_cpu(profile: ServerProfile) -> bool:
    """Return whether the profile's server, started here, runs on the processor."""
    # Where there is no card, any engine can only be on the CPU (SGLang and vLLM have CPU builds).
    return sys.platform == "linux" and (find_engine(profile.engine).needs_metal or not nvidia.read().cards)


def _devices(spec: ServeSpec, places: Places) -> list[str]:
    if spec.devices:
        return spec.devices
    profile = profile_of(spec.profile, places)
    own = ["cpu"] if on_cpu(profile) else ["gpu"]
    return [*own, f"port:{port}"] if (port := urlsplit(profile.base_url).port) else own


def run(context: Context, spec: ServeSpec) -> dict[str, Any]:
    """Start the server, say when it is ready (ready.json), watch it, and end it when asked to stop."""
    return asyncio.run(_serve(context, spec))


async def _serve(context: Context, spec: ServeSpec) -> dict[str, Any]:
    from vlmconsole.engines.http import EngineError
    from vlmconsole.servers.processes import LaunchError
    from vlmconsole.servers.where import server_of

    # Marked as ours, so that it is found and ended even if this worker is killed.
    profile = profile_of(spec.profile, context.places).with_env({processes.RUN_MARK: str(context.run.path)})
    server = server_of(profile, context.places)
    if not server.starts_here:
        raise JobError(f"{spec.profile} is not a server that this lab starts", "use it as it is, without a job")
    starting = asyncio.create_task(server.ensure(lambda phase, seconds: context.log(f"{phase} ({seconds:.1f} s)")))
    try:
        while not starting.done():
            if context.stopping():
                starting.cancel()
                raise Stopped
            await asyncio.sleep(0.1)
        try:
            ready = starting.result()
        except (LaunchError, EngineError) as error:
            raise JobError(str(error), code=error.code) from None
        context.run.write_json(
            "ready.json",
            {"profile": spec.profile, "base_url": ready.base_url, "model": ready.model, "pid": ready.pid},
        )
        context.events.note(f"ready at {ready.base_url}")
        while not context.stopping():
            now = server.status()
            if now.state == "ended":
                raise JobError(f"the server {spec.profile} ended by itself", f"its log: {now.log}")
            await asyncio.sleep(CHECK)
        raise Stopped({"profile": spec.profile, "base_url": ready.base_url})
    finally:
        try:
            context.log(await server.stop())
        except LaunchError as error:
            context.log(str(error))


KIND = JobKind(
    name="serve",
    title="Keep a model server running",
    spec=ServeSpec,
    run=run,
    estimate=lambda spec: Estimate(note="until it is stopped"),
    devices=_devices,
    serves=lambda spec: str(spec.profile),
)
