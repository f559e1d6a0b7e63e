"""A real sshd for the tests: on loopback, in a folder and with keys and a port of its own, as the user who tests."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SSHD = shutil.which("sshd") or next((p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(p).exists()), None)
LACKING = "sshd is not installed (Debian: apt-get install -y openssh-server)" if SSHD is None else ""


class Sshd:
    """Started with :meth:`start`; `alias` is a host of `config` that leads to it."""

    alias = "far-box"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.home = folder / "far-home"
        self.home.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        keys = folder / "authorized_keys"
        shutil.copy(folder / "user.pub", keys)
        (folder / "sshd_config").write_text(
            f"""
Port {self.port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {keys}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
SetEnv HOME={self.home} XDG_STATE_HOME={self.home}/state
"""
        )
        host_key = (folder / "host.pub").read_text().split()[:2]
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {' '.join(host_key)}\n")
        self.config = self.write_config()

    def write_config(
        self, name: str = "config", known: str = "known", key: str = "user", port: int | None = None
    ) -> Path:
        """A client's ssh config whose `alias` leads here."""
        config = self.folder / name
        config.write_text(
            f"""
Host {self.alias}
  HostName 127.0.0.1
  Port {port or self.port}
  User {getpass.getuser()}
  IdentityFile {self.folder}/{key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {self.folder}/{known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""
        )
        config.chmod(0o600)
        return config

    def start(self) -> None:
        assert SSHD is not None
        if os.geteuid() == 0:  # only then does sshd want its empty folder
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)
        raise AssertionError("sshd does not listen")

    def stop(self) -> None:
        """End the listener and every connection it carries."""
        import psutil

        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        # What was launched there leaves sshd's family on purpose; its connections do not.
        carried = [child for child in family if child.name().startswith("sshd")]
        self._process.terminate()
        for child in carried:
            with suppress(psutil.NoSuchProcess):  # it ended in this moment
                child.kill()
        self._process.wait(5)
        psutil.wait_procs(carried, 5)
        self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
