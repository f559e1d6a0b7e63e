"""A job that catches the queue lying: it holds a lock of its own for its job and for each of its devices."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vlmconsole.jobs.contract import Context, JobKind, Spec, Stopped


class ProbeSpec(Spec):
    steps: int = 20
    seconds: float = 0.02
    child: bool = False


def _hold(folder: Path, name: str, who: str) -> None:
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / f"TWICE-{name}-{who}").touch()


def probe(context: Context, spec: ProbeSpec) -> dict[str, Any]:
    job = context.run.job()
    folder = context.places.home / "probe"
    folder.mkdir(exist_ok=True)
    for name in (f"job-{job['job']}", *(f"device-{device}" for device in job["devices"])):
        _hold(folder, name, context.run.name)
    if spec.child:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    for step in range(spec.steps):
        context.run.append_jsonl("samples.jsonl", {"step": step})
        context.events.progress(step + 1, spec.steps)
        if context.wait(spec.seconds):
            raise Stopped({"steps": step})
    return {"steps": spec.steps}


KIND = JobKind("probe", "Probe", ProbeSpec, probe)


def fill(context: Context, spec: Spec) -> dict[str, Any]:
    with context.run.file("big.bin").open("wb") as file:
        while True:
            file.write(b"x" * 65536)
            file.flush()


FILL = JobKind("fill", "Fills the disk", Spec, fill)
