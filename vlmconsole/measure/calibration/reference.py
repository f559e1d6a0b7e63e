"""A reference server on the loopback: a known schedule, and a log of when each byte was really written.

`python -m vlmconsole.measure.calibration.reference` prints one JSON line with its port and serves OpenAI's
streaming chat route until its standard input is closed. It is the ground truth of `vlmconsole calibrate` and of the
tests: both processes read the same monotonic clock, so the client is judged against the moment of each
write, never against the schedule that was intended.

The path may begin with a fault, `/fault/NAME/v1/chat/completions`, to try how a client bears it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import heapq
import itertools
import json
import socket
import subprocess
import sys
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.measure.client.poller import READ, WRITE, Poller
from vlmconsole.measure.client.stamps import clock

MILLISECOND = 1_000_000
FAULTS = {
    "http500": "an error answer with status 500",
    "reset": "a TCP reset after a few pieces",
    "cut": "the connection is closed after a few pieces",
    "event": "an error event after a few pieces, and no [DONE]",
    "stall": "nothing more after a few pieces",
    "silent": "no answer at all",
    "garbage": "bytes that are no HTTP",
    "page": "a web page with status 200",
    "die": "the server process ends after a few pieces",
    "close": "a good answer on a connection that the server then closes",
}
FAULT_AFTER = 3  # pieces sent before a fault shows
_WORDS = ("red ", "blue ", "green ", "round ", "square ", "small ", "large ", "grey ")


@dataclass(frozen=True)
class Schedule:
    """When things are written, ms after a request is admitted; `limit` is how many run at once (0: all)."""

    role_ms: float = 5.0
    ttft_ms: float = 50.0
    itl_ms: float = 10.0
    tokens: int = 32
    limit: int = 0


@dataclass(eq=False)
class Peer:
    """One client's connection."""

    sock: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    truth: dict[str, Any] | None = None
    closing: bool = False
    closed: bool = False


