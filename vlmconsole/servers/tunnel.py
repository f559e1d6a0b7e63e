"""A server on another machine behind a local port: one `ssh -N -L`, opened, watched, and opened again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Literal

from vlmconsole.engines.access import Holder, PortTakenError, check
from vlmconsole.remote.ssh import SshError, SshHost, end, explain
from vlmconsole.runs.folder import write_atomic
from vlmconsole.servers.processes import free_port, port_answers
from vlmconsole.system.processes import alive, started
from vlmconsole.system.reading import read_json

State = Literal["opening", "up", "down", "closed"]
BACK_OFF = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before the next try; the last one repeats
OPEN_WITHIN = 15.0  # seconds that one try may take
STEADY = 10.0  # seconds up after which the back-off begins anew


class Tunnel:
    """Keeps `127.0.0.1:local_port` here joined to `127.0.0.1:remote_port` there until closed.

    The local port stays the same through every reopening, so its address can be kept. What is measured through it
    has the route `tunnel` in its conditions: its TTFT holds the line and is never compared with runs on the box.
    """

    route = "tunnel"

    def __init__(self, host: SshHost, remote_port: int, state: Path, local_port: int | None = None) -> None:
        """`state`: a folder of ours that remembers the child: a console that was killed leaves none for long."""
        if not 0 < remote_port < 65536:
            raise SshError(f"{remote_port} is no port")
        self.host, self.remote_port = host, remote_port
        self.local_port = local_port or free_port()
        self.state: State = "closed"
        self.why, self.hint = "", ""
        self.since = time.time()  # wall clock of the last change of state
        self.reopened = 0
        self._notes = state / "tunnels"
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._was_up = local_port is not None  # from then on the port is known to others and stays
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._holder: Holder | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.local_port}"

    def holder(self) -> Holder:
        """Return the ssh that holds the local port now. Raises PortTakenError while there is none."""
        holder = self._holder
        if holder is None:
            why = self.why or "it is not open"
            raise PortTakenError(f"the tunnel to {self.host.name} is down ({why}); nothing was sent", self.hint)
        return holder

    @property
    def pid(self) -> int | None:
        """The pid of the ssh that carries it now."""
        return self._process.pid if self._process is not None else None

    def open(self) -> Tunnel:
        """Begin to keep it open; returns at once (see :meth:`wait`)."""
        if self._thread is None:
            sweep(self._notes)
            self._closing.clear()
            self._thread = threading.Thread(target=self._keep, name=f"tunnel-{self.host.name}", daemon=True)
            self._thread.start()
        return self

    def wait(self, timeout: float = OPEN_WITHIN) -> Tunnel:
        """Wait until it is up. Raises SshError with the reason of the last try; the tunnel goes on trying."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.state in ("up", "closed"), timeout):
                raise SshError(self.why or f"no tunnel to {self.host.name} within {timeout:g} s", self.hint)
        return self

    def close(self) -> None:
        """End it and its ssh."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None
        self._say("closed")

    def __enter__(self) -> Tunnel:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _say(self, state: State, why: str = "", hint: str = "") -> None:
        with self._changed:
            if (state, why) != (self.state, self.why):
                self.since = time.time()
            self.state, self.why, self.hint = state, why, hint
            self._changed.notify_all()

    def _keep(self) -> None:
        tries = 0
        while not self._closing.is_set():
            try:
                steady = self._once()
            except (SshError, OSError) as error:
                steady = False
                self._say("down", str(error), getattr(error, "hint", ""))
            tries = 0 if steady else tries
            if self._closing.wait(BACK_OFF[min(tries, len(BACK_OFF) - 1)]):
                return
            tries += 1
            self.reopened += 1

    def _once(self) -> bool:
        """One ssh from its start to its end; True when it carried long enough to begin the back-off anew."""
        if self.state != "down":  # while it is down, the reason stays to be read
            self._say("opening")
        if port_answers(self.local_port):
            if self._was_up:
                raise SshError(f"another program took the local port {self.local_port}", "End it, or close the tunnel.")
            self.local_port = free_port()
        forward = f"127.0.0.1:{self.local_port}:127.0.0.1:{self.remote_port}"
        process = subprocess.Popen(
            self.host.command("-N", "-o", "ExitOnForwardFailure=yes", "-L", forward),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._process = process
        holder = Holder(
            f"the tunnel to {self.host.name}", self.local_port, process.pid, started(process.pid) or "ended"
        )
        stderr: deque[str] = deque(maxlen=20)
        reader = threading.Thread(target=_listen, args=(process, stderr), daemon=True)
        reader.start()
        note = self._note(process)
        up_since: float | None = None
        begun = time.monotonic()
        try:
            while process.poll() is None and not self._closing.wait(0.05 if up_since is None else 0.2):
                if up_since is None and port_answers(self.local_port):
                    with contextlib.suppress(PortTakenError):  # a stranger was quicker: ssh is about to say so and end
                        check(holder, connected=True)
                        up_since, self._was_up, self._holder = time.monotonic(), True, holder
                        self._say("up")
                elif up_since is None and time.monotonic() - begun > OPEN_WITHIN:
                    raise SshError(f"{self.host.name} did not open the tunnel within {OPEN_WITHIN:g} s")
            self._holder = None
            carried = up_since is not None and time.monotonic() - up_since > STEADY
            if not self._closing.is_set():
                reader.join(0.5)
                fault = explain(self.host, "\n".join(stderr), process.returncode)
                lost = f"the tunnel to {self.host.name} ended: " if up_since is not None else ""
                self._say("down", lost + fault.message, fault.hint)
            return carried
        finally:
            self._holder = None
            end(process)
            self._process = None
            if note is not None:
                note.unlink(missing_ok=True)

    def _note(self, process: subprocess.Popen[bytes]) -> Path | None:
        """Remember the child and its owner on disk."""
        token, mine = started(process.pid), started(os.getpid())
        if token is None:
            return None
        self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = self._notes / f"{process.pid}.json"
        facts = {"pid": process.pid, "started": token, "owner": os.getpid(), "owner_started": mine}
        write_atomic(note, json.dumps(facts | {"host": self.host.name}))
        return note


def _listen(process: subprocess.Popen[bytes], stderr: deque[str]) -> None:
    """Keep ssh's last words; its pipe must be read or it would block in the end."""
    assert process.stderr is not None
    with contextlib.suppress(ValueError):  # closed while we read: the tunnel ended
        for line in process.stderr:
            stderr.append(line.decode("utf-8", "replace").rstrip())


def sweep(notes: Path) -> int:
    """End the ssh children of consoles that were killed; returns how many."""
    ended = 0
    for note in notes.glob("*.json") if notes.is_dir() else ():
        try:
            facts = read_json(note)
            if alive(facts["owner"], facts["owner_started"]):
                continue
            if alive(facts["pid"], facts["started"]):
                os.kill(facts["pid"], 15)
                ended += 1
            note.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            note.unlink(missing_ok=True)
    return ended
