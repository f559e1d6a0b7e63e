"""A real process that binds a port which a server of ours has left, as any user of the machine may, and keeps what it
is sent."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# It answers every request as a server of /v1/models would, so that only knowing who listens can give it away.
THIEF = """
import os, socket, sys, threading
port, loot = int(sys.argv[1]), sys.argv[2]
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", port))
listening.listen(64)
print("up", flush=True)
BODY = b'{"data": [{"id": "served"}], "status": "healthy", "loaded_model": "served", "loaded_adapter": null}'
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY)
def serve(one):
    while data := one.recv(65536):
        with open(loot, "ab") as kept:
            kept.write(data)
        one.sendall(HEAD + BODY)
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


class Loot:
    """What the thief was sent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def bytes(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""


@contextmanager
def thief(port: int, folder: Path) -> Iterator[Loot]:
    """While it holds the port."""
    loot = Loot(folder / f"loot-{port}")
    process = subprocess.Popen([sys.executable, "-c", THIEF, str(port), str(loot.path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield loot
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
