"""A small real HTTP server for the gauges' tests: pages by path, every path that was asked, and bad manners."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from folders import DATA

METRICS = DATA / "metrics"


@cache
def page(name: str) -> str:
    """A recorded `/metrics` page."""
    return gzip.decompress((METRICS / f"{name}.txt.gz").read_bytes()).decode()


@cache
def bodies(case: str) -> list[tuple[float, str]]:
    """(seconds, body) of a recorded case."""
    whole = json.loads(gzip.decompress((METRICS / "bodies.json.gz").read_bytes()))
    return [(float(at), str(body)) for at, body in whole[case]]


class Server:
    """`pages`: path with its query → text. `manner`: well, hang, drip or flood (which ignore the pages)."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.asked: list[str] = []
        self.manner = "well"
        self.url = ""
        self.over = threading.Event()
        self.connections: list[socket.socket] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        if self.manner == "hang":
            self.over.wait(20)
            return
        if self.manner in ("drip", "flood"):
            handler.send_response(200)
            handler.end_headers()
            piece = b"x" * (1 << 20) if self.manner == "flood" else b"x"
            for _ in range(400):
                handler.wfile.write(piece)
                handler.wfile.flush()
                if self.manner == "drip" and self.over.wait(0.1):
                    return
            return
        text = self.pages.get(handler.path)
        data = (text or "no such page").encode()
        handler.send_response(404 if text is None else 200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    """A server on a loopback port for the length of the block."""
    mine = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            mine.connections.append(self.connection)

        def do_GET(self) -> None:
            try:
                mine.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *words: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *words: object) -> None:
            pass

    http = Quiet(("127.0.0.1", port), Handler)
    mine.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield mine
    finally:
        mine.over.set()
        http.shutdown()
        http.server_close()
        for connection in mine.connections:  # as when a process is killed
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()


class Clock:
    """A clock that only moves when told."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def until(condition: object, timeout: float = 5.0) -> float:
    """Wait until `condition()` is true; returns the seconds it took."""
    begun = time.monotonic()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() - begun < timeout, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - begun
