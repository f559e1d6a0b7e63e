"""``vlmconsole run PRESET``: a job in the foreground, with its progress, until it ends or is cancelled."""

import os
import signal
import subprocess
from typing import Annotated, Any

import typer

from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say, state
from vlmconsole.cli.follow import Follower, until
from vlmconsole.jobs import books
from vlmconsole.jobs.launch import create_run, log_tail, start_worker
from vlmconsole.jobs.presets import Preset, load_preset, overlay
from vlmconsole.runs import processes
from vlmconsole.runs.folder import FINAL, RunFolder, find_run

INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    preset: Annotated[str, typer.Argument(help="a preset's name or TOML file; `jobs presets` lists them")] = "",
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting")] = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="continue this run in a new attempt")] = "",
) -> None:
    """Run a preset here and now. Ctrl-C stops it cleanly and keeps what was made; a second one kills it."""
    if bool(preset) == bool(resume):
        fail("Name a preset, or a run with --resume.", "vlmconsole jobs presets lists the presets", USAGE)
    folder = _prepare(preset, sets or [], resume)
    say(f"{folder.job()['title']}: {folder.path}")
    code = follow(folder)
    final = folder.state()
    summary = folder.read_json("summary.json")
    result = {
        "run": folder.name,
        "path": str(folder.path),
        "log": str(folder.log),
        "state": final.get("state"),
        "reason": final.get("reason"),
        "summary": summary,
    }
    emit(result, ending(folder))
    raise typer.Exit(code)


def _prepare(preset: str, sets: list[str], resume: str) -> RunFolder:
    places = state.lab.places
    try:
        if not resume:
            chosen = load_preset(preset, places)
            return create_run(places, chosen, overlay(chosen, sets))
        earlier = find_run(places.runs, resume)
        now = earlier.state()
        if processes.alive(now.get("pid"), now.get("pid_started")):
            fail(f"{earlier.name} is still running (pid {now['pid']}).", "Stop it first, or wait for its end.")
        if now.get("state") == "done":
            fail(f"{earlier.name} is done; there is nothing to continue.", "`vlmconsole run PRESET` starts anew.")
        job = earlier.job()
        old = Preset(job["preset"], job["kind"], job["title"], job["spec"])
        return create_run(places, old, overlay(old, sets), earlier)
    except OSError as error:
        fail(f"The run folder could not be made: {error.strerror} ({error.filename or places.runs}).")


def follow(folder: RunFolder) -> int:
    """Start the run's worker and follow it to its end; returns the exit code. Ctrl-C stops it cleanly, twice kills."""
    worker = start_worker(folder)
    asked = 0
    with Follower(folder, folder.job()["title"], state.quiet) as follower:
        while True:
            try:
                until(lambda: worker.poll() is not None, follower)
                break
            except KeyboardInterrupt:
                asked += 1
                _stop(worker, folder, asked, follower)
    now = folder.state()
    if now.get("state") not in FINAL:
        # Killed, or dead before it could write: say so in the books, as nobody else will.
        processes.kill_family(worker.pid, folder.path)
        if asked > 1:
            books.bury(folder, "cancelled", "killed on request before it had stopped by itself")
        else:
            books.bury(folder, "failed", books.death(worker.returncode))
    if asked:
        return INTERRUPTED
    return 0 if folder.state().get("state") == "done" else FAILED


def _stop(worker: "subprocess.Popen[bytes]", folder: RunFolder, asked: int, follower: Follower) -> None:
    if asked == 1:
        follower.say("stopping cleanly, what was made is kept (Ctrl-C again kills)")
        os.kill(worker.pid, signal.SIGTERM)
    else:
        follower.say("killed")
        processes.kill_family(worker.pid, folder.path)


def ending(folder: RunFolder) -> str:
    """How a run ended, for people: state, reason, the log's tail after a failure, the figures of the summary."""
    now = folder.state()
    lines = [f"{now.get('state')}{': ' + now['reason'] if now.get('reason') else ''}"]
    summary: Any = folder.read_json("summary.json", {})
    lines += [f"  {key}: {value}" for key, value in summary.items() if not isinstance(value, dict | list)]
    if now.get("state") in ("failed", "lost"):
        lines += [f"  | {line}" for line in log_tail(folder, 5)]
    lines.append(f"run: {folder.path}")
    lines.append(f"log: {folder.log}")
    return "\n".join(lines)
