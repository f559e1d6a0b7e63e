"""The process that runs one job: `python -m vlmconsole.jobs.worker RUN_FOLDER`.

It runs under the interpreter of the job's environment, so it needs only the base install. It owns the run
folder: state.json by rename, events and samples by appending, log.txt for everything printed. Exit codes:
0 done, 1 failed, 3 stopped on request, 2 not started (no such folder, already ended, or running elsewhere), 4 the disk
is full, so that not even the end could be written.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.jobs import closing
from vlmconsole.jobs.contract import Context, IncompleteError, Stopped
from vlmconsole.jobs.heartbeat import Heartbeat
from vlmconsole.jobs.kinds import IMPORT_FROM, load_kind
from vlmconsole.jobs.presets import validate
from vlmconsole.runs.folder import FINAL, RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system import processes
from vlmconsole.system.privacy import keep_private
from vlmconsole.system.redaction import hide_in_output

DONE, FAILED, NOT_STARTED, STOPPED = 0, 1, 2, 3
RESERVE = 256 * 1024  # bytes, see `books`


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the final state, its reason for people, and what it can say of its results."""

    state: str
    reason: str | None
    summary: dict[str, Any] | None = None


def main(argv: list[str] | None = None) -> int:
    keep_private()
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1 or not (Path(words[0]) / "job.json").is_file():
        print("usage: python -m vlmconsole.jobs.worker RUN_FOLDER (one that holds a job.json)", file=sys.stderr)
        return NOT_STARTED
    return work(RunFolder(Path(words[0]).absolute()))


def work(run: RunFolder) -> int:
    """Run the job of `run` to its end in this process; returns the exit code."""
    lock = closing.lock(run)
    if lock is None:
        print(f"{run.name} is running in another worker", file=sys.stderr)
        return NOT_STARTED
    if run.state().get("state") in FINAL:
        print(f"{run.name} has ended already; a retry is a new run", file=sys.stderr)
        return NOT_STARTED
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _own_output(run)
    except OSError as error:  # whoever started it reads the exit code alone
        return closing.DISK_FULL if _disk_is_full(error) else FAILED
    outcome = _begin(run)
    pulse = Heartbeat(run)
    if outcome is None:
        with contextlib.suppress(RuntimeError):  # no thread to be had now: the job is more than its pulse
            pulse.start()
        outcome = _attempt(run, stop)
        pulse.stop()
    return _end(run, outcome)


def _own_output(run: RunFolder) -> None:
    """Everything this process and its children print goes to log.txt, opened for appending."""
    log = os.open(run.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for stream, target in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(log, target)
    os.close(log)
    hide_in_output()


def _begin(run: RunFolder) -> Outcome | None:
    try:
        run.file(closing.RESERVE).write_bytes(b"\0" * RESERVE)
        run.set_state(
            "running",
            pid=os.getpid(),
            pid_started=processes.started(os.getpid()),
            started=round(time.time(), 3),
            heartbeat=round(time.time(), 3),
            python=sys.executable,
        )
        run.events.emit("state", state="running")
    except OSError as error:
        return Outcome("failed", _os_reason(error, run))
    return None


def _attempt(run: RunFolder, stop: threading.Event) -> Outcome:
    try:
        return _call(run, stop)
    except Stopped as stopped:
        # Whoever asked may have said why: a limit that was passed is a failure, a server making room is none.
        asked = run.read_json("stop.json", {})
        return Outcome(asked.get("state", "cancelled"), asked.get("reason", "stopped on request"), stopped.summary)
    except IncompleteError as error:
        return Outcome("failed", error.full_message, error.summary)
    except LabError as error:
        return Outcome("failed", error.full_message)
    except OSError as error:
        if not _disk_is_full(error):  # of that the reason says all there is, in whatever line it happened
            _trace(run)
        return Outcome("failed", _os_reason(error, run))
    except MemoryError:
        _trace(run)
        return Outcome("failed", "out of memory: choose smaller batches or images, or stop other jobs")
    except SystemExit as error:
        return Outcome("failed", f"the job called exit({error.code}), see the log")
    except BaseException as error:
        _trace(run)
        text = " ".join(str(error).split())[:300]
        return Outcome("failed", f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _call(run: RunFolder, stop: threading.Event) -> Outcome:
    job = run.job()
    kind = load_kind(str(job.get("kind")), queued=True, place=job.get(IMPORT_FROM))
    spec = validate(kind.spec, job.get("spec", {}), run.name)
    earlier = RunFolder(Path(job["earlier"])) if job.get("earlier") else None
    server = RunFolder(Path(job["server_run"])).read_json("ready.json") if job.get("server_run") else None
    context = Context(run, Places(Path(job["home"])), earlier, server, stop)
    context.check_stop()
    for text in kind.unused(spec) if kind.unused else ():
        context.events.note(text, "warning")
    if job.get("ray"):
        from vlmconsole.jobs.on_ray import run_on_ray

        return Outcome("done", None, run_on_ray(context, job))
    return Outcome("done", None, kind.run(context, spec))


def _make_room(run: RunFolder) -> None:
    with contextlib.suppress(OSError):
        run.file(closing.RESERVE).unlink()


def _trace(run: RunFolder) -> None:
    """The trace of the present exception into the log, where even on a full disk there is room for it now."""
    _make_room(run)
    _say(run, traceback.format_exc())


def _say(run: RunFolder, text: str) -> None:
    """A line of its own into the log; that it cannot be written must not hide how the job ended."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        with run.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 1))
            cut = log.read(1) not in (b"", b"\n")
        print(f"\n{text}" if cut else text, flush=True)  # a progress bar leaves its line open
        sys.stderr.flush()


def _disk_is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _os_reason(error: OSError, run: RunFolder) -> str:
    where = error.filename or run.path
    if _disk_is_full(error):
        return f"the disk is full (while writing {where}): free some space and retry"
    return f"{error.strerror or error} ({where})"


def _end(run: RunFolder, outcome: Outcome) -> int:
    """Write down how it ended and seal the run. The order matters: what is sealed is never written again."""
    _make_room(run)
    state, reason = outcome.state, outcome.reason
    left = processes.family(os.getpid(), run.path)
    if left:
        _say(run, f"ending {len(left)} processes that the job left behind")
        processes.kill_family(os.getpid(), run.path)
    if outcome.summary is not None:
        try:
            run.write_json("summary.json", outcome.summary | ({"partial": True} if state != "done" else {}))
        except OSError as error:
            state, reason = "failed", _os_reason(error, run)
    if reason:
        _say(run, f"{state}: {reason}")
    with contextlib.suppress(OSError):  # state.json below says the same and matters more
        run.events.emit("state", state=state, reason=reason)
    try:
        closing.close(run, state, reason)
    except OSError as error:
        # Unsealed, and perhaps without its last state: whoever watches sees the dead pid and says lost.
        _say(run, f"{closing.UNFINISHED}: {_os_reason(error, run)}")
        return closing.DISK_FULL if _disk_is_full(error) else FAILED
    return {"done": DONE, "cancelled": STOPPED}.get(state, FAILED)


if __name__ == "__main__":
    sys.exit(main())
