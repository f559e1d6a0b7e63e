"""The crash-point sweep: SIGKILL before, in the middle of and after every change that `add`, supervisor and worker make
to a file of the lab home, SQLite's own among them; then a restart, and a look at the books.

`python tests/tools/faults/deaths.py` sweeps every point and prints what it found as JSON; `--points N` takes N of each
role, spread over all. It compiles `deaths.c`, preloads it and starts itself anew: Linux, with a C compiler (`cc`).
Each process is a fork of one that has everything imported, so that a death costs a fraction of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROLES = ("add", "supervisor", "worker")
MODES = ("before", "middle", "after")
LIMIT = 60.0  # seconds for one restart
PRELOAD = "VLMCONSOLE_TEST_DEATHS"  # the compiled library, set for the process that is started anew


def compiled(folder: Path) -> Path:
    """The library, built from `deaths.c`. Raises CalledProcessError, FileNotFoundError without a compiler."""
    library = folder / "deaths.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "deaths.c", "-ldl"], check=True)
    return library


def sweep(points: int = 0, roles: Sequence[str] = ROLES) -> dict[str, Any]:
    """Run the sweep in a process that has the library preloaded; its figures."""
    with tempfile.TemporaryDirectory(prefix="vlmconsole-deaths-") as folder:
        library = compiled(Path(folder))
        words = [sys.executable, str(HERE / "deaths.py"), "--points", str(points), "--roles", *roles]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False,
            env={**os.environ, "LD_PRELOAD": str(library), PRELOAD: folder, "PYTHONPATH": str(HERE)},
        )  # fmt: skip
        if done.returncode not in (0, 1) or not done.stdout.strip():
            raise RuntimeError(done.stderr[-2000:])
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@dataclass
class Sweep:
    """One sweep in this very process. `wrong` has a sentence for every book that was not right after a death."""

    root: Path
    wrong: list[str] = field(default_factory=list)
    died: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def play(self, roles: Sequence[str], points: int) -> dict[str, Any]:
        begun = time.monotonic()
        for role in roles:
            calls = self._calls(role)
            plan = [(at, mode) for at, call in calls for mode in modes(call)]
            step = max(1, len(plan) // points) if points else 1
            for at, mode in plan[step // 2 :: step]:
                call = calls[at - 1][1]
                self._scenario(role, at, mode, call)
        return {
            "deaths": sum(self.died.values()),
            "by role": dict(self.died),
            "by call": dict(self.calls),
            "ends of jobs": dict(self.ends),
            "wrong": self.wrong,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def _calls(self, role: str) -> list[tuple[int, str]]:
        """Every change to a file that the role makes when nothing happens to it: (number, call)."""
        journal = self.root / f"{role}.calls"
        self._scenario(role, 0, "before", "none", journal)
        lines = [line.split(" ") for line in journal.read_text().splitlines()]
        first: dict[int, str] = {}  # two workers write into one journal: the first one's points are taken
        for number, call, *_ in lines:
            first.setdefault(int(number), call)
        return sorted(first.items())

    def _scenario(self, role: str, at: int, mode: str, call: str, journal: Path | None = None) -> None:
        self.number += 1
        home = self.root / f"home-{self.number}"
        armed = Armed(home, role, at, MODES.index(mode), journal)
        what = f"{role} killed {mode} its {at}th change ({call})"
        try:
            places = Places(home)
            if forked(lambda: add(places, armed)) and not Store(places.queue).listing(True):
                forked(lambda: add(places, None))  # the person who saw it die does it again
            forked(lambda: supervise(places, armed))
            self._unaccused(places, what)
            if supervise_until(places):
                self.wrong.append(f"{what}: the supervisor did not come to an end")
            if at and not home.with_name(f"{home.name}.died").exists():
                return  # it was not so many changes this time
            if at:
                self.died[role] += 1
                self.calls[f"{call} {mode}"] += 1
            self.wrong += [f"{what}: {text}" for text in self._books(places, role if at else "")]
        except Exception as error:
            traceback.print_exc()
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _unaccused(self, places: Places, what: str) -> None:
        """Nobody edited anything: `verify` must accuse no run, at no moment."""
        ledger = Ledger(places.ledger)
        chain = ledger.read()
        for run in list_runs(places.runs):
            verdict = ledger.verify(run, chain)
            if verdict.status not in ("intact", "not sealed"):
                self.wrong.append(f"{what}: accused before the restart: {verdict}")

    def _books(self, places: Places, role: str) -> Iterator[str]:
        store, ledger = Store(places.queue), Ledger(places.ledger)
        chain, jobs = ledger.read(), store.listing(True)
        if [job.id for job in sorted(jobs, key=lambda job: job.id)] != [1, 2]:
            yield f"jobs {[(job.id, job.state) for job in jobs]}: lost or queued twice"
        if chain.broken:
            yield chain.broken
        runs = {str(run.path): run for run in list_runs(places.runs)}
        named = {old.run for job in jobs for old in store.attempts(job.id)} | {job.run for job in jobs}
        for path, run in runs.items():
            verdict = ledger.verify(run, chain)
            if verdict.status != "intact":
                yield f"{verdict}"
            if path not in named:
                yield f"{run.name} belongs to no job"
            sealed = sum(entry.get("kind") == "sealed" and entry.get("run") == run.name for entry in chain.entries)
            if sealed != 1:
                yield f"{run.name} was sealed {sealed} times"
            if run.file("reserve").exists():
                yield f"{run.name} holds its reserve"
        if left := [str(path.relative_to(places.home)) for path in places.home.rglob("*.tmp")]:
            yield f"left over: {left}"
        lost = 0
        for job in jobs:
            self.ends[job.state] += 1
            done = sum(run.job().get("job") == job.id and run.state().get("state") == "done" for run in runs.values())
            if done != (job.state == "done"):
                yield f"job {job.id} is {job.state}, and {done} of its runs are done"
            if job.state not in FINAL or (job.state != "done" and not job.reason):
                yield f"job {job.id} is {job.state}, reason {job.reason!r}"
            lost += job.state != "done"
        if lost > (role == "worker"):
            yield f"{lost} jobs did not end well: {[(job.state, job.reason) for job in jobs]}"
        yield from (f"it ran twice at once: {path.name}" for path in places.home.glob("probe/TWICE-*"))
        locks = DeviceLocks(places.home / "devices")
        if held := [path.name for path in locks.folder.glob("*.lock") if locks.held(path.name.removesuffix(".lock"))]:
            yield f"left locked: {held}"
        store.close()


def modes(call: str) -> tuple[str, ...]:
    """Where a call can be cut: only a write has a middle, all else happens whole or not at all."""
    return MODES if call in ("write", "pwrite") else ("before", "after")


@dataclass(frozen=True)
class Armed:
    """Which process of a scenario dies, and where. `at` 0 only counts."""

    home: Path
    role: str
    at: int
    mode: int
    journal: Path | None

    def arm(self, role: str) -> None:
        """In the process of that role, once: the first worker dies, the one after it does not."""
        ctypes.CDLL(None).arm(b"", 0, 0, b"")  # what a fork took over from its parent
        if role != self.role:
            return
        if self.at:
            try:
                os.close(os.open(self.home.with_name(f"{self.home.name}.armed-{role}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        journal = os.fsencode(self.journal) if self.journal else b""
        ctypes.CDLL(None).arm(os.fsencode(self.home), self.at, self.mode, journal)


def forked(work: Callable[[], object]) -> int:
    """The work done in a process of its own; its exit code, -9 for a SIGKILL."""
    pid = os.fork()
    if not pid:
        run_and_exit(work)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def run_and_exit(work: Callable[[], object]) -> None:
    code = 1
    try:
        code = int(work() or 0)  # type: ignore[call-overload]
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def add(places: Places, armed: Armed | None) -> None:
    """What `vlmconsole jobs add` does to the disk: two jobs, of which the second waits for the first, or none."""
    if armed:
        armed.arm("add")
    places.ensure()
    store = Store(places.queue)
    with store.change():
        first = store.add(NewJob("probe", "probe_kind:KIND", "Probe", {"steps": 2, "seconds": 0.0}))
        store.add(
            NewJob("probe", "probe_kind:KIND", "Probe", {"steps": 2, "seconds": 0.0}, after=((first, "any"),)),
        )
    store.close()


def supervise(places: Places, armed: Armed | None) -> int:
    """The supervisor's own process, down to its lock and its leaving; its workers are forks."""
    os.environ[process.LOCKS_VARIABLE] = str(places.home / "devices")
    os.environ[process.SLOTS_VARIABLE] = "2"
    os.environ[process.IDLE_VARIABLE] = "0"
    process.TICK = 0.005
    executor = Forking(armed)
    process.Supervisor = lambda *words: Supervisor(*words, executor)  # type: ignore[assignment,misc]
    os.setsid()
    log = os.open(places.home.parent / "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if armed:
        armed.arm("supervisor")
    return process.main([str(places.home)])


def supervise_until(places: Places) -> bool:
    """Supervisors, one after the other, until all jobs have ended; True when that does not come about."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        forked(lambda: supervise(places, None))
        store = Store(places.queue)
        over = all(job.state in FINAL for job in store.listing(True))
        store.close()
        if over:
            return False
        time.sleep(0.02)
    return True


class Forking:
    """Workers as forks of the supervisor, each in its own session, as `LocalExecutor` has them."""

    def __init__(self, armed: Armed | None) -> None:
        self.armed = armed

    def start(
        self, run: RunFolder, interpreter: Path, locks: Sequence[int], variables: Mapping[str, str], **_: Any
    ) -> LocalWorker:
        pid = os.fork()
        if not pid:
            run_and_exit(lambda: self._work(run, locks))
        return LocalWorker(run, pid, processes.started(pid), Forked(pid))  # type: ignore[arg-type]

    def adopt(self, run: RunFolder, pid: int, token: str) -> LocalWorker | None:
        return LocalExecutor().adopt(run, pid, token)

    def _work(self, run: RunFolder, locks: Sequence[int]) -> int:
        os.setsid()
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in locks:
                with contextlib.suppress(OSError):
                    os.close(number)
        if self.armed:
            self.armed.arm("worker")
        return worker.work(run)


class Forked:
    """As much of a Popen as `LocalWorker` asks of one."""

    def __init__(self, pid: int) -> None:
        self.pid, self.code = pid, None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=0, help="deaths of each role, 0: all there are")
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    words = parser.parse_args()
    if PRELOAD not in os.environ:
        figures = sweep(words.points, words.roles)
    else:
        figures = Sweep(Path(os.environ[PRELOAD])).play(words.roles, words.points)
    print(json.dumps(figures))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__" or PRELOAD in os.environ:
    from vlmconsole.devices.locks import DeviceLocks
    from vlmconsole.jobs import worker
    from vlmconsole.ledger.chain import Ledger
    from vlmconsole.queue import process
    from vlmconsole.queue.executors import LocalExecutor, LocalWorker
    from vlmconsole.queue.model import FINAL, NewJob
    from vlmconsole.queue.store import Store
    from vlmconsole.queue.supervisor import Supervisor
    from vlmconsole.runs.folder import RunFolder, list_runs
    from vlmconsole.runs.places import Places
    from vlmconsole.system import processes
if __name__ == "__main__":
    sys.exit(main())
