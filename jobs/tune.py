"""The kind `tune`: a grid of launch parameters, a rule frozen before the first cell, and a confirmed winner.

Run folder: rule.json (frozen), cells.jsonl, requests.jsonl, conditions.json, server-CELL.log, chosen.toml (the
profile), summary.json with the rule's reasoning step by step.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile, profile_toml, save_profile
from vlmconsole.engines.registry import find_engine
from vlmconsole.errors import LabError
from vlmconsole.jobs.cells import Cells
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Stopped
from vlmconsole.jobs.serve import profile_of
from vlmconsole.jobs.sweep import held, say_how_held
from vlmconsole.measure.tune.settings import CONFIRM, TuneCell, TuneSettings, Value, with_parameters
from vlmconsole.runs.places import Places

RULE = "rule.json"
KEPT = "baseline kept"  # the state of a confirmation with nothing to confirm


def run(context: Context, spec: TuneSettings) -> dict[str, Any]:
    """Freeze the rule, measure every cell, apply the rule, measure winner and baseline again, save the profile."""
    from vlmconsole.measure.tune import rule

    profile = _launched(spec, context.places)
    cells, base = spec.expand(), spec.baseline()
    for cell in cells:
        spec.profile(cell, profile)  # a parameter that cannot be set is said before anything runs
    frozen = _freeze(context, spec, profile)
    names = [cell.name for cell in cells] + [f"{CONFIRM}chosen", f"{CONFIRM}baseline"]
    book = Cells(context, {name: spec.requests for name in names})
    if context.earlier is not None:
        _same_rule(context, frozen)
        book.take_over(context.earlier, failed=True)

    result: dict[str, Any] = {"choice": None, "confirmation": None}
    with contextlib.suppress(Stopped):
        for cell in cells:
            _cell(context, spec, profile, cell, book, cell.name)
        measured = [rule.MeasuredCell.of(entry) for entry in book.done if not entry["name"].startswith(CONFIRM)]
        if all(cell.state == "failed" for cell in measured):
            raise JobError(f"no cell could be measured: {measured[0].why}", code="cells-unmeasured")
        choice = rule.choose(measured, spec.rule, base.name)
        result["choice"] = choice.to_json()
        for step in (*choice.steps, f"chosen: {choice.chosen or 'none'}, as {choice.why}"):
            context.events.note(step)
        winner = next((cell for cell in cells if cell.name == choice.chosen), None)
        if winner is not None:
            result["confirmation"] = _confirm(context, spec, profile, winner, base, book)
            result |= _save(context, spec, profile, winner, result["confirmation"])
    summary = _summary(spec, book, frozen, result)
    if context.stopping():
        raise Stopped(summary)
    return summary


def _launched(spec: TuneSettings, places: Places) -> ServerProfile:
    from vlmconsole.servers.where import server_of

    profile = profile_of(spec.server, places)
    if not server_of(profile, places).starts_here:
        raise JobError(
            f"{spec.server} is not started by this lab, so it cannot be restarted with other launch parameters",
            "run this on the server's own machine with a profile that has a [launch] table",
            code="server-foreign",
        )
    return profile


def _freeze(context: Context, spec: TuneSettings, profile: ServerProfile) -> dict[str, Any]:
    """Write the rule down with its hash in the ledger, before anything is measured.

    The launch line that the parameters vary is frozen with it: cells of another server are never taken over.
    """
    from vlmconsole.ledger.chain import Ledger
    from vlmconsole.ledger.freezing import freeze
    from vlmconsole.measure.tune.rule import CONFIRMED, STEPS

    line = find_engine(profile.engine).frozen_line(profile)
    server = {"engine": profile.engine, "model": profile.model, "launch": line}
    plan = spec.plan() | {"server": server, "steps": list(STEPS), "confirmed": CONFIRMED}
    frozen = freeze(context.run, RULE, plan, Ledger(context.places.ledger))
    context.events.note(f"rule frozen before the first cell: sha256 {frozen.sha256[:16]}… ({RULE})")
    return {"file": RULE, "sha256": frozen.sha256, "t": frozen.t}


def _same_rule(context: Context, frozen: dict[str, Any]) -> None:
    """Cells are only taken over under the very rule that was frozen before them. Raises LabError otherwise."""
    from vlmconsole.ledger.chain import Ledger
    from vlmconsole.ledger.freezing import read_frozen

    assert context.earlier is not None
    if not context.earlier.file("cells.jsonl").exists():
        return  # it came to no cell
    before = read_frozen(context.earlier, RULE, Ledger(context.places.ledger))
    if before.sha256 != frozen["sha256"]:
        raise JobError(
            f"{context.earlier.name} was measured under another rule ({before.sha256[:12]}…)",
            "a rule is never changed after the first cell: start a new run",
            code="rule-differs",
        )
    frozen["first_frozen"] = before.t


def _cell(
    context: Context, spec: TuneSettings, profile: ServerProfile, cell: TuneCell, book: Cells, name: str
) -> dict[str, Any]:
    """One cell on a server started for it alone; kept with the reason when that server does not come up."""
    from vlmconsole.jobs import owned_server
    from vlmconsole.measure.tune.memory import sampled
    from vlmconsole.servers import processes

    known = next((entry for entry in book.done if entry["name"] == name), None)
    if known is not None:
        return known
    context.check_stop()
    mine, settings = spec.profile(cell, profile), spec.bench()
    varied = {"concurrency": spec.concurrency, "requests": spec.requests, "running_limit": mine.running_limit}
    more: dict[str, Any] = {"parameters": cell.values, "memory": None}
    try:
        with owned_server.owned(context, mine, name) as server:
            more |= {"read_back": _read_back(cell, server.settings), "kv_tokens": server.settings.kv_tokens}
            if not book.done:
                say_how_held(context, settings, server)
            with sampled(processes.recorded(context.places, server.profile.name)) as peak:
                entry = book.measure(
                    name, settings, server, varied, lambda: {**more, "memory": peak.to_json()},
                    answers=partial(owned_server.alive, context, server),
                )  # fmt: skip
    except LabError as error:
        return book.failed(name, varied, error, more)
    context.check_stop()
    return entry


def _read_back(cell: TuneCell, settings: EffectiveSettings) -> dict[str, Any]:
    """What the server says of the cell's parameters, None where it does not tell. Raises JobError where it differs."""
    values: dict[str, Any] = {}
    for key, wanted in cell.values.items():
        values[key] = have = settings.told(key)
        if have is not None and not _equal(have, wanted):
            raise JobError(f"the server has {key} {have}, {wanted} was asked for")
    return values


