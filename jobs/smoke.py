"""The kind `smoke`: is a server reachable, usable, right? Three verdicts, and what failed is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import Field

from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec
from vlmconsole.jobs.serve import started_by_the_lab
from vlmconsole.jobs.unused_settings import unused_by_client
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.places import Places

WORDS = {True: "yes", False: "NO", None: "not told"}


class SmokeSpec(Spec):
    """Which server is looked at."""

    server: str = Field("demo", description="Profile name; empty with base_url")
    base_url: str = Field("", description="Address of any OpenAI-compatible server")
    model: str = Field("", description="Model name to send, with base_url; empty: what the server names first")
    api_key_env: str = Field("", description="NAME of the variable that holds the key, with base_url")


def run(context: Context, spec: SmokeSpec) -> dict[str, Any]:
    """Ask, judge, keep. A wrong answer is a result; a server that cannot be used is a failed job."""
    from vlmconsole.evaluation import smoke
    from vlmconsole.measure.bench import find_server

    settings = BenchSettings(
        server="" if spec.base_url else spec.server,
        base_url=spec.base_url,
        model=spec.model,
        api_key_env=spec.api_key_env,
    )
    try:
        server = find_server(settings, context.places, say=context.events.note)
        verdict = asyncio.run(smoke.look(server.profile))
    except LabError as error:
        verdict = smoke.unreachable(error.full_message)
    context.run.file("picture.png").write_bytes(smoke.smoke_picture().data)
    for sample in verdict.samples:
        context.run.append_jsonl("samples.jsonl", sample)
    if verdict.conditions is not None:
        context.run.write_json("conditions.json", verdict.conditions)
    context.run.write_json("smoke.json", verdict.to_json())
    for name in ("reachable", "usable", "right"):
        word = WORDS[getattr(verdict, name)]
        context.events.note(f"{name}: {word} ({verdict.why.get(name, 'the step before failed')})")
    if not verdict.reachable:
        raise JobError(
            f"not reachable: {verdict.why['reachable']}",
            "smoke.json in the run folder keeps this",
            code="server-unreachable",
        )
    if not verdict.usable:
        raise JobError(
            f"reachable, but not usable: {verdict.why['usable']}",
            "samples.jsonl keeps what came back",
            code="server-unusable",
        )
    return {**verdict.to_json(), "answers": {s["name"]: s["answer"] for s in verdict.samples}}


def needs_server(spec: SmokeSpec, places: Places) -> str | None:
    """Return the profile, when this lab starts its server."""
    return None if spec.base_url else started_by_the_lab(spec.server, places)


KIND = JobKind(
    name="smoke",
    title="First look at a server: reachable, usable, right",
    spec=SmokeSpec,
    run=run,
    estimate=lambda spec: Estimate(seconds=10, note="three short answers, once the server runs"),
    devices=lambda spec, places: ["cpu"],
    needs_server=needs_server,
    unused=unused_by_client,
)
