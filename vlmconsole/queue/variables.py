"""Environment variables that go with a job: their names into the queue, their values by a private channel alone.

A job runs under the queue's process, which another shell may have begun: a key that was exported since is not there.
So whoever queues a job hands over the values of the variables that it needs, through a Unix socket of that process
which only its own user can open and on which each side looks whose process the other is. They are kept in memory and
given to the job's process; no disk, database, log or run folder ever holds one.
"""

import contextlib
import functools
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmconsole.engines.profile import load_profiles
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.runs.places import Places

#: of whoever queues: absent there, they are absent for the job
COMMON = (
    "SSH_AUTH_SOCK",
    *(name for base in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (base, base.lower())),
    "HF_TOKEN",
    "HF_HOME",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
)
OPTION = "variables"  # of a job's options: the names that were set where it was queued
QUEUED_BY = "VLMCONSOLE_QUEUED_BY"  # tells a new queue's process which jobs its own environment belongs to
HELD = "held"  # of the queue's shared values: which jobs wait for their variables, and why
LONGEST = 256 * 1024  # bytes of a message
HANDING = 5.0  # seconds until it is not waited for any more that values are handed over
PATIENCE = 3.0  # seconds until the socket of a process that is just starting is there

_queued: dict[Path, dict[int, list[str]]] = {}  # lab home → jobs that this very process queued, with their names


