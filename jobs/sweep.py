"""The kind `sweep`: a server measured in several cells, restarted where its running limit differs."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.jobs import bench
from vlmconsole.jobs.cells import FAILED, Cells
from vlmconsole.jobs.contract import Context, Estimate, IncompleteError, JobError, JobKind, Stopped
from vlmconsole.jobs.serve import on_cpu, profile_of
from vlmconsole.jobs.unused_settings import unused_by_client
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.sweep import SweepCell, SweepSettings
from vlmconsole.runs.places import Places
from vlmconsole.text.counts import many


def run(context: Context, spec: SweepSettings) -> dict[str, Any]:
    """Measure every cell; each is written as it ends, so that a stopped sweep keeps what it has.

    An attempt that continues another measures only the cells that the other did not finish. Raises IncompleteError
    when cells are missing at the end, because they could not be measured or because their server died.
    """
    cells = spec.expand()
    book = Cells(context, {cell.name: cell.weight for cell in cells}, "s" if spec.duration else "requests")
    plan = [{"name": cell.name, **cell.varied()} for cell in cells]
    context.run.write_json("plan.json", {"cells": plan, "requests": book.total})
    if context.earlier is not None:
        book.take_over(context.earlier)
    with contextlib.suppress(Stopped):
        for _, group in itertools.groupby(cells, key=lambda cell: cell.server):
            _with_server(context, spec, [cell for cell in group if cell.name not in book.names], book)
    summary = _summary(spec, cells, book.done)
    if context.stopping():
        raise Stopped(summary)
    if missing := book.missing:
        code = "cells-unmeasured" if len(missing) == len(book.planned) else "cells-missing"
        hint = "`vlmconsole run --resume RUN` measures these alone"
        raise IncompleteError(_missing(missing, book), hint, summary, code=code)
    return summary


def _missing(names: list[str], book: Cells) -> str:
    why = next((cell["why"] for cell in book.done if cell["name"] == names[0]), "it was not measured")
    if len(names) == len(book.planned):
        return f"no cell could be measured: {why}"
    listed = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
    return f"{len(names)} of {many(len(book.planned), 'cell')} missing ({listed}): {why}"


def _with_server(context: Context, spec: SweepSettings, group: list[SweepCell], book: Cells) -> None:
    """Measure the cells that share one server; a server that died under a cell is started anew for the next."""
    from vlmconsole.jobs import owned_server

    while group:
        with contextlib.ExitStack() as stack:
            try:
                server, mine = _server(context, spec, group[0], stack)
            except LabError as error:
                for cell in group:
                    book.failed(cell.name, cell.varied(), error)
                return
            if not mine and not owned_server.answers(server):
                gone = JobError(f"the server at {server.profile.base_url} does not answer")
                for cell in group:
                    book.failed(cell.name, cell.varied(), gone)
                return
            say_how_held(context, group[0].settings, server)
            while group:
                context.check_stop()
                cell = group.pop(0)
                answers = (
                    partial(owned_server.alive, context, server) if mine else partial(owned_server.answers, server)
                )
                entry = book.measure(cell.name, cell.settings, server, cell.varied(), answers=answers)
                if mine and not owned_server.alive(context, server):
                    context.events.note(f"the server ended under {cell.name}; its log is in the run folder", "warning")
                    break
                if entry["state"] == FAILED and not answers():
                    break


def say_how_held(context: Context, settings: BenchSettings, server: Any) -> None:
    """How answers are held to their length, as equal work depends on it."""
    from vlmconsole.engines.registry import find_engine
    from vlmconsole.measure.bench import request_fields

    fields, name = request_fields(settings, server), find_engine(server.profile.engine).label
    if "min_tokens" in fields:
        return
    held = f"{name} has no min_tokens"
    if "logit_bias" in fields:
        held += ": answers are kept from ending by a bias of −100 on the model's end tokens"
    aside = "those that end early all the same are set aside, not counted" if settings.equal_work else ""
    context.events.note("; ".join(filter(None, [held, aside])))


def _server(context: Context, spec: SweepSettings, cell: SweepCell, stack: contextlib.ExitStack) -> tuple[Any, bool]:
    """The cell's server, and whether it is this job's own."""
    from vlmconsole.jobs import owned_server
    from vlmconsole.measure.bench import find_server
    from vlmconsole.measure.variants import with_prefix_cache, with_running_limit
    from vlmconsole.servers.where import server_of

    profile = None if cell.settings.base_url else profile_of(cell.settings.server, context.places)
    if profile is not None and server_of(profile, context.places).starts_here:
        if cell.running_limit is not None:
            profile = with_running_limit(profile, cell.running_limit)
        if spec.prefix_cache is not None and profile.prefix_cache != spec.prefix_cache:
            profile = with_prefix_cache(profile, spec.prefix_cache)
        label = f"b{profile.running_limit or 'default'}"
        return stack.enter_context(owned_server.owned(context, profile, label)), True
    server = find_server(cell.settings, context.places, say=context.events.note)
    wanted = {"running_limit": cell.running_limit, "prefix_cache": spec.prefix_cache}
    owned_server.check(
        server.profile.model_copy(update={k: v for k, v in wanted.items() if v is not None}), server.settings
    )
    if cell.running_limit is not None and server.settings.running_limit is None:
        context.events.note(f"{server.profile.name} does not tell its running limit: B is not known", "warning")
    return server, False


def _summary(spec: SweepSettings, cells: list[SweepCell], done: list[dict[str, Any]]) -> dict[str, Any]:
    from vlmconsole.measure.sweep import differing
    from vlmconsole.runs.conditions import Conditions

    measured = [entry for entry in done if "summary" in entry]
    known = [Conditions.model_validate(entry["conditions"]) for entry in measured]
    return {
        "cells": done,
        "planned_cells": len(cells),
        "missing_cells": len(cells) - sum(entry["state"] != FAILED for entry in done),
        "requests": sum(entry["summary"]["planned"] for entry in measured)
        if spec.duration
        else sum(cell.settings.requests for cell in cells),
        "n": sum(entry["summary"]["n"] for entry in measured),
        "failures": sum(entry["summary"]["failures"] for entry in measured),
        "set_aside": sum(sum(entry["summary"]["set_aside"].values()) for entry in measured),
        "valid": bool(done) and all(entry["state"] == "valid" for entry in done),
        "equal_work": spec.equal_work and bool(measured) and all(entry["equal_work"] for entry in measured),
        "varied": differing(known) if known else [],
    }


def estimate(spec: SweepSettings, places: Places | None = None) -> Estimate:
    """Nothing is known of the server's speed; the number of requests and of starts is.

    places: where the profiles are; without, every server that is named is taken for one that is started here.
    """
    cells = spec.expand()
    groups = [next(group) for _, group in itertools.groupby(cells, key=lambda cell: cell.server)]
    starts = sum(_started(cell.settings, places) for cell in groups)
    total = sum(cell.weight for cell in cells)
    work = f"{total:g} s of load" if spec.duration else f"{total} requests"
    return Estimate(note=f"{work} in {len(cells)} cells, servers started: {starts}")


def _started(settings: BenchSettings, places: Places | None) -> bool:
    """Whether the server of a cell is started for it; one that is given by its address is not."""
    from vlmconsole.servers.where import server_of

    if settings.base_url:
        return False
    try:
        return places is None or server_of(profile_of(settings.server, places), places).starts_here
    except LabError:
        return True  # whoever looks at its devices says what is wrong


def devices(spec: SweepSettings, places: Places) -> list[str]:
    """Return what the sweep's own servers hold: the processor for mlx-vlm on Linux, else a GPU; the client needs no
    GPU.
    """
    return held([cell.settings.server for cell in spec.expand() if not cell.settings.base_url], places)


def held(profiles: list[str], places: Places) -> list[str]:
    """Return the devices of a job that starts servers of these profiles for itself."""
    from vlmconsole.servers.where import server_of

    for name in dict.fromkeys(profiles):
        profile = profile_of(name, places)
        if server_of(profile, places).starts_here and not on_cpu(profile):
            return ["cpu", "gpu"]
    return ["cpu"]


KIND = JobKind(
    name="sweep",
    title="Measure a server in several cells",
    spec=SweepSettings,
    run=run,
    estimate=estimate,
    estimate_here=estimate,
    timing_sensitive=True,
    devices=devices,
    problems=bench.problems,
    unused=unused_by_client,
)
