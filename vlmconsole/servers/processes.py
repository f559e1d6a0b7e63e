"""A server process that outlives the console: started once, shared by every console of a lab home, ended for sure.

One file per server in `state/servers`: NAME.json (who it is: pid *and* process start), NAME.log, and NAME.lock, an OS
lock held while someone starts or stops it. Readiness is never assumed: the process must live, own the port, and answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from vlmconsole.engines.access import Access, Holder
from vlmconsole.engines.profile import redact
from vlmconsole.errors import LabError
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.runs.places import Places
from vlmconsole.servers import keys
from vlmconsole.system import processes
from vlmconsole.system.locking import take
from vlmconsole.system.reading import read_json

Progress = Callable[[str, float], None]
"""Called with a phase ("starting python", "loading the model", "ready") and the seconds since the start."""
# Set in a server's environment to PORT:STATE-FILE, so that it is found again when that file is lost.
SERVER_MARK = "VLMCONSOLE_SERVER"
# Beside it: where the key of this start lies, never the key.
KEY_MARK = "VLMCONSOLE_SERVER_KEY_FILE"
_TICK_S = 0.05
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Servers started by this process: they must be reaped when they end, or they stay as zombies."""


class LaunchError(LabError):
    """A server that could not be started or stopped: what happened, what to do, where the log is."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server process as recorded when it was started. started: see runs.processes; launched: wall clock, seconds."""

    name: str
    pid: int
    started: str
    port: int
    base_url: str
    argv: tuple[str, ...]
    log: str
    launched: float
    key_file: str = ""
    """Where the key of this start lies; empty for one without (a generic server, or started by an older version)."""

    def holder(self) -> Holder:
        """Whom its port must belong to."""
        return Holder(f"server {self.name}", self.port, self.pid, self.started)

    @property
    def access(self) -> Access:
        """What a profile needs to be asked there."""
        return Access(self, Path(self.key_file) if self.key_file else None)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a reused pid is another process."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        return processes.alive(self.pid, self.started)


def folder(places: Places) -> Path:
    """Return where states, locks and logs of servers are."""
    path = places.state / "servers"
    with suppress(OSError):  # a home that cannot be written can be read all the same; whoever writes says why
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def recorded(places: Places, name: str) -> Running | None:
    """Return the last recorded start of a server, whether it still lives or not; None when there is none.

    Where the record is damaged, the server itself is looked for, so that it can still be used and stopped.
    """
    if damaged(places, name):
        return orphan(places, name)
    return _read(places, name)


def damaged(places: Places, name: str) -> bool:
    """Return whether there is a record of that server which cannot be read."""
    return (folder(places) / f"{name}.json").exists() and _read(places, name) is None


def adopted(places: Places, name: str) -> Running | None:
    """As `recorded`, but a lost or damaged record of a server that runs is written anew. Call with the lock held."""
    running = _read(places, name)
    if running is None and (running := orphan(places, name)) is not None:
        write_atomic(folder(places) / f"{name}.json", to_json(asdict(running)))
    return running


def orphan(places: Places, name: str) -> Running | None:
    """Return the server of that name by the mark in its processes' environment, without its record; None when none
    lives.
    """
    own = _mark(places, name, 0).partition(":")[2]
    marked: list[tuple[float, int, str, str]] = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid():
                environment = process.environ()
                port, _, whose = environment.get(SERVER_MARK, "").partition(":")
                if whose == own and port.isdigit() and processes.started(process.pid) is not None:
                    key = environment.get(KEY_MARK, "")
                    marked.append((process.create_time(), os.getsid(process.pid), port, key))
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or not ours to see
    if not marked:
        return None
    launched, leader, port, key_file = min(marked)
    try:
        argv = tuple(psutil.Process(leader).cmdline())
    except psutil.Error:
        argv = ()  # the leader has ended and helpers of its session go on: `end` ends those
    return Running(
        name=name,
        pid=leader,
        started=processes.started(leader) or "ended",
        port=int(port),
        base_url=f"http://127.0.0.1:{port}",
        argv=argv,
        log=str(folder(places) / f"{name}.log"),
        launched=launched,
        key_file=key_file,
    )


def _mark(places: Places, name: str, port: int) -> str:
    return f"{port}:{(folder(places) / f'{name}.json').resolve()}"


