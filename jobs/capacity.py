"""The kind `capacity`: the largest load under which an objective holds, by a rule frozen before the first probe.

Run folder: rule.json (frozen), probes.jsonl (each load as it is judged), cells.jsonl and requests.jsonl (each pass),
conditions.json, server-LABEL.log of owned servers, summary.json.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.jobs import bench
from vlmconsole.jobs.cells import FAILED, Cells
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Stopped
from vlmconsole.jobs.serve import profile_of
from vlmconsole.jobs.sweep import held
from vlmconsole.jobs.unused_settings import unused_by_client
from vlmconsole.measure.capacity.rule import STEPS
from vlmconsole.measure.capacity.search import CapacitySearch, ClientLimitError, Probe, ProbePass
from vlmconsole.measure.capacity.settings import CapacitySettings
from vlmconsole.measure.slo import Slo
from vlmconsole.runs.places import Places

RULE, PROBES = "rule.json", "probes.jsonl"


def run(context: Context, spec: CapacitySettings) -> dict[str, Any]:
    """Freeze the rule, search, confirm. A load under which the server breaks is a result; the summary names it."""
    frozen = _freeze(context, spec)
    book = Cells(context, {}, open_end=True)
    if context.earlier is not None:
        book.take_over(context.earlier, failed=True)
    with CapacityServers(context, spec) as servers:
        passes = _Passes(context, spec, book, servers)
        search = CapacitySearch(
            passes.measure,
            Slo.parse(spec.slo),
            spec.rule,
            spec.loads(spec.start or _start(spec, servers)),
            spec.find != "rate",
            partial(_note, context, spec),
        )
        with contextlib.suppress(Stopped):
            search.run()
    summary = _summary(spec, search, frozen, servers.owned)
    if context.stopping():
        raise Stopped(summary)
    if search.stopped and not search.probes:
        raise JobError(f"no load could be measured: {search.stopped}", code="cells-unmeasured")
    context.events.note(answer(summary), "info" if search.confirmed else "warning")
    return summary


def _freeze(context: Context, spec: CapacitySettings) -> str:
    """Write rule and load down with their hash in the ledger, before anything is measured; returns the hash."""
    from vlmconsole.ledger.chain import Ledger
    from vlmconsole.ledger.freezing import freeze

    plan = {"steps": list(STEPS), "search": spec.model_dump(mode="json")}
    frozen = freeze(context.run, RULE, plan, Ledger(context.places.ledger))
    context.events.note(f"rule frozen before the first probe: sha256 {frozen.sha256[:16]}… ({RULE})")
    return frozen.sha256


def _note(context: Context, spec: CapacitySettings, probe: Probe) -> None:
    value = probe.to_json()
    context.run.append_jsonl(PROBES, value)
    violating = "" if value["violating"] is None else f", violating {value['violating']:.1%} of {value['limit']}"
    again = "confirmation at " if probe.confirmation else ""
    why = f": {probe.why}" if probe.why else ""
    context.events.note(
        f"{again}{spec.find} {probe.load:g}: {probe.verdict} (n = {probe.n}{violating}){why}",
        "info" if probe.verdict == "holds" else "warning",
    )


def _start(spec: CapacitySettings, servers: CapacityServers) -> float:
    """The first load where none is named: one at a time, or as many a second as that gives."""
    from vlmconsole.measure.bench import request_fields
    from vlmconsole.measure.inputs import InputRecipe
    from vlmconsole.measure.probes import ALONE, seconds_alone

    if spec.find != "rate":
        return 1.0
    server = servers.at(None)
    recipe = InputRecipe(f"{servers.context.run.name}/alone", request_fields(spec, server), spec.image_size)
    bodies = [{**recipe.request, "messages": recipe.messages(number)} for number in range(ALONE)]
    return float(f"{1 / max(1e-3, seconds_alone(server.profile, bodies)):.2g}")


class CapacityServers:
    """The server of a search: owned ones are started anew for another B, after their death, and for a confirmation."""

    def __init__(self, context: Context, spec: CapacitySettings) -> None:
        self.context, self.spec = context, spec
        self._stack = contextlib.ExitStack()
        self._server: Any = None
        self._limit: int | None = None
        self._starts = 0
        self.profile = None if spec.base_url else _own_profile(spec, context.places)

    @property
    def owned(self) -> bool:
        """Whether this job starts the server itself."""
        return self.profile is not None

    def __enter__(self) -> CapacityServers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def at(self, limit: int | None, *, fresh: bool = False) -> Any:
        """Return a server that answers, with running limit `limit`. Raises LabError when there is none."""
        from vlmconsole.jobs import owned_server
        from vlmconsole.measure.bench import find_server
        from vlmconsole.measure.variants import with_prefix_cache, with_running_limit

        if self.profile is None:
            if self._server is None:
                self._server = find_server(self.spec, self.context.places, say=self.context.events.note)
            if not owned_server.answers(self._server):
                raise JobError(f"the server at {self._server.profile.base_url} does not answer")
            return self._server
        dead = self._server is not None and not owned_server.alive(self.context, self._server)
        if self._server is None or fresh or dead or limit != self._limit:
            self._stack.close()
            self._server = None
            profile = self.profile if limit is None else with_running_limit(self.profile, limit)
            if self.spec.prefix_cache is not None and profile.prefix_cache != self.spec.prefix_cache:
                profile = with_prefix_cache(profile, self.spec.prefix_cache)
            self._starts += 1
            label = f"{self._starts}-b{profile.running_limit or 'default'}"
            self._server = self._stack.enter_context(owned_server.owned(self.context, profile, label))
            self._limit = limit
        return self._server

    def answers(self) -> bool:
        """Return whether the server under the present load still does."""
        from vlmconsole.jobs import owned_server

        if self._server is None:
            return False
        return owned_server.alive(self.context, self._server) if self.owned else owned_server.answers(self._server)


def _own_profile(spec: CapacitySettings, places: Places) -> Any:
    """The profile of a server that this job starts for itself; None where it is somebody else's."""
    from vlmconsole.servers.where import server_of

    profile = profile_of(spec.server, places)
    if server_of(profile, places).starts_here:
        return profile
    if spec.find == "B" or spec.running_limit is not None:
        raise JobError(
            f"{spec.server} is not started by this lab, so it cannot be restarted with another running limit B",
            "run this on the server's own machine with a profile that has a [launch] table",
            code="server-foreign",
        )
    return None


