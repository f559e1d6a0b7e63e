"""The kind `cache_probe`: does a server's prefix cache hit? Cold and warm pairs against a control without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pydantic import Field

from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped
from vlmconsole.jobs.serve import profile_of
from vlmconsole.jobs.sweep import held
from vlmconsole.measure.settings import LAG_LIMIT_S, BenchSettings
from vlmconsole.runs.places import Places

RESTART = "restart"
FLUSH_TRIES = 20  # SGLang refuses for a moment after the last request
FLUSH_PAUSE_S = 0.5


class CacheProbeSettings(Spec):
    """A cache probe: one server with its cache on, a control with it off, and pairs of the same request."""

    server: str = Field(description="Profile of the server whose prefix cache is probed")
    control: str = Field(
        RESTART, description="`restart`: the same server with its cache off; a profile name; empty: none (no proof)"
    )
    pairs: int = Field(5, ge=1, description="Cold/warm pairs, on each server")
    least_pairs: int = Field(5, ge=1, description="Pairs without which nothing is proven")
    image: str = Field("", description="Image size in pixels, WIDTHxHEIGHT; empty: text only")
    input_tokens: int | None = Field(None, ge=1, description="Prefix length in tokens, including the image")
    output_tokens: int = Field(8, ge=1, description="Max tokens of an answer")
    block: int | None = Field(None, ge=1, description="Tokens in a cache block; default: as the server tells")
    warm_up: int = Field(2, ge=1, description="Requests with other prompts first, not counted")
    seed: int = Field(0, description="Seed of the inputs")
    lag_limit_ms: float = Field(
        LAG_LIMIT_S * 1000, gt=0, description="Client lag (p99, ms) that makes a request unusable"
    )
    total_timeout_s: float = Field(900.0, gt=0, description="Longest a request may take, s")

    def bench(self) -> BenchSettings:
        """Return the same as settings of one measurement."""
        shared = {"server", "image", "input_tokens", "output_tokens", "seed", "lag_limit_ms", "total_timeout_s"}
        return BenchSettings.model_validate(self.model_dump(include=shared))


def run(context: Context, spec: CacheProbeSettings) -> dict[str, Any]:
    """Probe the server, then the control; the verdict is made of both."""
    from vlmconsole.measure.cache import verdict as cache

    spec.bench()  # a bad picture size is said before a server is started
    control = _control(spec, context.places)
    limits = {"cold_share": cache.COLD_SHARE, "control_share": cache.CONTROL_SHARE, "least_pairs": spec.least_pairs}
    context.run.write_json("plan.json", {"pairs": spec.pairs, "control": spec.control, "limits": limits})
    probe = _Probe(context, spec)
    with contextlib.suppress(Stopped):
        with _serving(context, spec.server, True) as server:
            probe.arm("cache on", server)
        if control:
            with _serving(context, control, False) as server:
                probe.arm("cache off", server)
    summary = probe.summary(limits)
    if context.stopping():
        raise Stopped(summary)
    context.events.note(f"{summary['verdict']}: {'; '.join(summary['reasons'])}")
    return summary


def _control(spec: CacheProbeSettings, places: Places) -> str:
    """The control's profile, "" for none. Raises JobError, before anything runs, when there can be no such server."""
    from vlmconsole.servers.where import server_of

    if spec.control != RESTART:
        return profile_of(spec.control, places).name if spec.control else ""
    if not server_of(profile_of(spec.server, places), places).starts_here:
        raise JobError(
            f"{spec.server} is not started by this lab, so it cannot be restarted with its cache off",
            "start such a server by hand and name its profile as `control`, or set control to nothing",
            code="server-foreign",
        )
    return spec.server


@contextlib.contextmanager
def _serving(context: Context, name: str, cache: bool) -> Iterator[Any]:
    """The server called `name` with its prefix cache on or off: started for this job where this lab starts it."""
    from vlmconsole.jobs import owned_server
    from vlmconsole.measure.bench import find_server
    from vlmconsole.measure.variants import with_prefix_cache
    from vlmconsole.servers.where import server_of

    profile = profile_of(name, context.places)
    if server_of(profile, context.places).starts_here:
        with owned_server.owned(
            context, with_prefix_cache(profile, cache), f"cache-{'on' if cache else 'off'}"
        ) as server:
            yield server
        return
    server = find_server(BenchSettings(server=name), context.places)
    context.events.note(f"{name}: {owned_server.settings_summary(server.settings)}")
    yield server


