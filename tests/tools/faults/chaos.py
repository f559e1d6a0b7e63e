"""Kill things at random moments from a fixed seed, then check the books."""

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.ledger.chain import Ledger
from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.system import processes

HERE = Path(__file__).parent
CLOCK = "VLMCONSOLE_FAULT_CLOCK"  # the file that sitecustomize.py of this folder reads
HOUR = 3600.0
# Limits that no job of these rounds comes near, unless a clock that jumps or a frozen supervisor fools the count.
LIMITS = {"wall_clock_s": 2000.0, "no_progress_s": 900.0}
# Weights: how often each fault is done.
FAULTS = {
    "kill worker": 6,
    "kill supervisor": 6,
    "kill both": 3,
    "leave supervisor": 2,
    "freeze worker": 2,
    "freeze supervisor": 2,
    "stop worker for a minute": 1,
    "stop supervisor for a minute": 1,
    "clock jumps": 3,
    "cancel and retry": 2,
    "stale pid": 2,
}
CONSOLE = {"kill console": 1}  # besides, where a round has consoles: each costs a start of Textual
# A lab whose console looks for a server that is never there, so that it queues none of its own.
SERVER = 'engine = "openai"\nbase_url = "http://127.0.0.1:9"\nmodel = "none"\n'


def prepare_environment(home: Path, slots: int = 3) -> None:
    """For this process and all that it starts."""
    os.environ["PYTHONPATH"] = str(HERE)
    os.environ[process.LOCKS_VARIABLE] = str(home / "devices")
    os.environ[process.SLOTS_VARIABLE] = str(slots)
    os.environ["VLMCONSOLE_TRUSTED_PROGRAMS"] = "probe_kind"
    os.environ[process.IDLE_VARIABLE] = "3"
    os.environ[CLOCK] = str(home.with_name(f"{home.name}.clock"))