class _Passes:
    """Measures one pass after the other, each a cell; those of an earlier attempt are read and not measured again."""

    def __init__(self, context: Context, spec: CapacitySettings, book: Cells, servers: CapacityServers) -> None:
        self.context, self.spec, self.book, self.servers = context, spec, book, servers
        self._confirmations: dict[float, int] = {}

    def measure(self, load: float, requests: int, number: int, confirmation: bool) -> ProbePass:
        self.context.check_stop()
        name = f"{'confirm-' if confirmation else ''}{self.spec.find}-{load:g}-{number + 1}"
        entry = next((done for done in self.book.done if done["name"] == name), None)
        if entry is None:
            entry = self._measured(name, load, requests, number, confirmation)
        if entry["state"] == "stopped":
            raise Stopped
        rows = [row for row in self.context.run.read_jsonl("requests.jsonl") if row.get("cell") == name]
        return _as_pass(entry, rows)

    def _measured(self, name: str, load: float, requests: int, number: int, confirmation: bool) -> dict[str, Any]:
        limit = round(load) if self.spec.find == "B" else self.spec.running_limit
        settings = self.spec.probe(load, requests, self.spec.seed + len(self.book.done))
        self.book.planned[name] = requests
        varied = {
            **settings.model_dump(include={"concurrency", "rate", "image", "output_tokens"}),
            "requests": requests,
        }
        if settings.open_loop:
            del varied["concurrency"]
        varied["running_limit"] = limit
        try:
            server = self.servers.at(limit, fresh=confirmation and not number)
        except LabError as error:
            raise ClientLimitError(f"{self.spec.find} {load:g}: {error.full_message}") from None
        return self.book.measure(name, settings, server, varied, answers=self.servers.answers)


