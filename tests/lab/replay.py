"""A real HTTP server that plays recorded or made-up exchanges, for tests of clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from recorded import body


@dataclass
class Reply:
    """One answer: pieces of the body, sent `pause` seconds apart. end: "chunked", "cut" (no last chunk), "hang"."""

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    kind: str = "text/event-stream"
    server: str = "uvicorn"
    pause: float = 0.0
    end: str = "chunked"
    headers: dict[str, str] = field(default_factory=dict)


def recorded_reply(exchange: dict[str, Any], pause: float = 0.0) -> Reply:
    """A recorded exchange, one piece a line."""
    pieces = [line.encode() for _, line in exchange["lines"]] if pause else [body(exchange)]
    return Reply(pieces, exchange["status"], exchange["type"] or "text/plain", exchange["server"] or "uvicorn", pause)


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply([json.dumps(value).encode()], status, "application/json")


def sse(*values: Any, done: bool = True) -> list[bytes]:
    """Events of a stream, one piece each."""
    pieces = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def said(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


class Replay:
    """routes: "METHOD /path" → Reply, list of replies in turn, or function of the request's JSON."""

    def __init__(self, routes: dict[str, Any]) -> None:
        self.routes = {"GET /v1/models": json_reply({"data": [{"id": "m", "max_model_len": 2048}]}), **routes}
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.closed_early = asyncio.Event()
        self.url = ""
        self._turn: dict[str, int] = {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed_early.set()
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers = {}
        while (raw := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = raw.decode().partition(":")
            headers[name.lower()] = value.strip()
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        request = json.loads(content) if content else None
        self.seen.append((f"{method} {path}", headers, request))
        reply = self._pick(f"{method} {path}", request)
        head = f"HTTP/1.1 {reply.status} X\r\ncontent-type: {reply.kind}\r\nserver: {reply.server}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        gone = asyncio.ensure_future(reader.read(1))
        for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.wait({gone}, timeout=reply.pause) if reply.pause else None
            if gone.done():
                self.closed_early.set()
                return False
        if reply.end == "hang":
            await gone
            self.closed_early.set()
            return False
        gone.cancel()
        await asyncio.wait({gone})
        if reply.end == "cut":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _pick(self, route: str, request: Any) -> Reply:
        script = self.routes.get(route)
        if script is None:
            return json_reply({"detail": "Not Found"}, 404)
        if isinstance(script, Reply):
            return script
        if callable(script):
            made: Reply = script(request)
            return made
        turn = self._turn.get(route, 0)
        self._turn[route] = turn + 1
        picked: Reply = script[min(turn, len(script) - 1)]
        return picked


@asynccontextmanager
async def replay(routes: dict[str, Any]) -> AsyncIterator[Replay]:
    """Runs the server on a free loopback port while the block lasts."""
    player = Replay(routes)
    server = await asyncio.start_server(player._serve, "127.0.0.1", 0)
    player.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield player
    finally:
        server.close()