def _equal(have: Any, wanted: Value) -> bool:
    try:
        return abs(float(have) - float(wanted)) < 1e-9
    except (TypeError, ValueError):
        return str(have) == str(wanted)


def _confirm(
    context: Context, spec: TuneSettings, profile: ServerProfile, winner: TuneCell, base: TuneCell, book: Cells
) -> dict[str, Any]:
    """Winner and baseline on fresh starts, 2 × the requests of a cell; judged by the limits frozen before.

    Where the rule chose the baseline there is no change to confirm: two runs of one cell would tell of noise only.
    """
    from vlmconsole.measure.tune import rule

    if winner.name == base.name:
        for role in ("chosen", "baseline"):
            book.planned.pop(f"{CONFIRM}{role}", None)
        reason = f"the rule chose the baseline, {base.name}: there is no change to confirm"
        context.events.note(reason)
        nothing = dict.fromkeys(("ttft_p95", "throughput", "peak_bytes"))
        both = {"chosen": winner.name, "baseline": base.name, "same_cell": True}
        return {"state": KEPT, "said": [reason], "change": nothing, **both}
    chosen = rule.MeasuredCell.of(_cell(context, spec, profile, winner, book, f"{CONFIRM}chosen"))
    other = rule.MeasuredCell.of(_cell(context, spec, profile, base, book, f"{CONFIRM}baseline"))
    confirmed, reasons = rule.confirm(chosen, other, spec.rule)
    changed = rule.change(chosen, other)
    context.events.note(
        f"{'confirmed' if confirmed else 'NOT confirmed'} on fresh starts: {'; '.join(reasons)}",
        "info" if confirmed else "warning",
    )
    return {
        "state": "confirmed" if confirmed else "not confirmed",
        "said": list(reasons),
        "change": changed,
        "chosen": chosen.name,
        "baseline": other.name,
        "same_cell": winner.name == base.name,
    }