def _as_pass(entry: dict[str, Any], rows: list[dict[str, Any]]) -> ProbePass:
    """A measured cell as the search sees it."""
    from vlmconsole.measure.capacity.rows import request_times

    requests = request_times(rows)
    if entry["state"] == FAILED:
        return ProbePass(requests, broke=entry["why"])
    lag = entry["summary"]["lag"]
    late = [part["p99"] for key in ("probe", "kernel") if (part := lag.get(key))]
    if max(late, default=0.0) > entry["summary"]["lag_limit_s"]:
        return ProbePass(requests, unusable=entry["why"] or "the load client was late")
    return ProbePass(requests)


def _summary(spec: CapacitySettings, search: CapacitySearch, rule_sha256: str, owned: bool) -> dict[str, Any]:
    held_load, failed_load = search.holds, search.fails
    summary = {
        "find": spec.find,
        "slo": spec.slo,
        "holds": held_load,
        "fails": failed_load,
        "resolution": spec.rule.resolution,
        "reached": None if not held_load or failed_load is None else round(failed_load / held_load - 1, 6),
        "confirmed": search.confirmed,
        "confirmed_on": "a fresh start" if owned else "a fresh pass",
        "requests_spent": search.spent,
        "requests_grid": search.grid_requests,
        "stopped": search.stopped or None,
        "broke": next((probe.to_json() for probe in search.probes if probe.why), None),
        "rule_sha256": rule_sha256,
        "probes": [probe.to_json() for probe in search.probes],
    }
    return {"answer": answer(summary), **summary}


def answer(summary: dict[str, Any]) -> str:
    """Return the result in a sentence."""
    name, load, fails = summary["find"], summary["holds"], summary["fails"]
    unit = " requests/s" if name == "rate" else ""
    verdicts = {probe["load"]: probe["verdict"] for probe in summary["probes"]}
    undecided = verdicts.get(fails) == "undecided"
    if load is None:
        return f"holds at no {name} down to {fails:g}{unit}" if fails is not None else "nothing is known yet"
    parts = [f"holds at {name} {load:g}{unit}"]
    parts.append("none failed" if fails is None else f"{'undecided' if undecided else 'fails'} at {fails:g}")
    parts.append(f"confirmed on {summary['confirmed_on']}" if summary["confirmed"] else "NOT confirmed")
    if summary["stopped"]:
        parts.append(f"ended early: {summary['stopped']}")
    return ", ".join(parts)


def estimate(spec: CapacitySettings) -> Estimate:
    """Return how many probes there are shows only while it runs."""
    return Estimate(note=f"{spec.rule.first} to {spec.rule.most} requests a probe, some ten probes")


def devices(spec: CapacitySettings, places: Places) -> list[str]:
    """Return those of its own servers."""
    return held([] if spec.base_url else [spec.server], places)


def problems(spec: CapacitySettings, places: Places, alone: bool) -> list[str]:
    """Return a server that cannot be given another B."""
    if missing := bench.problems(spec, places, alone):
        return missing
    if spec.base_url:
        wants = spec.find == "B" or spec.running_limit is not None
        return ["B can only be found on a server that this lab starts: name its profile"] if wants else []
    try:
        _own_profile(spec, places)
    except LabError as error:
        return [error.full_message]
    return []


KIND = JobKind(
    name="capacity",
    title="Find the largest load that holds",
    spec=CapacitySettings,
    run=run,
    estimate=estimate,
    timing_sensitive=True,
    devices=devices,
    problems=problems,
    unused=unused_by_client,
)
