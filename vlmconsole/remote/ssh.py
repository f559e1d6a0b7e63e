"""Other machines through OpenSSH's own client: the user's config, keys and agent count, and nothing is asked.

A host string is checked before it meets a command line, and stands behind `--`: it can never become an option.
Scripts go to the far `sh` on its standard input, so no login shell reads them and no quoting is trusted twice.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.system.typed_paths import named
from vlmconsole.text.sizes import size

LARGEST = 16 * 1024 * 1024  # bytes of one answer
CONFIG_VARIABLE = "VLMCONSOLE_SSH_CONFIG"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HOST = re.compile(rf"(?P<name>(?:{_NAME}@)?(?:{_NAME}|\[[0-9A-Fa-f:.]+(?:%{_NAME})?\]))(?::(?P<port>\d{{1,5}}))?")

#: No prompt can be answered here; nothing of the user's session is handed on; a dead line is noticed in 10 s.
OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=5"),
    *("-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no", "-T", "-a", "-x"),
)


class SshError(LabError):
    """The other machine cannot be reached or refused; one line, with what to do."""


@dataclass(frozen=True)
class SshHost:
    """A checked host: an alias of the user's ssh config, HOST or USER@HOST, with a port if it was given.

    `config` replaces the user's ssh config (as does the environment's `VLMCONSOLE_SSH_CONFIG`). `shared`: a
    folder of ours (mode 700) for one kept connection that later commands reuse; None (the default) opens a connection
    for each.
    """

    name: str
    port: int | None = None
    config: Path | None = None
    shared: Path | None = None

    @classmethod
    def parse(cls, text: str, config: Path | None = None, shared: Path | None = None) -> SshHost:
        """Return the host in `[USER@]HOST[:PORT]` (an IPv6 address in brackets). Raises SshError for anything else."""
        match = _HOST.fullmatch(text)
        port = int(match["port"]) if match is not None and match["port"] else None
        if match is None or len(text) > 255 or (port is not None and not 0 < port < 65536):
            raise SshError(
                f"{text[:60]!r} is no SSH host",
                "HOST, USER@HOST or an alias of ~/.ssh/config, with :PORT if need be; letters, digits, '.', '_', '-'.",
                code="host-invalid",
            )
        given = os.environ.get(CONFIG_VARIABLE, "")
        if config is None and given:
            config = named(given)
        return cls(match["name"].replace("[", "").replace("]", ""), port, config, shared)

    def command(self, *options: str, remote: str = "") -> list[str]:
        """Return the argument list of an ssh call. `remote` is the far command, a constant of ours."""
        words = [ssh_program(), *OPTIONS]
        if self.config is not None:
            words += ["-F", str(self.config)]
        if self.shared is not None:
            # Short names: a socket's path may have about 100 bytes.
            words += ["-o", "ControlMaster=auto", "-o", f"ControlPath={self.shared}/%C", "-o", "ControlPersist=60"]
        else:
            words += ["-o", "ControlMaster=no", "-o", "ControlPath=none"]
        if self.port is not None:
            words += ["-p", str(self.port)]
        return [*words, *options, "--", self.name, *([remote] if remote else [])]


def ssh_program() -> str:
    """Return the path of OpenSSH's client. Raises SshError when there is none."""
    program = shutil.which("ssh")
    if program is None:
        raise SshError(
            "OpenSSH's client is not installed here", "On Debian: apt install openssh-client", code="program-missing"
        )
    return program


