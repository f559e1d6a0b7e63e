"""`vlmconsole run PRESET`: a job queued and followed in the foreground, until it ends or is cancelled."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vlmconsole.cli.common import USAGE, emit, fail, say, state
from vlmconsole.cli.foreground import follow_job, interruptions
from vlmconsole.cli.gate_plan import frozen_figures
from vlmconsole.cli.gates import CODES
from vlmconsole.cli.jobs import show_plan
from vlmconsole.desks.queue import INVALID, label_of, verdict_of
from vlmconsole.evaluation.scores import score_lines
from vlmconsole.jobs.launch import log_tail
from vlmconsole.jobs.presets import load_preset
from vlmconsole.queue import adding, process
from vlmconsole.queue.model import Job
from vlmconsole.queue.store import Store
from vlmconsole.reports.outcome import development_line, learning_lines
from vlmconsole.runs.folder import RunFolder, find_run
from vlmconsole.runs.resume import resume_point
from vlmconsole.runs.titles import in_unit, title
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    preset: Annotated[str, typer.Argument(help="Preset name or TOML file; `jobs presets` lists them")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable")
    ] = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Resume this run in a new attempt")] = "",
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Allow stopping a server that holds the device; it restarts afterwards")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would run and its estimate; run nothing")] = False,
) -> None:
    """Queue a preset and follow it. Ctrl-C stops it cleanly and keeps what was made; a second one kills it.

    It goes on when the terminal is closed: `vlmconsole jobs wait ID` follows it again. The exit code says whether the
    job ran, 0 also where its gates failed: `vlmconsole gates check RUN` exits with the verdict.
    """
    places = state.lab.places
    if bool(preset) == bool(resume):
        fail("Name a preset, or a run with --resume.", "vlmconsole jobs presets lists the presets", USAGE)
    if resume and sets:
        fail("A resumed run keeps its settings.", "Without --resume, `--set` changes them in a new run.", USAGE)
    if resume and plan:
        _show_resume(find_run(places.runs, resume))
        return
    if plan:
        show_plan(adding.plan(load_preset(preset, places), sets or [], places, refuse=False))
        return
    planned = [] if resume else adding.plan(load_preset(preset, places), sets or [], places)
    store = Store(places.queue)
    with interruptions() as noted:
        number = _again(store, resume) if resume else adding.add(store, planned, hand_over=hand_over)
        for warning in dict.fromkeys(job_plan.warning for job_plan in planned if job_plan.warning):
            say(f"warning: {warning}")
        process.ensure(places)
        code = finish(store, number, noted)
    raise typer.Exit(code)


def finish(store: Store, number: int, noted: list[int]) -> int:
    """Follow a queued job to its end and print how it ended; returns the exit code. `noted`: see `interruptions`."""
    say(f"job {number}: {store.get(number).title}")
    code = follow_job(store, number, state.lab.places, cancels=noted)
    job = store.get(number)
    if job.kind == "flow" or not job.run:
        members = store.steps(number)
        steps = [
            {"id": step.id, "step": step.step, "state": step.state, "reason": step.reason, "run": step.run}
            | {"verdict": verdict_of(step) or None}
            for step in members
        ]
        lines = [f"{job.state}{': ' + job.reason if job.reason else ''}"]
        for member, step in zip(members, steps, strict=True):
            judged = f", verdict {label_of(member)}" if step["verdict"] else ""
            lines.append(f"  {step['step']}: {step['state']}{judged}  {step['run'] or ''}")
        lines += [verdict_line(member) for member in members if verdict_of(member)]
        emit({"job": number, "state": job.state, "reason": job.reason, "steps": steps}, "\n".join(lines))
        return code or 0
    folder = RunFolder(Path(job.run))
    value = {
        "run": folder.name,
        "job": number,
        "path": str(folder.path),
        "log": str(folder.log),
        "state": job.state,
        "reason": job.reason,
        "summary": folder.read_json("summary.json"),
    }
    if job.kind == "capacity" and isinstance(value["summary"], dict):
        value |= value["summary"]  # the contract of `run capacity --json`
    verdict = verdict_of(job)
    emit(value | {"verdict": verdict or None}, ending(folder) + (f"\n{verdict_line(job)}" if verdict else ""))
    return code or 0


def verdict_line(job: Job) -> str:
    """What was judged in a job that is done, and which command tells it by its exit code: following a job does not."""
    run = Path(job.run or "")
    if verdict_of(job) == INVALID:
        why = _invalid(RunFolder(run).read_json("summary.json"))
        return f"verdict {INVALID}: {one_line(why, 300)}"
    if job.kind == "audit":
        judged = f"audit {(RunFolder(run).read_json('summary.json') or {}).get('run', '')}"
    else:
        judged = f"gates check {run.name}"
    codes = ", ".join(f"{code} {name}" for name, code in CODES.items())
    return f"verdict {label_of(job)}: `vlmconsole {judged}` exits with it ({codes})"


def _invalid(summary: Any) -> str:
    """Why a measurement does not count: its own reason, or its cells that do not, with the first one's."""
    values: dict[str, Any] = summary if isinstance(summary, dict) else {}
    listed = values.get("cells")
    cells = [cell for cell in listed if isinstance(cell, dict)] if isinstance(listed, list) else []
    bad = [cell for cell in cells if cell.get("state") != "valid"]
    if not bad:
        return str(values.get("invalid_because") or "no cell was measured")
    return f"{len(bad)} of {many(len(cells), 'cell')} set aside; {bad[0].get('name')}: {bad[0].get('why') or '?'}"


