"""Who must hold the port that a profile is asked at, and which key opens it: found with the server, kept by nobody.

A port is not a name: once a server or a tunnel has died, any user of the machine may bind it. So whoever talks to a
port of ours asks at that moment whether the process that should listen there still does.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from vlmconsole.errors import LabError
from vlmconsole.system import processes
from vlmconsole.system.listening import Listener, listener


class PortTakenError(LabError):
    """The process that should hold a port does not: neither key nor question may go there."""

    code = "port-taken"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that must listen on a loopback port, itself or by a member of its session. started: see processes."""

    called: str
    port: int
    pid: int
    started: str

    def holder(self) -> Holder:
        """Itself: a process whose port never changes hands."""
        return self


class PortHolder(Protocol):
    """Something that holds a port of ours: a server that was started here, or a tunnel."""

    def holder(self) -> Holder:
        """Return the process that holds it now. Raises PortTakenError when there is none."""


@dataclass(frozen=True)
class Access:
    """How a server of ours is reached: whose port it is, and the file of the key made for this start (None: no key)."""

    held: PortHolder | None = None
    key_file: Path | None = None


_proven: dict[Holder, int] = {}
"""The inode at which each holder was seen listening: while it listens, the port is theirs."""


def check(held: PortHolder | None, connected: bool = False) -> int | None:
    """Return the inode of the listening socket, proven to be the holder's (None where the system does not tell).

    `connected`: somebody did take the connection. A port where nobody listens passes otherwise: the connection
    fails by itself, and its error says so. Raises PortTakenError.
    """
    if held is None:
        return None
    holder = held.holder()
    listening = listener(holder.port)
    if listening is not None and _proven.get(holder) == listening.inode:
        return listening.inode
    if not processes.alive(holder.pid, holder.started):
        _proven.pop(holder, None)
        if listening is None and not connected:
            return None
        raise _taken(holder, "has ended")
    if listening is None and not connected:
        return None
    if not _listens(holder, listening):
        raise _taken(holder, "does not hold it")
    if listening is not None:
        _proven[holder] = listening.inode
    return listening.inode if listening is not None else None


Hook = Callable[[Any], Awaitable[None]]


def event_hooks(held: PortHolder | None, fault: Callable[[PortTakenError], Exception]) -> dict[str, list[Hook]]:
    """For an asynchronous httpx client: prove the port before each request and on each new connection.

    Between the two somebody may take the port, so the second look comes once a connection stands and before a byte
    goes out. A kept connection needs none: whoever took it is who was proven. `fault` makes the error to raise.
    """
    if held is None:
        return {}

    def proven(connected: bool) -> None:
        try:
            check(held, connected)
        except PortTakenError as error:
            raise fault(error) from None

    async def trace(event: str, _: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            proven(connected=True)

    async def before(request: Any) -> None:
        proven(connected=False)
        request.extensions["trace"] = trace

    return {"request": [before]}


def _taken(holder: Holder, why: str) -> PortTakenError:
    return PortTakenError(
        f"port {holder.port} belongs to another program: {holder.called} {why}; nothing was sent",
        "Start the server again, or end that program.",
    )


def _listens(holder: Holder, listening: Listener | None) -> bool:
    """Whether a process of the holder's session has that socket."""
    hidden = False
    for pid in _session(holder.pid):
        try:
            if listening is not None:
                links = (entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir())
                if any(str(link) == f"socket:[{listening.inode}]" for link in links):
                    return True
            elif _has_port(psutil.Process(pid), holder.port):
                return True
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            continue  # ended, or a descriptor was closed, while we looked
        except (OSError, psutil.Error):
            hidden = True  # a process that hides its descriptors even from its own user
    return hidden and (listening is None or listening.uid == os.getuid())


def _has_port(process: psutil.Process, port: int) -> bool:
    sockets = process.net_connections(kind="tcp")
    return any(socket.status == psutil.CONN_LISTEN and socket.laddr.port == port for socket in sockets)


def _session(leader: int) -> list[int]:
    """The leader first: most servers listen themselves, and then nobody else is looked at."""
    members = [leader]
    for pid in psutil.pids():
        try:
            if pid != leader and os.getsid(pid) == leader:
                members.append(pid)
        except OSError:
            continue
    return members
