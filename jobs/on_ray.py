"""A job's work done on a Ray cluster, by Ray Jobs: the run folder is sent there, and comes back as it grows.

Here, the job's ordinary worker keeps the books (state, heartbeat, seal) and calls `run_on_ray` instead of the job. It
submits this very module as the Ray job's entrypoint with a copy of the run folder as working directory. There, it runs
the ordinary worker on that copy and prints what is new in the folder as numbered frames in the job's log, which needs
no shared file system and no other port than the cluster's dashboard. Ray gives out its own devices: the job holds none
here. `vlmconsole` must be installed where the cluster's `python` is.
"""

import json
import os
import queue
import shlex
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.ray_frames import Frame, Taker
from vlmconsole.text.sizes import size

BOOK = "ray.json"  # where the job is on Ray, so that whoever finds the worker dead can end it
GRACE = 30  # seconds that Ray gives the far worker between TERM and KILL
SILENCE = 300.0  # seconds without a word from the cluster until it counts as lost
PATIENCE = 30.0  # seconds for the end of the log after the job's end
AGENT = 120.0  # seconds that a cluster without an agent is asked again: its head takes that long on a busy machine
AGAIN = 2.0  # seconds between
NO_AGENT = "no available agent"
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"  # Ray's own variables
DEFAULT_TOKEN = "~/.ray/auth_token"
MOST = 200 * 1024**2  # bytes that may be sent there


def run_on_ray(context: Context, job: dict[str, Any]) -> dict[str, Any]:
    """Do the work of this run on the cluster that its options name; returns the far worker's summary.

    Raises JobError with the far reason or what is wrong with the cluster, and Stopped as any job does.
    """
    if job.get("server_run"):
        raise JobError("a guest of a server here cannot work on a Ray cluster", "give it a server by its base_url")
    options = job["ray"]
    client, submission = _submit(context, options), f"vlmconsole-{context.run.name}"
    context.events.note(f"submitted to Ray at {options['address']} as {submission}")
    end = _follow(context, client, submission)
    state, reason = end.get("state"), end.get("reason")
    summary = context.run.read_json("far-summary.json", None)
    context.run.file("far-summary.json").unlink(missing_ok=True)
    if state == "done" and isinstance(summary, dict):
        return summary
    if context.stopping():
        raise Stopped(summary if isinstance(summary, dict) else None)
    raise JobError(f"on Ray: {reason or state or 'it ended without saying how'}")


def _client(options: dict[str, Any]) -> Any:
    """A client of the cluster that `options` name. Raises JobError."""
    for name, key in ((MODE, "auth"), (TOKEN_PATH, "token_file")):  # before Ray is imported: it reads them once
        if options.get(key):
            os.environ[name] = str(options[key])
    if options.get("token_file"):
        os.environ.pop(TOKEN, None)  # which would come before the file
    address = options["address"]
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise JobError("Ray is not installed here", "pip install 'vlmconsole[ray]'") from None
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # Ray raises whatever its transport does
        if refused := _not_let_in(address, error):
            raise refused from None
        raise JobError(
            f"no Ray cluster answers at {address}: {_error_text(error)}", "it is the dashboard's address"
        ) from None


def _not_let_in(address: str, error: Exception) -> JobError | None:
    """The error for people where the cluster wants a token, or another one; None for any other fault."""
    text = str(error)
    if "Authentication required" in text or "no authentication token was found" in text:
        what = f"the Ray cluster at {address} wants a token: authentication required"
    elif "Authentication failed" in text or "Invalid authentication token" in text:
        what = f"the Ray cluster at {address} does not take this token: authentication failed"
    else:
        return None
    mode, path = os.environ.get(MODE) or "not set", os.environ.get(TOKEN_PATH) or DEFAULT_TOKEN
    return JobError(
        f"{what} ({MODE} is {mode}, the token's file {path})",
        f'export {MODE}=token where you queue, and {TOKEN_PATH}=FILE unless it is {DEFAULT_TOKEN}; or auth = "token"'
        " and token_file in [queue.ray]",
    )


def _submit(context: Context, options: dict[str, Any]) -> Any:
    client = _client(options)
    staging = Path(tempfile.mkdtemp(prefix="vlmconsole-ray-"))
    try:
        _stage(context, staging)
        words = [options["python"], "-P", "-m", "vlmconsole.jobs.on_ray", "there"]
        job = {
            "entrypoint": shlex.join(words),
            "submission_id": f"vlmconsole-{context.run.name}",
            "runtime_env": {
                "working_dir": str(staging),
                "env_vars": {"PYTHONUNBUFFERED": "1", "RAY_JOB_STOP_WAIT_TIME_S": str(GRACE)},
            },
            "metadata": {"run": context.run.name},
            "entrypoint_num_cpus": options["cpus"],
            "entrypoint_num_gpus": options["gpus"],
        }
        _until_taken(context, client, job, options["address"])
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    # How it is let in goes along, by path: whoever ends the job for a dead worker has another environment.
    known = {"auth": os.environ.get(MODE), "token_file": os.environ.get(TOKEN_PATH)}
    where = {"address": options["address"], "submission": f"vlmconsole-{context.run.name}"}
    context.run.write_json(BOOK, where | {key: value for key, value in known.items() if value})
    return client