def needed(job: NewJob, places: Places, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the variables that a job needs and that are set: those of keys, and the common ones."""
    words = {*_texts(job.spec), job.server or "", job.serves or ""}
    keys = [key for name, key in _keys(places.servers, _changed(places.servers)) if name in words]
    keys += [value for key, value in _items(job.spec) if key.endswith("_env") and isinstance(value, str)]
    return [name for name in dict.fromkeys((*keys, *COMMON)) if name and environment.get(name)]


@functools.lru_cache(8)
def _keys(folder: Path, changed: int) -> tuple[tuple[str, str], ...]:
    """(profile, its key's variable) of each profile that names one; read again when the folder has changed."""
    profiles = load_profiles(folder, problems=[])
    return tuple((name, profile.api_key_env) for name, profile in profiles.items() if profile.api_key_env)


def _changed(folder: Path) -> int:
    times = [path.stat().st_mtime_ns for path in (folder, *folder.glob("*.toml")) if path.exists()]
    return hash(tuple(times))


def names_of(options: Mapping[str, Any]) -> list[str] | None:
    """Return the names in a job's options; None for a job that an earlier version queued."""
    names = options.get(OPTION)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield str(key), item
        yield from _items(item)


def _texts(value: Any) -> Iterator[str]:
    return (item for _, item in _items(value) if isinstance(item, str))


def queued(places: Places, number: int, names: list[str]) -> None:
    """Remember that this process queued a job, so that its values are handed over with the next `hand_over`."""
    _queued.setdefault(places.home, {})[number] = names


def begun(places: Places) -> dict[str, str]:
    """For the environment of a queue's process that this one starts: that environment is its jobs' own."""
    return {QUEUED_BY: ",".join(map(str, sorted(_queued.pop(places.home, {}))))}


def hand_over(places: Places, asked: Iterable[str] = ()) -> bool:
    """Give this process's values to the running queue's process, for the jobs it has queued; of the names that are
    `asked` for, for any job that lacks them. False when nobody took them.
    """
    mine = _queued.pop(places.home, {})
    names = {name for needs in mine.values() for name in needs}
    given = {name: os.environ[name] for name in names if os.environ.get(name)}
    fill = {name: os.environ[name] for name in asked if os.environ.get(name)}
    if not given and not fill:
        return True
    message = json.dumps({"jobs": sorted(mine), "values": given, "fill": fill}).encode()
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), _connected(places) as channel:
            channel.sendall(message)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


@contextlib.contextmanager
def _connected(places: Places) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as channel, _short(places) as path:
        channel.settimeout(2.0)
        channel.connect(path)
        if peer(channel) != os.getuid():
            raise PermissionError("the queue's socket belongs to another user")
        yield channel


def peer(channel: socket.socket) -> int:
    """Return the user at the other end. Raises OSError where the system does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        return int(struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])
    # A Mac: LOCAL_PEERCRED (1) at level SOL_LOCAL (0) gives struct xucred, whose second word is the user.
    return int(struct.unpack("2I", channel.getsockopt(0, 1, 8))[1])


@contextlib.contextmanager
def _short(places: Places) -> Iterator[str]:
    """The socket's path; where it is longer than a socket may be called, by way of its folder's descriptor (Linux)."""
    path = places.state / "supervisor.sock"
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(places.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Values:
    """What the queue's process holds: each job's own values, and of each name the latest that anybody gave."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._own: dict[int, dict[str, str]] = {}
        self._latest: dict[str, str] = {}
        self._first: dict[int, float] = {}  # job → when it was first seen without its values
        self._socket: socket.socket | None = None
        for number in filter(str.isdigit, os.environ.pop(QUEUED_BY, "").split(",")):
            self._own[int(number)] = dict(os.environ)

    def listen(self) -> None:
        """Open the socket, for this user alone. Raises OSError."""
        with _short(self._places) as path:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(Path(path).lstat().st_mode):
                    Path(path).unlink()  # of one that was killed: whoever calls holds its lock
            channel = socket.socket(socket.AF_UNIX)
            before = os.umask(0o177)
            try:
                channel.bind(path)
            finally:
                os.umask(before)
        channel.listen(16)
        channel.setblocking(False)
        self._socket = channel

    def close(self) -> None:
        """Close and remove the socket, while this process still holds its lock."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            (self._places.state / "supervisor.sock").unlink(missing_ok=True)

    def receive(self) -> bool:
        """Take in what was handed over since the last call; True when there was something."""
        some = False
        while self._socket is not None:
            try:
                channel, _ = self._socket.accept()
            except OSError:
                break  # nobody is there
            with channel, contextlib.suppress(OSError, ValueError, RecursionError):
                channel.settimeout(1.0)
                if peer(channel) == os.getuid():
                    self.take(json.loads(_whole(channel)))
                    some = True
        return some

    def take(self, message: Any) -> None:
        """A message of `hand_over`; one that is none is left out."""
        if not isinstance(message, dict):
            return
        values, fill = (_strings(message.get(key)) for key in ("values", "fill"))
        jobs = message.get("jobs")
        for number in jobs if isinstance(jobs, list) else ():
            if isinstance(number, int):
                self._own[number] = values
        self._latest |= {name: value for name, value in fill.items() if name not in self._latest} | values

    def names(self, job: NewJob) -> list[str]:
        """Of a job that the queue itself queues (a server for a guest): nobody hands over anything for it."""
        return needed(job, self._places, {**os.environ, **self._latest})

    def _queued_here(self) -> None:
        """Jobs that this very process queued: our environment is theirs, or as a queue's own process it is nobody's."""
        for number in _queued.pop(self._places.home, {}):
            if self._socket is None:
                self._own[number] = dict(os.environ)
            else:
                self._first[number] = float("-inf")

    def of(self, number: int, names: Iterable[str] | None) -> dict[str, str | None]:
        """Return what the job's process gets beside our own environment; None takes a variable away.

        names: those of its options; None for a job of an earlier version, which gets our environment as it is.
        """
        if names is None:
            return {}
        own = self._own.get(number)
        if own is not None:
            return {name: own.get(name) for name in dict.fromkeys((*names, *COMMON))}
        return {name: self._latest[name] for name in names if name in self._latest}

    def wait(self, lines: Mapping[int, Iterable[str] | None], now: float) -> dict[str, Any]:
        """Of waiting jobs with their names, which must still wait: {job: {why, names}}. `now`: monotonic seconds."""
        self._queued_here()
        held: dict[str, Any] = {}
        for number, names in lines.items():
            if not names or number in self._own:
                continue
            if now - self._first.setdefault(number, now) < HANDING:
                held[str(number)] = {"why": "its variables are being handed over", "names": []}
                continue
            if lacking := [name for name in names if name not in self._latest and not os.environ.get(name)]:
                several = len(lacking) > 1
                why = (
                    f"needs {', '.join(f'${name}' for name in lacking)}, set where it was queued and unknown to the"
                    f" queue's process: export {'them' if several else 'it'}, then `vlmconsole jobs resume`"
                )
                held[str(number)] = {"why": why, "names": lacking}
        return held

    def forget(self, states: Callable[[Iterable[int]], Mapping[int, str]]) -> None:
        """Drop the values of all jobs that have ended; `states` asks the queue."""
        known = states({*self._own, *self._first}) if self._own or self._first else {}
        keep = {number for number, state in known.items() if state not in FINAL}
        self._own = {number: values for number, values in self._own.items() if number in keep}
        self._first = {number: since for number, since in self._first.items() if number in keep}


def held_back(shared: Any, number: int) -> str:
    """Return why a job waits for its variables, as the queue's process wrote it into HELD; "" when it does not."""
    entry = shared.get(str(number)) if isinstance(shared, dict) else None
    return str(entry["why"]) if isinstance(entry, dict) and "why" in entry else ""


def asked_for(shared: Any) -> set[str]:
    """Return the names that waiting jobs lack."""
    ones = shared.values() if isinstance(shared, dict) else ()
    return {str(name) for entry in ones if isinstance(entry, dict) for name in entry.get("names") or ()}


def _strings(value: Any) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: item for key, item in pairs if isinstance(item, str) and "\0" not in item and "=" not in key}


def _whole(channel: socket.socket) -> bytes:
    data = b""
    while block := channel.recv(64 * 1024):
        data += block
        if len(data) > LONGEST:
            raise ValueError("a message that long is none of ours")
    return data