@dataclass
class Chaos:
    """One round of faults over `jobs` jobs of a lab home of its own.

    `minute`: how long the long stops last, s. `pace`: how long a step of a job takes, s. `consoles`: whether real
    consoles on a terminal of their own are opened over the work, and killed.
    """

    home: Path
    seed: int
    jobs: int
    faults: int
    patience: float = 600.0
    minute: float = 60.0
    pace: float = 0.02
    consoles: bool = False
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.places = Places(self.home).ensure()
        self.store = Store(self.places.queue)
        self.stopped: list[tuple[float, int, str | None]] = []  # (when to go on, pid, its start)
        self.console: subprocess.Popen[bytes] | None = None
        self.weights = FAULTS | (CONSOLE if self.consoles else {})
        if self.consoles:
            (self.places.servers / "none.toml").write_text(SERVER)
            self.places.config.write_text('server = "none"\n')

    def play(self) -> dict[str, Any]:
        """Add, disturb, wait, check; returns the figures. Raises AssertionError when the books are wrong."""
        begun = time.monotonic()
        for _ in range(self.jobs):
            self._add()
        process.ensure(self.places)
        while sum(self.done.values()) < self.faults and not self._over():
            time.sleep(self.random.uniform(0.02, 0.5))
            name = self.random.choices(list(self.weights), list(self.weights.values()))[0]
            self.done[name] += self._fault(name)
            self._go_on()
            process.ensure(self.places)  # as the next command of a person would
        self._wait()
        if self.console is not None:
            self.console.kill()
            self.console.wait()
        assert not self._fooled(), f"limits counted what was no lack of progress: {self._fooled()}"
        figures = self._check()
        return figures | {"seed": self.seed, "faults": dict(self.done), "seconds": round(time.monotonic() - begun, 1)}

    def _add(self) -> None:
        spec = {"steps": self.random.randint(20, 150), "seconds": self.pace, "child": self.random.random() < 0.3}
        devices = self.random.choice([("cpu",), ("cpu",), ("cpu:2",), ("cpu:all",)])
        options = {"retries": 1000, "backoff_s": 0.1, "grace_s": 2.0, **LIMITS}
        self.store.add(NewJob("probe", "probe_kind:KIND", "Probe", spec, options, devices))

    def _over(self) -> bool:
        return all(job.state == "done" for job in self.store.listing(True))

    def _fault(self, name: str) -> bool:
        """Do it; False when there was nobody to do it to."""
        worker, supervisor = self._worker(), process.running(self.places)
        # Only what meets somebody at work is counted; a supervisor may also die while it is only starting things.
        if name == "kill console":
            return self._kill_console()
        needs_worker = name not in ("kill supervisor", "leave supervisor")
        needs_supervisor = "supervisor" in name or name in ("kill both", "stale pid")
        if (needs_worker and not worker) or (needs_supervisor and not supervisor):
            return False
        if name in ("kill worker", "kill both") and worker:
            self._kill(worker)
        if name in ("kill supervisor", "kill both") and supervisor:
            self._kill(supervisor.get("pid"))
        if name == "leave supervisor" and supervisor:
            self._kill(supervisor.get("pid"), signal.SIGTERM)
        if name == "freeze worker" and worker:
            self._freeze(worker)
        if name == "freeze supervisor" and supervisor:
            self._freeze(supervisor.get("pid"))
        if name == "stop worker for a minute" and worker:
            self._stop(worker)
        if name == "stop supervisor for a minute" and supervisor:
            self._stop(supervisor.get("pid"))
        if name == "clock jumps":
            Path(os.environ[CLOCK]).write_text(str(self.random.choice((-HOUR, 0.0, HOUR))))
        if name == "cancel and retry":
            self._cancel_and_retry()
        if name == "stale pid":
            self._stale_pid(worker, supervisor)
        return True

    def _kill_console(self) -> bool:
        """Kill -9 the console that is open over the work, and open the next; False when none had been open yet."""
        killed = self.console is not None and self.console.poll() is None
        if self.console is not None:
            self.console.kill()
            self.console.wait()
        own, theirs = pty.openpty()
        command = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(self.home)]
        self.console = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)
        threading.Thread(target=_watched, args=(own,), daemon=True).start()
        return killed

    def _worker(self) -> int | None:
        pids = [job.pid for job in self.store.active() if processes.alive(job.pid, job.pid_started)]
        return self.random.choice(pids) if pids else None

    @staticmethod
    def _kill(pid: int | None, number: signal.Signals = signal.SIGKILL) -> None:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _freeze(self, pid: int | None) -> None:
        self._kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 1.0))
        self._kill(pid, signal.SIGCONT)

    def _stop(self, pid: int | None) -> None:
        """SIGSTOP; the other faults go on until its minute is over."""
        if pid:
            self.stopped.append((time.monotonic() + self.minute, pid, processes.started(pid)))
            self._kill(pid, signal.SIGSTOP)

    def _go_on(self) -> None:
        """SIGCONT for whoever has been stopped for its minute (and still is that process)."""
        for one in [one for one in self.stopped if one[0] <= time.monotonic()]:
            self.stopped.remove(one)
            if processes.alive(one[1], one[2]):
                self._kill(one[1], signal.SIGCONT)

    def _fooled(self) -> list[str]:
        reasons = [job.reason or "" for job in self.store.listing(True)]
        reasons += [old.reason or "" for job in self.store.listing(True) for old in self.store.attempts(job.id)]
        return [reason for reason in reasons if "limit" in reason or "no progress" in reason]

    def _cancel_and_retry(self) -> None:
        jobs = [job for job in self.store.listing() if job.state not in FINAL]
        if not jobs:
            return
        number = self.random.choice(jobs).id
        with contextlib.suppress(Exception):  # it may end in this very moment
            self.store.cancel(number)
        deadline = time.monotonic() + self.patience
        while self.store.get(number).state not in FINAL and time.monotonic() < deadline:
            self._go_on()
            process.ensure(self.places)
            time.sleep(0.05)
        if self.store.get(number).state != "done":
            self.store.again(number)

    def _stale_pid(self, worker: int | None, supervisor: dict[str, Any] | None) -> None:
        """Everything dies at once (as when the machine does), and a run's pid is a stranger's afterwards: ours."""
        self._kill(worker)
        self._kill((supervisor or {}).get("pid"))
        for job in self.store.active():
            if job.pid == worker and job.run:
                path = Path(job.run) / "state.json"
                with contextlib.suppress(OSError, ValueError):
                    state = json.loads(path.read_text())
                    if state["state"] not in FINAL:
                        path.write_text(json.dumps(state | {"pid": os.getpid()}))

    def _wait(self) -> None:
        deadline = time.monotonic() + self.patience
        while not self._over():
            assert time.monotonic() < deadline, [(job.id, job.state, job.reason) for job in self.store.listing(True)]
            self._go_on()
            process.ensure(self.places)
            time.sleep(0.1)
        while process.running(self.places) is not None:
            self._go_on()
            assert time.monotonic() < deadline, "the idle supervisor did not end"
            time.sleep(0.1)

    def _check(self) -> dict[str, Any]:
        jobs = self.store.listing(True)
        assert [job.id for job in sorted(jobs, key=lambda job: job.id)] == list(range(1, self.jobs + 1)), (
            "a job is lost"
        )
        assert all(job.state == "done" for job in jobs)
        twice = [path.name for path in (self.home / "probe").glob("TWICE-*")]
        assert not twice, f"run twice at once: {twice}"
        orphans = [one for one in _marked(self.places.runs)]
        assert not orphans, f"orphans: {orphans}"
        locks = DeviceLocks(self.home / "devices")
        held = [name for name in locks.files() if locks.held(name)]
        assert not held, f"left locked: {held}"
        ledger = Ledger(self.places.ledger)
        chain = ledger.read()
        assert chain.broken is None, chain.broken
        verdicts = [ledger.verify(run, chain) for run in list_runs(self.places.runs)]
        bad = [one for one in verdicts if one.status != "intact"]
        assert not bad, f"not intact: {bad}"
        ends = Counter(str(run.state().get("state")) for run in list_runs(self.places.runs))
        for job in jobs:
            summary = RunFolder(Path(job.run or "")).read_json("summary.json")
            assert summary == {"steps": job.spec["steps"]}, f"job {job.id} is done without its whole result: {summary}"
        assert ends["done"] == self.jobs, f"done more than once: {ends}"
        return {"jobs": self.jobs, "attempts": dict(ends), "sealed": len(verdicts)}


def _watched(terminal: int) -> None:
    """Read what a console draws until it is gone: a full terminal would hold it up."""
    with contextlib.suppress(OSError):  # a terminal whose program has ended cannot be read
        while os.read(terminal, 65536):
            pass
    os.close(terminal)


def _marked(runs: Path) -> list[str]:
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(processes.RUN_MARK, "").startswith(str(runs)):
                found.append(processes.describe(one.pid))
    return found
