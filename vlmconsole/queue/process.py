"""The supervisor's process: one per lab home by lock, started when needed, gone when idle.

`python -m vlmconsole.queue.process HOME`. It lives in its own session, so consoles, terminals, tmux servers and SSH
connections may come and go.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from vlmconsole.devices.locks import SHARED, DeviceLocks
from vlmconsole.queue import variables
from vlmconsole.queue.error_isolation import error_text, pause, say
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.runs import leftovers
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.runs.places import Places
from vlmconsole.system import processes
from vlmconsole.system.locking import take
from vlmconsole.system.privacy import keep_private
from vlmconsole.system.reading import read_json

TICK = 0.25  # seconds
IDLE = 60.0  # seconds without anything to do until it ends
RESERVE = 1024 * 1024  # bytes
LOG_LIMIT = 4 * 1024 * 1024
LOCKS_VARIABLE = "VLMCONSOLE_DEVICE_LOCKS"  # folder of the device locks, for tests and for odd machines
SLOTS_VARIABLE = "VLMCONSOLE_CPU_SLOTS"
IDLE_VARIABLE = "VLMCONSOLE_SUPERVISOR_IDLE"


def lock_folder() -> Path:
    """Return where the device locks of this machine are asked for."""
    return Path(os.environ.get(LOCKS_VARIABLE) or SHARED)


def _lock_path(places: Places) -> Path:
    return places.state / "supervisor.lock"


def running(places: Places) -> dict[str, Any] | None:
    """Return the living supervisor of a lab home ({pid, started, since, python}), None when there is none."""
    try:
        descriptor = os.open(_lock_path(places), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_info(places)
    finally:
        os.close(descriptor)
    return None


def _read_info(places: Places) -> dict[str, Any]:
    try:
        value = read_json(places.state / "supervisor.json")
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


_begun: dict[Path, "subprocess.Popen[bytes]"] = {}  # the supervisor that this process last started, of each home


def _on_its_way(places: Places) -> bool:
    """Whether the one that was started from here has not come to its lock yet: on a busy machine that takes seconds."""
    last = _begun.get(places.home)
    return last is not None and last.poll() is None and _read_info(places).get("pid") != last.pid


def ensure(places: Places) -> None:
    """Start the supervisor unless one runs; returns at once. Call it *after* the change it shall see.

    Raises QueueError where no process can be started.
    """
    places.ensure()
    if running(places) is not None or _on_its_way(places):
        with contextlib.closing(Store(places.queue)) as store:
            variables.hand_over(places, variables.asked_for(store.meta(variables.HELD)))
        return
    log = places.state / "supervisor.log"
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_suffix(".1.log"))
    environment = {key: value for key, value in os.environ.items() if key != processes.RUN_MARK}
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _begun[places.home] = subprocess.Popen(
            [sys.executable, "-P", "-m", "vlmconsole.queue.process", str(places.home)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=places.home,  # a folder that may be unmounted must not be kept busy
            env={**environment, "PYTHONUNBUFFERED": "1", **variables.begun(places)},
        )
    except OSError as error:
        raise QueueError(
            f"The queue's process cannot be started now ({error.strerror}).",
            "What is queued stays queued: `vlmconsole jobs resume` starts it once there is room.",
        ) from None
    finally:
        os.close(descriptor)


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1:
        print("usage: python -m vlmconsole.queue.process HOME", file=sys.stderr)
        return 2
    keep_private()
    places = Places(Path(words[0])).ensure()
    lock = _take(places)
    if lock is None:
        return 0  # another one is at work
    leave = threading.Event()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Workers go on without us; the next supervisor adopts them.
        signal.signal(number, lambda _number, _frame: leave.set())
    info = {
        "pid": os.getpid(),
        "started": processes.started(os.getpid()),
        "since": time.time(),
        "python": sys.executable,
    }
    for left in places.state.glob(".supervisor.json.*.tmp"):  # of one that was killed
        left.unlink(missing_ok=True)
    write_atomic(places.state / "supervisor.json", to_json(info))
    say("started")
    if gone := leftovers.clear(places):
        say(f"removed {len(gone)} files that killed processes had left: {', '.join(map(str, gone[:5]))}")
    slots = int(os.environ.get(SLOTS_VARIABLE, 0)) or None
    machine = Machine(DeviceLocks(lock_folder()), slots)
    supervisor = Supervisor(places, machine)
    try:
        supervisor.values.listen()
    except OSError as error:
        say(f"no private channel for variables: {error_text(error)}; jobs get those of this process")
    _loop(supervisor, leave, lock, float(os.environ.get(IDLE_VARIABLE, IDLE)))
    say("ended")
    return 0


def _take(places: Places) -> int | None:
    """The supervisor's lock. Tried for a second, as `running` holds it for an instant to look."""
    for _ in range(20):
        if (descriptor := take(_lock_path(places))) is not None:
            return descriptor
        time.sleep(0.05)
    return None


def _loop(supervisor: Supervisor, leave: threading.Event, lock: int, idle_after: float) -> None:
    quiet_since: float | None = None
    reserve = supervisor.places.state / "reserve"
    _keep_back(reserve)
    failures, last = 0, ""
    while not leave.is_set():
        try:
            supervisor.tick()
            quiet = supervisor.idle()
            since = quiet_since or time.monotonic()
            quiet_since = since if quiet else None
            if (
                quiet
                and time.monotonic() - since >= idle_after
                and supervisor.store.guarded(supervisor.idle, lambda: _let_go(supervisor, reserve, lock))
            ):
                return
        except Exception as error:
            # A full disk, most likely. The jobs say so themselves; here it must only not be the end: what was kept
            # for this case is given back, so that the jobs that fail can be booked and the queue goes on. What
            # nobody foresaw is no end either, as it may pass; only its trace is not written again and again.
            failures += 1
            wait = 0.0 if _give_back(reserve) else max(5.0, pause(failures))
            say(f"{error_text(error)}; next try in {wait:g} s")
            if error_text(error) != last:
                traceback.print_exc()
            last = error_text(error)
            leave.wait(wait)
            continue
        failures, last = 0, ""
        leave.wait(TICK if supervisor.live or not quiet else 4 * TICK)
    _give_back(reserve)
    supervisor.values.close()


def _let_go(supervisor: Supervisor, reserve: Path, lock: int) -> None:
    _give_back(reserve)  # first: afterwards it may be the next one's
    supervisor.values.close()
    fcntl.flock(lock, fcntl.LOCK_UN)


def _keep_back(reserve: Path) -> None:
    """Hold some disk space against the day when there is none."""
    if reserve.exists() or shutil.disk_usage(reserve.parent).free < 2 * RESERVE:
        return
    try:
        reserve.write_bytes(b"\0" * RESERVE)
    except OSError:
        _give_back(reserve)


def _give_back(reserve: Path) -> bool:
    try:
        reserve.unlink()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