def _show_resume(run: RunFolder) -> None:
    """Print where a new attempt of this run would resume."""
    point = resume_point(run)
    text = f"resumes from {point} of {run.name}" if point else f"{run.name} left nothing to resume from: starts anew"
    emit({"run": run.name, "resumes_from": point or None}, text)


def _again(store: Store, name: str) -> int:
    """Queue the job that made this run again, as a new attempt. Fails when the run is no queued job's newest."""
    run = find_run(state.lab.places.runs, name)
    number = run.job().get("job")
    if not isinstance(number, int):
        fail(f"{run.name} was not made by a job of this queue.", "`vlmconsole run PRESET` starts a new run.")
    if store.get(number).run != str(run.path):
        fail(f"Job {number} has a newer attempt than {run.name}.", f"`vlmconsole jobs retry {number}` resumes from it.")
    if point := resume_point(run):
        say(f"resumes from {point} of {run.name}")
    store.again(number)
    return number


def ending(folder: RunFolder, *, figures: bool = True) -> str:
    """How a run ended, for people: state, reason, the figures of the summary, the log's tail after a failure."""
    now = folder.state()
    lines = [f"{now.get('state')}" + (f": {now['reason']}" if now.get("reason") else "")]
    summary: Any = folder.read_json("summary.json", {})
    if isinstance(summary, dict) and figures:
        shown = frozen_figures(summary) if folder.job().get("kind") == "freeze" else summary
        # A summary's own mark that its job did not come to its end is no score of that name.
        shown = {key: figure for key, figure in shown.items() if key != "partial" or not isinstance(figure, bool)}
        lines += [
            f"  {line}"
            for line in filter(None, [*score_lines(summary), development_line(summary), *learning_lines(summary)])
        ]
        known = {key: figure for key, figure in shown.items() if not isinstance(figure, dict | list | None)}
        lines += [f"  {title(key)}: {_shown(in_unit(key, figure))}" for key, figure in known.items()]
    if isinstance(summary, dict) and summary.get("partial") is True and figures:
        lines.append("  partial figures: only what was done until then")
    lines += [f"  {name} is damaged and cannot be read" for name in folder.unreadable()]
    if now.get("state") == "done" and not folder.file("summary.json").exists():
        lines.append("  summary.json is missing; its figures are lost")
    if now.get("state") in ("failed", "lost"):
        lines += [f"  | {line}" for line in log_tail(folder, 5)]
    lines.append(f"run: {folder.path}")
    lines.append(f"log: {folder.log}")
    return "\n".join(lines)


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return ("no", "yes")[value]
    return float(f"{value:.4g}") if isinstance(value, float) else value  # the file holds the rest
