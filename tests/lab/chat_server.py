"""A real, small HTTP server that speaks the chat protocol over a real socket, told what to say by each test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Say:
    """One answer: pieces of text, seconds between them; `cut` closes the socket after them, without a word more.

    A prompt without a picture counts `picture_tokens` and the two that wrap a picture less.
    """

    pieces: list[str] = field(default_factory=lambda: ["Three ", "red ", "circles."])
    reasoning: list[str] = field(default_factory=list)
    gap: float = 0.0
    cut: bool = False
    prompt_tokens: int | None = 107
    picture_tokens: int = 64
    status: int = 200
    error: str = ""
    finish: str = "stop"
    output_tokens: int | None = None
    """None: one for each piece."""
    model: str = ""
    last: bytes = b"data: [DONE]\n\n"


@dataclass
class ChatServer:
    """`says` are used up in order, the last one for ever; `requests` are the bodies that came."""

    says: list[Say] = field(default_factory=lambda: [Say()])
    requests: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    context: int = 4096
    closed_early: int = 0
    port: int = 0
    name: str = ""
    """What it says it is, in its `Server` header; nothing by default."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.decode().split(" ", 2)
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                if path.endswith("/models"):
                    self._whole(writer, {"object": "list", "data": [{"id": "toy", "max_model_len": self.context}]})
                elif method == "POST":
                    self.requests.append(json.loads(body))
                    self.bodies.append(body)
                    if not await self._stream(reader, writer):
                        return
                else:
                    self._whole(writer, {"detail": "not here"}, 404)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()

    def _whole(self, writer: asyncio.StreamWriter, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(body))
            + (f"Server: {self.name}\r\n".encode() if self.name else b"")
            + b"\r\n"
            + body
        )

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        say = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if say.status != 200:
            self._whole(writer, {"error": {"message": say.error}}, say.status)
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        deltas = [{"reasoning_content": piece} for piece in say.reasoning]
        for delta in [*deltas, *({"content": piece} for piece in say.pieces)]:
            if say.gap:
                await asyncio.sleep(say.gap)
            if writer.is_closing() or reader.at_eof():
                self.closed_early += 1
                return False
            named = {"model": say.model} if say.model else {}
            self._event(writer, {**named, "choices": [{"index": 0, "delta": delta}]})
            await writer.drain()
        if say.cut:
            writer.transport.abort()
            return False
        self._event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": say.finish}]})
        if say.prompt_tokens is not None:
            pictures = json.dumps(self.requests[-1]).count('"image_url": {')
            prompt = say.prompt_tokens if pictures else say.prompt_tokens - say.picture_tokens - 2
            usage = {"prompt_tokens": prompt, "completion_tokens": say.output_tokens or len(say.pieces)}
            self._event(writer, {"choices": [], "usage": usage})
        self._chunk(writer, say.last)
        writer.write(b"0\r\n\r\n")
        return True

    def _event(self, writer: asyncio.StreamWriter, value: Any) -> None:
        self._chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


@asynccontextmanager
async def chat_server(*says: Say) -> AsyncIterator[ChatServer]:
    """A server on a free loopback port for the length of the block."""
    server = ChatServer(list(says) or [Say()])
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def profile_file(home: Path, port: int, name: str = "toy", **more: Any) -> None:
    """Write the profile of a `ChatServer` into a lab home, and make it the home's default server."""
    (home / "servers").mkdir(parents=True, exist_ok=True)
    keys = {"engine": "openai", "base_url": f"http://127.0.0.1:{port}", "model": "toy", **more}
    lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
    (home / "servers" / f"{name}.toml").write_text("\n".join(lines) + "\n")
    config = home / "config.toml"
    if not config.exists():
        config.write_text(f'server = "{name}"\n')


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
