"""`vlmconsole jobs`: the queue. Everything the Jobs screen does, in plain lines and in JSON."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say, state
from vlmconsole.cli.follow import progress_line
from vlmconsole.cli.foreground import INTERRUPTED, follow_job, interruptions
from vlmconsole.desks.queue import label_of, verdict_of
from vlmconsole.devices.labels import device_words
from vlmconsole.jobs.launch import log_tail
from vlmconsole.jobs.presets import list_presets, load_preset
from vlmconsole.queue import adding, process
from vlmconsole.queue.model import ACTIVE, FINAL, Job, Mode
from vlmconsole.queue.store import Store
from vlmconsole.queue.view import UNATTENDED, JobView, views
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.resume import resume_point
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import percent
from vlmconsole.text.sizes import size
from vlmconsole.text.times import about
from vlmconsole.text.toml import toml_lines

Number = Annotated[int, typer.Argument(metavar="ID", help="Job number")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The job queue; it goes on when the terminal is closed.")
    for name, command in (
        ("add", add), ("list", list_command), ("show", show), ("logs", logs), ("cancel", cancel), ("retry", retry),
        ("clone", clone), ("wait", wait), ("move", move), ("hand-over", hand_over), ("drain", drain),
        ("resume", resume), ("presets", presets),
    ):  # fmt: skip
        group.command(name)(command)
    app.add_typer(group, name="jobs")


def open_store() -> Store:
    return Store(state.lab.places.queue)


def view(store: Store, number: int, supervised: bool = True) -> JobView:
    return views(store, state.lab.places, [store.get(number)], supervised)[0]


def line(job_view: JobView) -> str:
    why = f", {job_view.why_with_commands}" if job_view.why else ""
    return f"{job_view.job.id} {job_view.job.preset}: {job_view.job.state}{why}"


def _tell(store: Store, number: int) -> None:
    job_view = view(store, number)
    emit(job_view.to_json(), line(job_view))


def add(
    preset: Annotated[str, typer.Argument(help="Preset name or TOML file")],
    sets: Sets = None,
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID[:any]", help="Start after that job is done (:any = has ended)")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Priority; higher goes first, default 0")] = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Allow stopping a server that holds the device; it restarts afterwards")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be queued and its estimate; queue nothing")
    ] = False,
) -> None:
    """Queue a preset."""
    places = state.lab.places
    planned = adding.plan(load_preset(preset, places), sets or [], places, alone=not after, refuse=not plan)
    if plan:
        show_plan(planned)
        return
    store = open_store()
    waits_for = [_after(text) for text in after or []]
    with interruptions() as noted:
        number = adding.add(store, planned, after=waits_for, priority=priority, hand_over=hand_over)
        for warning in dict.fromkeys(job_plan.warning for job_plan in planned if job_plan.warning):
            say(f"warning: {warning}")
        process.ensure(places)
        _tell(store, number)
    if noted:
        say(f"Ctrl-C came too late: the job is queued; `vlmconsole jobs cancel {number}` withdraws it")
        raise typer.Exit(INTERRUPTED)


def show_plan(planned: list[adding.Planned]) -> None:
    """What adding would queue: settings, device, estimate; of a flow, the whole at the end."""
    value = {"jobs": [job_plan.to_json() for job_plan in planned]}
    ordered = sorted(planned, key=lambda job_plan: job_plan.job.kind == "flow")
    lines = [text for job_plan in ordered for text in _plan_lines(job_plan)]
    emit(value, "\n".join([*lines, *_fails(planned)]))
    if any(job_plan.problems for job_plan in planned):
        raise typer.Exit(USAGE)


def _after(text: str) -> tuple[int, Mode]:
    number, _, mode = text.partition(":")
    if not number.isdigit() or mode not in ("", "ok", "any"):
        fail(f"--after {text}: give a job number, or NUMBER:any.", exit_status=USAGE)
    return int(number), "any" if mode == "any" else "ok"


def _fails(planned: Sequence[adding.Planned]) -> list[str]:
    """At the end of a flow's plan, each fault once, with the steps that it would end."""
    steps: dict[str, list[str]] = {}
    for job_plan in planned:
        for problem in job_plan.problems if job_plan.job.step else ():
            steps.setdefault(problem, []).append(job_plan.job.step or "")
    return [
        f"  preflight failed, will not be queued: {problem} ({many(len(names), 'step')}: {', '.join(names)})"
        for problem, names in steps.items()
    ]