def _save(
    context: Context, spec: TuneSettings, profile: ServerProfile, winner: TuneCell, confirmation: dict[str, Any]
) -> dict[str, Any]:
    """The chosen launch line: always in the run folder, and as a profile of the lab when it was confirmed.

    Everything that was not tuned stays as the profile has it, its prefix cache too. No profile is overwritten.
    """
    name = spec.save_as or f"{profile.name}-tuned"
    free, number = name, 2
    while (context.places.servers / f"{free}.toml").exists():
        free, number = f"{name}-{number}", number + 1
    values = ", ".join(f"{key} {value}" for key, value in winner.values.items())
    tuned = with_parameters(profile, winner.values).model_copy(
        update={
            "name": free,
            "title": f"{profile.title or profile.name}, tuned",
            "notes": f"{values}: chosen by run {context.run.name}, {confirmation['state']}. {profile.notes}".strip(),
        }
    )
    context.run.file("chosen.toml").write_text(profile_toml(tuned), "utf-8")
    line = find_engine(tuned.engine).frozen_line(tuned)
    if confirmation["state"] == KEPT:
        context.events.note(f"{profile.name} stays as it is; its launch line is in chosen.toml")
        return {"profile": None, "launch": line}
    if confirmation["state"] != "confirmed":
        context.events.note("the choice was not confirmed: it is kept in chosen.toml and not made a profile", "warning")
        return {"profile": None, "launch": line}
    save_profile(context.places.servers, tuned)
    context.events.note(f"saved as server profile {free}: vlmconsole servers start {free}")
    return {"profile": free, "launch": line}


def _summary(spec: TuneSettings, book: Cells, frozen: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    choice, confirmation = result["choice"], result["confirmation"]
    measured = [entry["summary"] for entry in book.done if "summary" in entry]
    chosen = choice["chosen"] if choice else None
    return {
        "verdict": confirmation["state"] if confirmation else "no choice" if choice else "not finished",
        "chosen": chosen,
        "why": choice["why"] if choice else None,
        "baseline": spec.baseline().name,
        "rule_sha256": frozen["sha256"],
        "n": sum(cell["n"] for cell in measured),
        "requests": sum(cell["planned"] for cell in measured),
        "failures": sum(cell["failures"] for cell in measured),
        "profile": result.get("profile"),
        "launch": result.get("launch"),
        "rule": {**spec.rule.model_dump(mode="json"), **frozen},
        "choice": choice,
        "confirmation": confirmation,
        "cells": book.done,
        "limits_of_this": (
            f"{spec.requests} requests a cell: no statement about rare slow requests; "
            "memory is sampled, shorter peaks are missed; other inputs or hardware need their own tuning"
        ),
    }


def estimate(spec: TuneSettings) -> Estimate:
    """Return the number of requests and of server starts is known; how fast the server is shows only while it runs."""
    cells = len(spec.expand())
    total = (cells + 2) * spec.requests
    return Estimate(
        note=f"{total} requests and {(cells + 2) * spec.warm_up} warm-ups: {cells} cells and 2 confirmations,"
        f" each on a server started anew"
    )


def devices(spec: TuneSettings, places: Places) -> list[str]:
    """Return those of its own servers."""
    return held([spec.server], places)


def problems(spec: TuneSettings, places: Places, alone: bool) -> list[str]:
    """Return a server that is not started here, or a parameter that it cannot be given."""
    try:
        profile = _launched(spec, places)
        for cell in spec.expand():
            spec.profile(cell, profile)
    except LabError as error:
        return [error.full_message]
    return []


KIND = JobKind(
    name="tune",
    title="Tune a server's launch parameters",
    spec=TuneSettings,
    run=run,
    estimate=estimate,
    timing_sensitive=True,
    devices=devices,
    problems=problems,
)
