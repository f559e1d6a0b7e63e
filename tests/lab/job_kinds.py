"""Kinds of job that only tests know; named in presets as `job_kinds:COUNT` with this folder on PYTHONPATH."""

import hashlib
import os
import subprocess
import sys
import time
from typing import Any, Literal

from pydantic import Field

from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped


class CountSpec(Spec):
    steps: int = Field(5, ge=1, description="steps")
    seconds: float = Field(0.01, ge=0, description="seconds a step")
    mode: Literal["fine", "raise", "exit", "job-error", "child", "deaf", "full"] = "fine"
    size: int = Field(0, description="bytes written a step")
    prints: int = Field(0, description="bytes printed a step")


def count(context: Context, spec: CountSpec) -> dict[str, Any]:
    start = 0
    if context.earlier is not None:
        start = int(context.earlier.read_json("checkpoint.json", {"step": 0})["step"])
    context.log(f"counting from {start} in {os.getpid()} cuda={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    if context.server:
        context.log(f"server={context.server['base_url']}")
    if spec.mode == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    for step in range(start + 1, spec.steps + 1):
        if spec.mode == "deaf":
            time.sleep(spec.seconds)
        elif context.wait(spec.seconds):
            context.run.write_json("checkpoint.json", {"step": step - 1})
            raise Stopped({"steps": step - 1})
        context.events.progress(step, spec.steps)
        context.events.metric("loss", 1 / step, step)
        context.run.append_jsonl("samples.jsonl", {"step": step, "pid": os.getpid()})
        if spec.size:
            with context.run.file("big.bin").open("ab") as file:
                file.write(os.urandom(spec.size))
        if spec.prints:
            context.log("x" * spec.prints)
        if step == 2 and spec.mode == "raise":
            raise RuntimeError("shapes\n  2 and 3")
        if step == 2 and spec.mode == "job-error":
            raise JobError("the picture is gone: retry")
        if step == 2 and spec.mode == "exit":
            os._exit(7)
    return {"steps": spec.steps, "started_at": start}


COUNT = JobKind(
    "count", "Counts", CountSpec, count, lambda spec: Estimate(seconds=spec.steps * spec.seconds, note="by hand")
)


class ServeSpec(Spec):
    profile: str


def serve(context: Context, spec: ServeSpec) -> dict[str, Any]:
    """A stand-in for a model server as the queue sees one: it says that it is ready, and stays until asked to go."""
    context.wait(0.2)
    context.run.write_json("ready.json", {"profile": spec.profile, "base_url": "http://127.0.0.1:1"})
    while not context.wait(0.1):
        pass
    raise Stopped({"profile": spec.profile})


SERVE = JobKind("serve", "Serves", ServeSpec, serve, serves=lambda spec: str(spec.profile))


class JudgedSpec(Spec):
    verdict: str = "FAIL"


JUDGED = JobKind("judged", "Says a verdict", JudgedSpec, lambda context, spec: {"verdict": spec.verdict})


class EnvironSpec(Spec):
    api_key_env: str = ""
    wait: bool = False


def environ(context: Context, spec: EnvironSpec) -> dict[str, Any]:
    """Which variables are set here, and a hash of the key: no secret of a test may stand in a run."""
    while spec.wait and not context.wait(0.05):
        pass
    key = os.environ.get(spec.api_key_env, "")
    return {"names": sorted(os.environ), "key": hashlib.sha256(key.encode()).hexdigest()}


ENVIRON = JobKind("environ", "Looks at its environment", EnvironSpec, environ)