def _plan_lines(job_plan: adding.Planned) -> Iterator[str]:
    job, guess = job_plan.job, job_plan.estimate
    yield f"{job.step + ': ' if job.step else ''}{job.title} ({job.preset}, kind {job.kind})"
    if job.kind != "flow":
        yield from toml_lines(job.spec)
        yield from (f"  from the data: {line}" for line in job_plan.proposed)
        yield f"  device: {device_words(job.devices)}{', guest of server ' + job.server if job.server else ''}"
    if job.options.get("environment"):
        yield f"  environment: {job.options['environment']}"
    if job_plan.warning:
        yield f"  warning: {job_plan.warning}"
    yield from (f"  preflight failed: {problem}" for problem in job_plan.problems)
    if guess is None:
        yield "  no estimate available"
        return
    rest = " plus the steps without an estimate" if job_plan.partial else ""
    parts = [f"about {about(guess.seconds)}{rest}"] if guess.seconds is not None else []
    for bytes_, what in ((guess.memory_bytes, "memory"), (guess.disk_bytes, "disk")):
        if bytes_ is not None:
            parts.append(f"{size(bytes_)} {what}")
    yield f"  takes: {', '.join(parts) or 'not known'}{' (' + guess.note + ')' if guess.note else ''}"


def list_command(
    everything: Annotated[bool, typer.Option("--all", help="Include all jobs that ended long ago")] = False,
) -> None:
    """The queue: what runs, what waits and why, what ended lately."""
    store, places = open_store(), state.lab.places
    supervisor = process.running(places)
    rows = views(store, places, store.listing(everything), supervisor is not None)
    drained = bool(store.meta("drained", False))
    jobs = [{**row.to_json(), "verdict": verdict_of(row.job) or None} for row in rows]
    value = {"jobs": jobs, "drained": drained, "supervisor": supervisor}

    def human(console: Console) -> None:
        if not rows:
            console.print("the queue is empty: `vlmconsole jobs add PRESET` queues a preset")
            return
        table = Table(box=None, pad_edge=False)
        for column in ("id", "job", "state", "progress", "device", "why"):
            table.add_column(column, justify="right" if column == "id" else "left", no_wrap=column != "why")
        for row in rows:
            table.add_row(*(Text(cell) for cell in _cells(row)))
        console.print(table)
        states = {row.job.state for row in rows}
        if supervisor is None and (states & set(ACTIVE) or ("queued" in states and not drained)):
            console.print(f"{UNATTENDED}: an open console, `vlmconsole jobs wait ID` or `jobs resume` starts it again")
        if drained:
            console.print("drained: no new jobs start until `vlmconsole jobs resume`")

    emit(value, human)


def _cells(row: JobView) -> tuple[str, ...]:
    job, progress = row.job, ""
    if row.progress:
        share, left = row.progress.share, row.progress.left_said(time.time())
        progress = row.progress.counted() if share is None or job.kind == "flow" else percent(share, 0)
        progress += f" · {left}" if left else ""
    name = f"  {job.step}: {job.preset}" if job.flow else job.preset
    # A job that is done is not simply well: what was judged of it stands beside it, as on the screens.
    reason = " · ".join(filter(None, (label_of(job), row.why_with_commands)))
    return str(job.id), name, job.state, progress, device_words(job.granted or job.devices, "–"), reason


def show(number: Number) -> None:
    """One job: its settings, its attempts, and the end of its log."""
    store = open_store()
    job_view = view(store, number, process.running(state.lab.places) is not None)
    attempts = store.attempts(number)
    tail = log_tail(RunFolder(Path(job_view.job.run)), 10) if job_view.job.run else []
    value = job_view.to_json() | {
        "spec": job_view.job.spec,
        "options": job_view.job.options,
        "attempts": [vars(attempt) for attempt in attempts],
        "steps": [line_of(step) for step in store.steps(number)],
        "log_tail": tail,
    }
    lines = [
        line(job_view),
        *([f"  {progress_line(job_view.progress)}"] if job_view.progress else []),
        *toml_lines(job_view.job.spec),
    ]
    lines += [f"  attempt {old.number}: {old.state} {old.reason or ''}  {old.run or ''}" for old in attempts]
    lines += [f"  step {step['step']}: job {step['id']}, {step['state']}" for step in value["steps"]]
    lines += [f"  | {text}" for text in tail] + ([f"run: {job_view.job.run}"] if job_view.job.run else [])
    emit(value, "\n".join(lines))