class _Probe:
    """Asks the pairs of each arm, writes them down, and makes the summary."""

    def __init__(self, context: Context, spec: CacheProbeSettings) -> None:
        self.context, self.spec = context, spec
        self.settings = spec.bench()
        self.filler: int | None = None
        self.fitted: Any = None
        self.block = spec.block
        self.pairs: dict[str, list[Any]] = {}
        self.told: dict[str, Any] = {}
        self.layers: list[str] = []
        self.conditions: dict[str, Any] = {}

    def arm(self, name: str, server: Any) -> None:
        """Warm up, then flush → cold → the same again, for each pair."""
        from vlmconsole.measure.bench import fit_input, request_fields
        from vlmconsole.measure.cache.facts import block_size, other_layers
        from vlmconsole.measure.cache.verdict import Pair
        from vlmconsole.measure.inputs import InputRecipe

        spec, context = self.spec, self.context
        self.told[name], self.pairs[name] = server.settings, []
        self.layers = self.layers or other_layers(server.profile, server.settings)
        salt = f"{context.run.name}/{spec.seed}/{name}"
        recipe = InputRecipe(salt, request_fields(self.settings, server), self.settings.image_size)
        if self.filler is None:
            # The control gets the very same length, which its server need not be asked for again.
            self.fitted = fit_input(self.settings, server, recipe)
            self.filler = self.fitted.filler_words if self.fitted else 0
            self.block = self.block or block_size(server)
        recipe = InputRecipe(salt, recipe.request, recipe.image, self.filler)
        context.events.emit("mark", text=name)
        for number in range(-spec.warm_up, 0):
            self._ask(name, number, "warm-up", server, recipe)
        for number in range(spec.pairs):
            context.check_stop()
            flushed, note = self._flush(server)
            cold = self._ask(name, number, "cold", server, recipe)
            warm = self._ask(name, number, "warm", server, recipe)
            pair = Pair(cold, warm, flushed, note)
            self.pairs[name].append(pair)
            context.run.append_jsonl(
                "pairs.jsonl", {"arm": name, "pair": number, "fall_s": pair.fall_s, **asdict(pair)}
            )
            context.events.emit("pair", arm=name, pair=number, fall_s=pair.fall_s, cached=warm.cached.tokens)
            done = sum(len(some) for some in self.pairs.values())
            context.events.progress(done, spec.pairs * (2 if spec.control else 1), "pairs", name)

    def _flush(self, server: Any) -> tuple[bool, str]:
        """Empty the cache, trying again while the server is busy; whether it really did, and what it said."""
        import asyncio

        from vlmconsole.engines.readback import flush

        note = asyncio.run(flush(server.profile))
        for _ in range(FLUSH_TRIES):
            busy = not note.ok and "running" in note.why
            if not busy or self.context.wait(FLUSH_PAUSE_S):
                break
            note = asyncio.run(flush(server.profile))
        return note.ok, note.why

    def _ask(self, arm: str, number: int, role: str, server: Any, recipe: Any) -> Any:
        """One request in a cell of its own, so that the server's counter before and after is of it alone."""
        from vlmconsole.measure.bench import conditions_of
        from vlmconsole.measure.cache.facts import cached_counter
        from vlmconsole.measure.cache.verdict import Count, ProbeRequest, of_usage
        from vlmconsole.measure.load import LoadCell, Target, run_cell

        context = self.context
        results: list[Any] = []
        context.check_stop()
        before = cached_counter(server)
        cell = LoadCell(
            name=f"{context.run.name}-{arm.replace(' ', '-')}-{number}-{role}",
            target=Target.to(server.profile),
            measured=[recipe.body(number)],
            lag_limit_s=self.spec.lag_limit_ms / 1000,
            total_timeout_s=self.spec.total_timeout_s,
            extra={"arm": arm, "pair": number, "role": role},
        )
        summary = run_cell(cell, context.run, on_request=results.append, stopping=context.stopping)
        after = cached_counter(server)
        counted = after - before if before is not None and after is not None and after >= before else None
        context.check_stop()
        if not results or not summary.valid:
            why = "; ".join(summary.first_failures) or summary.invalid_because or "no answer"
            return ProbeRequest(None, None, Count(None, "no answer"), why)
        result = results[0]
        if role != "warm-up":
            conditions = conditions_of(self.settings, server, summary, self.fitted, None)
            self._note_conditions(arm, conditions)
        return of_usage(result.result.usage, server.settings, result.timing.ttft_s, counted)

    def _note_conditions(self, arm: str, conditions: Any) -> None:
        """The arm's conditions so far; what the single requests' own cells say of n and cache is put right."""
        pairs = len(self.pairs[arm]) + 1
        how = f"{conditions.cache or arm.removeprefix('cache ')}, flushed before each cold request"
        warm = f"{self.spec.warm_up} requests with prompts of their own, not counted"
        self.conditions[arm] = conditions.model_copy(update={"n": 2 * pairs, "cache": how, "warm_up": warm})
        self.context.run.write_json(
            "conditions.json", {name: condition.model_dump(mode="json") for name, condition in self.conditions.items()}
        )

    def summary(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict with everything that it rests on."""
        from vlmconsole.jobs.owned_server import settings_summary
        from vlmconsole.measure.cache.facts import OTHER_LAYER
        from vlmconsole.measure.cache.verdict import judge

        on, off = self.pairs.get("cache on", []), self.pairs.get("cache off", [])
        control = self.told.get("cache off")
        verdict = judge(
            on,
            off,
            block=self.block,
            control_cache=control.prefix_cache if control else None,
            least_pairs=self.spec.least_pairs,
        ).to_json()
        return {
            "verdict": verdict.pop("state"),
            **verdict,
            "n": len(on),
            "limits": limits,
            "servers": {name: settings_summary(settings) for name, settings in self.told.items()},
            "cached_rule": {name: settings.cached_rule for name, settings in self.told.items()},
            "pairs": [asdict(pair) for pair in on],
            "control": [asdict(pair) for pair in off],
            "other_layers": {"settings": self.layers, "note": OTHER_LAYER},
        }


def estimate(spec: CacheProbeSettings) -> Estimate:
    """Return how many requests; their time is the server's."""
    arms = 2 if spec.control else 1
    return Estimate(note=f"{arms * (2 * spec.pairs + spec.warm_up)} requests one after the other, servers: {arms}")


def devices(spec: CacheProbeSettings, places: Places) -> list[str]:
    """Return those of both servers; they never run at once."""
    return held([spec.server, *([spec.control] if spec.control not in ("", RESTART) else [])], places)


def problems(spec: CacheProbeSettings, places: Places, alone: bool) -> list[str]:
    """Return a server or a control that is not there, or that cannot be one."""
    try:
        _control(spec, places)
    except LabError as error:
        return [error.full_message]
    return []


KIND = JobKind(
    name="cache_probe",
    title="Probe a prefix cache",
    spec=CacheProbeSettings,
    run=run,
    estimate=estimate,
    timing_sensitive=True,
    devices=devices,
    problems=problems,
)
