"""A server that answers as no server should: for ever, by drips, packed, nested. Run as a program it prints its port.

A manner is the first part of the path, so one process serves all: http://127.0.0.1:PORT/MANNER is a base_url. Those
of `CHAT` (and `chat-…`) behave on every path but that of the chat; those of `EVERYWHERE` never do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PIECE = 256 * 1024
ONE = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
Handler = BaseHTTPRequestHandler


def _head(handler: Handler, *fields: tuple[str, str], kind: str = "application/json") -> None:
    handler.send_response(200)
    for name, value in (("Content-Type", kind), ("Connection", "close"), *fields):
        handler.send_header(name, value)
    handler.end_headers()


def _for_ever(handler: Handler, piece: bytes, pause: float = 0.0) -> None:
    while True:
        handler.wfile.write(piece)
        if pause:
            time.sleep(pause)


def endless_body(handler: Handler) -> None:
    _head(handler)
    _for_ever(handler, b"x" * PIECE)


def endless_models(handler: Handler) -> None:
    """JSON that is right so far and never ends."""
    _head(handler)
    handler.wfile.write(b'{"object":"list","data":[{"id":"m"}')
    _for_ever(handler, b',{"id":"m"}' * 20_000)


def gzip_bomb(handler: Handler) -> None:
    """2 GiB of spaces in 2 MiB."""
    _head(handler, ("Content-Encoding", "gzip"))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * (1 << 20)
    for _ in range(2048):
        handler.wfile.write(packer.compress(block))
    handler.wfile.write(packer.flush())


def dripping_body(handler: Handler) -> None:
    _head(handler)
    _for_ever(handler, b" ", 0.05)


def dripping_header(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    _for_ever(handler, b"x", 0.05)


def endless_header(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    _for_ever(handler, b"X-More: " + b"y" * 4000 + b"\r\n")


def endless_interim(handler: Handler) -> None:
    """`100 Continue` without end, thousands in one read."""
    _for_ever(handler, b"HTTP/1.1 100 Continue\r\n\r\n" * 4000)


def deep_json(handler: Handler) -> None:
    _head(handler)
    handler.wfile.write(b"[" * 1_000_000)


def deep_event(handler: Handler) -> None:
    _head(handler, kind="text/event-stream")
    handler.wfile.write(b"data: " + b"[" * 1_000_000 + b"\n\n" + ONE + b"data: [DONE]\n\n")


def endless_event(handler: Handler) -> None:
    """One event that never ends."""
    _head(handler, kind="text/event-stream")
    handler.wfile.write(b'data: {"choices":[{"index":0,"delta":{"content":"')
    _for_ever(handler, b"x" * PIECE)


def tiny_events(handler: Handler) -> None:
    """A million events, each whole."""
    _head(handler, kind="text/event-stream")
    for _ in range(1_000):
        handler.wfile.write(ONE * 1_000)
    handler.wfile.write(b"data: [DONE]\n\n")


def endless_events(handler: Handler) -> None:
    _head(handler, kind="text/event-stream")
    _for_ever(handler, ONE * 1_000)


def dripping_events(handler: Handler) -> None:
    """An answer of which a piece comes every twentieth of a second, for ever: no silence ends it."""
    _head(handler, kind="text/event-stream")
    _for_ever(handler, ONE, 0.05)


def open_lines(handler: Handler) -> None:
    """Events without a blank line between them, for ever."""
    _head(handler, kind="text/event-stream")
    _for_ever(handler, ONE.rstrip(b"\n") + b"\n" + ONE.rstrip(b"\n") * 3 + b"\n", 0.0)


def broken_lines(handler: Handler) -> None:
    """`data:` lines that never make a whole object, and no blank line: each was once parsed with all before it."""
    _head(handler, kind="text/event-stream")
    _for_ever(handler, b'data: {"choices": [\n' * 2_000)


def endless_text(handler: Handler) -> None:
    """Whole events of 256 KiB of text, for ever."""
    _head(handler, kind="text/event-stream")
    _for_ever(handler, b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"word and " * (PIECE // 9)))


def endless_reasoning(handler: Handler) -> None:
    _head(handler, kind="text/event-stream")
    _for_ever(handler, b'data: {"choices":[{"delta":{"reasoning":"%s"}}]}\n\n' % (b"hm, so\\n\\n" * (PIECE // 10)))


def heavy_events(handler: Handler) -> None:
    """Events of almost 2 MiB of the JSON that takes the most memory."""
    _head(handler, kind="text/event-stream")
    _for_ever(handler, b'data: {"usage": {}, "x": [%s[]]}\n\n' % (b"{}," * 690_000))


def endless_trailers(handler: Handler) -> None:
    _head(handler, ("Transfer-Encoding", "chunked"), kind="text/event-stream")
    handler.wfile.write(b"%x\r\n%s\r\n0\r\n" % (len(ONE), ONE))
    _for_ever(handler, b"X-Trailer: " + b"y" * 4000 + b"\r\n")


EVERYWHERE: tuple[Callable[[Handler], None], ...] = (
    endless_body,
    endless_models,
    gzip_bomb,
    dripping_body,
    dripping_header,
    endless_header,
    endless_interim,
    deep_json,
)
CHAT: tuple[Callable[[Handler], None], ...] = (
    deep_event,
    endless_event,
    tiny_events,
    endless_events,
    dripping_events,
    endless_trailers,
    open_lines,
    broken_lines,
    endless_text,
    endless_reasoning,
    heavy_events,
)
MANNERS = {manner.__name__.replace("_", "-"): manner for manner in (*EVERYWHERE, *CHAT)}
#: the same on the chat's path only, so that a client comes so far as to ask
MANNERS |= {f"chat-{manner.__name__.replace('_', '-')}": manner for manner in EVERYWHERE}
EVERY_PATH = frozenset(manner.__name__.replace("_", "-") for manner in EVERYWHERE)


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        found = re.match(r"/([a-z-]+)(/.*)", self.path)
        manner = found[1] if found else ""
        with suppress(OSError):
            length = int(self.headers.get("content-length") or 0)
            self.rfile.read(length)
            self.close_connection = True
            if manner in EVERY_PATH or (manner in MANNERS and found is not None and "/chat/" in found[2]):
                MANNERS[manner](self)
                return
            good = found is not None and found[2].endswith("/v1/models")
            body = json.dumps({"data": [{"id": "m"}]} if good else {"detail": "Not Found"}).encode()
            self.send_response(200 if good else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # it ends with whoever started it


@contextmanager
def hostile() -> Iterator[str]:
    """The address of such a server in a process of its own; put `/MANNER` behind it."""
    words = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    main()