def run(host: SshHost, script: str, timeout: float = 15.0) -> str:
    """Run a POSIX sh script there; returns what it printed. Raises SshError, also when the script fails."""
    process = subprocess.Popen(
        host.command(remote="sh -s"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = _talk(process, script.encode(), time.monotonic() + timeout)
    except TimeoutError:
        raise SshError(
            f"{host.name} did not answer within {timeout:g} s", f"Try: ssh {host.name} true", code="host-silent"
        ) from None
    finally:
        end(process)
    if process.returncode != 0:
        raise explain(host, err.decode("utf-8", "replace"), process.returncode)
    return out.decode("utf-8", "replace")


def _talk(process: subprocess.Popen[bytes], given: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Feed and read a child, within a time and a size. Raises TimeoutError, or SshError for too much."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    parts: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as watched:
        for pipe in (process.stdout, process.stderr):
            watched.register(pipe, selectors.EVENT_READ)
        watched.register(process.stdin, selectors.EVENT_WRITE)
        while watched.get_map():
            left = deadline - time.monotonic()
            ready = watched.select(left) if left > 0 else []
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    given = _feed(process.stdin.fileno(), given)
                    if not given:
                        watched.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, 65536)
                parts[key.fd] += data
                if len(parts[key.fd]) > LARGEST:
                    raise SshError(f"the answer is larger than {size(LARGEST)}", code="limit-size")
                if not data:
                    watched.unregister(key.fileobj)
    process.wait(max(0.1, deadline - time.monotonic()))
    return bytes(parts[process.stdout.fileno()]), bytes(parts[process.stderr.fileno()])


def _feed(descriptor: int, given: bytes) -> bytes:
    """Write what fits; returns the rest. A child that went away has said why on its stderr."""
    try:
        return given[os.write(descriptor, given) :]
    except BlockingIOError:
        return given
    except BrokenPipeError:
        return b""


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child of ours and close its pipes; TERM first, so that ssh tidies up."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not yet written has no reader any more


#: part of ssh's message → (code, what happened, what to do); {host} is filled in. The first that fits counts.
_CAUSES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "host-key-changed",
        "the host key of {host} changed",
        "Find out why before you trust it.",
    ),
    (
        "Host key verification failed",
        "host-key-unknown",
        "the host key of {host} is not known here",
        "Connect once by hand: ssh {host}",
    ),
    (
        "Permission denied",
        "access-denied",
        "{host} does not let us in",
        "Is your key loaded (ssh-add -l)? Try: ssh {host} true",
    ),
    (
        "Too many authentication failures",
        "access-denied",
        "{host} does not let us in",
        "Name the key in ~/.ssh/config (IdentityFile).",
    ),
    (
        "Could not resolve hostname",
        "host-unknown",
        "{host} is no host that can be found",
        "Check the name or ~/.ssh/config.",
    ),
    ("Connection refused", "connection-refused", "{host} refuses the connection", "Does sshd run there, on that port?"),
    ("No route to host", "host-unreachable", "there is no way to {host}", "Check the network or the VPN."),
    ("Network is unreachable", "host-unreachable", "there is no way to {host}", "Check the network or the VPN."),
    ("timed out", "host-silent", "{host} does not answer", "Check the network or the VPN."),
    ("not responding", "line-dead", "the line to {host} is dead", "It is tried again."),
    (
        "administratively prohibited",
        "forwarding-forbidden",
        "{host} forbids forwarding",
        "Ask for AllowTcpForwarding there.",
    ),
    ("cannot listen to port", "port-taken", "the local port is taken", "It is tried again."),
    (
        "Bad owner or permissions",
        "config-exposed",
        "ssh refuses your ssh config's permissions",
        "chmod 600 ~/.ssh/config",
    ),
    ("Connection closed by", "connection-closed", "{host} closed the connection", "Try: ssh {host} true"),
    ("Connection reset by", "connection-closed", "{host} closed the connection", "Try: ssh {host} true"),
)


def explain(host: SshHost, stderr: str, code: int | None) -> SshError:
    """Return what ssh's messages mean, in one line for people; its own last words where they are not known."""
    for part, cause, what, todo in _CAUSES:
        if part in stderr:
            return SshError(what.format(host=host.name), todo.format(host=host.name), code=cause)
    if code is not None and code < 0:
        return SshError(
            f"the ssh to {host.name} was ended by signal {-code}", "It was not we who did.", code="ssh-ended"
        )
    words = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("Warning:")]
    last = "".join(c if c.isprintable() else " " for c in words[-1])[:200] if words else f"exit code {code}"
    return SshError(f"{host.name}: {last}", f"Try: ssh {host.name} true" if code == 255 else "", code="script-failed")