def _read(places: Places, name: str) -> Running | None:
    try:
        value = read_json(folder(places) / f"{name}.json")
        return Running(**{**value, "argv": tuple(value["argv"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


@asynccontextmanager
async def locked(places: Places, name: str, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Holds the start/stop lock of a server. The OS frees it when its holder dies, so it can never be left behind."""
    while (descriptor := take(folder(places) / f"{name}.lock")) is None:
        if waiting is not None:
            waiting()
        await asyncio.sleep(0.1)
    try:
        yield
    finally:
        os.close(descriptor)


def spawn(
    places: Places,
    name: str,
    argv: Sequence[str],
    *,
    port: int,
    env: Mapping[str, str],
    cwd: Path | None = None,
    key_file: Path | None = None,
) -> Running:
    """Starts a server in its own session with its output in a log, and records it. Call with the lock held.

    Raises LaunchError when the command cannot be run at all.
    """
    here = folder(places)
    log = here / f"{name}.log"
    _keep_old_log(log)
    # A server outlives the job that may have started it, so it must not count as that job's child process.
    inherited = {key: value for key, value in os.environ.items() if key != processes.RUN_MARK}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    marks = {SERVER_MARK: _mark(places, name, port), KEY_MARK: str(key_file or "")}
    with os.fdopen(descriptor, "ab") as output:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd or here,
                env={**inherited, "PYTHONUNBUFFERED": "1", **env, **marks},
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(
                f"{name} cannot be started: {argv[0]}: {error.strerror}", code="program-missing"
            ) from None
    _children[child.pid] = child
    running = Running(
        name=name,
        pid=child.pid,
        started=processes.started(child.pid) or "ended at once",
        port=port,
        base_url=f"http://127.0.0.1:{port}",
        argv=tuple(argv),
        log=str(log),
        launched=time.time(),
        key_file=str(key_file or ""),
    )
    write_atomic(here / f"{name}.json", to_json(asdict(running)))
    return running


async def until_ready(
    running: Running,
    answers: Callable[[], Any],
    *,
    timeout_s: float,
    phases: Sequence[tuple[str, str]],
    progress: Progress | None = None,
) -> None:
    """Waits until the process owns its port and `answers` (awaitable → bool) says so. Raises LaunchError with the log.

    A dead process, a port taken by a stranger and a time-out are told apart.
    """
    begun = time.monotonic()
    age = max(0.0, time.time() - running.launched)
    last = ""
    while True:
        waited = age + time.monotonic() - begun
        if not running.alive:
            raise LaunchError(f"{running.name} ended while starting.{tail(running.log)}", code="server-ended")
        phase = phase_of(running.log, phases)
        if phase != last and progress is not None:
            progress(phase, waited)
        last = phase
        owner = port_owner(running)
        if owner == "other":
            raise LaunchError(
                f"port {running.port} belongs to another program, so {running.name} cannot use it.{tail(running.log)}",
                code="port-taken",
            )
        if owner == "ours" and await answers():
            if progress is not None:
                progress("ready", age + time.monotonic() - begun)
            return
        if time.monotonic() - begun > timeout_s:
            raise LaunchError(
                f"{running.name} was not ready within {timeout_s:.0f} s.{tail(running.log)}", code="start-timeout"
            )
        # Every look goes through all processes: beside a start of minutes that is processor time taken from it.
        await asyncio.sleep(min(0.5, max(_TICK_S, waited / 50)))


async def end(running: Running, grace_s: float = 10.0) -> str:
    """Ends a server and every process of its session: TERM, a grace period, then KILL. Verifies that they are gone.

    Returns what it took ("ended", "killed" or "had ended already"). Raises LaunchError when something survives.
    """
    if not running.alive and not members(running):
        return "had ended already"
    took = "ended"
    for sign, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for pid in members(running):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise LaunchError(
                    f"{running.name} (pid {pid}) belongs to another user and cannot be ended", code="process-foreign"
                ) from None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not running.alive and not members(running):
                return took
            await asyncio.sleep(_TICK_S)
        took = "killed"
    raise LaunchError(f"{running.name} (pid {running.pid}) cannot be ended; see: ps -fp {running.pid}")


def forget(places: Places, name: str) -> None:
    """Removes the record and the key of a server that has ended; its log stays."""
    (folder(places) / f"{name}.json").unlink(missing_ok=True)
    keys.forget(folder(places), name)


def members(running: Running) -> list[int]:
    """Return the living processes of the server's session, its leader first. The leader's pid is the session's number.

    A number is not given out again while a member of its session lives, so when another process has the leader's
    pid, the server's session has ended altogether.
    """
    if not running.alive and processes.started(running.pid) is not None:
        return []
    pids = [running.pid] if running.alive else []
    for process in psutil.process_iter():
        try:
            if process.pid != running.pid and os.getsid(process.pid) == running.pid and processes.started(process.pid):
                pids.append(process.pid)
        except (ProcessLookupError, PermissionError):
            continue
    return pids


def port_owner(running: Running) -> str:
    """Return who listens on the server's port: "ours", "other", or "nobody" (yet). "ours" too where it cannot be
    looked up.
    """
    if _listens(running):
        return "ours"
    if not port_answers(running.port):
        return "nobody"
    # It may have begun to listen between the two looks: only a second one shows a stranger.
    return "ours" if _listens(running) else "other"


def _listens(running: Running) -> bool:
    for pid in members(running):
        try:
            sockets = psutil.Process(pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        except psutil.Error:
            return port_answers(running.port)
        if any(s.status == psutil.CONN_LISTEN and s.laddr.port == running.port for s in sockets):
            return True
    return False


def port_answers(port: int) -> bool:
    """Return whether something accepts connections on that loopback port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """Return a loopback port that is free now; whoever starts must still check who got it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def phase_of(log: str, phases: Sequence[tuple[str, str]]) -> str:
    """Return the phase whose mark stands last in the log."""
    return phase_in(_end_of(log, 64 * 1024), phases)


def phase_in(log: str, phases: Sequence[tuple[str, str]]) -> str:
    """Return the phase whose mark stands last in the end of a log."""
    best = max(((log.rfind(mark), phase) for mark, phase in phases), default=(-1, ""))
    return best[1] if best[0] >= 0 else "starting python"


def tail(log: str, lines: int = 8) -> str:
    """Return the end of a log as text to put behind an error, with the path of the whole."""
    lines_of_log = [line.rstrip()[:300] for line in _end_of(log, 16 * 1024).split("\n") if line.strip()]
    if any(line.startswith("Traceback (most") for line in lines_of_log):
        # Of a Python trace only the exception speaks to people; the rest is in the log.
        lines_of_log = [line for line in lines_of_log if not line.startswith((" ", "Traceback (most"))]
    last = lines_of_log[-lines:]
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in redact("\n  ".join(last)))
    return f" The log ends with:\n  {shown}\n  (all of it: {log})" if last else f" Its log is empty: {log}"


def _end_of(path: str, size: int) -> str:
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _keep_old_log(log: Path) -> None:
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
