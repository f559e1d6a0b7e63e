"""The loopback server behind `vlmconsole web`: textual-serve's terminal, our page, and uploads into the inbox.

Who may come in: only who has the key of the printed address. It becomes a cookie that pages of other sites cannot send
(SameSite=Strict), for a path that no other program of this machine has, as cookies do not tell ports apart. A name that
resolves to this machine (DNS rebinding) fails on the Host header, and a page of another local port on the Origin
header, which every socket and every upload must carry.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import resources
from logging.handlers import RotatingFileHandler
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

import vlmconsole.assets
from vlmconsole.cli.web_door import WebDoor
from vlmconsole.runs.places import Places
from vlmconsole.text.sizes import size
from vlmconsole.vision.images import PictureError, open_picture

LARGEST = 64 * 1024 * 1024  # bytes of one upload
LONGEST_LOG = 1024 * 1024  # bytes of web.log, and of the one before it
LOG = logging.getLogger("aiohttp.server")
INBOX_LARGEST = 4 * 1024**3  # bytes that the inbox may hold by uploads
OWN = {"console.css": "text/css", "upload.js": "text/javascript"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleServer(Server):
    """Serves one console process per open page on the socket it is given."""

    def __init__(self, places: Places, listening: socket.socket) -> None:
        address = listening.getsockname()
        self._places, self._listening = places, listening
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.port_here: int = address[1]
        # -P: nothing that lies in the working folder is imported.
        words = [sys.executable, "-P", "-m", "vlmconsole", "--home", str(places.home)]
        super().__init__(shlex.join(words), host=shown, port=self.port_here, title="vlmconsole")
        self.public_url = f"http://{shown}:{self.port_here}"
        self._key = secrets.token_urlsafe(24)
        self._cookie = "vlmconsole"
        self._base = f"/{secrets.token_hex(4)}"
        self._hosts = {f"{name}:{self.port_here}" for name in (shown, "127.0.0.1", "localhost")}
        self._page = _asset("index.html").decode()
        self._writing = asyncio.Lock()
        self.door = WebDoor(LOG.warning)

    @property
    def entry(self) -> str:
        """The address to open: it holds the key."""
        return f"{self.public_url}/?key={self._key}"

    def run(self) -> None:
        """Serve until Ctrl+C or TERM. What a malformed request made of aiohttp goes into a log, not on the terminal."""
        LOG.propagate = False
        self._places.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = RotatingFileHandler(
            self._places.state / "web.log", maxBytes=LONGEST_LOG, backupCount=1, delay=True, encoding="utf-8"
        )
        LOG.addHandler(handler)
        with suppress(web.GracefulExit, KeyboardInterrupt):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        runner = web.AppRunner(self.make(), access_log=None, handle_signals=True, shutdown_timeout=3.0)
        try:
            await self.door.serve(runner, self._listening)
        finally:
            await runner.cleanup()

    def make(self) -> web.Application:
        """The application: every route behind :meth:`_guard`."""
        base = self._base
        app = web.Application(middlewares=[self._guard], client_max_size=LARGEST)
        app.add_routes(
            [
                web.get(f"{base}/", self._index),
                web.get(f"{base}/ws", self.handle_websocket),
                web.get(f"{base}/download/{{key}}", self.handle_download),
                web.get(f"{base}/own/{{name}}", self._own),
                web.post(f"{base}/upload", self._upload),
                web.static(f"{base}/static", self.statics_path),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Host, key and (where something is done) Origin; then the headers that keep the page to itself."""
        host = request.headers.get("Host", "")
        if host not in self._hosts:
            return _refused("this console answers only under its own address")
        if request.path == "/" and "key" in request.query:
            if not self._known(request.query["key"]):
                return _refused("this address is of another start; the terminal shows the present one")
            # The key leaves the address bar at once, so that it is in no history and no screenshot.
            moved = web.Response(status=303, headers={"Location": f"{self._base}/"})
            moved.set_cookie(self._cookie, self._key, httponly=True, samesite="Strict", path=f"{self._base}/")
            return moved
        if not self._known(request.cookies.get(self._cookie, "")):
            return _refused("open the address that the terminal shows: it holds the key")
        self.door.known(request.protocol)
        active = request.path.endswith("/ws") or request.method != "GET"
        if active and request.headers.get("Origin") != f"http://{host}":
            return _refused("another page asked for this")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(
                {
                    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline';"
                    f" img-src 'self' data: blob:; connect-src 'self' ws://{host}; frame-ancestors 'none'",
                    "X-Content-Type-Options": "nosniff",
                    "Referrer-Policy": "no-referrer",
                    "Cache-Control": "no-store",
                }
            )
        return response

    def _known(self, key: str) -> bool:
        # Bytes of a cookie that are no text arrive as lone surrogates.
        return hmac.compare_digest(key.encode("utf-8", "surrogateescape"), self._key.encode())

    async def _index(self, request: web.Request) -> web.Response:
        size = request.query.get("fontsize", "16")
        values = {
            "websocket": f"ws://{request.headers['Host']}{self._base}/ws",
            "font_size": size if re.fullmatch(r"\d{1,2}", size) else "16",
        }
        page = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], self._page)
        return web.Response(text=page, content_type="text/html")

    async def _own(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in OWN:
            raise web.HTTPNotFound
        return web.Response(body=_asset(name), content_type=OWN[name], charset="utf-8")

    async def _upload(self, request: web.Request) -> web.Response:
        """One image, as the body; it is kept only when it is an image that the chat can send."""
        if request.headers.get("X-Vlmconsole") != "upload":
            return _json_error(403, "not sent by this page")
        try:
            data = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _json_error(413, f"larger than {size(LARGEST)}")
        name = safe_name(request.query.get("name", ""))
        try:
            picture = await asyncio.to_thread(open_picture, data, name=name)
        except PictureError as error:
            return _json_error(415, error.message)
        async with self._writing:
            try:
                path = await asyncio.to_thread(self._keep, name, data)
            except OSError as error:
                return _json_error(507, f"cannot be kept: {error.strerror or error}")
        return web.json_response(
            {"name": path.name, "path": str(path), "quoted": shlex.quote(str(path)), "said": picture.description}
        )

    def _keep(self, name: str, data: bytes) -> Path:
        """Write `data` into the inbox under a name that is free. Raises OSError."""
        inbox = self._places.inbox
        inbox.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(entry.stat().st_size for entry in inbox.iterdir() if entry.is_file()) + len(data) > INBOX_LARGEST:
            raise OSError(f"the inbox {inbox} is full ({size(INBOX_LARGEST)}); delete what is not needed")
        stem, dot, ending = name.rpartition(".")
        for number in range(1, 10_000):
            path = inbox / (name if number == 1 else f"{stem or ending}-{number}{dot and '.' + ending}")
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
            except OSError:  # the disk is full: half an image helps nobody
                path.unlink(missing_ok=True)
                raise
            return path
        raise OSError(f"{inbox} holds too many files called {name}")


def safe_name(text: str) -> str:
    """A file name without folders, controls and leading dots; whatever it was, it is a name in one folder."""
    last = re.split(r"[/\\]", text)[-1]
    cleaned = "".join(c for c in last if c.isprintable() and c not in '<>:"|?*').strip().lstrip(".-").strip()
    if not cleaned:
        return "picture"
    stem, dot, ending = cleaned.rpartition(".")
    short = stem if dot else ending
    while len(short.encode()) > 120:
        short = short[:-1]
    return f"{short}.{ending[:10]}" if dot else short


def _asset(name: str) -> bytes:
    return (resources.files(vlmconsole.assets) / "web" / name).read_bytes()


def _refused(why: str) -> web.Response:
    return web.Response(status=403, text=f"Refused: {why}.\n")


def _json_error(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": why}), content_type="application/json")