def _until_taken(context: Context, client: Any, job: dict[str, Any], address: str) -> None:
    """Submit the job; a cluster whose agent is not up yet is asked again, for AGENT seconds at most."""
    deadline, warned = time.monotonic() + AGENT, False
    while True:
        try:
            client.submit_job(**job)
            return
        except Exception as error:
            if refused := _not_let_in(address, error):
                raise refused from None
            if NO_AGENT not in str(error).lower():
                raise JobError(f"Ray did not take the job: {_error_text(error)}") from None
            if time.monotonic() >= deadline:
                why = f"the Ray cluster at {address} had no agent for the job for {AGENT:.0f} s"
                raise JobError(why, "see whether its head node is up and not overloaded (`ray status`)") from None
        if not warned:
            context.events.note(f"the Ray cluster has no agent yet: it is asked again for {AGENT:.0f} s", "warning")
            warned = True
        if context.wait(AGAIN):
            raise Stopped


def _stage(context: Context, staging: Path) -> None:
    """What is sent: the run's spec, and the attempt that it continues."""
    shutil.copyfile(context.run.file("job.json"), staging / "job.json")
    if context.earlier is not None:
        earlier = sum(path.stat().st_size for path in context.earlier.path.rglob("*") if path.is_file())
        if earlier > MOST:
            raise JobError(f"the earlier attempt is {size(earlier)}, more than is sent to a cluster")
        shutil.copytree(context.earlier.path, staging / "earlier")


def _follow(context: Context, client: Any, submission: str) -> dict[str, Any]:
    """Take in frames until the job has ended there; returns the far worker's last state."""
    taker, lines = Taker(context.run), queue.Queue[str]()
    done = threading.Event()
    threading.Thread(target=_tail, args=(client, submission, lines, done), daemon=True).start()
    asked, heard, ended_at, looked = False, time.monotonic(), 0.0, 0.0
    status = "PENDING"
    try:
        while True:
            if context.stopping() and not asked:
                asked = True
                _quietly(client.stop_job, submission)
            try:
                line = lines.get(timeout=0.5)
                heard = time.monotonic()
                frame = Frame.parse(line)
                if frame is not None:
                    taker.take(frame)
                elif line.strip():
                    context.log(f"ray: {line.rstrip()}")
                continue
            except queue.Empty:
                pass
            if taker.end is not None:
                return taker.end
            now = time.monotonic()
            if now - looked >= 2.0:
                looked = now
                seen = _quietly(client.get_job_status, submission)
                if seen is not None:
                    heard = now
                    if str(getattr(seen, "value", seen)) != status:
                        status = str(getattr(seen, "value", seen))
                        context.events.note(f"Ray says {status}")
            if status in ("STOPPED", "FAILED", "SUCCEEDED"):
                ended_at = ended_at or now
                if now - ended_at > (5.0 if status == "STOPPED" else PATIENCE):
                    info = _quietly(client.get_job_info, submission)
                    return {"state": "failed", "reason": str(getattr(info, "message", "") or status)[:300]}
            if now - heard > SILENCE:
                raise JobError(f"no word from the Ray cluster for {SILENCE:.0f} s; the job may still be running there")
    finally:
        done.set()


def _tail(client: Any, submission: str, lines: "queue.Queue[str]", done: threading.Event) -> None:
    """Put the job's log into `lines`; after a break from its start, as frames are numbered."""
    import asyncio

    async def read() -> None:
        rest = ""
        async for chunk in client.tail_job_logs(submission):
            *whole, rest = (rest + chunk).split("\n")
            for line in whole:
                lines.put(line)

    while not done.is_set():
        try:
            asyncio.run(read())
        except Exception as error:
            lines.put(f"the log broke off: {_error_text(error)}")
        done.wait(1.0)


def _quietly(call: Any, *words: Any) -> Any:
    """The call's value; None when the cluster does not answer now (it is asked again)."""
    try:
        return call(*words)
    except Exception:
        return None


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def run_on_cluster() -> int:
    """On the cluster: run the worker on the copy in this folder, and print what it writes as frames."""
    import subprocess

    from vlmconsole.jobs.ray_frames import Giver
    from vlmconsole.system.privacy import keep_private

    keep_private()
    with tempfile.TemporaryDirectory(prefix="vlmconsole-far-") as folder:
        home = Path(folder)
        run = home / "runs" / "run"
        run.mkdir(parents=True)
        job = json.loads(Path("job.json").read_text("utf-8"))
        job |= {"home": str(home), "ray": None}
        if Path("earlier").is_dir():
            shutil.copytree("earlier", home / "earlier")
            job["earlier"] = str(home / "earlier")
        (run / "job.json").write_text(json.dumps(job), "utf-8")
        giver = Giver(run, sys.stdout)
        command = [sys.executable, "-P", "-m", "vlmconsole.jobs.worker", str(run)]
        worker = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
        import signal

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: worker.terminate())
        while worker.poll() is None:
            giver.give()
            time.sleep(0.3)
        giver.finish()
    return 0 if worker.returncode == 0 else 1


def stop(run: Path) -> int:
    """End the Ray job of a run whose worker is dead."""
    try:
        where = json.loads((run / BOOK).read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    _quietly(_client(where).stop_job, where["submission"])
    return 0


if __name__ == "__main__":
    sys.exit(stop(Path(sys.argv[2])) if sys.argv[1:2] == ["stop"] else run_on_cluster())
