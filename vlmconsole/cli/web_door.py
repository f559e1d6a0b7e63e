"""Keeps connections of strangers few and short, so that nobody on this machine can lock the owner out.

Whoever connects is a stranger until a request of theirs shows the key. Strangers have little time, and where there are
too many of them the oldest goes; the owner's own connections are never closed here.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from vlmconsole.system.machine import raise_file_limit

STRANGERS = 64  # connections without the key at once; fewer where the machine gives few descriptors
PATIENCE = 15.0  # seconds until one of them must have shown it
MOST_FILES = 65536  # descriptors that are asked for
LOOK = 1.0  # seconds between two looks for those whose time is over
QUIET = 60.0  # seconds between two lines about the same trouble of the machine


class WebDoor:
    """Counts connections of one server; `known` is called with a connection that has shown the key."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since: dict[web.RequestHandler, float] = {}  # strangers, and when each came (monotonic seconds)
        self._most = STRANGERS
        self._told = 0.0

    def known(self, connection: Any) -> None:
        """This one has shown the key: it stays as long as it likes."""
        self._since.pop(connection, None)

    @property
    def strangers(self) -> list[web.RequestHandler]:
        """Open connections that have not shown the key, the oldest first."""
        return [connection for connection in self._since if connection.transport is not None]

    async def serve(self, runner: web.AppRunner, listening: socket.socket) -> None:
        """Accept connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._trouble)
        self._most = min(STRANGERS, _more_descriptors() // 4)
        await runner.setup()
        assert runner.server is not None
        accepting = await loop.create_server(self._watched(runner.server), sock=listening, backlog=128)
        try:
            while True:
                await asyncio.sleep(LOOK)
                self._part(PATIENCE)
        finally:
            accepting.close()

    def _watched(self, server: Callable[[], Any]) -> Callable[[], asyncio.Protocol]:
        def connection() -> asyncio.Protocol:
            self._part(PATIENCE)
            strangers = self.strangers
            for oldest in strangers[: max(0, len(strangers) + 1 - self._most)]:
                _close(oldest)
            handler: web.RequestHandler = server()
            self._since[handler] = time.monotonic()
            return handler

        return connection

    def _part(self, patience: float) -> None:
        """Close the connections of strangers whose time is over."""
        now = time.monotonic()
        for connection, since in list(self._since.items()):
            if connection.transport is None and now - since > LOOK:  # gone, or never really there
                del self._since[connection]
            elif now - since > patience:
                _close(connection)

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The machine's own trouble (no descriptor is free, say) is told once a minute, not ten thousand times."""
        now = time.monotonic()
        if now - self._told >= QUIET or not self._told:
            self._told = now
            self._say(str(context.get("exception") or context.get("message")))


def _close(connection: web.RequestHandler) -> None:
    if connection.transport is not None:
        connection.transport.abort()


def _more_descriptors() -> int:
    """As many open files as the machine's hard limit gives (each page takes several); returns how many."""
    try:
        return raise_file_limit(MOST_FILES)
    except (OSError, ValueError):
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
