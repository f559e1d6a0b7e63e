"""Where a worker runs. The supervisor talks to an executor only.

Work on another machine needs no executor of its own where the worker here can keep the books: it hands the work on
and brings the run folder back (`jobs/on_ray.py` does so on a Ray cluster). A scheduler that starts the worker itself
elsewhere (Slurm, say) is one more class with these few methods.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from vlmconsole.jobs import closing
from vlmconsole.jobs.launch import start_worker
from vlmconsole.runs.folder import RunFolder
from vlmconsole.system import processes


class Worker(Protocol):
    """A started worker, ours or adopted."""

    pid: int
    token: str | None

    def ended(self) -> str | None:
        """None while it runs; else how it died, for people (used only when it did not say so itself)."""

    def ask_to_stop(self) -> None:
        """The clean way: the job saves what it has."""

    def kill(self) -> list[str]:
        """End everything that belongs to the run at once; returns descriptions of what would not go."""


class Executor(Protocol):
    """Starts workers, and finds those that an earlier supervisor started."""

    def start(
        self, run: RunFolder, interpreter: Path, locks: Sequence[int], variables: Mapping[str, str | None]
    ) -> Worker:
        """Start the worker of `run`; None takes a variable away. Raises OSError when it cannot be."""

    def adopt(self, run: RunFolder, pid: int, token: str) -> Worker | None:
        """Return the worker with that pid *and* start, when it still lives."""


class LocalWorker:
    """A worker on this machine; `process` is None for an adopted one, which is not our child."""

    def __init__(
        self,
        run: RunFolder,
        pid: int,
        token: str | None,
        process: "subprocess.Popen[bytes] | None",
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self.run, self.pid, self.token, self._process = run, pid, token, process
        self._variables = {key: value for key, value in (variables or {}).items() if value is not None}

    def ended(self) -> str | None:
        if self._process is not None:
            code = self._process.poll()
            return None if code is None else closing.death(code)
        return None if processes.alive(self.pid, self.token) else closing.GONE

    def ask_to_stop(self) -> None:
        # Asked again right before, so that a pid used anew is never hit.
        if self.ended() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> list[str]:
        # Once the worker is dead its number may be another process's, and that one's session is not ours.
        ours = processes.alive(self.pid, self.token) or processes.started(self.pid) is None
        left = processes.kill_family(self.pid if ours else None, self.run.path)
        self._end_on_ray()
        return [processes.describe(process.pid) for process in left]

    def _end_on_ray(self) -> None:
        """A worker that was killed cannot end its work on a cluster: that is done for it (without waiting)."""
        if self.run.file("ray.json").exists() and not self.run.file("summary.json").exists():
            command = [sys.executable, "-P", "-m", "vlmconsole.jobs.on_ray", "stop", str(self.run.path)]
            quiet = subprocess.DEVNULL
            env = {**os.environ, **self._variables}  # a cluster may want the token of whoever queued it
            subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=env, start_new_session=True)


class LocalExecutor:
    """Workers as processes of this machine, each in its own session."""

    def start(
        self, run: RunFolder, interpreter: Path, locks: Sequence[int], variables: Mapping[str, str | None]
    ) -> LocalWorker:
        process = start_worker(run, interpreter, keep_open=locks, variables=variables)
        return LocalWorker(run, process.pid, processes.started(process.pid), process, variables)

    def adopt(self, run: RunFolder, pid: int, token: str) -> LocalWorker | None:
        return LocalWorker(run, pid, token, None) if processes.alive(pid, token) else None