def line_of(step: Job) -> dict[str, Any]:
    return {"id": step.id, "step": step.step, "preset": step.preset, "state": step.state, "run": step.run}


def logs(
    number: Number,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow until the job ends (Ctrl-C leaves it running)")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="Number of last lines")] = 50,
) -> None:
    """The end of a job's log."""
    store = open_store()
    job = store.get(number)
    if not follow or state.json:
        tail = log_tail(RunFolder(Path(job.run)), lines, 1 << 20) if job.run else []
        emit({"id": number, "run": job.run, "lines": tail}, "\n".join(tail) or "no log yet")
        return
    shown: Path | None = None
    offset = 0
    while True:
        job = store.get(number)
        if job.run and Path(job.run) != shown:
            shown = Path(job.run)
            tail = log_tail(RunFolder(shown), lines, 1 << 20)
            sys.stdout.write("".join(f"{text}\n" for text in tail))
            offset = RunFolder(shown).log.stat().st_size if RunFolder(shown).log.exists() else 0
        if shown is not None:
            offset = _copy_new(RunFolder(shown).log, offset)
        if job.state in FINAL:
            say(f"job {number}: {job.state}{': ' + job.reason if job.reason else ''}")
            return
        time.sleep(0.2)


def _copy_new(path: Path, offset: int) -> int:
    """Write what was added after `offset` to stdout; a file that became shorter was rotated and starts anew."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(0 if path.stat().st_size < offset else offset)
        while data := file.read(1 << 16):
            sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()
        return file.tell()


def cancel(number: Number) -> None:
    """Cancel a job: a waiting one at once, a running one cleanly (killed after its grace)."""
    store = open_store()
    store.cancel(number)
    process.ensure(state.lab.places)
    _tell(store, number)


def retry(number: Number) -> None:
    """Try an ended job again, as a new attempt in its old place; a flow goes on with what failed."""
    store = open_store()
    run = store.get(number).run
    if run and (point := resume_point(RunFolder(Path(run)))):
        say(f"resumes from {point} of {Path(run).name}")
    store.again(number)
    process.ensure(state.lab.places)
    _tell(store, number)


def clone(number: Number) -> None:
    """Queue a new job with the same settings."""
    store = open_store()
    copy = store.clone(number)
    process.ensure(state.lab.places)
    _tell(store, copy)


def move(number: Number, place: Annotated[int, typer.Argument(metavar="N", min=1, help="Position; 1 is next")]) -> None:
    """Make a waiting job the N-th of the queue."""
    store = open_store()
    store.move(number, place)
    _tell(store, number)


def hand_over(number: Number) -> None:
    """Confirm that a waiting job may stop the server on its device; the server comes back afterwards."""
    store = open_store()
    if store.get(number).state != "queued":
        fail(f"Job {number} is not waiting.", exit_status=USAGE)
    store.set(number, hand_over=True)
    process.ensure(state.lab.places)
    _tell(store, number)


def wait(
    number: Number,
    timeout: Annotated[float, typer.Option(help="Timeout in seconds; 0 waits forever")] = 0,
) -> None:
    """Wait for a job's end, showing its progress. Exit 0 when it is done, 1 when it ended otherwise."""
    store, places = open_store(), state.lab.places
    process.ensure(places)
    code = follow_job(store, number, places, timeout=timeout)
    if code is None:
        now = store.get(number).state
        fail(f"Job {number} is still {now} after {timeout:g} s.", exit_status=FAILED, job=number, state=now)
    _tell(store, number)
    raise typer.Exit(code)


def drain() -> None:
    """Start nothing new; what runs goes on."""
    open_store().set_meta("drained", True)
    emit({"drained": True}, "drained: running jobs go on, no new jobs start")


def resume() -> None:
    """Let a drained queue go on."""
    open_store().set_meta("drained", False)
    process.ensure(state.lab.places)
    emit({"drained": False}, "the queue is resumed")


def presets() -> None:
    """The presets that can be queued or run."""
    listed = list_presets(state.lab.places)
    value = {"presets": [{"name": preset.name, "kind": preset.kind, "title": preset.title} for preset in listed]}

    def human(console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("name", "kind", "title"):
            table.add_column(column, no_wrap=column != "title")
        for preset in listed:
            table.add_row(*(Text(cell) for cell in (preset.name, preset.kind, preset.title)))
        console.print(table)

    emit(value, human)