class ReferenceServer:
    """One thread, one poller, one heap of what is due."""

    def __init__(self, schedule: Schedule, host: str = "127.0.0.1", port: int = 0) -> None:
        self.schedule = schedule
        self.truths: list[dict[str, Any]] = []
        self._listener = socket.create_server((host, port), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._poller = Poller()
        self._poller.add(self._listener.fileno(), READ)
        self._peers: dict[int, Peer] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._queue: deque[tuple[Peer, dict[str, Any], dict[str, Any]]] = deque()
        self._running = 0
        self.stopped = False

    def serve(self, *, while_open: int | None = None) -> None:
        """Serve until `stopped`, or until the other end of the pipe `while_open` is closed."""
        if while_open is not None:
            self._poller.add(while_open, READ)
        while not self.stopped:
            now = clock()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
                now = clock()
            wait = (self._due[0][0] - now) / 1e9 if self._due else 0.2
            for descriptor, mask in self._poller.wait(min(0.2, max(0.0, wait))):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == while_open:
                    self.stopped = True
                elif descriptor in self._peers:
                    self._serve_peer(self._peers[descriptor], mask)

    # -- connections -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # none left, or no descriptor left: the client sees it
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock.fileno()] = Peer(sock)
            self._poller.add(sock.fileno(), READ)

    def _serve_peer(self, peer: Peer, mask: int) -> None:
        try:
            if mask & WRITE:
                self._write(peer, b"")
            if mask & ~WRITE:
                data = peer.sock.recv(1 << 18)
                if not data:
                    self._close(peer)
                    return
                peer.inbox += data
                self._read_request(peer)
        except BlockingIOError:
            return
        except OSError:
            self._close(peer)

    def _close(self, peer: Peer, *, reset: bool = False) -> None:
        if peer.closed:
            return
        peer.closed = True
        self._poller.remove(peer.sock.fileno())
        del self._peers[peer.sock.fileno()]
        if reset:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.sock.close()
        if peer.truth is not None:
            peer.truth["aborted"] = True
            self._finish(peer)

    def _write(self, peer: Peer, data: bytes) -> int:
        """Write now, keep what the kernel does not take; returns the time (ns) just after the write."""
        peer.outbox += data
        try:
            sent = peer.sock.send(peer.outbox) if peer.outbox else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(peer)
            return clock()
        now = clock()
        del peer.outbox[:sent]
        if peer.outbox:
            self._poller.change(peer.sock.fileno(), READ | WRITE)
        elif peer.closing:
            self._close(peer)
        elif sent and not data:
            self._poller.change(peer.sock.fileno(), READ)
        return now

    # -- requests ----------------------------------------------------------------------------------------------

    def _read_request(self, peer: Peer) -> None:
        end = peer.inbox.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = bytes(peer.inbox[:end]).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length") or 0)
        if len(peer.inbox) < end + 4 + length:
            return
        arrived = clock()
        body = bytes(peer.inbox[end + 4 : end + 4 + length])
        del peer.inbox[: end + 4 + length]
        method, path, *_ = [*first.split(" "), ""]
        fault = ""
        if path.startswith("/fault/"):
            fault, _, rest = path.removeprefix("/fault/").partition("/")
            path = "/" + rest
        if method == "POST" and path.endswith("/chat/completions"):
            self._chat(peer, body, fields, fault, arrived)
        elif path.endswith("/models"):
            self._answer(peer, {"object": "list", "data": [{"id": "reference", "object": "model"}]})
        elif path == "/health":
            self._answer(peer, {"ok": True})
        elif path == "/truth":
            self._answer(peer, {"requests": self.truths})
        elif path == "/reset":
            self.truths = []
            self._answer(peer, {"ok": True})
        else:
            self._answer(peer, {"error": {"message": f"no such path: {path}"}}, "404 Not Found")

    def _answer(self, peer: Peer, value: Any, status: str = "200 OK", kind: str = "application/json") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write(peer, head.encode() + body)

    def _chat(self, peer: Peer, body: bytes, fields: dict[str, str], fault: str, arrived: int) -> None:
        try:
            request = json.loads(body)
        except ValueError:
            self._answer(peer, {"error": {"message": "the body is no JSON"}}, "400 Bad Request")
            return
        if fault == "http500":
            self._answer(peer, {"error": {"message": "asked to fail", "code": 500}}, "500 Internal Server Error")
        elif fault == "garbage":
            self._write(peer, b"\x00\x01\x02 this is no HTTP\r\n\r\n")
        elif fault == "page":
            self._answer(peer, b"<html><body>Welcome!</body></html>", kind="text/html")
        if fault in ("http500", "garbage", "page", "silent"):
            return
        words, pictures = _size(request)
        truth = {
            "id": fields.get("x-request-id", ""),
            "received": arrived,
            "prompt_tokens": words + 64 * pictures,
            "tokens": min(self.schedule.tokens, int(request.get("max_tokens") or self.schedule.tokens)),
            "fault": fault,
            "pieces": 0,
        }
        peer.truth = truth
        self.truths.append(truth)
        if self.schedule.limit and self._running >= self.schedule.limit:
            self._queue.append((peer, truth, request))
        else:
            self._admit(peer, truth, request)

    def _admit(self, peer: Peer, truth: dict[str, Any], request: dict[str, Any]) -> None:
        self._running += 1
        admitted = truth["admitted"] = clock()
        ceiling = request.get("max_tokens")
        truth["finish"] = "length" if ceiling and truth["tokens"] >= int(ceiling) else "stop"
        close = "Connection: close\r\n" if truth["fault"] == "close" else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{close}Transfer-Encoding: chunked\r\n\r\n"
        self._write(peer, head.encode())
        role = _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        first = admitted + int(self.schedule.ttft_ms * MILLISECOND)
        self._at(
            admitted + int(self.schedule.role_ms * MILLISECOND), lambda: None if peer.closed else self._role(peer, role)
        )
        self._at(first, lambda: self._piece(peer, truth, 0, first))

    def _role(self, peer: Peer, role: bytes) -> None:
        if not peer.closed and peer.truth is not None:
            peer.truth["role"] = self._write(peer, role)

    def _piece(self, peer: Peer, truth: dict[str, Any], number: int, due: int) -> None:
        if peer.closed:
            return
        if truth["fault"] and number == FAULT_AFTER and self._fault(peer, truth["fault"]):
            return
        wrote = self._write(
            peer, _event({"choices": [{"index": 0, "delta": {"content": _WORDS[number % len(_WORDS)]}}]})
        )
        truth.setdefault("first", wrote)
        truth["last"] = wrote
        truth["pieces"] += 1
        if number + 1 < truth["tokens"]:
            due += int(self.schedule.itl_ms * MILLISECOND)
            self._at(due, lambda: self._piece(peer, truth, number + 1, due))
            return
        usage = {
            "prompt_tokens": truth["prompt_tokens"],
            "completion_tokens": truth["tokens"],
            "total_tokens": truth["prompt_tokens"] + truth["tokens"],
        }
        end = _event({"choices": [{"index": 0, "delta": {}, "finish_reason": truth["finish"]}]})
        end += _event({"choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        peer.closing = truth["fault"] == "close"
        truth["done"] = self._write(peer, end)
        self._finish(peer)

    def _fault(self, peer: Peer, fault: str) -> bool:
        """Do what the fault says; whether the stream ends with it."""
        if fault == "die":
            self.stopped = True
            for other in list(self._peers.values()):
                self._close(other)
        elif fault in ("reset", "cut"):
            self._close(peer, reset=fault == "reset")
        elif fault == "event":
            self._write(peer, _event({"error": {"message": "out of memory", "code": 500}}) + b"0\r\n\r\n")
            self._finish(peer)
        return fault in ("die", "reset", "cut", "event", "stall")

    def _finish(self, peer: Peer) -> None:
        truth, peer.truth = peer.truth, None
        if truth is not None and "admitted" in truth:
            self._running -= 1
        while self._queue and self._running < self.schedule.limit:
            waiting, next_truth, request = self._queue.popleft()
            if not waiting.closed:
                self._admit(waiting, next_truth, request)

    def _at(self, due: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (due, next(self._count), what))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(value: dict[str, Any]) -> bytes:
    whole = {"id": "reference", "object": "chat.completion.chunk", "model": "reference", **value}
    return _chunk(b"data: " + json.dumps(whole, separators=(",", ":")).encode() + b"\n\n")


def _size(request: dict[str, Any]) -> tuple[int, int]:
    """(words, pictures) of the messages: this server's own idea of a prompt's length."""
    words = pictures = 0
    for message in request.get("messages", []):
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        words += sum(len(part.get("text", "").split()) for part in parts if part.get("type") == "text")
        pictures += sum(part.get("type") == "image_url" for part in parts)
    return words, pictures


@dataclass(frozen=True)
class Reference:
    """A running reference server, seen from the process that started it."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def chat_url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def fault_url(self, fault: str) -> str:
        """Return the base URL under which every request ends in `fault` (one of FAULTS)."""
        return f"http://127.0.0.1:{self.port}/fault/{fault}/v1"

    def truth(self) -> list[dict[str, Any]]:
        """Return the log so far, one entry a request: id, received, admitted, role, first, last, done (ns,
        monotonic).
        """
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/truth", timeout=30) as answer:
            requests: list[dict[str, Any]] = json.load(answer)["requests"]
        return requests


@contextlib.contextmanager
def running(schedule: Schedule) -> Iterator[Reference]:
    """Start a reference server as a process of its own, and end it again."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in dataclasses.asdict(schedule).items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "vlmconsole.measure.calibration.reference", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference server did not start (exit code {process.wait(10)})")
        yield Reference(json.loads(line)["port"], process)
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m vlmconsole.measure.calibration.reference")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--role-ms", type=float, default=5.0)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--limit", type=int, default=0)
    asked = parser.parse_args()
    server = ReferenceServer(
        Schedule(asked.role_ms, asked.ttft_ms, asked.itl_ms, asked.tokens, asked.limit), port=asked.port
    )
    print(json.dumps({"port": server.port}), flush=True)
    gc.freeze()
    gc.disable()  # a collection among thousands of log entries would show as a late write
    server.serve(while_open=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
